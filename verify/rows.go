package verify

import (
	"slices"
	"strings"

	"dsmoe/model"
	"dsmoe/model/tensor"
	"dsmoe/verify/pack"
)

// rowSet selects the rows of a golden tensor [rows, width] that are compared. Rows of padding
// tokens are not: no result that a user sees depends on them, and references disagree on them.
// Rows that are alike are one observation: an RMS over rows counts them once.
type rowSet struct {
	compared []int     // rows that are compared, ascending
	padding  int       // rows of padding
	weights  []float64 // of each compared row in an RMS: 1 / the number of rows alike
	distinct int       // groups of compared rows that are alike: the sum of weights
}

// selectRows selects the rows of want, of width elements each.
func selectRows(want []float32, width int, padded pack.Padding) *rowSet {
	r := &rowSet{padding: padded.Count()}
	for row := range len(want) / width {
		if !padded.Has(row) {
			r.compared = append(r.compared, row)
		}
	}
	r.weigh(func(row int) []float32 { return want[row*width : (row+1)*width] })
	return r
}

// alikeRows is the largest difference of two rows' elements, as a share of the largest element,
// up to which the rows are one observation: sums of terms so alike round alike. Equal tokens in
// equal contexts differ by some units of float32, 2^-20 after some layers; other tokens by far more.
const alikeRows = 0x1p-16

// weigh finds groups of rows that are alike.
func (r *rowSet) weigh(row func(int) []float32) {
	r.weights = make([]float64, len(r.compared))
	groups := alikeGroups(len(r.compared), func(i int) []float32 { return row(r.compared[i]) })
	for _, group := range groups {
		for _, twin := range group {
			r.weights[twin] = 1 / float64(len(group))
		}
	}
	r.distinct = len(groups)
}

// alikeGroups groups n rows that are alike: sorted by their elements they are neighbours.
func alikeGroups(n int, row func(int) []float32) (groups [][]int) {
	order := make([]int, n)
	for i := range order {
		order[i] = i
	}
	slices.SortFunc(order, func(i, j int) int { return slices.Compare(row(i), row(j)) })
	for first, i := 0, 1; i <= n; i++ {
		if i == n || !alike(row(order[first]), row(order[i])) {
			groups, first = append(groups, order[first:i]), i
		}
	}
	return groups
}

// alike reports whether two rows are one observation.
func alike(a, b []float32) bool {
	var largest, difference float32
	for i, x := range a {
		largest, difference = max(largest, x, -x), max(difference, x-b[i], b[i]-x)
	}
	return difference <= alikeRows*largest
}

// gather returns the values of the compared rows, one after the other.
func (r *rowSet) gather(values []float32, width int) []float32 {
	if r.padding == 0 {
		return values
	}
	gathered := make([]float32, 0, len(r.compared)*width)
	for _, row := range r.compared {
		gathered = append(gathered, values[row*width:(row+1)*width]...)
	}
	return gathered
}

// metrics compares the selected rows of got with want's, as Compare does.
func (r *rowSet) metrics(got, want []float32, width int, d tensor.DType) Metrics {
	m := Compare(r.gather(got, width), r.gather(want, width), width, d)
	m.WorstRow, m.Worst = r.compared[m.WorstRow], r.compared[m.Worst/width]*width+m.Worst%width
	return m
}

// paddedRows marks the rows of padding of a stage. RoPE's tables, losses and
// gradients of weights have no rows of tokens, and probes none of padding. Rows of a routed expert are the tokens that chose it.
func (t *tracer) paddedRows(name string, a *model.Activation) pack.Padding {
	if pack.IsStageGradient(name) {
		name = strings.TrimSuffix(name, pack.Grad)
	}
	_, kind := pack.CutLayer(name)
	kind, expert := pack.CutExpert(kind)
	switch {
	case t.in.AttentionMask == nil || pack.IsLossOrGradient(name) || pack.IsTable(name) || pack.IsProbe(name):
		return nil
	case expert >= 0:
		return t.paddedOfExpert(expert)
	case kind == pack.AttnWeights: // [batch, heads, queries, keys]
		heads, queries := a.Shape[1], a.Shape[2]
		tokens, rows := pack.PaddedTokens(t.in, a.Shape[0]*queries), make(pack.Padding, a.Rows())
		for i := range rows {
			rows[i] = tokens[i/(heads*queries)*queries+i%queries]
		}
		return rows
	}
	return pack.PaddedTokens(t.in, a.Rows())
}

// paddedOfExpert marks padding among the tokens that chose an expert of the last gate.
func (t *tracer) paddedOfExpert(expert int) (rows pack.Padding) {
	k := t.m.Config.NumExpertsPerTok
	tokens := pack.PaddedTokens(t.in, len(t.chosen)/k)
	for slot, e := range t.chosen {
		if e == expert {
			rows = append(rows, tokens.Has(slot/k))
		}
	}
	return rows
}

// goldenRows returns the golden tensor of a stage that has a's shape, and the rows of it that
// are compared.
func (t *tracer) goldenRows(name string, a *model.Activation) ([]float32, *rowSet, error) {
	want, err := t.pack.Float32s(name)
	if err != nil {
		return nil, nil, err
	}
	padded := t.paddedRows(name, a)
	want = pack.ClearPadding(want, a.Width(), padded)
	return want, selectRows(want, a.Width(), padded), nil
}

// allPadding is why a stage is not checked.
const allPadding = "all its rows are padding"
