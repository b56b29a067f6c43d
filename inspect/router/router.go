// Package router says what the routers of a checkpoint are: their rows, each by itself and beside the others, and
// which choices they allow.
package router

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"

	"gonum.org/v1/gonum/mat"

	"dsmoe/inspect"
	"dsmoe/inspect/matrix"
	"dsmoe/model/table"
	"dsmoe/model/tensor"
	"dsmoe/model/weights"
	"dsmoe/text"
)

// Options says what Examine looks at; the zero value is all routers, without Coupling.
type Options struct {
	Selection inspect.Selection
	Coupling  bool             // compares the rows with the experts' gate_proj, which it reads
	By        inspect.Grouping // rows of the sheet: ByExpert, also "", or ByLayer
}

// Report is what the routers of a checkpoint are.
type Report struct {
	Path   string  `json:"path"`   // of the checkpoint, as the user gave it
	Layers []Layer `json:"layers"` // layers whose router is selected, in their order
	inspect.Examined

	by inspect.Grouping
}

// Layer is the router of a layer, mlp.gate.weight [experts, hidden].
type Layer struct {
	Layer     int                `json:"layer"`
	Tensor    string             `json:"tensor"`    // its name
	Rows      []row              `json:"rows"`      // one for each expert
	Norm      *inspect.Spread    `json:"norm"`      // of Row.Norm
	Pairs     *matrix.PairSpread `json:"pairs"`     // the cosines of all pairs of rows
	Singular  []float64          `json:"singular"`  // values, the largest first, 0 below 1e-7 of it; empty if not finite
	Condition *float64           `json:"condition"` // the largest singular value over the smallest; null if that is 0
	// NullCondition is (1 + √(experts/hidden)) / (1 - √(experts/hidden)), of a matrix of independent random
	// numbers; null unless there are fewer experts than hidden.
	NullCondition *float64        `json:"null_condition"`
	Bias          *inspect.Spread `json:"bias"`     // of Row.Bias; null if the router has no bias
	Coupling      *coupling       `json:"coupling"` // null unless Options asks for it
	Table         *Table          `json:"table"`    // null unless experts are chosen by it, and not by the rows
}

// row is the row of one expert, its centroid.
type row struct {
	Expert   int               `json:"expert"`
	Norm     *float64          `json:"norm"`      // √Σr²; null if a number is not finite
	NormZ    *float64          `json:"norm_z"`    // robust z-score of Norm in the layer
	MaxLogit *float64          `json:"max_logit"` // √hidden·‖r∘w‖: no token's logit is larger, of either sign
	Bias     *float64          `json:"bias"`      // e_score_correction_bias; null if the router has none
	Nearest  *matrix.Neighbour `json:"nearest"`   // the row with the cosine of the largest magnitude
	Tokens   *int64            `json:"tokens"`    // that Table gives the expert; null without a table
	Proven   string            `json:"proven"`    // "never" or "always" chosen, whatever the token; "" if unproven
}

// router is a router while Examine looks at it.
type router struct {
	Layer
	layers     int            // routers that Examine looks at
	matrix     matrix.Matrix  // its numbers while it is read
	bias, norm []float32      // nil if the layer has none
	hashes     []uint64       // of the rows
	equal      [][]int        // sets of equal rows
	excess     []float64      // of each expert: see compareUps; nil if unknown
	sizes      []float64      // mean of log₂|w| of each row; NaN if it is zero
	peers      *inspect.Peers // of sizes; nil if there are too few
	cosines    matrix.Cosines

	gate, biasWeight, normWeight *weights.Weight   // the last two are nil if the layer has none
	tableWeight                  *weights.Weight   // tid2eid; nil if the layer has none
	experts, ups                 []*weights.Weight // gate_proj and up_proj of the routed experts, by their numbers
}

// Reads reports whether Examine may read a weight, with these options. isMoE tells the layers with routers.
func (o Options) Reads(isMoE func(layer int) bool, w *weights.Weight) bool {
	at := w.OwnerPlace()
	isNorm := at.Role() == table.PostAttentionLayernorm && isMoE(at.Layer)
	return inspect.Selection{Layers: o.Selection.Layers}.Has(w.Name) &&
		(isNorm || at.Module() == table.Router || o.Coupling && at.Module() == table.RoutedExperts)
}

// selected collects the routers of the selected weights, with the weights that belong to them.
func selected(w *inspect.Weights, s inspect.Selection) (all []*router, not []inspect.NotCounted, err error) {
	list, err := w.Pick(s)
	if err != nil {
		return nil, nil, err
	}
	not = []inspect.NotCounted{}
	byLayer := map[int]*router{}
	for _, x := range list {
		if x.Layer < 0 || !x.Is(table.Router, table.Gate) {
			continue
		}
		if err := inspect.Measurable(x); err != nil {
			not = append(not, inspect.Skip(x, err))
			continue
		}
		r := &router{Layer: Layer{Layer: x.Layer, Tensor: x.Name, Rows: []row{}, Singular: []float64{}}, gate: x,
			experts: make([]*weights.Weight, x.Shape[0]), ups: make([]*weights.Weight, x.Shape[0])}
		byLayer[x.Layer], all = r, append(all, r)
	}
	if len(all)+len(not) == 0 {
		return nil, nil, errors.New("no router is selected, or there is none")
	}
	for _, x := range w.List {
		r := byLayer[x.Layer]
		if r == nil {
			continue
		}
		experts, width := r.gate.Shape[0], r.gate.Shape[1]
		switch {
		case x.Is(table.Router, table.TID2EID) && x.DType.Integer() && x.DType.Bytes(1) == 8 && len(x.Shape) == 2:
			r.tableWeight = x
		case inspect.Countable(x) != nil:
		case x.Is(table.Router, table.EScoreCorrectionBias) && slices.Equal(x.Shape, []int{experts}):
			r.biasWeight = x
		case x.Role() == table.PostAttentionLayernorm && slices.Equal(x.Shape, []int{width}):
			r.normWeight = x
		case x.Expert >= experts || len(x.Shape) != 2 || x.Shape[1] != width:
		case x.Is(table.RoutedExperts, table.GateProj):
			r.experts[x.Expert] = x
		case x.Is(table.RoutedExperts, table.UpProj):
			r.ups[x.Expert] = x
		}
	}
	slices.SortFunc(all, func(a, b *router) int { return a.Layer.Layer - b.Layer.Layer })
	return all, not, nil
}

// Examine looks at the selected routers. The error names every weight that cannot be read.
func Examine(ctx context.Context, w inspect.Weights, o Options) (*Report, error) {
	if err := w.Config.Computable(); err != nil {
		return nil, err
	}
	if len(o.Selection.Experts) > 0 {
		return nil, errors.New("--experts cannot be combined with router: a router's rows are compared with each other")
	}
	routers, not, err := selected(&w, o.Selection)
	if err != nil {
		return nil, err
	}
	x := matrix.NewReader(ctx, w)
	for _, r := range routers {
		all := []*weights.Weight{r.gate, r.biasWeight, r.normWeight, r.tableWeight}
		if o.Coupling {
			all = append(all, r.experts...)
		}
		for _, w := range all {
			if w != nil {
				x.Expect(w.Bytes())
			}
		}
	}
	for _, r := range routers {
		x.Go(func() error { return r.read(x) })
	}
	if err := x.Wait(); err != nil {
		return nil, err
	}
	report := &Report{Path: w.Path, Layers: []Layer{}, Examined: inspect.Examined{NotCounted: not}, by: o.By}
	for _, r := range routers {
		if o.Coupling {
			if r.Coupling, err = r.couple(x, len(routers)); err != nil {
				return nil, err
			}
		}
		r.layers = len(routers)
		r.peers = inspect.PeersOf(r.sizes, len(routers)*len(r.Rows))
		r.prove(w.Config)
		report.Observed = append(report.Observed, r.observe()...)
		report.Layers = append(report.Layers, r.Layer)
	}
	report.Conclude(report.Observed)
	return report, nil
}

// read reads and measures a router.
func (r *router) read(x *matrix.Reader) (err error) {
	space := x.Spaces.Get().(*matrix.Space)
	defer x.Spaces.Put(space)
	m, err := x.Matrix(x.Reading, r.gate, &space.First)
	if err != nil {
		return err
	}
	r.matrix = *m
	defer func() { r.matrix.Values = nil }() // of one layer at a time
	if r.biasWeight != nil {
		if r.bias, err = x.All(x.Reader, r.biasWeight, nil); err != nil {
			return err
		}
	}
	if r.normWeight != nil {
		if r.norm, err = x.All(x.Reader, r.normWeight, nil); err != nil {
			return err
		}
	}
	r.measure()
	return r.readTable(x)
}

// measure fills in what the rows are by themselves and beside each other.
func (r *router) measure() {
	n := r.matrix.Rows
	var norms, biases []*float64
	g, numbers := matrix.NewGram(n), make([]int, n)
	for e := range n {
		numbers[e] = e
		for k := e; k < n; k++ {
			g.Sums[e*n+k] = matrix.Dot(r.matrix.Row(e), r.matrix.Row(k))
		}
		row := row{Expert: e, Norm: inspect.Finite(math.Sqrt(g.Sums[e*n+e]))}
		if r.norm != nil {
			squares := 0.0
			for c, v := range r.matrix.Row(e) {
				a := float64(v) * float64(r.norm[c])
				squares += float64(a * a)
			}
			row.MaxLogit = inspect.Finite(math.Sqrt(squares) * math.Sqrt(float64(r.matrix.Cols)))
		}
		if r.bias != nil {
			row.Bias = inspect.Finite(float64(r.bias[e]))
			biases = append(biases, row.Bias)
		}
		hash, size := uint64(0), matrix.LogSum{}
		for _, v := range r.matrix.Row(e) {
			hash = matrix.Mix(hash, matrix.Bits(v))
			size.Add(v)
		}
		r.hashes, r.sizes = append(r.hashes, hash), append(r.sizes, size.Log2())
		norms, r.Rows = append(norms, row.Norm), append(r.Rows, row)
	}
	r.Norm, r.Bias = inspect.SpreadOf(norms), inspect.SpreadOf(biases)
	r.cosines = g.Cosines(n, numbers)
	r.Pairs = r.cosines.Pairs(numbers, 1/math.Sqrt(float64(r.matrix.Cols)))
	for e := range r.Rows {
		r.Rows[e].NormZ = r.Norm.Z(r.Rows[e].Norm)
		r.Rows[e].Nearest = r.cosines.Nearest(e, numbers, inspect.Magnitude)
	}
	r.spectrum(g)
	r.equal = connected(n, func(a, b int) bool { // and not zero
		norm := r.Rows[a].Norm
		return norm != nil && *norm > 0 && r.hashes[a] == r.hashes[b] && slices.Equal(r.matrix.Row(a), r.matrix.Row(b))
	})
}

// leastSingular is the share of the largest singular value below which one is 0: to the precision of the roots of
// eigenvalues of products in float64, it may be.
const leastSingular = 1e-7

// spectrum fills in the singular values: the roots of the eigenvalues of the products of the rows.
func (r *router) spectrum(g *matrix.Gram) {
	ratio := math.Sqrt(float64(r.matrix.Rows) / float64(r.matrix.Cols))
	if ratio < 1 {
		r.NullCondition = inspect.Finite((1 + ratio) / (1 - ratio))
	}
	var eigen mat.EigenSym
	if slices.ContainsFunc(g.Sums, func(v float64) bool { return !tensor.IsFinite(v) }) ||
		!eigen.Factorize(mat.NewSymDense(g.N, g.Sums), false) {
		return
	}
	values := eigen.Values(nil) // ascending
	slices.Reverse(values)
	most := math.Sqrt(max(values[0], 0))
	for _, v := range values[:min(r.matrix.Rows, r.matrix.Cols)] {
		if v = math.Sqrt(max(v, 0)); v <= leastSingular*most {
			v = 0
		}
		r.Singular = append(r.Singular, v)
	}
	if least := r.Singular[len(r.Singular)-1]; least > 0 {
		r.Condition = inspect.Finite(most / least)
	}
}

// rowFactor is how many times the median a row's typical magnitude must be, or the median it, to be a finding, beside
// being beyond inspect.Peers.Limit.
const rowFactor = 4

// equalRows is the cosine from which on two rows are a finding, if their norms are within equalNorms of each other.
const (
	equalRows  = 0.99
	equalNorms = 1.1
)

// observe returns what is odd about a router.
func (r *router) observe() (found []inspect.Observation) {
	for e := range r.Rows {
		found = append(found, r.observeRow(e)...)
	}
	if t := r.Table; t != nil && t.Outside > 0 {
		outside := float64(t.Outside)
		found = append(found, inspect.Observation{ID: "not-an-expert", Layer: r.Layer.Layer, Experts: []int{},
			Tensor: t.Tensor, Value: &outside, Text: fmt.Sprintf("%d numbers are not experts: 0 to %d", t.Outside, len(r.Rows)-1)})
	}
	for _, group := range r.equal {
		found = append(found, r.about("duplicate-row", group, inspect.Finite(1), inspect.Finite(0),
			"rows %s are equal", text.Ranges(group)))
	}
	found = append(found, r.nearRows()...)
	if c := r.Coupling; c != nil && c.Verdict == CoupledPermuted {
		var experts, rows []int
		for e, row := range c.Rows {
			if row >= 0 && row != e {
				experts, rows = append(experts, e), append(rows, row)
			}
		}
		found = append(found, r.about("permuted", experts, inspect.Finite(float64(c.Other)), inspect.Finite(0),
			"gate_proj of experts %s fit the rows %s, not their own: rows and experts may have been numbered apart",
			inspect.List(experts), inspect.List(rows)))
	}
	return append(found, r.exchangedMatrices()...)
}

// about returns an observation about rows of the router.
func (r *router) about(id string, rows []int, value, expected *float64, format string,
	args ...any) inspect.Observation {
	return inspect.Observation{ID: id, Layer: r.Layer.Layer, Experts: rows, Tensor: r.Tensor,
		Text: fmt.Sprintf(format, args...), Value: value, Expected: expected}
}

// observeRow returns what is odd about a row by itself.
func (r *router) observeRow(e int) (found []inspect.Observation) {
	row, rows := &r.Rows[e], []int{e}
	switch {
	case row.Norm == nil:
		found = append(found, r.about("not-finite", rows, nil, nil, "row %d has numbers that are not finite", e))
	case *row.Norm == 0:
		found = append(found, r.about("dead-row", rows, row.Norm, &r.Norm.Median,
			"row %d is all zero: the logit of expert %d is 0 for every token", e, e))
	case r.peers.Odd(r.sizes[e], math.Log2(rowFactor)):
		size, usual := math.Exp2(r.sizes[e]), math.Exp2(r.peers.Median)
		found = append(found, r.about("row-norm", rows, &size, &usual,
			"row %d has typical magnitude %.4g, the layer's median is %.4g", e, size, usual))
	}
	if r.bias != nil && row.Bias == nil {
		found = append(found, r.about("not-finite", rows, nil, nil, "e_score_correction_bias of expert %d is not finite", e))
	}
	if row.Proven != "" && r.Table != nil {
		tokens := float64(*row.Tokens)
		found = append(found, r.about(row.Proven+"-chosen", rows, &tokens, nil,
			"expert %d is %s chosen: tid2eid gives it %d of %d tokens", e, row.Proven, *row.Tokens, r.Table.Tokens))
	} else if row.Proven != "" {
		found = append(found, r.about(row.Proven+"-chosen", rows, row.Bias, &r.Bias.Median,
			"expert %d is %s chosen, whatever the token: its e_score_correction_bias is %.4g, the layer's median %.4g",
			e, row.Proven, *row.Bias, r.Bias.Median))
	}
	return found
}

// nearRows finds rows that are nearly, but not quite, equal to others, directly or by way of others.
func (r *router) nearRows() (found []inspect.Observation) {
	near := func(a, b int) bool {
		if !(r.cosines[a][b] >= equalRows) || r.hashes[a] == r.hashes[b] {
			return false
		}
		m, n := *r.Rows[a].Norm, *r.Rows[b].Norm
		return max(m, n) <= equalNorms*min(m, n)
	}
	for _, group := range connected(len(r.Rows), near) {
		least := 1.0
		for i, a := range group {
			for _, b := range group[i+1:] {
				least = min(least, r.cosines[a][b])
			}
		}
		found = append(found, r.about("near-duplicate-row", group, inspect.Finite(least), inspect.Finite(0),
			"rows %s are alike: the smallest cosine of two is %.4f", text.Ranges(group), least))
	}
	return found
}

// connected returns the sets of numbers below n that are alike, directly or by way of others, ascending.
func connected(n int, alike func(a, b int) bool) (groups [][]int) {
	done := make([]bool, n)
	for e := range n {
		if done[e] {
			continue
		}
		group := []int{e}
		for i := 0; i < len(group); i++ {
			done[group[i]] = true
			for k := range n {
				if !done[k] && alike(group[i], k) {
					done[k], group = true, append(group, k)
				}
			}
		}
		if len(group) > 1 {
			slices.Sort(group)
			groups = append(groups, group)
		}
	}
	return groups
}
