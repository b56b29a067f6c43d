package bounds

import (
	"cmp"
	"encoding/binary"
	"math"
	"slices"

	"dsmoe/model"
	"dsmoe/model/tensor"
)

// Equal computations have equal errors. Cloning makes neurons with equal rows of gate_proj and up_proj, upcycling makes
// experts with equal weights. A sum over them adds up deviations, not variances. The analysis finds them by their
// results: numbers and deviations are equal to the bit.

// classesOf returns the classes of x's columns; nil if no two uncertain columns are equal. It goes row by row: a column
// that differs from the first one of its class leaves the class, with those that differ alike.
func classesOf(x *Value) *classes {
	width := x.Width()
	uncertain, certain := make([]bool, width), width
	for t := 0; t < x.Rows() && certain > 0; t++ {
		for i, s := range x.sigma.Row(t) {
			if s != 0 && !uncertain[i] {
				uncertain[i] = true
				certain--
			}
		}
	}
	leader, equal := ascending(width), slices.DeleteFunc(ascending(width), func(i int) bool { return !uncertain[i] })
	for _, i := range equal {
		leader[i] = equal[0]
	}
	var other []differing
	for t := 0; t < x.Rows() && len(equal) > 0; t++ {
		values, sigmas, kept := x.Row(t), x.sigma.Row(t), equal[:0]
		element := func(i int) uint64 {
			return uint64(math.Float32bits(values[i]))<<32 | uint64(math.Float32bits(sigmas[i]))
		}
		other = other[:0]
		for _, i := range equal {
			if first, e := leader[i], element(i); e != element(first) {
				other = append(other, differing{first, i, e})
			} else if first != i {
				kept = append(kept, i)
			}
		}
		slices.SortFunc(other, func(a, b differing) int {
			return cmp.Or(a.first-b.first, cmp.Compare(a.element, b.element), a.column-b.column)
		})
		for n, d := range other {
			if leader[d.column] = d.column; n > 0 && other[n-1].first == d.first && other[n-1].element == d.element {
				leader[d.column] = leader[other[n-1].column]
				kept = append(kept, d.column)
			}
		}
		equal = kept
	}
	if len(equal) == 0 {
		return nil
	}
	c := &classes{class: make([]int, width)}
	for i, first := range leader {
		if first == i {
			c.class[i] = len(c.first)
			c.first = append(c.first, i)
		} else {
			c.class[i] = c.class[first]
		}
	}
	return c
}

// differing is a column whose element differs from that of its class' first column.
type differing struct {
	first, column int
	element       uint64 // bits of the number and of its deviation
}

// ascending returns the numbers 0 … n-1.
func ascending(n int) []int {
	numbers := make([]int, n)
	for i := range numbers {
		numbers[i] = i
	}
	return numbers
}

// carried returns the variances of products of w with rows whose columns have the variances v [rows, in]: [rows, out].
// Each is the larger of two sums:
//
//	Σ w²·v         columns have independent errors
//	Σ (Σ w)²·v     columns of a class have one error; the inner sum is over the class
//
// The first sum holds where a library computes the columns at the edge of a matrix in another order.
func (a *Analysis) carried(v *model.Activation, w *model.Weight, c *classes) *model.Activation {
	y := a.errors.Squares(v, w)
	if c != nil {
		for i, squares := range a.classSquares(v, w, c).Values {
			y.Values[i] = max(y.Values[i], squares)
		}
	}
	return y
}

// classSquares returns Σ (Σ w)²·v over the classes, the inner sum over the columns of a class: [rows, out].
func (a *Analysis) classSquares(v *model.Activation, w *model.Weight, c *classes) *model.Activation {
	out, width, n := w.Shape[0], w.Shape[1], len(c.first)
	y, terms := a.errors.Make(tensor.F32, v.Rows(), out), a.errors.Make(tensor.F32, v.Rows(), n)
	for t := range v.Rows() {
		for class, i := range c.first {
			terms.Row(t)[class] = v.Row(t)[i]
		}
	}
	block := max(1, blockElements/width)
	for from := 0; from < out; from += block {
		rows := min(block, out-from)
		sums := model.Weight{Tensor: tensor.Tensor{DType: tensor.F32, Shape: []int{rows, n}, Data: make([]byte, 4*rows*n)}}
		a.plain.Each(rows, rows*width, func(r int) {
			row := make([]float32, n)
			for i, weight := range a.plain.RowOf(make([]float32, width), w, from+r) {
				row[c.class[i]] += weight
			}
			for class, sum := range row {
				binary.LittleEndian.PutUint32(sums.Data[4*(r*n+class):], math.Float32bits(sum))
			}
		})
		a.errors.WeightPartial(&sums, &model.Partial{V: terms.Values, Each: func(t, r int, _, _, squares []float64) {
			for i, v := range squares {
				y.Row(t)[from+r+i] = float32(v)
			}
		}})
	}
	return y
}

// related is a pair of a token's experts that have neurons in common.
type related struct {
	a, b        weighted
	correlation float64 // of the errors of their outputs; 1 for copies
}

// relatedExperts returns the related pairs of each token. Copies have equal outputs; other pairs have equal deviations
// of neurons.
func (a *Analysis) relatedExperts(parts []model.Part[*Value], terms [][]weighted) [][]related {
	all, known := make([][]related, len(terms)), map[[2]int]float64{}
	for t, terms := range terms {
		for i, w := range terms {
			for _, v := range terms[:i] {
				if sameRow(parts[v.part].Out, v.row, parts[w.part].Out, w.row) {
					all[t] = append(all[t], related{v, w, 1})
					continue
				}
				p, q := parts[v.part].Out.Products, parts[w.part].Out.Products
				if len(p) != 1 || len(q) != 1 {
					continue
				}
				x, y := p[0].neurons(v.row), q[0].neurons(w.row)
				if !haveNeuronsInCommon(x, y) {
					continue
				}
				key := [2]int{v.part, w.part}
				if _, ok := known[key]; !ok {
					known[key] = a.correlation(&p[0].down.Weight, &q[0].down.Weight, x, y)
				}
				if known[key] > 0 {
					all[t] = append(all[t], related{v, w, known[key]})
				}
			}
		}
	}
	return all
}

// sameRow reports whether row i of x and row j of z have equal numbers and equal deviations, not all 0.
func sameRow(x *Value, i int, z *Value, j int) bool {
	same := func(x, z float32) bool { return math.Float32bits(x) == math.Float32bits(z) }
	return x.sigma != nil && z.sigma != nil && slices.EqualFunc(x.Row(i), z.Row(j), same) &&
		slices.EqualFunc(x.sigma.Row(i), z.sigma.Row(j), same) && largest(x.sigma.Row(i)) > 0
}

// neurons returns the standard deviations of a row's neurons, in units of u.
func (p *product) neurons(row int) []float32 {
	width := p.down.Weight.Shape[1]
	return p.hidden[row*width : (row+1)*width]
}

// haveNeuronsInCommon reports whether two experts, whose neurons have the deviations x and y, have at least 1 in 16
// uncertain neurons in common. Neurons with equal rows of gate_proj and up_proj have equal deviations. Fewer neurons
// hardly add to the variance of a sum.
func haveNeuronsInCommon(x, y []float32) bool {
	common, uncertain := 0, 0
	for k, s := range x {
		if s != 0 {
			uncertain++
			if s == y[k] {
				common++
			}
		}
	}
	return common > 0 && 16*common >= uncertain
}

// squares returns the variance of a sum of errors with signed deviations s, the larger of Σ s² and Σ (Σ s)² over the
// classes.
func (c *classes) squares(deviations []float32) float64 {
	independent, ofClasses := 0.0, 0.0
	for _, s := range deviations {
		independent += Sq(float64(s))
	}
	if c == nil {
		return independent
	}
	sums := make([]float64, len(c.first))
	for i, s := range deviations {
		sums[c.class[i]] += float64(s)
	}
	for _, sum := range sums {
		ofClasses += Sq(sum)
	}
	return max(independent, ofClasses)
}

// contribution holds the deviations of an expert's neurons, and their products with a row of M.
type contribution struct{ neurons, values []float32 }

// covariance returns what the neurons in common with earlier experts add to the variance of a projection: 2·Σ
// M_ik·M'_ik·v_k.
func (c contribution) covariance(before []contribution) (more float64) {
	for _, b := range before {
		for k, s := range c.neurons {
			if s == b.neurons[k] {
				more += float64(2 * float64(c.values[k]) * float64(b.values[k]))
			}
		}
	}
	return max(0, more)
}

// correlation returns the correlation that neurons in common give to the outputs of two experts. The neurons have the
// standard deviations x and y, and v = x² = y² in common. It is the mean over up to 64 rows d and e of the two
// down_proj:
//
//	Σ v·d·e / √(Σ (x·d)² · Σ (y·e)²)
func (a *Analysis) correlation(down, other *model.Weight, x, y []float32) float64 {
	const rows = 64
	out, width := down.Shape[0], down.Shape[1]
	d, e := make([]float32, width), make([]float32, width)
	var both, ofX, ofY float64
	for r := 0; r < out; r += (out + rows - 1) / rows {
		d, e = a.plain.RowOf(d, down, r), a.plain.RowOf(e, other, r)
		for k, s := range x {
			dx, ey := float64(d[k])*float64(s), float64(e[k])*float64(y[k])
			ofX += Sq(dx)
			ofY += Sq(ey)
			if s == y[k] {
				both += float64(dx * ey)
			}
		}
	}
	return Ratio(both, math.Sqrt(ofX)*math.Sqrt(ofY))
}

// addRelated adds the covariance of two related experts' terms to a token's sum: 2·ρ·√(v_a·v_b).
func (c *combination) addRelated(y *Value, t int, pair related) {
	for column := range y.Width() {
		_, va := c.share(pair.a, column)
		_, vb := c.share(pair.b, column)
		i := t*y.Width() + column
		y.Set(i, float64(y.Values[i]), y.Variance(i)+float64(2*pair.correlation*math.Sqrt(va)*math.Sqrt(vb)))
	}
}

// splitCommon returns x without its common error, and the deviations that this error causes in x's products with l
// [rows, out]; nil if x has no common error.
func (a *Analysis) splitCommon(x *Value, l *model.Linear) (own *Value, common []float32) {
	if x.common == nil {
		return x, nil
	}
	without := *x
	without.common = nil
	return &without, a.errors.Linear(x.common, &model.Linear{Weight: l.Weight}).Values
}

// addCommon adds the covariances of the products' common error c to the variances of their sum y:
//
//	v += max(0, (Σ g·c)² - Σ (g·c)²)
func (y *Value) addCommon() {
	sums, squares := make([]float64, len(y.Values)), make([]float64, len(y.Values))
	for i := range y.Products {
		p := &y.Products[i]
		for at, c := range p.common {
			to := p.tokens[at/y.Width()]*y.Width() + at%y.Width()
			c := float64(c) * float64(p.weights[at/y.Width()])
			sums[to] += c
			squares[to] += Sq(c)
		}
	}
	for i, sum := range sums {
		if more := Sq(sum) - squares[i]; more > 0 {
			y.Set(i, float64(y.Values[i]), y.Variance(i)+more)
		}
	}
}
