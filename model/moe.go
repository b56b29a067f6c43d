package model

import "dsmoe/model/internal/kernel"

// forward is the mixture of experts in evaluation, mirroring DeepseekMoE.forward:
//
//	topk_idx, topk_weight = gate(x)
//	y = MoEInfer(x, topk_idx, topk_weight) + shared_experts(x)
func (m *DeepseekMoE) forward(p *pass, name string, x *Activation) *Activation {
	r := m.Gate.forward(p, name+".gate", x)
	y := p.stage(name+".experts.output", m.MoEInfer(p, x, r))
	y = &Activation{Shape: x.Shape, Values: y.Values, Weights: y.Weights}
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
	y.Weights = p.union(nil, x, r.Weight)
	for e, slots := range r.byExpert(len(m.Experts)) {
		if len(slots) == 0 {
			continue
		}
		in := p.activation(len(slots), x.Width())
		for i, slot := range slots {
			copy(in.Row(i), x.Row(slot/r.K))
		}
		out := m.Experts[e].forward(p, in)
		for i, slot := range slots {
			p.addScaled(y.Row(slot/r.K), out.Row(i), r.Weight.Values[slot])
		}
		y.Weights = p.union(nil, y, out)
	}
	return y
}

// addScaled adds weight·x to y, rounding the product and the sum.
func (p *pass) addScaled(y, x []float32, weight float32) {
	for i, v := range x {
		y[i] = p.rounded(y[i] + p.rounded(float32(v*weight)))
	}
}

// forward mirrors DeepseekMLP.forward: down_proj(silu(gate_proj(x)) · up_proj(x)).
func (m *DeepseekMLP) forward(p *pass, x *Activation) *Activation {
	gate := m.GateProj.forward(p, x)
	up := m.UpProj.forward(p, x)
	kernel.Parallel(gate.Rows(), p.Parallelism, func(t int) {
		row, by := gate.Row(t), up.Row(t)
		for i, v := range row {
			row[i] = p.rounded(p.rounded(silu(v)) * by[i])
		}
	})
	gate.Weights = p.union(nil, gate, up)
	return m.DownProj.forward(p, gate)
}

// silu returns x / (1 + exp(-x)).
func silu(x float32) float32 {
	return float32(float64(x) / (1 + kernel.Exp(-float64(x))))
}
