package model

import (
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

// Partial asks for squares of the partial sums of products, and for sums of squares beside them.
type Partial = kernel.Partial

// LinearPartial sets y to Linear of x in float32, and gives what q asks for of the weight, cast to
// the compute dtype. y holds its elements of a row when q.Each gets those of that row.
func (p *Plain) LinearPartial(y, x *Activation, l *Linear, q *Partial) {
	var bias []float32
	if l.Bias.Name != "" {
		bias = p.Values(&l.Bias)
	}
	kernel.MatMulPartial(y.Values, x.Values, p.matrix(&l.Weight), bias, p.o.Accumulate, q, p.o.Parallelism)
}

// WeightPartial gives what q asks for of a weight, cast to the compute dtype.
func (p *Plain) WeightPartial(w *Weight, q *Partial) {
	kernel.MatPartial(p.matrix(w), q, p.o.Parallelism)
}

// ScoresPartial calls each with partial and squares of q·k, as PartialSums defines them, of the
// elements from at on of what Scores gives.
func (p *Plain) ScoresPartial(q, k *Activation, first, n int, oneChain bool, each func(at int, partial, squares []float32)) {
	heads, seq, dim := q.Shape[1], k.Shape[2], q.Width()
	p.Each(q.Shape[0]*heads, q.Shape[0]*heads*n*seq*dim, func(i int) {
		rows := q.Matrix(i)[first*dim : (first+n)*dim]
		w := kernel.Matrix{Rows: seq, Cols: dim, Values: k.Matrix(headOf(i, q, k))}
		p.partial(rows, w, oneChain, i*n*seq, each)
	})
}

// ContextPartial does so of p·V, whose terms are in the order of the keys.
func (p *Plain) ContextPartial(probs, vT *Activation, oneChain bool, each func(at int, partial, squares []float32)) {
	n, seq, width := probs.Shape[2], probs.Width(), vT.Shape[2]
	p.Each(probs.Shape[0]*probs.Shape[1], len(probs.Values)*width, func(i int) {
		w := kernel.Matrix{Rows: width, Cols: seq, Values: vT.Matrix(headOf(i, probs, vT))}
		p.partial(probs.Matrix(i), w, oneChain, i*n*width, each)
	})
}

// partial gives the sums of rows x with w, whose results begin at element from.
func (p *Plain) partial(x []float32, w kernel.Matrix, oneChain bool, from int, each func(at int, partial, squares []float32)) {
	kernel.MatPartial(w, &Partial{X: x, OneChain: oneChain, Each: func(t, r int, partial, squares, _ []float32) {
		each(from+t*w.Rows+r, partial, squares)
	}}, 1)
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
