package model

import "dsmoe/model/tensor"

// Activation is a tensor between two stages: float32 values that its dtype can
// represent, row-major.
type Activation struct {
	Shape  []int        // the last dimension is the width of a row
	Values []float32    // as many as the shape says
	DType  tensor.DType // in which the reference holds the values: F32, BF16 or F16
}

// Width returns the last dimension.
func (a *Activation) Width() int { return a.Shape[len(a.Shape)-1] }

// Row returns row i, the last axis's values.
func (a *Activation) Row(i int) []float32 {
	w := a.Width()
	return a.Values[i*w : (i+1)*w]
}

// Rows returns the number of rows: the product of all dimensions but the last.
func (a *Activation) Rows() int { return len(a.Values) / a.Width() }

// Matrix returns the i-th matrix of the last two axes.
func (a *Activation) Matrix(i int) []float32 {
	n := a.Shape[len(a.Shape)-2] * a.Width()
	return a.Values[i*n : (i+1)*n]
}
