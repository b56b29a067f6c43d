package plan

import (
	"slices"

	"dsmoe/convert/operation"
	"dsmoe/model/tensor"
	"dsmoe/text"
)

// longestRow bounds the elements of a row with importance, which is encoded at once.
const longestRow = 1 << 16

// embedding is the one tensor that llama.cpp quantises without importance where that has another size.
const embedding = "token_embd.weight"

// weigh gives the tensors that are quantised the importance of their columns. As in llama.cpp, a tensor
// without an entry is quantised without importance, and entries that no tensor has are not read.
func (c *conversion) weigh(outputs []output) {
	m, weighed := c.o.Imatrix, 0
	var without []string
	for i := range outputs {
		out := &outputs[i]
		if !out.DType.Weighs() || !slices.ContainsFunc(out.dtypes(), func(d tensor.DType) bool { return d != out.DType }) {
			continue
		}
		row, matrix := out.Shape[len(out.Shape)-1], out.Len()
		if len(out.Shape) > 2 {
			matrix /= out.Shape[0]
		}
		switch n, want := m.Len(out.Name), row*(out.Len()/matrix); {
		case n == 0, n != want && out.Name == embedding:
			without = append(without, out.Name)
		case n != want:
			c.problem(out.Name, "has %d values in the importance matrix, not %d", n, want)
		case row > longestRow:
			c.problem(out.Name, "has rows of %d elements: with importance %d are the most", row, longestRow)
		default:
			weighed++
			out.importance = &operation.Importance{File: m.Hash, Entry: out.Name, Row: row, Matrix: matrix,
				Read: func(dst []float32, first int) error { return m.Importance(dst, out.Name, first) }}
		}
	}
	if weighed == 0 && c.problems == nil {
		c.problem("", "no tensor has an entry in the importance matrix %s: it is of another model", text.Quote(m.File))
	}
	if without != nil {
		c.note("the importance matrix has no entry for %s, the first is %s: quantised without importance",
			text.Plural(len(without), "tensor"), text.Quote(without[0]))
	}
	if n := m.Entries - weighed; n > 0 {
		c.note("the importance matrix has values for %s that are not quantised with them, or are not written",
			text.Plural(n, "tensor"))
	}
}
