package model

import (
	"dsmoe/model/internal/kernel"
	"dsmoe/model/tensor"
)

// Operations that an arithmetic around Plain needs which computes errors beside values.

// SiLU is x / (1 + e^-x), rounded once to x's dtype. The exponential is computed in float64.
func (p *Plain) SiLU(x *Activation) *Activation {
	y := p.Make(x.DType, x.Shape...)
	p.Each(x.Rows(), 8*len(y.Values), func(t int) {
		kernel.SiLU(y.Row(t), x.Row(t))
		kernel.RoundTo(y.Row(t), y.format())
	})
	return y
}

// LinearSquares is Linear of x in float32, and sets sums, of as many values, to
// terms·(weight∘weight)ᵀ: the weight is cast to the compute dtype before it is squared, the
// sums are float32.
func (p *Plain) LinearSquares(x *Activation, l *Linear, terms, sums *Activation) *Activation {
	y := p.Make(tensor.F32, sums.Shape...)
	var bias []float32
	if l.Bias.Name != "" {
		bias = p.Values(&l.Bias)
	}
	kernel.MatMulSquares(y.Values, x.Values, p.matrix(&l.Weight), bias, p.o.Accumulate, sums.Values, terms.Values, p.o.Parallelism)
	return y
}

// Columns are the products with the columns of a weight [out, in], and with their squares:
// a·weight and b·(weight∘weight), both [tokens, in], for a and b [tokens, out]. Their sums
// are float32.
func (p *Plain) Columns(a, b *Activation, weight *Weight) (products, squares *Activation) {
	m := p.matrix(weight)
	products, squares = p.Make(a.DType, a.Rows(), m.Cols), p.Make(a.DType, a.Rows(), m.Cols)
	kernel.Columns(products.Values, a.Values, squares.Values, b.Values, m, p.o.Parallelism)
	return products, squares
}
