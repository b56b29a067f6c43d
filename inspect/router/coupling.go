package router

// Whether the rows of a router belong to the experts of their numbers. Training moves gate_proj of an expert along the
// tokens that its row sends to it, so that gate_proj responds more to its own row than to others'. Where that shows,
// a conversion that numbers rows and experts apart shows too.

import (
	"fmt"
	"math"
	"slices"

	"dsmoe/inspect"
	"dsmoe/inspect/matrix"
	"dsmoe/model/tensor"
	"dsmoe/model/weights"
)

// coupling is how the rows of a router fit the gate_proj of the experts.
type coupling struct {
	Own     int    `json:"own"`     // experts that fit their own row, and it them, better than all others
	Other   int    `json:"other"`   // experts that fit another row, and it them, better than all others
	Rows    []int  `json:"rows"`    // for each expert the row that it fits so; -1 if it fits none
	Verdict string `json:"verdict"` // CoupledOwn, CoupledPermuted, NotMeasurable or NotChecked
}

// The verdicts of Coupling.
const (
	CoupledOwn      = "own"            // at least half of the experts fit a row, and these are their own
	CoupledPermuted = "permuted"       // at least half fit a row, and two or more another one than their own
	NotMeasurable   = "not measurable" // fewer fit a row: as with random weights
	NotChecked      = "not checked"    // there are fewer than LeastCoupled experts, or one has no gate_proj
)

// LeastCoupled is the number of experts below which no coupling is looked for.
const LeastCoupled = 8

// looseZ is the z-score below which an expert does not fit a row. From inspect.Peers.Limit on it fits.
const looseZ = 3

// String says how many experts fit which rows; nil is "".
func (c *coupling) String() string {
	switch {
	case c == nil:
		return ""
	case c.Verdict == NotMeasurable || c.Verdict == NotChecked:
		return c.Verdict
	}
	return fmt.Sprintf("%s (%d fit their own row, %d another)", c.Verdict, c.Own, c.Other)
}

// couple compares the rows of a router with gate_proj of its experts, if all are present.
//
//	q[e][f] = ‖W_e'·r_f'‖² / ‖r_f'‖²
//
// where r_f' is the row without its share of the mean row, which rows of other norms have more or less of, and W_e' and
// r_f' are whitened: their columns are divided by their RMS, over the neurons and over the rows. A channel that is
// massive in all experts would be all that counts otherwise. q is divided by its median over e, for each f, then by that over f, for each e. Of rows that have nothing to do with an
// expert it is a sum of squares of normal numbers, weighted by the squared singular values of W_e: as few as one
// of them counts where the spectrum falls fast. The cube root of such a sum is nearly normal (E. Wilson, M. Hilferty,
// The Distribution of Chi-Square, 1931). z is its distance from the median of all, in units of inspect.Peers.
func (r *router) couple(x *matrix.Reader, layers int) (*coupling, error) {
	for _, w := range r.experts {
		if len(r.experts) < LeastCoupled || w == nil || inspect.Measurable(w) != nil {
			return &coupling{Rows: []int{}, Verdict: NotChecked}, nil
		}
	}
	values, err := x.Again.All(x.Reader, r.gate, nil)
	if err != nil {
		return nil, err
	}
	rows, energies, own := r.whitened(values), make([][]float64, len(r.experts)), make([]float64, len(r.experts))
	for e, w := range r.experts {
		x.Go(func() (err error) {
			var total float64
			if energies[e], total, err = responses(x, x.Reading, w, rows, len(r.experts)); err != nil {
				return fmt.Errorf("router of layer %d: %w", r.Layer.Layer, err)
			}
			own[e] = math.Log(energies[e][e] / total)
			return nil
		})
	}
	if err := x.Wait(); err != nil {
		return nil, err
	}
	c := couplingOf(relative(energies), layers)
	if c.Verdict == CoupledOwn && !slices.Contains(r.ups, nil) {
		return c, r.compareUps(x, rows, own)
	}
	return c, nil
}

// compareUps fills in by how much more each expert's gate_proj answers to its own row than its up_proj does, with w of
// gate_proj as own is: the logarithm of ‖W'·r‖²/‖W'‖², for the whitened row r of norm 1.
func (r *router) compareUps(x *matrix.Reader, rows []float32, own []float64) error {
	excess := make([]float64, len(r.ups))
	for e, w := range r.ups {
		if inspect.Measurable(w) != nil {
			return nil
		}
		x.Again.Go(func() error {
			squares, total, err := responses(x, x.Again, w, rows[e*r.matrix.Cols:(e+1)*r.matrix.Cols], 1)
			if err != nil {
				return fmt.Errorf("router of layer %d: %w", r.Layer.Layer, err)
			}
			excess[e] = own[e] - math.Log(squares[0]/total)
			return nil
		})
	}
	r.excess = excess
	return x.Again.Wait()
}

// leastExcess is the logarithm by which gate_proj must answer more than up_proj in a layer's median expert, for one
// with the reverse to be told from the others.
const leastExcess = 0.4

// exchangedMatrices finds experts with an up_proj, and not a gate_proj, that answers to their row, in a layer where the
// gate_proj of the others does. The difference is beyond the spread of the experts.
func (r *router) exchangedMatrices() (found []inspect.Observation) {
	p := inspect.PeersOf(r.excess, r.layers*len(r.excess))
	if p == nil || p.Median < leastExcess {
		return nil
	}
	for e, v := range r.excess {
		if p.Odd(v, 1.5*p.Median) && v < 0 {
			o := r.about("exchanged", []int{e}, &v, &p.Median, "up_proj of expert %d answers to its row as gate_proj of the "+
				"others does, by a factor of %.2g, the layer's median being %.2g: gate_proj and up_proj may be exchanged",
				e, math.Exp(-v), math.Exp(p.Median))
			found = append(found, o)
		}
	}
	return found
}

// responses returns ‖W'·r‖² of an expert's matrix for each of n rows, W' being whitened, and ‖W'‖².
func responses(x *matrix.Reader, reading *weights.Reading, w *weights.Weight, rows []float32, n int) (squares []float64,
	total float64, err error) {
	space, p := x.Spaces.Get().(*matrix.Space), matrix.Arithmetic()
	defer x.Spaces.Put(space)
	defer p.Close(nil)
	m, err := x.Matrix(reading, w, &space.First)
	if err != nil {
		return nil, 0, err
	}
	rows = slices.Clone(rows)
	sizes := columnSizes(m.Values, m.Cols)
	divide(rows, sizes)
	for _, size := range sizes {
		if size > 0 {
			total += float64(m.Rows)
		}
	}
	products := p.Product(rows, m.Values, m.Cols)
	for f := range n {
		product := products[f*m.Rows : (f+1)*m.Rows]
		squares = append(squares, matrix.Dot(product, product))
	}
	return squares, total, nil
}

// divide divides columns by their sizes, unless they are 0.
func divide(rows []float32, sizes []float64) {
	for i := range rows {
		if size := sizes[i%len(sizes)]; size > 0 {
			rows[i] = float32(float64(rows[i]) / size)
		}
	}
}

// columnSizes returns the RMS of each column of a matrix; 0 for one below 1e-20, which holds nothing.
func columnSizes(values []float32, cols int) []float64 {
	sizes := make([]float64, cols)
	for i, v := range values {
		sizes[i%cols] += float64(v) * float64(v)
	}
	for c := range sizes {
		if sizes[c] = math.Sqrt(sizes[c] / float64(len(values)/cols)); sizes[c] < 1e-20 {
			sizes[c] = 0
		}
	}
	return sizes
}

// whitened returns the rows, of norm 1, whitened, without their shares of the mean row; one without more is 0. It
// changes them.
func (r *router) whitened(rows []float32) []float32 {
	cols := r.matrix.Cols
	normalise(rows, cols) // so that no row decides what the columns, and the mean, are
	divide(rows, columnSizes(rows, cols))
	normalise(rows, cols)
	mean, squares := make([]float64, cols), 0.0
	for i, v := range rows {
		mean[i%cols] += float64(v)
	}
	for _, v := range mean {
		squares += float64(v * v)
	}
	for row := range slices.Chunk(rows, cols) {
		share := 0.0
		for c, v := range row {
			share += float64(float64(v) * mean[c])
		}
		for c, v := range row {
			row[c] = float32(float64(v) - float64(share/max(squares, math.SmallestNonzeroFloat64)*mean[c]))
		}
	}
	normalise(rows, cols)
	return rows
}

// normalise gives rows the norm 1; those that are 0 stay so.
func normalise(rows []float32, cols int) {
	for row := range slices.Chunk(rows, cols) {
		norm := math.Sqrt(matrix.Dot(row, row))
		for c := range row {
			if norm > 0 {
				row[c] /= float32(norm)
			}
		}
	}
}

// relative divides energies by the medians of their columns, then of their rows; nil if one of these is 0 or not finite.
// Those of a row, or of an expert, that is all 0 become 1: they fit nothing.
func relative(energies [][]float64) [][]float64 {
	n := len(energies)
	column := make([]float64, n)
	for pass := range 2 {
		for f := range n {
			for e := range n {
				column[e] = *element(energies, e, f, pass)
			}
			median := inspect.LowerMedian(column)
			if column[0] == 0 && column[n-1] == 0 { // sorted
				for e := range n {
					*element(energies, e, f, pass) = 1
				}
				continue
			}
			if !(median > 0) || !tensor.IsFinite(median) {
				return nil
			}
			for e := range n {
				*element(energies, e, f, pass) /= median
			}
		}
	}
	return energies
}

// element is the element of row e and column f, or with pass 1 of row f and column e.
func element(m [][]float64, e, f, pass int) *float64 {
	if pass == 1 {
		return &m[f][e]
	}
	return &m[e][f]
}

// couplingOf finds the experts and rows that fit, each the other's best, in one of so many layers.
func couplingOf(energies [][]float64, layers int) *coupling {
	c := &coupling{Rows: []int{}, Verdict: NotMeasurable}
	var all []float64
	for _, row := range energies {
		for _, v := range row {
			all = append(all, math.Cbrt(v))
		}
	}
	peers := inspect.PeersOf(all, layers*len(all))
	if peers == nil {
		return c
	}
	z := func(v float64) float64 { return peers.Z(math.Cbrt(v)) }
	foreign := 0 // matches with the row of an expert that does not fit it either
	for e, row := range energies {
		c.Rows = append(c.Rows, -1)
		best := largest(len(row), func(f int) float64 { return row[f] })
		if best < 0 || largest(len(energies), func(i int) float64 { return energies[i][best] }) != e {
			continue
		}
		if !(z(row[best]) >= peers.Limit) {
			continue
		}
		switch c.Rows[e] = best; {
		case best == e:
			c.Own++
		default:
			c.Other++
			if z(row[e]) < looseZ && z(energies[best][best]) < looseZ { // otherwise one of them is a copy of the other
				foreign++
			}
		}
	}
	switch {
	case 2*(c.Own+c.Other) < len(energies):
	case foreign >= 2:
		c.Verdict = CoupledPermuted
	default:
		c.Verdict = CoupledOwn
	}
	return c
}

// largest returns the first index of the largest of n numbers; -1 if all are NaN.
func largest(n int, value func(i int) float64) int {
	best := -1
	for i := range n {
		if v := value(i); v == v && (best < 0 || v > value(best)) {
			best = i
		}
	}
	return best
}
