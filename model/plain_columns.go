package model

import (
	"dsmoe/model/internal/kernel"
	"dsmoe/model/tensor"
)

// columnTile is how many columns of a weight are decoded at a time, at least. It is a
// multiple of the blocks of every block format.
const columnTile = 256

// EachColumns computes a·weight, for a [rows, out] and a weight [out, in], and calls f with
// tiles of the result, in order: products [rows, n] with the columns from … from+n-1. The
// sums are float32. The memory of a tile is that of the next one.
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

// Column is column i of a weight [out, in], as the reference multiplies with it.
func (p *Plain) Column(weight *Weight, i int) []float32 {
	m, width := p.matrix(weight), 1
	switch {
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

// Squares is x·(weight∘weight)ᵀ, for x [tokens, in]: the weight is cast to the compute dtype
// before it is squared, the sums are float32.
func (p *Plain) Squares(x *Activation, weight *Weight) *Activation {
	y := p.Make(tensor.F32, x.Rows(), weight.Shape[0])
	p.WeightPartial(weight, &Partial{V: x.Values, Each: func(t, row int, _, _, squares []float32) {
		copy(y.Row(t)[row:], squares)
	}})
	return y
}
