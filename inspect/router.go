package inspect

// What the routers are: their rows, and what these allow.

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"

	"dsmoe/model/weights"
	"dsmoe/text"
)

// RouterOptions says what ExamineRouters looks at; the zero value is all routers, without Coupling.
type RouterOptions struct {
	Selection Selection
	Coupling  bool     // holds the rows against the experts' gate_proj, which are read for that
	By        Grouping // rows of the sheet: ByExpert, also "", or ByLayer
}

// RouterReport is what the routers of a checkpoint are.
type RouterReport struct {
	Path       string        `json:"path"`        // of the checkpoint, as it was given
	Layers     []LayerRouter `json:"layers"`      // those whose router is selected, in their order
	Findings   []Observation `json:"findings"`    // in the order of the layers
	NotCounted []NotCounted  `json:"not_counted"` // weights that are selected and have no numbers

	by Grouping
}

// LayerRouter is the router of a layer, mlp.gate.weight [experts, hidden].
type LayerRouter struct {
	Layer     int         `json:"layer"`
	Tensor    string      `json:"tensor"`    // its name
	Rows      []RouterRow `json:"rows"`      // one for each expert
	Norm      *Spread     `json:"norm"`      // of RouterRow.Norm
	Pairs     *PairSpread `json:"pairs"`     // the cosines of all pairs of rows
	Singular  []float64   `json:"singular"`  // the singular values, the largest first; empty if a number is not finite
	Condition *float64    `json:"condition"` // the largest singular value over the smallest; null if that is 0 to the precision of float64
	// NullCondition is (1 + √(experts/hidden)) / (1 - √(experts/hidden)), of a matrix of
	// independent random numbers; null unless there are fewer experts than hidden.
	NullCondition *float64  `json:"null_condition"`
	Bias          *Spread   `json:"bias"`     // of RouterRow.Bias; null if there is none
	Coupling      *Coupling `json:"coupling"` // null unless it was asked for

	cosines Cosines
}

// Cosines returns the cosines of all pairs of rows.
func (l *LayerRouter) Cosines() Cosines { return l.cosines }

// RouterRow is the row of one expert, its centroid.
type RouterRow struct {
	Expert   int        `json:"expert"`
	Norm     *float64   `json:"norm"`      // √Σr²; null if a number is not finite
	NormZ    *float64   `json:"norm_z"`    // robust z-score of Norm in the layer
	MaxLogit *float64   `json:"max_logit"` // √hidden·‖r∘w‖: no token's logit is larger, of either sign
	Bias     *float64   `json:"bias"`      // e_score_correction_bias; null if there is none
	Nearest  *Neighbour `json:"nearest"`   // the row with the cosine of the largest magnitude
	Proven   string     `json:"proven"`    // "never" or "always" chosen, whatever the token; "" if neither is proven
}

// Coupling is how the rows of a router fit the gate_proj of the experts.
type Coupling struct {
	Own     int    `json:"own"`     // experts that fit their own row, and it them, better than all others
	Other   int    `json:"other"`   // experts that fit another row, and it them, better than all others
	Rows    []int  `json:"rows"`    // for each expert the row that it fits so; -1 for none
	Verdict string `json:"verdict"` // "own", "permuted", "not measurable" or, below 8 experts or if one lacks gate_proj, "not looked at"
}

// The names of a router's weights behind the module of its layer's MLPs.
const (
	routerName = ".mlp.gate.weight"
	biasName   = ".mlp.gate.e_score_correction_bias"
)

// layerWeights is what of a layer is about its router.
type layerWeights struct {
	layer            int
	gate, bias, norm *weights.Weight   // nil if it is not there
	experts          []*weights.Weight // gate_proj of the routed experts, by their numbers
}

// selectedRouters collects the routers of the selected weights, and what belongs to them.
func selectedRouters(w *Weights, s Selection) (all []*layerWeights, not []NotCounted, err error) {
	list, err := w.pick(s)
	if err != nil {
		return nil, nil, err
	}
	not = []NotCounted{}
	at := map[int]*layerWeights{}
	for _, x := range list {
		l := placeOf(x.Name).layer
		if l < 0 || !strings.HasSuffix(x.Name, routerName) {
			continue
		}
		if err := measurable(x); err != nil {
			not = append(not, NotCounted{x.Name, x.DType, err.Error()})
			continue
		}
		at[l] = &layerWeights{layer: l, gate: x, experts: make([]*weights.Weight, x.Shape[0])}
		all = append(all, at[l])
	}
	if len(all)+len(not) == 0 {
		return nil, nil, errors.New("no router is selected, or there is none")
	}
	for _, x := range w.List {
		if l := at[placeOf(x.Name).layer]; l != nil && countable(x) == nil {
			l.take(x)
		}
	}
	slices.SortFunc(all, func(a, b *layerWeights) int { return a.layer - b.layer })
	return all, not, nil
}

// take adds a weight of the layer, if its shape fits.
func (l *layerWeights) take(w *weights.Weight) {
	experts, width := l.gate.Shape[0], l.gate.Shape[1]
	number, _, projection, isMLP := mlpOf(w.Name)
	switch {
	case strings.HasSuffix(w.Name, biasName) && slices.Equal(w.Shape, []int{experts}):
		l.bias = w
	case strings.HasSuffix(w.Name, normName) && slices.Equal(w.Shape, []int{width}):
		l.norm = w
	case isMLP && projection == gateProj && number >= 0 && number < experts && len(w.Shape) == 2 && w.Shape[1] == width:
		l.experts[number] = w
	}
}

// ExamineRouters looks at the selected routers. What cannot be read is an error that names all of
// it.
func ExamineRouters(ctx context.Context, w Weights, o RouterOptions) (*RouterReport, error) {
	if len(o.Selection.Experts) > 0 {
		return nil, errors.New("the rows of a router are held against each other: all experts are looked at, or none")
	}
	layers, not, err := selectedRouters(&w, o.Selection)
	if err != nil {
		return nil, err
	}
	x := newExamination(ctx, w)
	for _, l := range layers {
		x.Expect(l.bytes(o.Coupling))
	}
	all := make([]*routerNumbers, len(layers))
	for i, l := range layers {
		x.Go(func() (err error) {
			all[i], err = x.router(l)
			return err
		})
	}
	if err := x.Wait(); err != nil {
		return nil, err
	}
	r := &RouterReport{Path: w.Path, Layers: []LayerRouter{}, Findings: []Observation{}, NotCounted: not, by: o.By}
	for i, l := range layers {
		if o.Coupling {
			if all[i].Coupling, err = x.coupling(l, all[i]); err != nil {
				return nil, err
			}
		}
		all[i].prove(w.Config)
		r.Findings = append(r.Findings, all[i].observe()...)
		r.Layers = append(r.Layers, all[i].LayerRouter)
	}
	return r, nil
}

// bytes is the size of what is read of a layer.
func (l *layerWeights) bytes(coupling bool) (n int64) {
	all := []*weights.Weight{l.gate, l.bias, l.norm}
	if coupling {
		all = append(all, l.experts...)
	}
	for _, w := range all {
		if w != nil {
			n += w.Bytes()
		}
	}
	return n
}

// routerNumbers is a router while it is looked at.
type routerNumbers struct {
	LayerRouter
	matrix
	bias, norm []float32 // nil if there are none
	print      []uint64  // hashes of the rows
}

// router reads a router.
func (x *examination) router(l *layerWeights) (*routerNumbers, error) {
	r := &routerNumbers{LayerRouter: LayerRouter{Layer: l.layer, Tensor: l.gate.Name, Rows: []RouterRow{}, Singular: []float64{}}}
	var values []float32
	for _, part := range []struct {
		w  *weights.Weight
		to *[]float32
	}{{l.gate, &values}, {l.bias, &r.bias}, {l.norm, &r.norm}} {
		if part.w == nil {
			continue
		}
		var err error
		if *part.to, err = x.All(x.Reader, part.w, nil); err != nil {
			return nil, err
		}
	}
	r.matrix = matrix{values, l.gate.Shape[0], l.gate.Shape[1]}
	r.measure()
	return r, nil
}

// measure fills in what the rows are by themselves and beside each other.
func (r *routerNumbers) measure() {
	var norms, biases []*float64
	for e := range r.rows {
		row := RouterRow{Expert: e, Norm: finite(math.Sqrt(dot(r.row(e), r.row(e))))}
		if r.norm != nil {
			row.MaxLogit = finite(r.largestLogit(e))
		}
		if r.bias != nil {
			row.Bias = finite(float64(r.bias[e]))
			biases = append(biases, row.Bias)
		}
		hash := uint64(0)
		for _, v := range r.row(e) {
			hash = mixed(hash, bitsOf(v))
		}
		r.print = append(r.print, hash)
		norms, r.Rows = append(norms, row.Norm), append(r.Rows, row)
	}
	r.Norm, r.Bias = spreadOf(norms), spreadOf(biases)
	g, numbers := newGram(r.rows), make([]int, r.rows)
	for i := range r.rows {
		numbers[i] = i
		for k := i; k < r.rows; k++ {
			g.sums[i*r.rows+k] = dot(r.row(i), r.row(k))
		}
	}
	r.cosines = g.cosines(r.rows, numbers)
	r.Pairs = pairSpread(r.cosines, numbers, 1/math.Sqrt(float64(r.cols)))
	for e := range r.Rows {
		r.Rows[e].NormZ = r.Norm.z(r.Rows[e].Norm)
		r.Rows[e].Nearest = r.nearest(e)
	}
	r.spectrum(g)
}

// dot is Σab in float64, in the order of the elements.
func dot(a, b []float32) (sum float64) {
	for i, v := range a {
		sum += float64(v) * float64(b[i]) // the product of two float32 is exact
	}
	return sum
}

// nearest returns the row with the cosine of the largest magnitude.
func (r *routerNumbers) nearest(e int) (best *Neighbour) {
	for k, v := range r.cosines[e] {
		if k != e && v == v && (best == nil || magnitude(v) > magnitude(best.Cosine)) {
			best = &Neighbour{k, v}
		}
	}
	return best
}

// leastSingular is the share of the largest singular value below which one is not told from 0: they
// are roots of eigenvalues of products in float64.
const leastSingular = 1e-7

// spectrum fills in the singular values.
func (r *routerNumbers) spectrum(g *gram) {
	ratio := math.Sqrt(float64(r.rows) / float64(r.cols))
	if ratio < 1 {
		r.NullCondition = finite((1 + ratio) / (1 - ratio))
	}
	values := eigenvalues(g)
	if values == nil {
		return
	}
	for _, v := range values[:min(r.rows, r.cols)] {
		r.Singular = append(r.Singular, math.Sqrt(max(v, 0)))
	}
	least, most := r.Singular[len(r.Singular)-1], r.Singular[0]
	if most > 0 && least > leastSingular*most {
		r.Condition = finite(most / least)
	}
}

// jacobiSweeps is how many times eigenvalues goes through a matrix at most; it stops earlier.
const jacobiSweeps = 30

// eigenvalues returns those of a symmetric matrix, the largest first, by the cyclic Jacobi method: G.
// Golub and C. Van Loan, Matrix Computations, 8.5. nil if a number is not finite.
func eigenvalues(g *gram) []float64 {
	n := g.n
	a := make([]float64, n*n)
	total := 0.0
	for i := range n {
		for k := i; k < n; k++ {
			v := g.sums[i*n+k]
			if v-v != 0 {
				return nil
			}
			a[i*n+k], a[k*n+i] = v, v
			total += float64(v * v)
		}
	}
	for range jacobiSweeps {
		if off := sweep(a, n); !(off > 1e-32*total) {
			break
		}
	}
	values := make([]float64, n)
	for i := range values {
		values[i] = a[i*n+i]
	}
	slices.SortFunc(values, func(x, y float64) int {
		if x > y {
			return -1
		}
		return 1
	})
	return values
}

// sweep makes each element beside the diagonal 0 once, and returns the sum of the squares that they had.
func sweep(a []float64, n int) (off float64) {
	for p := range n {
		for q := p + 1; q < n; q++ {
			v := a[p*n+q]
			off += float64(v * v)
			if v != 0 {
				rotate(a, n, p, q)
			}
		}
	}
	return off
}

// rotate makes a[p][q] 0.
func rotate(a []float64, n, p, q int) {
	tau := (a[q*n+q] - a[p*n+p]) / (2 * a[p*n+q])
	t := 1 / (math.Abs(tau) + math.Sqrt(1+float64(tau*tau)))
	if tau < 0 {
		t = -t
	}
	if t == 0 || t != t {
		return
	}
	c := 1 / math.Sqrt(1+float64(t*t))
	s := t * c
	for k := range n {
		x, y := a[p*n+k], a[q*n+k]
		a[p*n+k], a[q*n+k] = float64(c*x)-float64(s*y), float64(s*x)+float64(c*y)
	}
	for k := range n {
		x, y := a[k*n+p], a[k*n+q]
		a[k*n+p], a[k*n+q] = float64(c*x)-float64(s*y), float64(s*x)+float64(c*y)
	}
	a[p*n+q], a[q*n+p] = 0, 0
}

// rowFactor is how many times the median a row's norm must be, or the median it, to be told of.
const rowFactor = 4

// equalRows is the cosine from which on two rows are told of, if their norms are within equalNorms
// of each other.
const (
	equalRows  = 0.99
	equalNorms = 1.1
)

// observe says what is odd about a router.
func (r *routerNumbers) observe() (found []Observation) {
	add := func(id string, experts []int, value, expected *float64, format string, args ...any) {
		found = append(found, Observation{ID: id, Layer: r.Layer, Experts: experts, Tensor: r.Tensor, Text: fmt.Sprintf(format, args...), Value: value, Expected: expected})
	}
	for e := range r.Rows {
		row := &r.Rows[e]
		switch {
		case row.Norm == nil:
			add("not-finite", []int{e}, nil, nil, "row %d has numbers that are not finite", e)
		case *row.Norm == 0:
			add("dead-row", []int{e}, row.Norm, &r.Norm.Median, "row %d is all zero: the logit of expert %d is 0 for every token", e, e)
		case len(r.Rows) >= leastPeers && r.Norm.far(row.Norm, rowFactor):
			add("row-norm", []int{e}, row.Norm, &r.Norm.Median, "row %d has norm %.4g, the layer's median is %.4g", e, *row.Norm, r.Norm.Median)
		}
		if r.bias != nil && row.Bias == nil {
			add("not-finite", []int{e}, nil, nil, "e_score_correction_bias of expert %d is not finite", e)
		}
		if row.Proven != "" {
			add(row.Proven+"-chosen", []int{e}, row.Bias, &r.Bias.Median, "expert %d is %s chosen, whatever the token: its e_score_correction_bias is %.4g, the layer's median %.4g", e, row.Proven, *row.Bias, r.Bias.Median)
		}
	}
	for _, group := range r.equalRows() {
		add("duplicate-row", group, finite(1), finite(0), "rows %s are equal", text.Ranges(group))
	}
	for e := range r.Rows {
		for k := range e {
			if c := r.cosines[k][e]; c >= equalRows && r.print[k] != r.print[e] && max(*r.Rows[e].Norm, *r.Rows[k].Norm) <= equalNorms*min(*r.Rows[e].Norm, *r.Rows[k].Norm) {
				add("near-duplicate-row", []int{k, e}, finite(c), finite(0), "rows %d and %d have cosine %.4f, and norms %.4g and %.4g", k, e, c, *r.Rows[k].Norm, *r.Rows[e].Norm)
			}
		}
	}
	if c := r.Coupling; c != nil && c.Verdict == coupledPermuted {
		var experts, rows []int
		for e, row := range c.Rows {
			if row >= 0 && row != e {
				experts, rows = append(experts, e), append(rows, row)
			}
		}
		add("permuted", experts, finite(float64(c.Other)), finite(0), "gate_proj of experts %s fit the rows %s, not their own: rows and experts may have been numbered apart", list(experts), list(rows))
	}
	return found
}

// list writes the first of many numbers, in their order.
func list(numbers []int) string {
	var words []string
	for _, n := range numbers {
		words = append(words, fmt.Sprint(n))
	}
	return listed(words)
}

// equalRows returns the rows that are equal to others and not zero.
func (r *routerNumbers) equalRows() (groups [][]int) {
	done := map[int]bool{}
	for e := range r.Rows {
		group := []int{e}
		for k := e + 1; k < r.rows && r.Rows[e].Norm != nil && *r.Rows[e].Norm > 0; k++ {
			if !done[k] && r.print[k] == r.print[e] && slices.Equal(r.row(k), r.row(e)) {
				group, done[k] = append(group, k), true
			}
		}
		if len(group) > 1 && !done[e] {
			groups = append(groups, group)
		}
	}
	return groups
}
