package model

import (
	"dsmoe/model/internal/kernel"
	"dsmoe/model/tensor"
)

// Products for an arithmetic around Plain that computes an error with each value.

// SiLU is x / (1 + e^-x), rounded once to x's dtype. The exponential is computed in float64.
func (p *Plain) SiLU(x *Activation, alpha float32) *Activation {
	y := p.Make(x.DType, x.Shape...)
	p.Each(x.Rows(), 8*len(y.Values), func(t int) {
		out := y.Row(t)
		if alpha == 1 {
			kernel.SiLU(out, x.Row(t))
		}
		for i, v := range x.Row(t) {
			if alpha != 1 {
				s := 1 / (1 + kernel.Exp(-float64(kernel.Rounded(v*alpha, y.format()))))
				out[i] = v * kernel.Rounded(float32(s), y.format())
			}
		}
		kernel.RoundTo(out, y.format())
	})
	return y
}

// Multiply implements Arithmetic.
func (p *Plain) Multiply(a, b *Activation, shift float32) *Activation {
	y := p.Make(a.DType, a.Shape...)
	for i, v := range a.Values {
		y.Values[i] = v * kernel.Rounded(b.Values[i]+shift, y.format())
	}
	kernel.RoundTo(y.Values, y.format())
	return y
}

// Partial requests the squares of the partial sums of products, and sums of squares.
type Partial = kernel.Partial

// MostPlans is the largest number of plans of a Partial.
const MostPlans = kernel.MostPlans

// LinearPartial sets y to Linear of x in float32, with the bias q.Start, and computes the sums that q requests with the
// weight, cast to the compute dtype. y holds the elements of a row when q.Each receives the sums
// of that row.
func (p *Plain) LinearPartial(y, x *Activation, w *Weight, q *Partial) {
	kernel.MatMulPartial(y.Values, x.Values, p.matrix(w), q.Start, p.o.Accumulate, q, p.o.Parallelism)
}

// WeightPartial computes the sums that q requests with a weight, cast to the compute dtype.
func (p *Plain) WeightPartial(w *Weight, q *Partial) {
	kernel.MatPartial(p.matrix(w), q, p.o.Parallelism)
}

// eachPartial receives partial and squares, as PartialSums defines them, of the elements of a
// result from at on.
type eachPartial = func(at int, partial, squares []float64)

// ScoresPartial calls each with the sums of q·k, for the elements of Scores. It may leave out those of later keys, which
// mask hides from all n queries.
func (p *Plain) ScoresPartial(q, k *Activation, first, n int, mask *Mask, plans []int, each eachPartial) {
	heads, seq, dim := q.Shape[1], k.Shape[2], q.Width()
	keys := mask.Reach(first+n-1, seq)
	p.Each(q.Shape[0]*heads, q.Shape[0]*heads*n*keys*dim, func(i int) {
		rows := q.Matrix(i)[first*dim : (first+n)*dim]
		w := kernel.Matrix{Rows: keys, Cols: dim, Values: k.Matrix(headOf(i, q, k))[:keys*dim]}
		p.partial(rows, w, plans, i*n*seq, seq, each)
	})
}

// ScoresSquares sets y to x·kᵀ, in float32, of the rows x [batch, heads, n, width] of n queries from first on. It may leave
// out later keys, as ScoresPartial does.
func (p *Plain) ScoresSquares(y, x, k *Activation, first int, mask *Mask) {
	n, seq, dim := x.Shape[2], k.Shape[2], x.Width()
	keys := mask.Reach(first+n-1, seq)
	p.Each(x.Shape[0]*x.Shape[1], len(x.Values)*keys, func(i int) {
		w := kernel.Matrix{Rows: keys, Cols: dim, Values: k.Matrix(headOf(i, x, k))[:keys*dim]}
		all := y.Matrix(i)
		kernel.MatMul(all[:n*keys], x.Matrix(i), w, nil, kernel.Float32, 1)
		for t := n - 1; t > 0; t-- {
			copy(all[t*seq:t*seq+keys], all[t*keys:])
		}
	})
}

// ContextPartial calls each with the sums of probs·v, for the elements of Context. The terms are
// in the order of the keys.
func (p *Plain) ContextPartial(probs, vT *Activation, plans []int, each eachPartial) {
	n, seq, width := probs.Shape[2], probs.Width(), vT.Shape[2]
	p.Each(probs.Shape[0]*probs.Shape[1], len(probs.Values)*width, func(i int) {
		w := kernel.Matrix{Rows: width, Cols: seq, Values: vT.Matrix(headOf(i, probs, vT))}
		p.partial(probs.Matrix(i), w, plans, i*n*width, width, each)
	})
}

// partial calls each with the sums of rows x with w. The results of a row begin at element from, those of the next at from +
// stride.
func (p *Plain) partial(x []float32, w kernel.Matrix, plans []int, from, stride int, each eachPartial) {
	kernel.MatPartial(w, &Partial{X: x, Plans: plans, Each: func(t, r int, partial, squares, _ []float64) {
		each(from+t*stride+r, partial, squares)
	}}, 1)
}

// DontNeed releases the pages of a weight that is mapped: it is not read for a while.
func (p *Plain) DontNeed(w *Weight) { p.o.dontNeed(w) }

// Columns returns products = a·weight and squares = b·(weight∘weight), [tokens, in], for a and b
// [tokens, out] and a weight [out, in]. The sums are float32.
func (p *Plain) Columns(a, b *Activation, weight *Weight) (products, squares *Activation) {
	m := p.matrix(weight)
	products, squares = p.Make(a.DType, a.Rows(), m.Cols), p.Make(a.DType, a.Rows(), m.Cols)
	kernel.Columns(products.Values, a.Values, squares.Values, b.Values, m, p.o.Parallelism)
	return products, squares
}

// columnTile is the least number of columns of a weight that are decoded at a time. It is a
// multiple of the block length of every block format.
const columnTile = 256

// EachColumns computes a·weight, for a [rows, out] and a weight [out, in], and calls f with
// tiles of the result, in order: products [rows, n] with the columns from … from+n-1. The
// sums are float32. Each tile reuses the memory of the tile before.
func (p *Plain) EachColumns(a *Activation, weight *Weight, f func(from int, products *Activation)) {
	m := p.matrix(weight)
	width := columnTile
	if m.Scales != nil {
		width = (columnTile + m.BlockCols - 1) / m.BlockCols * m.BlockCols
	}
	width = min(width, m.Cols)
	columns, products := p.Make(tensor.F32, width, m.Rows), p.Make(tensor.F32, a.Rows(), width)
	for from := 0; from < m.Cols; from += width {
		n := min(width, m.Cols-from)
		t := kernel.Matrix{Rows: n, Cols: m.Rows, Values: columns.Values[:n*m.Rows]}
		kernel.Transposed(t.Values, m, from, from+n, p.o.Parallelism)
		part := &Activation{Shape: []int{a.Rows(), n}, Values: products.Values[:a.Rows()*n], DType: tensor.F32}
		kernel.MatMul(part.Values, a.Values, t, nil, kernel.Float32, p.o.Parallelism)
		f(from, part)
	}
}

// Column returns column i of a weight [out, in], as the reference multiplies with it.
func (p *Plain) Column(weight *Weight, i int) []float32 {
	m, width := p.matrix(weight), 1
	switch {
	case m.Scales != nil && m.BlockCols == 1 && m.Format.Blocked(): // as many codes as fill bytes
		width = 8
	case m.Scales != nil:
		width = m.BlockCols
	case m.Format.Blocked():
		width = columnTile
	}
	from := i / width * width
	to := min(from+width, m.Cols)
	columns := make([]float32, (to-from)*m.Rows)
	kernel.Transposed(columns, m, from, to, p.o.Parallelism)
	return columns[(i-from)*m.Rows : (i-from+1)*m.Rows]
}

// Squares returns x·(weight∘weight)ᵀ for x [tokens, in]. The weight is cast to the compute dtype
// before it is squared. Each term is off by at most about 2^-7 of itself, as in a Partial.
func (p *Plain) Squares(x *Activation, weight *Weight) *Activation {
	y := p.Make(tensor.F32, x.Rows(), weight.Shape[0])
	p.WeightPartial(weight, &Partial{V: x.Values, Each: func(t, row int, _, _, squares []float64) {
		for i, v := range squares {
			y.Row(t)[row+i] = float32(v)
		}
	}})
	return y
}
