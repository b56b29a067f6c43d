package matrix

import (
	"slices"

	"dsmoe/model/tensor"
)

// CodeBits returns the bits of the codes that the numbers went through before they were stored as they are; 0 if no
// such codes show: see tensor.Codes.
func (m *Matrix) CodeBits() int { return codeBits(m.Rows, m.Row) }

// CodeBits is Matrix.CodeBits.
func (m *Stored) CodeBits() int {
	return codeBits(m.Rows, func(r int) []float32 { return slices.Clone(m.Row(r)) })
}

// codeBits is CodeBits of a matrix with these rows.
func codeBits(rows int, row func(r int) []float32) int {
	switch tensor.CodesOf(tensor.CodeRuns(rows, row)) {
	case tensor.FourBits:
		return 4
	case tensor.EightFloats, tensor.EightBits:
		return 8
	}
	return 0
}
