package model

import (
	"slices"

	"dsmoe/model/internal/kernel"
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

// Squares is x·(weight∘weight)ᵀ, the weight cast to the compute dtype before it is squared,
// without the bias: [rows of x, out_features], in x's dtype and not rounded.
func (p *Plain) Squares(x *Activation, l *Linear) *Activation {
	y := p.Make(x.DType, slices.Concat(x.Shape[:len(x.Shape)-1], l.Weight.Shape[:1])...)
	w := p.matrix(&l.Weight)
	w.Square = true
	kernel.MatMul(y.Values, x.Values, w, nil, p.o.Accumulate, p.o.Parallelism)
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
