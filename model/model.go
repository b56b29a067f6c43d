// Package model is the mathematics of DeepSeekMoE.
//
// Load binds every weight of package table to the tensors of a weights.Source. A Network is
// the decoder of the reference's Python, written once over the operations of an Arithmetic:
// Plain computes them, Tape also carries gradients back, other packages have more. A Trace
// sees every stage under its HuggingFace name. Types and methods carry the reference's
// names, so that both files can be read side by side. The package opens no file.
package model

import (
	"dsmoe/config"
	"dsmoe/model/table"
	"dsmoe/model/tensor"
	"dsmoe/model/weights"
)

// Weight is a named tensor of the checkpoint, as it is stored. The zero Weight stands for a
// weight that the config does not have, such as a bias.
//
// Weights of a stored form with scales have a scale per block: see tensor.Form and kernel.Matrix.
type Weight struct {
	Name          string // name in the table; "" for the zero Weight
	tensor.Tensor        // as stored
	tensor.Grid          // scale and zero of each block, row by row; nil in forms without scales
	Block         [2]int // rows and columns that share a scale

	unread *unread // source of Data while a layer runs; nil if Data is always in memory
}

// unread is a weight of a layer that is in memory only while the layer runs.
type unread struct {
	w   *weights.Weight
	src weights.Unviewed
}

// DeepseekForCausalLM is the decoder with its language-model head.
type DeepseekForCausalLM struct {
	Config *config.Config // config of the modules
	Model  DeepseekModel  // model: the decoder without the head
	LMHead Linear         // [vocab_size, hidden_size]; the embedding's weight if tied
}

// DeepseekModel is the decoder without its head.
type DeepseekModel struct {
	EmbedTokens Weight                 // [vocab_size, hidden_size]
	Layers      []DeepseekDecoderLayer // num_hidden_layers
	Norm        DeepseekRMSNorm        // before the head
	// MTP holds the num_nextn_predict_layers multi-token prediction layers, whose numbers follow
	// those of Layers. Layers that the checkpoint lacks have no weights.
	MTP []MtpLayer
}

// MtpLayer is a multi-token prediction layer: a decoder layer that takes a hidden state and the
// embedding of a later token, and returns the hidden state from which the head predicts the
// next token.
type MtpLayer struct {
	DeepseekDecoderLayer                 // mtp_block
	EmbedTokens          Weight          // [vocab_size, hidden_size]; the model's if the layer has none
	ENorm                DeepseekRMSNorm // norm of the embedding
	HNorm                DeepseekRMSNorm // norm of the hidden state
	EHProj               Linear          // [hidden_size, 2·hidden_size], the embedding's columns first
	SharedHead           SharedHead      // head that predicts the token
}

// SharedHead is a norm and a language-model head.
type SharedHead struct {
	Norm DeepseekRMSNorm // before the head, and before the next prediction layer
	Head Linear          // [vocab_size, hidden_size]; the model's if the layer has none
}

// Layer returns decoder layer l or, from num_hidden_layers on, the decoder layer of a prediction layer.
func (m *DeepseekForCausalLM) Layer(l int) *DeepseekDecoderLayer {
	if n := len(m.Model.Layers); l >= n {
		return &m.Model.MTP[l-n].DeepseekDecoderLayer
	}
	return &m.Model.Layers[l]
}

// PredictionLayers returns the number of prediction layers that can be run: each takes the
// output of the layer before, so they end at the first that the checkpoint lacks.
func (m *DeepseekForCausalLM) PredictionLayers() int {
	for k := range m.Model.MTP {
		if m.Model.MTP[k].EHProj.Weight.Name == "" {
			return k
		}
	}
	return len(m.Model.MTP)
}

// DeepseekDecoderLayer is x + self_attn(input_layernorm(x)), then the same with the
// MLP: a mixture of experts in the layers of config.IsMoE, else a dense MLP. One of MLP and
// MoE is nil, and one of SelfAttn and MLA: latent attention came with DeepSeek-V2.
type DeepseekDecoderLayer struct {
	InputLayernorm         DeepseekRMSNorm      // before attention
	SelfAttn               *DeepseekAttention   // self_attn of the first DeepSeekMoE
	MLA                    *DeepseekV2Attention // self_attn of later models
	Indexer                *Indexer             // self_attn.indexer; nil in a layer without one of its own
	PostAttentionLayernorm DeepseekRMSNorm      // before the MLP
	MLP                    *DeepseekMLP         // mlp of a dense layer
	MoE                    *DeepseekMoE         // mlp of a layer with experts
}

// DeepseekAttention is multi-head attention with rotary positions; several query
// heads share a key-value head where num_key_value_heads < num_attention_heads.
type DeepseekAttention struct {
	QProj Linear // [heads·head_dim, hidden_size]
	KProj Linear // [kv_heads·head_dim, hidden_size]
	VProj Linear // [kv_heads·head_dim, hidden_size]
	OProj Linear // [hidden_size, heads·head_dim]
}

// DeepseekV2Attention is multi-head latent attention: keys and values of all heads
// come from one compressed row per token, and queries may, too. A head has
// qk_nope_head_dim values without position and qk_rope_head_dim rotated values. All heads
// share the rotated values of the keys.
type DeepseekV2Attention struct {
	QProj          Linear          // [heads·qk_head_dim, hidden_size], without q_lora_rank
	QAProj         Linear          // [q_lora_rank, hidden_size]
	QALayernorm    DeepseekRMSNorm // [q_lora_rank]
	QBProj         Linear          // [heads·qk_head_dim, q_lora_rank]
	KVAProjWithMQA Linear          // [kv_lora_rank + qk_rope_head_dim, hidden_size]
	KVALayernorm   DeepseekRMSNorm // [kv_lora_rank]
	KVBProj        Linear          // [heads·(qk_nope_head_dim + v_head_dim), kv_lora_rank]
	OProj          Linear          // [hidden_size, heads·v_head_dim]
}

// DeepseekMLP is down_proj(silu(gate_proj(x)) · up_proj(x)).
type DeepseekMLP struct {
	GateProj Linear // [width, hidden_size]
	UpProj   Linear // [width, hidden_size]
	DownProj Linear // [hidden_size, width]
}

// DeepseekMoE is the routed experts that the gate picks per token, weighted and
// summed, plus the shared experts, one MLP of width moe_intermediate_size ·
// n_shared_experts, nil if n_shared_experts is 0.
type DeepseekMoE struct {
	Gate          MoEGate       // the router
	Experts       []DeepseekMLP // n_routed_experts, of width moe_intermediate_size
	SharedExperts *DeepseekMLP  // for every token
	// PostMLPLayernorm is behind the sum of both; nil but in A.X-K1.
	PostMLPLayernorm *DeepseekRMSNorm
}

// MoEGate is the router: one row per routed expert. From DeepSeek-V3 on, a bias
// moves the choice of experts but not their weights.
type MoEGate struct {
	Weight               Weight // [n_routed_experts, hidden_size]
	EScoreCorrectionBias Weight // [n_routed_experts]
	// Mask is added to the logits, and to the scores that experts are chosen by [n_routed_experts]; see Keep.
	Mask Weight
}

// DeepseekRMSNorm is weight · x / sqrt(mean(x²) + eps).
type DeepseekRMSNorm struct {
	Weight Weight // [width]
	// VarianceEpsilon is eps if the reference does not take it from the config; 0 means
	// rms_norm_eps.
	VarianceEpsilon float64
}

// Linear is x·weightᵀ + bias; most projections have no bias.
type Linear struct {
	Weight Weight // [out, in]
	Bias   Weight // [out]
}

// newModel returns the modules that c implies, with no weights bound yet.
func newModel(c *config.Config) *DeepseekForCausalLM {
	m := &DeepseekForCausalLM{Config: c}
	m.Model.Layers = make([]DeepseekDecoderLayer, c.NumHiddenLayers)
	for l := range m.Model.Layers {
		m.Model.Layers[l] = newLayer(c, l)
	}
	m.Model.MTP = make([]MtpLayer, table.FamilyOf(c).PredictionLayers(c))
	for k := range m.Model.MTP {
		m.Model.MTP[k].DeepseekDecoderLayer = newLayer(c, c.NumHiddenLayers+k)
	}
	return m
}

// newLayer returns the modules of decoder layer l.
func newLayer(c *config.Config, l int) (layer DeepseekDecoderLayer) {
	if c.LatentAttention() {
		layer.MLA = &DeepseekV2Attention{
			QALayernorm:  DeepseekRMSNorm{VarianceEpsilon: config.LatentEps},
			KVALayernorm: DeepseekRMSNorm{VarianceEpsilon: config.LatentEps},
		}
	} else {
		layer.SelfAttn = &DeepseekAttention{}
	}
	layer.Indexer = indexerOf(c, l)
	if !c.IsMoE(l) {
		layer.MLP = &DeepseekMLP{}
		return layer
	}
	layer.MoE = &DeepseekMoE{Experts: make([]DeepseekMLP, c.NRoutedExperts)}
	if c.NSharedExperts > 0 {
		layer.MoE.SharedExperts = &DeepseekMLP{}
	}
	if c.Rules().NormsExperts {
		layer.MoE.PostMLPLayernorm = &DeepseekRMSNorm{}
	}
	return layer
}
