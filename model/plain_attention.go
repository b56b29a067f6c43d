package model

import "dsmoe/model/internal/kernel"

// Heads implements Arithmetic.
func (p *Plain) Heads(x *Activation, heads, from, to int) *Activation {
	batch, seq, width := x.Shape[0], x.Shape[1], x.Width()/heads
	y := p.activation(x.DType, batch, heads, seq, to-from)
	p.each(batch*heads, len(y.Values), func(i int) {
		head := i % heads * width
		for t := range seq {
			copy(y.Row(i*seq+t), x.Row(i/heads*seq + t)[head+from:head+to])
		}
	})
	return y
}

// Concat implements Arithmetic.
func (p *Plain) Concat(a, b *Activation) *Activation {
	y := p.activation(a.DType, a.sized(a.Width()+b.Width())...)
	p.each(y.Shape[0]*y.Shape[1], len(y.Values), func(i int) {
		seq := y.Shape[2]
		shared := headOf(i, a, b) * seq
		for t := range seq {
			row := y.Row(i*seq + t)
			copy(row, a.Row(i*seq+t))
			copy(row[a.Width():], b.Row(shared+t))
		}
	})
	return y
}

// headOf returns which matrix of shared [batch, groups, …] belongs to matrix i of x
// [batch, heads, …]: heads/groups heads in a row have the same.
func headOf(i int, x, shared *Activation) int { return i / (x.Shape[1] / shared.Shape[1]) }

// Transpose implements Arithmetic.
func (p *Plain) Transpose(x *Activation) *Activation {
	rows, cols := x.Shape[2], x.Shape[3]
	y := p.activation(x.DType, x.Shape[0], x.Shape[1], cols, rows)
	p.each(x.Shape[0]*x.Shape[1], len(y.Values), func(i int) { transpose(y.Matrix(i), x.Matrix(i), rows, cols) })
	return y
}

// transpose sets dst [cols, rows] to x [rows, cols].
func transpose(dst, x []float32, rows, cols int) {
	for r := range rows {
		for c := range cols {
			dst[c*rows+r] = x[r*cols+c]
		}
	}
}

// RoPE implements Arithmetic.
func (p *Plain) RoPE(x *Activation, r *Rotary) *Activation {
	y := p.activation(x.DType, x.Shape...)
	p.each(x.Shape[0]*x.Shape[1], len(y.Values), func(i int) {
		copy(y.Matrix(i), x.Matrix(i))
		for t := range x.Shape[2] {
			r.rotate(y.Row(i*x.Shape[2] + t)[x.Width()-2*r.Half:], t, y.format())
		}
	})
	return y
}

// Scores implements Arithmetic.
func (p *Plain) Scores(q, k *Activation, first, n int, s *Scoring) *Activation {
	heads, seq, dim := q.Shape[1], k.Shape[2], q.Width()
	y := p.activation(q.DType, q.Shape[0], heads, n, seq)
	p.each(q.Shape[0]*heads, len(y.Values)*dim, func(i int) {
		scores, format := y.Matrix(i), y.format()
		w := kernel.Matrix{Rows: seq, Cols: dim, Values: k.Matrix(headOf(i, q, k))}
		kernel.MatMul(scores, q.Matrix(i)[first*dim:(first+n)*dim], w, nil, p.o.Accumulate, 1)
		kernel.RoundTo(scores, format)
		s.scale(scores)
		kernel.RoundTo(scores, format)
		for t := range n {
			s.Mask.add(scores[t*seq:(t+1)*seq], i/heads, first+t)
		}
		kernel.RoundTo(scores, format)
	})
	return y
}

// scale multiplies by the scale, or divides by it.
func (s *Scoring) scale(x []float32) {
	if s.Divides {
		for i := range x {
			x[i] /= s.By
		}
		return
	}
	for i := range x {
		x[i] *= s.By
	}
}

// Context implements Arithmetic.
func (p *Plain) Context(probs, vT *Activation) *Activation {
	n, seq, width := probs.Shape[2], probs.Width(), vT.Shape[2]
	y := p.activation(probs.DType, probs.Shape[0], probs.Shape[1], n, width)
	p.each(probs.Shape[0]*probs.Shape[1], len(y.Values)*seq, func(i int) {
		w := kernel.Matrix{Rows: width, Cols: seq, Values: vT.Matrix(headOf(i, probs, vT))}
		kernel.MatMul(y.Matrix(i), probs.Matrix(i), w, nil, p.o.Accumulate, 1)
		kernel.RoundTo(y.Matrix(i), y.format())
	})
	return y
}

// Merge implements Arithmetic.
func (p *Plain) Merge(blocks []*Activation) *Activation {
	seq := 0
	for _, b := range blocks {
		seq += b.Shape[2]
	}
	batch, heads, width := blocks[0].Shape[0], blocks[0].Shape[1], blocks[0].Width()
	y := p.activation(blocks[0].DType, batch, seq, heads*width)
	first := 0
	for _, b := range blocks {
		n := b.Shape[2]
		for i := range batch * heads {
			for t := range n {
				copy(y.Row(i/heads*seq + first + t)[i%heads*width:], b.Row(i*n+t))
			}
		}
		first += n
	}
	return y
}
