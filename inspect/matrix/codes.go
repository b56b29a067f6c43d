package matrix

import "dsmoe/model/tensor"

// CodeBits returns the bits of the codes that the numbers went through before they were stored as they are; 0 if no
// such codes show: see tensor.Codes.
func (m *Matrix) CodeBits() int {
	switch tensor.CodesOf(tensor.CodeRuns(m.Rows, m.Row)) {
	case tensor.FourBits:
		return 4
	case tensor.EightFloats, tensor.EightBits:
		return 8
	}
	return 0
}
