package model

// connected carries the residual x past a module f: x + f(x). With a hyper-connection, mirroring
// DeepseekV4DecoderLayer.forward, it is
//
//	post · f(Σ_j pre[j]·x[j]) + combᵀ·x
func (p *pass[V]) connected(name string, h *HyperConnection, x V, f func(V) V) V {
	if h == nil {
		return p.Add(x, f(x))
	}
	c, hc := p.config, p.config.HyperConnections.HCMult
	z, width, eps := p.mixes(h, x), (2+hc)*hc, float32(c.HyperConnections.HCEps)
	gate := func(part int, times, plus float32) V {
		affine := &Affine{&h.Scale, &h.Base, part, part * hc}
		return p.StreamGate(p.Move(TakeColumns(p.in, width, part*hc, (part+1)*hc), z), affine, times, plus)
	}
	pre := p.stage(name+".pre", gate(0, 1, eps))
	post := p.stage(name+".post", gate(1, 2, 0))
	comb := p.Move(TakeColumns(p.in, width, 2*hc, width), z)
	comb = p.stage(name+".comb", p.Sinkhorn(comb, &Affine{&h.Scale, &h.Base, 2, 2 * hc},
		c.HyperConnections.HCSinkhornIters, eps))
	y := p.Scope(p.stage(name+".collapsed", p.Collapse(pre, x)), f)
	return p.Expand(x, y, post, comb)
}

// mixes returns what the weights of streams are made of, in float32: fn·x̂ of all streams of a token
// side by side, normed as one row.
func (p *pass[V]) mixes(h *HyperConnection, x V) V {
	c := p.config
	flat := p.Reshape(p.Float32(x), p.in.Batch, p.in.Seq, c.HyperConnections.HCMult*c.HiddenSize)
	return p.Scope(p.UnitNorm(flat, float64(float32(c.RMSNormEps))), func(x V) V { return p.Linear(x, &h.Fn) })
}
