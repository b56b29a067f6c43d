package verify

import (
	"slices"
	"strings"

	"dsmoe/model"
	"dsmoe/model/tensor"
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

// padding marks the rows of padding of a stage; nil marks no row.
type padding []bool

// has reports whether a row is padding.
func (p padding) has(row int) bool { return p != nil && p[row] }

// count is the number of rows of padding.
func (p padding) count() int { return len(indices(p)) }

// selectRows selects the rows of want, of width elements each.
func selectRows(want []float32, width int, padded padding) *rowSet {
	r := &rowSet{padding: padded.count()}
	for row := range len(want) / width {
		if !padded.has(row) {
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

// weigh finds groups of rows that are alike: sorted by their elements they are neighbours.
func (r *rowSet) weigh(row func(int) []float32) {
	order := make([]int, len(r.compared)) // positions in compared
	for i := range order {
		order[i] = i
	}
	slices.SortFunc(order, func(i, j int) int { return slices.Compare(row(r.compared[i]), row(r.compared[j])) })
	r.weights = make([]float64, len(order))
	for first, i := 0, 1; i <= len(order); i++ {
		if i < len(order) && alike(row(r.compared[order[first]]), row(r.compared[order[i]])) {
			continue
		}
		for _, twin := range order[first:i] {
			r.weights[twin] = 1 / float64(i-first)
		}
		r.distinct++
		first = i
	}
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

// paddedTokens marks padding among n tokens in the order of a stage's rows, all tokens of each
// sequence or, in prediction layers, fewer: row t of a sequence is made of the tokens t to
// t + in.Seq - n/in.Batch, and it is padding if one of them is. It is nil without a mask.
func paddedTokens(in *model.Input, n int) padding {
	if in.AttentionMask == nil {
		return nil
	}
	padded, seq := make(padding, n), n/in.Batch
	for i := range padded {
		first := i/seq*in.Seq + i%seq
		padded[i] = slices.Contains(in.AttentionMask[first:first+in.Seq-seq+1], 0)
	}
	return padded
}

// paddedRows marks the rows of padding of a stage. RoPE's tables, losses and
// gradients of weights have no rows of tokens, and probes none of padding. Rows of a routed expert are the tokens that chose it.
func (t *tracer) paddedRows(name string, a *model.Activation) padding {
	if isStageGradient(name) {
		name = strings.TrimSuffix(name, grad)
	}
	_, kind := split(name)
	kind, expert := starred(kind)
	switch {
	case t.in.AttentionMask == nil || learned(name) || isTable(name) || isProbe(name):
		return nil
	case expert >= 0:
		return t.paddedOfExpert(expert)
	case kind == attnWeights: // [batch, heads, queries, keys]
		heads, queries := a.Shape[1], a.Shape[2]
		tokens, rows := paddedTokens(t.in, a.Shape[0]*queries), make(padding, a.Rows())
		for i := range rows {
			rows[i] = tokens[i/(heads*queries)*queries+i%queries]
		}
		return rows
	}
	return paddedTokens(t.in, a.Rows())
}

// paddedOfExpert marks padding among the tokens that chose an expert of the last gate.
func (t *tracer) paddedOfExpert(expert int) (rows padding) {
	k := t.m.Config.NumExpertsPerTok
	tokens := paddedTokens(t.in, len(t.chosen)/k)
	for slot, e := range t.chosen {
		if e == expert {
			rows = append(rows, tokens.has(slot/k))
		}
	}
	return rows
}

// quiet sets what is not finite in rows of padding to 0. Nothing is compared with it, and the
// mask hides these rows from all tokens; but 0·NaN in a sum over masked keys would be a NaN.
func quiet(values []float32, width int, padded padding) []float32 {
	for row, is := range padded {
		for i := row * width; is && i < (row+1)*width; i++ {
			if !finite(values[i]) {
				values[i] = 0
			}
		}
	}
	return values
}

// goldenRows returns the golden tensor of a stage that has a's shape, and the rows of it that
// are compared.
func (t *tracer) goldenRows(name string, a *model.Activation) ([]float32, *rowSet, error) {
	want, err := t.pack.Float32s(name)
	if err != nil {
		return nil, nil, err
	}
	padded := t.paddedRows(name, a)
	want = quiet(want, a.Width(), padded)
	return want, selectRows(want, a.Width(), padded), nil
}

// allPadding is why a stage is not checked.
const allPadding = "all its rows are padding"
