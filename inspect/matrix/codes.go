package matrix

import "dsmoe/model/tensor"

// CodeBits returns the bits of the codes that a matrix's numbers went through before they were stored as they are; 0 if
// no such codes show: see tensor.Codes.
func CodeBits(rows int, row func(r int) []float32) int {
	switch tensor.CodesOf(tensor.CodeRuns(rows, row)) {
	case tensor.FourBits:
		return 4
	case tensor.EightFloats, tensor.EightBits:
		return 8
	}
	return 0
}
