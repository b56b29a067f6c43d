package model

import (
	"iter"

	"dsmoe/model/table"
)

// at returns the weight that a place of the table is bound to.
func (m *DeepseekForCausalLM) at(p table.Place) *Weight {
	switch p.Module() {
	case table.Embedding:
		return &m.Model.EmbedTokens
	case table.Head:
		return &m.LMHead.Weight
	case table.MTP:
		return m.Model.MTP[p.Layer-len(m.Model.Layers)].at(p.Role())
	}
	if p.Layer < 0 {
		return &m.Model.Norm.Weight
	}
	return m.Layer(p.Layer).at(p)
}

// at returns the weight of a prediction layer beside those of its decoder layer.
func (x *MtpLayer) at(r table.Role) *Weight {
	return map[table.Role]*Weight{
		table.EmbedTokens: &x.EmbedTokens, table.ENorm: &x.ENorm.Weight, table.HNorm: &x.HNorm.Weight,
		table.EHProj:         &x.EHProj.Weight,
		table.SharedHeadNorm: &x.SharedHead.Norm.Weight, table.SharedHeadHead: &x.SharedHead.Head.Weight}[r]
}

// at returns the weight of a decoder layer.
func (x *DeepseekDecoderLayer) at(p table.Place) *Weight {
	switch role := p.Role(); p.Module() {
	case table.Norms:
		return &x.norm(role).Weight
	case table.DenseMLP:
		return &x.MLP.Linear(role).Weight
	case table.RoutedExperts:
		return &x.MoE.Experts[p.Expert].Linear(role).Weight
	case table.SharedExperts:
		return &x.MoE.SharedExperts.Linear(role).Weight
	case table.Attention:
		projection, bias := role.Projection()
		if bias {
			return &x.Projection(projection).Bias
		}
		return &x.Projection(projection).Weight
	case table.Router:
		if role == table.EScoreCorrectionBias {
			return &x.MoE.Gate.EScoreCorrectionBias
		}
		return &x.MoE.Gate.Weight
	}
	return nil
}

func (x *DeepseekDecoderLayer) norm(r table.Role) *DeepseekRMSNorm {
	switch r {
	case table.InputLayernorm:
		return &x.InputLayernorm
	case table.PostAttentionLayernorm:
		return &x.PostAttentionLayernorm
	case table.QALayernorm:
		return &x.MLA.QALayernorm
	case table.KVALayernorm:
		return &x.MLA.KVALayernorm
	}
	return nil
}

// Projection returns a projection of the layer's attention; nil if it has none of this role.
func (x *DeepseekDecoderLayer) Projection(r table.Role) *Linear {
	if a := x.MLA; a != nil {
		return map[table.Role]*Linear{table.QProj: &a.QProj, table.QAProj: &a.QAProj, table.QBProj: &a.QBProj,
			table.KVAProjWithMQA: &a.KVAProjWithMQA, table.KVBProj: &a.KVBProj, table.OProj: &a.OProj}[r]
	}
	a := x.SelfAttn
	return map[table.Role]*Linear{
		table.QProj: &a.QProj, table.KProj: &a.KProj, table.VProj: &a.VProj, table.OProj: &a.OProj}[r]
}

// Linear returns the MLP's matrix of a role: gate_proj, up_proj or down_proj; nil for others.
func (m *DeepseekMLP) Linear(r table.Role) *Linear {
	switch r {
	case table.GateProj:
		return &m.GateProj
	case table.UpProj:
		return &m.UpProj
	case table.DownProj:
		return &m.DownProj
	}
	return nil
}

// weights are the MLP's matrices.
func (m *DeepseekMLP) weights() [3]*Weight {
	return [3]*Weight{&m.GateProj.Weight, &m.UpProj.Weight, &m.DownProj.Weight}
}

// layerWeights yields the weights of layer l, one of the decoder or a prediction layer, with
// their places, in the order of the table.
func (m *DeepseekForCausalLM) layerWeights(l int) iter.Seq2[table.Place, *Weight] {
	return func(yield func(table.Place, *Weight) bool) {
		for p := range table.FamilyOf(m.Config).LayerPlaces(m.Config, l) {
			if !yield(p, m.at(p)) {
				return
			}
		}
	}
}
