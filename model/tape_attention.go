package model

// RoPE adds ∂y rotated back.
func (t *Tape) RoPE(x, cos, sin *Activation, r *Rotary) *Activation {
	y := t.Plain.RoPE(x, cos, sin, r)
	return t.record(y, func(dy gradient) {
		for i := range y.Rows() {
			d := append(gradient{}, dy.row(i, y)...)
			r.unrotate(d[len(d)-2*r.Half:], cos.Row(i%x.Shape[2]), sin.Row(i%x.Shape[2]))
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
