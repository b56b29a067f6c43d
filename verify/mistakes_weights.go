package verify

import (
	"fmt"
	"slices"
	"strconv"

	"dsmoe/model"
)

// Mistakes in the weights: exchanged, transposed or reordered by a conversion.

// undoGateUp exchanges gate_proj and up_proj of every MLP of the layer.
func undoGateUp(x *trial) string {
	swap := func(m *model.DeepseekMLP) {
		if m != nil {
			m.GateProj, m.UpProj = m.UpProj, m.GateProj
		}
	}
	swap(x.layer.MLP)
	if x.layer.MoE != nil {
		swap(x.layer.MoE.SharedExperts)
		for e := range x.layer.MoE.Experts {
			swap(&x.layer.MoE.Experts[e])
		}
	}
	return "gate_proj and up_proj are exchanged"
}

// undoLexicographic puts experts that were numbered in the order "0", "1", "10", …
// back into the order of their numbers.
func undoLexicographic(x *trial) string {
	experts := x.layer.MoE.Experts
	names := make([]string, len(experts))
	for e := range names {
		names[e] = strconv.Itoa(e)
	}
	slices.Sort(names)
	sorted := make([]model.DeepseekMLP, len(experts))
	for at, name := range names {
		e, _ := strconv.Atoi(name)
		sorted[e] = experts[at]
	}
	if slices.IsSortedFunc(names, func(a, b string) int { return len(a) - len(b) }) {
		return "" // no expert 10
	}
	copy(experts, sorted)
	return "the experts are in the order of their names as text: 0, 1, 10, 11, …, 2, …"
}

// undoSwapped exchanges two experts.
func undoSwapped(pair [2]int) func(x *trial) string {
	return func(x *trial) string {
		a, b := pair[0], pair[1]
		experts := x.layer.MoE.Experts
		experts[a], experts[b] = experts[b], experts[a]
		return fmt.Sprintf("experts %d and %d are exchanged", a, b)
	}
}

// suspectPairs are the pairs of experts that may be exchanged with each other: exactly
// the tokens routed to either of them are wrong.
func (f *failure) suspectPairs() (pairs [][2]int) {
	const few = 8 // pairs to try grow with the square
	suspects := f.suspects()
	if len(suspects) > few {
		return nil
	}
	for i, a := range suspects {
		for _, b := range suspects[i+1:] {
			pairs = append(pairs, [2]int{a, b})
		}
	}
	return pairs
}

// suspects are the experts all of whose tokens are wrong.
func (f *failure) suspects() (suspects []int) {
	if f.kind != expertsOutput || f.idx == nil {
		return nil
	}
	k := len(f.idx) / f.got.Rows()
	right, seen := map[int]bool{}, map[int]bool{}
	for i, e := range f.idx {
		seen[e] = true
		right[e] = right[e] || !f.wrong(i/k)
	}
	for e := range f.tracer.m.Config.NRoutedExperts {
		if seen[e] && !right[e] {
			suspects = append(suspects, e)
		}
	}
	return suspects
}

// wrong says whether row of the failed stage is beyond its limits.
func (f *failure) wrong(row int) bool { return row < len(f.beyond) && f.beyond[row] }

// linear finds a projection of the layer's attention.
func (x *trial) linear(proj string) *model.Linear {
	if a := x.layer.MLA; a != nil {
		return map[string]*model.Linear{"q_proj": &a.QProj, "q_b_proj": &a.QBProj, "kv_a_proj_with_mqa": &a.KVAProjWithMQA, "o_proj": &a.OProj}[proj]
	}
	a := x.layer.SelfAttn
	return map[string]*model.Linear{"q_proj": &a.QProj, "k_proj": &a.KProj, "v_proj": &a.VProj, "o_proj": &a.OProj}[proj]
}

func undoTransposed(proj string) func(x *trial) string {
	return func(x *trial) string {
		w := &x.linear(proj).Weight
		if w.Shape[0] != w.Shape[1] || w.Scales != nil {
			return ""
		}
		n, size := w.Shape[0], w.DType.Bits()/8
		t := make([]byte, len(w.Data))
		for r := range n {
			for c := range n {
				copy(t[(c*n+r)*size:(c*n+r+1)*size], w.Data[(r*n+c)*size:])
			}
		}
		w.Data = t
		return proj + ".weight is transposed"
	}
}

// undoPermuted reorders the rows of each head from interleaved pairs (2i, 2i+1), as
// GGUF and Meta's code rotate them, to halves (i, i + head_dim/2), or back.
func undoPermuted(proj string, toHalves bool) func(x *trial) string {
	return func(x *trial) string {
		width := x.config.QKHeadDim()
		if proj == "kv_a_proj_with_mqa" {
			width = x.config.KVLoraRank + x.config.QKRopeHeadDim
		}
		l := x.linear(proj)
		if l.Weight.Scales != nil {
			return "" // rows would leave their blocks
		}
		permuteRows(&l.Weight, width, x.config.HeadDim(), toHalves)
		permuteRows(&l.Bias, width, x.config.HeadDim(), toHalves)
		return fmt.Sprintf("the rows of %s are permuted for the other RoPE layout (interleaved pairs against halves)", proj)
	}
}

// permuteRows reorders the last rotated rows of every head of width rows.
func permuteRows(w *model.Weight, width, rotated int, toHalves bool) {
	if w.Name == "" {
		return
	}
	rows, half := make([]byte, 0, len(w.Data)), rotated/2
	for r := range w.Shape[0] {
		first := r/width*width + width - rotated
		from := r
		switch i := r - first; {
		case i < 0:
		case toHalves:
			from = first + i%half*2 + i/half
		default:
			from = first + i/2 + i%2*half
		}
		rows = append(rows, w.Row(from).Data...)
	}
	w.Data = rows
}
