package model

import (
	"maps"

	"dsmoe/config"
	"dsmoe/model/internal/kernel"
)

// forward is the mixture of experts, mirroring DeepseekMoE.forward:
//
//	topk_idx, topk_weight = gate(x)
//	y = MoEInfer(x, topk_idx, topk_weight) + shared_experts(x)
//
// With the residual connection of the decoder layer around it, this is the paper's
// equation (9), u being a token's input to the block and h its output:
//
//	h = Σ_{i ≤ Ks} FFN_i(u) + Σ_{Ks < i ≤ mN} g_i · FFN_i(u) + u
//	g_i = s_i if s_i is among the mK-Ks largest, else 0;  s = softmax(u·eᵢ)
//
// Its shared experts FFN_1 … FFN_Ks are the one MLP shared_experts here, Ks =
// n_shared_experts; mN-Ks = n_routed_experts, mK-Ks = num_experts_per_tok, s is
// scores, g topk_weight and eᵢ row i of gate.weight. In the code u is the residual
// stream and FFN sees its norm.
func (m *DeepseekMoE) forward(p *pass, name string, x *Activation) *Activation {
	r := m.Gate.forward(p, name+".gate", x)
	route := m.MoEInfer
	if p.Training || p.m.Config.Reference == config.Remote && p.m.Config.RouterFloat32 {
		route = m.moeTrain
	}
	y := p.stage(name+".experts.output", route(p, x, r)).reshaped(x.Shape...)
	if m.SharedExperts != nil {
		y = p.add(y, p.stage(name+".shared_experts.output", m.SharedExperts.forward(p, x)))
	}
	return p.stage(name+".output", y)
}

// MoEInfer returns each token's routed sum [tokens, hidden_size], mirroring
// moe_infer: tokens are grouped by expert, an expert runs once on its tokens, and
// its weighted outputs are added in the order of the experts:
//
//	y[t] = Σ_e topk_weight[t, e] · experts[e](x[t])
func (m *DeepseekMoE) MoEInfer(p *pass, x *Activation, r Routing) *Activation {
	y := p.activation(x.Rows(), x.Width())
	clear(y.Values)
	y.Weights = p.union(nil, x, r.Weight)
	byExpert := r.byExpert(len(m.Experts))
	m.fetch(p, byExpert)
	for e, slots := range byExpert {
		if len(slots) == 0 {
			continue
		}
		mark := p.arena.mark()
		out := m.Experts[e].forward(p, p.gather(x, slots, r.K))
		kernel.Parallel(len(slots), p.Parallelism, func(i int) {
			p.addScaled(y.Row(slots[i]/r.K), out.Row(i), r.Weight.Values[slots[i]])
		})
		if r.counts(slots) {
			maps.Copy(y.Weights, out.Weights)
		}
		p.arena.release(mark)
	}
	return y
}

// fetch fetches the experts ahead that some token was routed to.
func (m *DeepseekMoE) fetch(p *pass, byExpert [][]int) {
	for e, slots := range byExpert {
		if len(slots) > 0 {
			p.fetch(m.Experts[e].weights()...)
		}
	}
}

// gather copies the token of each slot, slot/k, into a row of its own.
func (p *pass) gather(x *Activation, slots []int, k int) *Activation {
	in := p.activation(len(slots), x.Width())
	in.Weights = x.Weights
	for i, slot := range slots {
		copy(in.Row(i), x.Row(slot/k))
	}
	p.record(func() {
		n := x.Width()
		for i, slot := range slots {
			token := gradient{x.grad.values[slot/k*n : (slot/k+1)*n]}
			token.add(in.grad.values[i*n : (i+1)*n])
		}
	})
	return in
}

// addScaled sets x to weight·x and adds that to y, rounding the product and the sum.
func (p *pass) addScaled(y, x []float32, weight float32) {
	for i := range x {
		x[i] *= weight
	}
	kernel.RoundTo(x, p.format)
	for i, v := range x {
		y[i] += v
	}
	kernel.RoundTo(y, p.format)
}

// moeTrain returns the same sum as MoEInfer in the order of training, which is also
// that of moe_infer in the published code of DeepSeek-V2 and V3: every token is
// repeated num_experts_per_tok times, each copy goes through its expert, and the
// weighted outputs are added in the order of topk_idx:
//
//	y[t] = Σ_i topk_weight[t, i] · experts[topk_idx[t, i]](x[t])
func (m *DeepseekMoE) moeTrain(p *pass, x *Activation, r Routing) *Activation {
	outs := p.activation(len(r.Idx), x.Width()) // of each copy
	outs.Weights = p.union(nil, x, r.Weight)
	byExpert := r.byExpert(len(m.Experts))
	m.fetch(p, byExpert)
	for e, slots := range byExpert {
		if len(slots) > 0 {
			out := m.Experts[e].forward(p, p.gather(x, slots, r.K))
			p.scatter(outs, out, slots)
			if r.counts(slots) {
				maps.Copy(outs.Weights, out.Weights)
			}
		}
	}
	return p.combine(outs, r)
}

// scatter copies row i of out to row slots[i] of outs.
func (p *pass) scatter(outs, out *Activation, slots []int) {
	n := out.Width()
	for i, slot := range slots {
		copy(outs.Row(slot), out.Row(i))
	}
	p.record(func() {
		for i, slot := range slots {
			row := gradient{out.grad.values[i*n : (i+1)*n]}
			row.add(outs.grad.values[slot*n : (slot+1)*n])
		}
	})
}

// combine returns y[t] = Σ_i weight[t, i] · outs[t·k + i], each product rounded to the
// weights' dtype, the sum to the compute dtype. Its gradients are
//
//	∂outs[t·k + i]  = weight[t, i] · ∂y[t]
//	∂weight[t, i]   = ∂y[t] · outs[t·k + i]
func (p *pass) combine(outs *Activation, r Routing) *Activation {
	y := p.activation(len(r.Idx)/r.K, outs.Width())
	y.Weights = outs.Weights
	n := y.Width()
	product, _ := r.Weight.DType.Format()
	sum := make([]float64, n)
	for t := range y.Rows() {
		clear(sum)
		for slot := t * r.K; slot < (t+1)*r.K; slot++ {
			for c, v := range outs.Row(slot) {
				sum[c] += float64(kernel.Rounded(float32(v*r.Weight.Values[slot]), product))
			}
		}
		for c, v := range sum {
			y.Row(t)[c] = p.rounded(float32(v))
		}
	}
	p.record(func() {
		for slot, w := range r.Weight.Values {
			dy := y.grad.values[slot/r.K*n : (slot/r.K+1)*n]
			r.Weight.grad.values[slot] += float32(kernel.Dot64(dy, outs.Row(slot)))
			d := outs.grad.values[slot*n : (slot+1)*n]
			for c, g := range dy {
				d[c] += float32(w * g)
			}
		}
	})
	return y
}

// forward mirrors DeepseekMLP.forward: down_proj(silu(gate_proj(x)) · up_proj(x)).
func (m *DeepseekMLP) forward(p *pass, x *Activation) *Activation {
	return m.DownProj.forward(p, p.swiGLU(m.GateProj.forward(p, x), m.UpProj.forward(p, x)))
}

// swiGLU returns silu(gate) · up, rounding both. With σ the logistic function, its
// gradients are
//
//	∂up   = ∂y · silu(gate)
//	∂gate = ∂y · up · σ(gate) · (1 + gate·(1 - σ(gate)))
func (p *pass) swiGLU(gate, up *Activation) *Activation {
	y := p.activation(gate.Shape...)
	y.Weights = p.union(nil, gate, up)
	kernel.Parallel(gate.Rows(), p.Parallelism, func(t int) {
		out := y.Row(t)
		kernel.SiLU(out, gate.Row(t))
		kernel.RoundTo(out, p.format)
		for i, u := range up.Row(t) {
			out[i] *= u
		}
		kernel.RoundTo(out, p.format)
	})
	p.record(func() {
		for i, dy := range y.grad.values {
			g, u := float64(gate.Values[i]), float64(up.Values[i])
			s := 1 / (1 + kernel.Exp(-g))
			up.grad.values[i] += float32(float64(dy) * g * s)
			gate.grad.values[i] += float32(float64(dy) * u * s * (1 + float64(g*(1-s))))
		}
	})
	return y
}
