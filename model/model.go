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
	// InFloat32: the reference keeps the weight in float32, whatever the compute dtype.
	InFloat32 bool

	// FirstRow is the first of the whole weight's rows that Rows took.
	FirstRow int

	unread *unread // source of Data while a layer runs; nil if Data is always in memory
}

// unread is a weight of a layer that is in memory only while the layer runs.
type unread struct {
	w    *weights.Weight
	src  weights.Unviewed
	kept bool   // see Keep
	free func() // gives up Data that lies aside; nil of Data in memory
}

// Keep says that the weight of a routed expert, which was read when the expert ran, is needed until its layer has run.
func (w *Weight) Keep() {
	if w.unread != nil {
		w.unread.kept = true
	}
}

// setAside moves a weight that was read out of memory, until it is let go.
func (w *Weight) setAside() { w.Data, w.unread.free = w.unread.src.Aside(w.Data) }

// Rows returns rows from … to-1 of a matrix, or such elements of a bias, under the name of the whole. Each row has scales
// of its own.
func (w *Weight) Rows(from, to int) Weight {
	rows, bytes := *w, len(w.Data)/w.Shape[0]
	rows.Shape, rows.FirstRow, rows.Data = append([]int{to - from}, w.Shape[1:]...), from, w.Data[from*bytes:to*bytes]
	if w.Scales == nil {
		return rows
	}
	blocks := (w.Shape[1] + w.Block[1] - 1) / w.Block[1]
	rows.Block[0], rows.Grid = 1, tensor.Grid{}
	for row := from; row < to; row++ {
		first := row / w.Block[0] * blocks
		rows.Scales = append(rows.Scales, w.Scales[first:first+blocks]...)
		if w.Zeros != nil {
			rows.Zeros = append(rows.Zeros, w.Zeros[first:first+blocks]...)
		}
	}
	return rows
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
	HCHead      *HyperConnection       // hc_head, before Norm; nil without hyper-connections
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
// MoE is nil, both in layers without an MLP, and two of SelfAttn, MLA and Windowed. With hyper-connections x is not a row per token, but several.
type DeepseekDecoderLayer struct {
	AttnHC, FFNHC          *HyperConnection     // attn_hc and ffn_hc, around attention and MLP; nil without
	InputLayernorm         DeepseekRMSNorm      // before attention
	SelfAttn               *DeepseekAttention   // self_attn of the first DeepSeekMoE, and others' with plain attention
	MLA                    *DeepseekV2Attention // self_attn from DeepSeek-V2 on
	Windowed               *DeepseekV4Attention // self_attn of DeepSeek-V4
	Indexer                *Indexer             // self_attn.indexer; nil in a layer without one of its own
	PostAttentionLayernorm DeepseekRMSNorm      // before the MLP
	PostMLPLayernorm       *DeepseekRMSNorm     // behind the MLP; nil unless config.Rules has NormsBlock
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

	// QKVProj is the rows of QProj, KProj and VProj in one matrix, which stands for these where config.Rules says so.
	QKVProj Linear

	QNorm, KNorm DeepseekRMSNorm // with use_qk_norm, [head_dim], or of all heads: see config.QKNorm
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

// Indexer chooses the keys that each query attends to, mirroring DeepseekV32Indexer: its queries
// have index_n_heads heads, its keys one.
type Indexer struct {
	WQB         Linear    // [index_n_heads·index_head_dim, q_lora_rank]
	WK          Linear    // [index_head_dim, hidden_size]
	KNorm       LayerNorm // [index_head_dim]
	WeightsProj Linear    // [index_n_heads, hidden_size], the weights of the heads
}

// LayerNorm is weight · (x - mean(x)) / sqrt(var(x) + 1e-6) + bias.
type LayerNorm struct{ Weight, Bias Weight } // [width] each

// DeepseekV4Attention is attention to a window of the latest tokens and, in layers with a compressor, to entries
// that stand for several tokens each. All heads share one head of keys, which are the values too.
type DeepseekV4Attention struct {
	QAProj     Linear          // [q_lora_rank, hidden_size]
	QANorm     DeepseekRMSNorm // [q_lora_rank]
	QBProj     Linear          // [heads·head_dim, q_lora_rank]
	KVProj     Linear          // [head_dim, hidden_size]
	KVNorm     DeepseekRMSNorm // [head_dim]
	OAProj     Linear          // [o_groups·o_lora_rank, heads·head_dim/o_groups]
	OBProj     Linear          // [hidden_size, o_groups·o_lora_rank]
	Sinks      Weight          // [heads], a score that takes probability from the keys
	Compressor *Compressor     // nil in layers without entries
	Indexer    *EntryIndexer   // compressor.indexer, which chooses entries; nil: each query attends to all
}

// Compressor makes entries of tokens, mirroring DeepseekV4HCACompressor and DeepseekV4CSACompressor; c is the
// number of series of a token.
type Compressor struct {
	KVProj, GateProj Linear          // [c·width, hidden_size]
	PositionBias     Weight          // [rate, c·width], added to the gate
	KVNorm           DeepseekRMSNorm // [width]
}

// EntryIndexer chooses the entries that each query attends to, mirroring DeepseekV4Indexer. It scores
// entries of its own, with a width of index_head_dim.
type EntryIndexer struct {
	Compressor
	QBProj      Linear // [index_n_heads·index_head_dim, q_lora_rank]
	WeightsProj Linear // scorer.weights_proj [index_n_heads, hidden_size], the weights of the heads
}

// at returns the weight with a role.
func (m *Compressor) at(r table.Role) *Weight {
	return map[table.Role]*Weight{table.KVProj: &m.KVProj.Weight, table.GateProj: &m.GateProj.Weight,
		table.PositionBias: &m.PositionBias, table.KVNorm: &m.KVNorm.Weight}[r]
}

// HyperConnection weighs the streams of the residual around a module, mirroring
// DeepseekV4HyperConnection, or before the head, mirroring DeepseekV4HyperHead.
type HyperConnection struct {
	Fn    Linear // [(2+hc)·hc, hc·hidden_size]; before the head [hc, hc·hidden_size]
	Base  Weight // [(2+hc)·hc], or [hc]
	Scale Weight // [3], or [1]
}

// hyperOf returns the hyper-connection of a model with streams; nil for other models.
func hyperOf(c *config.Config) *HyperConnection {
	if c.HyperConnections.HCMult == 0 {
		return nil
	}
	return &HyperConnection{}
}

// at returns the weight with a role.
func (h *HyperConnection) at(r table.Role) *Weight {
	return map[table.Role]*Weight{table.HCFn: &h.Fn.Weight, table.HCBase: &h.Base, table.HCScale: &h.Scale}[r]
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
	SharedGate    Linear        // [1, hidden_size], with config.Rules.GatesShared
	Latent        [2]Linear     // fc1_latent_proj and fc2_latent_proj around the experts, with moe_latent_size
	// PostMLPLayernorm is behind the sum of both; nil but in A.X-K1.
	PostMLPLayernorm *DeepseekRMSNorm
}

// MoEGate is the router: one row per routed expert. From DeepSeek-V3 on, a bias
// moves the choice of experts but not their weights. In the first layers of DeepSeek-V4 a table
// chooses the experts of each token id.
type MoEGate struct {
	Weight               Weight // [n_routed_experts, hidden_size]
	EScoreCorrectionBias Weight // [n_routed_experts]
	// Mask is added to the logits, and to the scores that experts are chosen by [n_routed_experts]; see Keep.
	Mask    Weight
	kept    []int   // the experts that Keep lists; nil for all
	TID2EID *Weight // [vocab_size, num_experts_per_tok], experts of each token id; nil without
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
	m.Model.HCHead = hyperOf(c)
	m.Model.Layers = make([]DeepseekDecoderLayer, c.NumHiddenLayers)
	for l := range m.Model.Layers {
		m.Model.Layers[l] = newLayer(c, l)
	}
	if f := table.FamilyOf(c); !f.CarriesMTP {
		m.Model.MTP = make([]MtpLayer, f.PredictionLayers(c))
	}
	for k := range m.Model.MTP {
		m.Model.MTP[k].DeepseekDecoderLayer = newLayer(c, c.NumHiddenLayers+k)
	}
	return m
}

// newLayer returns the modules of decoder layer l.
func newLayer(c *config.Config, l int) (layer DeepseekDecoderLayer) {
	layer.AttnHC, layer.FFNHC = hyperOf(c), hyperOf(c)
	if c.Rules().MoE.NormsBlock {
		layer.PostMLPLayernorm = &DeepseekRMSNorm{}
	}
	switch {
	case c.Windowed():
		layer.Windowed = &DeepseekV4Attention{}
		if c.CompressRate(l) > 0 {
			layer.Windowed.Compressor = &Compressor{}
		}
		if c.Overlaps(l) {
			layer.Windowed.Indexer = &EntryIndexer{}
		}
	case c.LatentAttention():
		layer.MLA = &DeepseekV2Attention{
			QALayernorm:  DeepseekRMSNorm{VarianceEpsilon: config.LatentEps},
			KVALayernorm: DeepseekRMSNorm{VarianceEpsilon: config.LatentEps},
		}
	default:
		layer.SelfAttn = &DeepseekAttention{}
	}
	if c.HasIndexer() && !c.Windowed() && c.IndexerOf(l) == l {
		layer.Indexer = &Indexer{}
	}
	switch {
	case !c.HasMLP(l):
		return layer
	case !c.IsMoE(l):
		layer.MLP = &DeepseekMLP{}
		return layer
	}
	layer.MoE = &DeepseekMoE{Experts: make([]DeepseekMLP, c.MoE.NRoutedExperts)}
	if c.MoE.NSharedExperts > 0 {
		layer.MoE.SharedExperts = &DeepseekMLP{}
	}
	if c.Hashes(l) {
		layer.MoE.Gate.TID2EID = &Weight{}
	}
	if c.Rules().MoE.NormsExperts {
		layer.MoE.PostMLPLayernorm = &DeepseekRMSNorm{}
	}
	return layer
}
