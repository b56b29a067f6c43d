// Package model is the mathematics of DeepSeekMoE and the table of its weights.
//
// Families are the table: Family.Slots expands one to every weight that a config
// implies, and Load binds them to the tensors of a Source. Forward runs the
// decoder as the reference's Python does; a Trace sees every stage under its
// HuggingFace name. Types and methods carry the reference's names, so that both
// files can be read side by side. The package opens no file.
package model

import (
	"dsmoe/config"
	"dsmoe/model/tensor"
)

// Weight is a named tensor of the checkpoint, as it is stored. The zero Weight
// stands for one that the config does not have, such as a bias.
type Weight struct {
	Name string
	tensor.Tensor
}

// DeepseekForCausalLM is the decoder with its language-model head.
type DeepseekForCausalLM struct {
	Config *config.Config
	Model  DeepseekModel
	LMHead Linear // [vocab_size, hidden_size]; the embedding's weight if tied
}

// DeepseekModel is the decoder without its head.
type DeepseekModel struct {
	EmbedTokens Weight // [vocab_size, hidden_size]
	Layers      []DeepseekDecoderLayer
	Norm        DeepseekRMSNorm
}

// DeepseekDecoderLayer is x + self_attn(input_layernorm(x)), then the same with the
// MLP: a dense one, or a mixture of experts where config.IsMoE says so. One of MLP
// and MoE is nil.
type DeepseekDecoderLayer struct {
	InputLayernorm         DeepseekRMSNorm
	SelfAttn               DeepseekAttention
	PostAttentionLayernorm DeepseekRMSNorm
	MLP                    *DeepseekMLP
	MoE                    *DeepseekMoE
}

// DeepseekAttention is multi-head attention with rotary positions; several query
// heads share a key-value head where num_key_value_heads < num_attention_heads.
type DeepseekAttention struct {
	QProj Linear // [heads·head_dim, hidden_size]
	KProj Linear // [kv_heads·head_dim, hidden_size]
	VProj Linear // [kv_heads·head_dim, hidden_size]
	OProj Linear // [hidden_size, heads·head_dim]
}

// DeepseekMLP is down_proj(silu(gate_proj(x)) · up_proj(x)).
type DeepseekMLP struct {
	GateProj Linear // [width, hidden_size]
	UpProj   Linear // [width, hidden_size]
	DownProj Linear // [hidden_size, width]
}

// DeepseekMoE is the routed experts that the gate picks per token, weighted and
// summed, plus the shared experts, one MLP of width moe_intermediate_size ·
// n_shared_experts (nil if the config has none).
type DeepseekMoE struct {
	Gate          MoEGate
	Experts       []DeepseekMLP
	SharedExperts *DeepseekMLP
}

// MoEGate is the router: one row per routed expert.
type MoEGate struct {
	Weight Weight // [n_routed_experts, hidden_size]
}

// DeepseekRMSNorm is weight · x / sqrt(mean(x²) + eps).
type DeepseekRMSNorm struct {
	Weight Weight // [width]
}

// Linear is x·weightᵀ + bias; most have no bias.
type Linear struct {
	Weight Weight // [out, in]
	Bias   Weight // [out]
}

// newModel returns the modules that c implies, with no weights bound yet.
func newModel(c *config.Config) *DeepseekForCausalLM {
	m := &DeepseekForCausalLM{Config: c}
	m.Model.Layers = make([]DeepseekDecoderLayer, c.NumHiddenLayers)
	for l := range m.Model.Layers {
		layer := &m.Model.Layers[l]
		if !c.IsMoE(l) {
			layer.MLP = &DeepseekMLP{}
			continue
		}
		layer.MoE = &DeepseekMoE{Experts: make([]DeepseekMLP, c.NRoutedExperts)}
		if c.NSharedExperts > 0 {
			layer.MoE.SharedExperts = &DeepseekMLP{}
		}
	}
	return m
}
