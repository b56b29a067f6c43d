package model

// Heads adds
//
//	∂x[b, t, head·w + from + c] += ∂y[b, head, t, c]
func (t *Tape) Heads(x *Activation, heads, from, to int) *Activation {
	y := t.Plain.Heads(x, heads, from, to)
	return t.record(y, func(dy gradient) {
		seq, width := x.Shape[1], x.Width()/heads
		for i := range y.Rows() {
			row := t.of(x).row(i/seq/heads*seq+i%seq, x)
			row[i/seq%heads*width+from:][:to-from].add(dy.row(i, y))
		}
	})
}

// Concat adds
//
//	∂a += the first columns of ∂y,  ∂b += the others
func (t *Tape) Concat(a, b *Activation) *Activation {
	y := t.Plain.Concat(a, b)
	return t.record(y, func(dy gradient) {
		seq := y.Shape[2]
		for i := range y.Rows() {
			d := dy.row(i, y)
			t.of(a).row(i, a).add(d[:a.Width()])
			t.of(b).row(headOf(i/seq, a, b)*seq+i%seq, b).add(d[a.Width():])
		}
	})
}

// Transpose adds
//
//	∂x += ∂yᵀ
func (t *Tape) Transpose(x *Activation) *Activation {
	y := t.Plain.Transpose(x)
	return t.record(y, func(dy gradient) {
		n := x.Shape[2] * x.Width()
		for at := 0; at < len(dy); at += n {
			t.of(x)[at : at+n].add(transposed(dy[at:at+n], x.Width(), x.Shape[2]))
		}
	})
}

// RoPE adds ∂y rotated back.
func (t *Tape) RoPE(x *Activation, r *Rotary) *Activation {
	y := t.Plain.RoPE(x, r)
	return t.record(y, func(dy gradient) {
		for i := range y.Rows() {
			d := append(gradient{}, dy.row(i, y)...)
			r.unrotate(d[len(d)-2*r.Half:], i%x.Shape[2])
			t.of(x).row(i, x).add(d)
		}
	})
}

// Scores adds, of each head, q being the n queries,
//
//	∂s  = ∂y · scale, or ∂y / scale
//	∂q += ∂s·k,  ∂k += ∂sᵀ·q
func (t *Tape) Scores(q, k *Activation, first, n int, s *Scoring) *Activation {
	y := t.Plain.Scores(q, k, first, n, s)
	return t.record(y, func(dy gradient) {
		seq, dim := k.Shape[2], q.Width()
		for i := range q.Shape[0] * q.Shape[1] {
			ds := append([]float32{}, dy[i*n*seq:(i+1)*n*seq]...)
			s.scale(ds)
			group := headOf(i, q, k)
			block := q.Matrix(i)[first*dim : (first+n)*dim]
			dq, dk := t.of(q)[(i*seq+first)*dim:], t.of(k)[group*seq*dim:]
			dq.add(t.Product(ds, transposed(k.Matrix(group), seq, dim), seq))
			dk.add(t.Product(transposed(ds, n, seq), transposed(block, n, dim), n))
		}
	})
}

// Context adds, of each head, P being its probabilities,
//
//	∂v += Pᵀ·∂y,  ∂P += ∂y·vᵀ
func (t *Tape) Context(probs, vT *Activation) *Activation {
	y := t.Plain.Context(probs, vT)
	return t.record(y, func(dy gradient) {
		n, seq, width := probs.Shape[2], probs.Width(), vT.Shape[2]
		for i := range probs.Shape[0] * probs.Shape[1] {
			d, group := dy[i*n*width:(i+1)*n*width], headOf(i, probs, vT)
			dv := t.of(vT)[group*width*seq:]
			dv.add(t.Product(transposed(d, n, width), transposed(probs.Matrix(i), n, seq), n))
			t.of(probs)[i*n*seq:].add(t.Product(d, transposed(vT.Matrix(group), width, seq), width))
		}
	})
}

// Merge adds to each block its part of ∂y.
func (t *Tape) Merge(blocks []*Activation) *Activation {
	y := t.Plain.Merge(blocks)
	return t.record(y, func(dy gradient) {
		first := 0
		for _, b := range blocks {
			heads, n, width := b.Shape[1], b.Shape[2], b.Width()
			for i := range b.Rows() {
				row := dy.row(i/n/heads*y.Shape[1]+first+i%n, y)
				t.of(b).row(i, b).add(row[i/n%heads*width:][:width])
			}
			first += n
		}
	})
}
