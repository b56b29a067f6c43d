// Package config reads the config.json of a DeepSeek checkpoint. Parse fills in
// the defaults of the reference's configuration and refuses, in one error, every
// field that the reference could not run with. Override applies the changes that
// a golden pack carries. The package opens no file and has no list of weights.
package config

import (
	"fmt"
	"regexp"

	"dsmoe/text/problem"
)

// Config is a checkpoint's configuration as the reference's DeepseekConfig
// (configuration_deepseek.py) holds it. Each field spells its JSON key; its
// default, where the key is absent, stands in the table of its family. A Config
// comes from Parse or Override and is read only: a changed field would neither be
// validated nor written by JSON.
type Config struct {
	ModelType string // model_type: the family, such as "deepseek"

	VocabSize        int // vocab_size: rows of embed_tokens and lm_head
	HiddenSize       int // hidden_size: width of the residual stream
	IntermediateSize int // intermediate_size: width of a dense layer's DeepseekMLP
	NumHiddenLayers  int // num_hidden_layers

	HiddenAct         string  // hidden_act: the activation of DeepseekMLP
	InitializerRange  float64 // initializer_range: standard deviation in _init_weights
	RMSNormEps        float64 // rms_norm_eps: DeepseekRMSNorm.variance_epsilon
	PretrainingTP     int     // pretraining_tp: slices of the reference's matmuls; the mathematics is the same
	TieWordEmbeddings bool    // tie_word_embeddings: lm_head is embed_tokens
	TorchDType        string  // torch_dtype, or dtype, such as "bfloat16"; "" is null

	SwiGLULimit float64 // swiglu_limit L of an MLP: gate ≤ L, -L ≤ up ≤ L; 0 sets no limit
	SwiGLUAlpha float64 // swiglu_alpha: see SwiGLUShifted
	// SwiGLULimits and SharedSwiGLULimits are swiglu_limits, of routed experts by layer, and swiglu_limits_shared, of other
	// MLPs; nil: SwiGLULimit is that of all layers.
	SwiGLULimits, SharedSwiGLULimits []float64

	NumNextNPredictLayers int // num_nextn_predict_layers: MTP layers behind the decoder's

	Attention        Attention
	RoPE             RoPE
	Layers           Layers
	Windows          Windows
	Indexer          Indexer
	MoE              MoE
	Router           Router
	HyperConnections HyperConnections

	Quantization Quantization // quantization_config: the zero value is null

	// Reference selects the published remote code or transformers' own classes where their
	// behaviour differs: see Rules.
	Reference Reference

	changed *Rules   // in place of those of the reference, see WithRules
	family  *family  // whose table the document was read by
	doc     document // parsed document
	wrapper wrapper  // whose object the fields above are from; without a key: doc's own
}

// Attention is plain attention, or multi-head latent attention (MLA), DeepSeek-V2 and later: DeepseekV2Attention.
// Plain attention with head_dim has it in QKNopeHeadDim + QKRopeHeadDim, and in VHeadDim.
type Attention struct {
	NumAttentionHeads int  // num_attention_heads: query heads
	NumKeyValueHeads  int  // num_key_value_heads: key and value heads; null means NumAttentionHeads
	QKNopeHeadDim     int  // qk_nope_head_dim: width of a query or key head that RoPE leaves alone
	QKRopeHeadDim     int  // qk_rope_head_dim: width of a query or key head that RoPE rotates
	VHeadDim          int  // v_head_dim: width of a value head
	KVLoraRank        int  // kv_lora_rank: width of the compressed keys and values; 0 is plain attention
	QLoraRank         int  // q_lora_rank: width of the compressed queries; 0 is null: q_proj in one piece
	AttentionBias     bool // attention_bias: q_proj, k_proj, v_proj and o_proj have a bias
	UseQKNorm         bool // use_qk_norm: queries and keys are normed before RoPE, as Rules.QKNorm says
}

// RoPE is how positions rotate queries and keys.
type RoPE struct {
	RopeTheta             float64      // rope_theta, or rope_parameters.rope_theta: DeepseekRotaryEmbedding.base
	RopeScaling           *RopeScaling // rope_scaling, or the rest of rope_parameters; nil is null
	RopeInterleave        bool         // rope_interleave: RoPE rotates pairs (2i, 2i+1), not halves
	RotaryShare           float64      // partial_rotary_factor: share of a head's channels, the first ones, that RoPE rotates; 0 is absent: all
	CompressRopeTheta     float64      // compress_rope_theta: RopeTheta of layers with entries
	CompressRopeScaling   *RopeScaling // RopeScaling of layers with entries; cosines and sines are not scaled
	MaxPositionEmbeddings int          // max_position_embeddings: the trained length; dynamic scaling starts beyond it
}

// Layers are the types of the layers: which attention, which MLP. See Window, CompressRate, IsMoE and Hashes.
type Layers struct {
	LayerTypes         []string // layer_types, or compress_ratios: see Window and CompressRate
	MaxWindowLayers    int      // max_window_layers: layers without a window, where layer_types does not say it
	WindowPattern      int      // sliding_window_pattern: every so many layers one has no window, where layer_types does not say it
	MLPLayerTypes      []string // mlp_layer_types, or what stands for it: see Hashes and IsMoE
	MoELayerFreq       int      // moe_layer_freq: see IsMoE
	FirstKDenseReplace int      // first_k_dense_replace: see IsMoE
	MoEStart, MoEEnd   int      // moe_layer_start_index, moe_layer_end_index: first and last layer with experts; -1: of all
	MLPOnly            []int    // mlp_only_layers: layers without experts
	MoEInterval        int      // decoder_sparse_step, or moe_layer_interval: every so many layers one has experts
}

// Windows are windows of the latest tokens, see Window; and the compressed entries of DeepSeek-V4, with one head of
// keys, which are the values too.
type Windows struct {
	SlidingWindow   int // sliding_window: latest tokens that a query sees, its own included; 0 is no window
	CompressRateCSA int // compress_rates: tokens of an entry in layers of compressed sparse attention
	CompressRateHCA int // compress_rates: tokens of an entry in layers of heavily compressed attention
	OGroups         int // o_groups: groups of heads with an o_a_proj of their own
	OLoraRank       int // o_lora_rank: width of o_a_proj's output for a group
}

// Indexer is DeepSeek Sparse Attention, DeepSeek-V3.2 and later: an indexer chooses the keys of each query.
type Indexer struct {
	IndexTopK    int      // index_topk: keys that a query attends to; 0 is attention to all keys
	IndexHeadDim int      // index_head_dim: width of one of the indexer's heads
	IndexNHeads  int      // index_n_heads: heads of the indexer's queries; its key has one
	IndexerTypes []string // indexer_types: "full" or "shared" for each layer, see IndexerOf; nil is full
}

// MoE is the mixture of experts.
type MoE struct {
	NRoutedExperts      int // n_routed_experts; 0 is null: every layer is dense
	NSharedExperts      int // n_shared_experts; 0 is null: DeepseekMoE has no shared_experts
	NumExpertsPerTok    int // num_experts_per_tok: MoEGate.top_k; 0 is null, then NRoutedExperts is 0 too
	MoEIntermediateSize int // moe_intermediate_size: width of one expert's DeepseekMLP
	// SharedIntermediateSize is shared_expert_intermediate_size: the width of the shared experts; 0 where it is that of
	// NSharedExperts experts.
	SharedIntermediateSize int
	LatentSize             int // moe_latent_size: width of what routed experts take and give; 0 is HiddenSize
	ZeroExperts            int // zero_expert_num: experts behind the routed ones that give what they take
}

// Router is the gate of the mixture of experts: MoEGate.
type Router struct {
	ScoringFunc         string  // scoring_func: how MoEGate turns logits into scores
	TopKMethod          string  // topk_method: greedy, group_limited_greedy or noaux_tc
	NGroup              int     // n_group: groups of experts; 0 is null
	TopKGroup           int     // topk_group: groups that a token may choose from; 0 is null
	NormTopKProb        bool    // norm_topk_prob: MoEGate divides the weights by their sum + 1e-20 if top_k > 1
	RoutedScalingFactor float64 // routed_scaling_factor: see TopKWeights
	MoENormMin          float64 // moe_norm_min: see TopKDivisor
	LogitCap            float64 // moe_router_logit_softcapping c: logits become c·tanh(logits/c); 0 leaves them
	AuxLossAlpha        float64 // aux_loss_alpha: MoEGate.alpha, the weight of the auxiliary loss in training
	SeqAux              bool    // seq_aux: the auxiliary loss is per sequence, not per batch
}

// HyperConnections, DeepSeek-V4: a residual stream becomes several.
type HyperConnections struct {
	HCMult          int     // hc_mult: streams; 0 is one, added to without weights
	HCSinkhornIters int     // hc_sinkhorn_iters: normalisations of the mixing matrix's columns
	HCEps           float64 // hc_eps: added to sums of the mixing matrix
}

// RopeScaling is rope_scaling. Type is "linear" (DeepseekLinearScalingRotaryEmbedding)
// or "dynamic" (DeepseekDynamicNTKScalingRotaryEmbedding) with only a Factor above 1,
// as _rope_scaling_validation of the first reference demands it; or "yarn", from
// DeepSeek-V2 on (DeepseekV2YarnRotaryEmbedding).
type RopeScaling struct {
	Type   string  // type or rope_type: linear, dynamic or yarn
	Factor float64 // factor: by how much the trained length is stretched

	OriginalMaxPositionEmbeddings int     // yarn: the length before scaling
	BetaFast, BetaSlow            float64 // yarn: rotations that bound the ramp, 32 and 1 by default
	MScale, MScaleAllDim          float64 // yarn: mscale, mscale_all_dim; 0 is absent
}

// JSON returns the configuration as a config.json: the keys of the document that
// was parsed, known and unknown, in its order, with its spelling of every value,
// one key a line, two spaces deep, as transformers writes it.
func (c *Config) JSON() []byte { return c.doc.JSON() }

// MarshalJSON returns JSON, so that a Config inside a report is its config.json.
func (c *Config) MarshalJSON() ([]byte, error) { return c.JSON(), nil }

// Quantization is quantization_config: how the matrices of a checkpoint are stored.
type Quantization struct {
	Method string   // of the Scheme of the modules that no group names
	Block  [2]int   // of that Scheme
	Groups []Group  // modules that are stored in other ways; the first that names a module counts
	Except []string // modules_to_not_convert or ignore: see StaysUnquantised

	Unread []problem.Problem // why the config, which may be right, is not read: see Config.Computable

	Experts    string // expert_dtype: of routed experts beside FP8, "fp4" or "fp8"; "" is as all matrices
	PowerOfTwo bool   // scale_fmt is ue8m0: scales are powers of two

	first     map[string]int   // by a name that groups have, as StaysUnquantised has names, the first such group
	patterned []int            // groups with patterns
	patterns  []*regexp.Regexp // of Except's entries that are patterns
	exceptKey string           // the key of AWQ, GPTQ and AutoRound that Except was read from
	// Unclear says that an entry of Except is a pattern of a syntax that this package does not have.
	Unclear bool
}

// Scheme is how quantization_config says that a module's weight is stored. The zero value is a plain weight.
type Scheme struct {
	Method string // of a tensor.Form: quant_method; of compressed-tensors its format, of ModelOpt what that would be there
	Block  [2]int // rows and columns that share a scale; 0 columns: a whole row; zero: all of the weight
}

// Group is modules that share a Scheme.
type Group struct {
	Scheme
	patterns []*regexp.Regexp // of names
}

// Announced reports whether config.json has a quantization_config.
func (q *Quantization) Announced() bool { return q.Method != "" || q.Groups != nil || q.Unread != nil }

// Reference names an implementation of a family in Python.
type Reference string

// The implementations. The first DeepSeekMoE has no native one.
const (
	Remote Reference = "remote" // the modeling_*.py published with the checkpoint
	Native Reference = "native" // transformers' models/deepseek_v2, models/deepseek_v3
)

// wrapper is a model_type of a model that has a language model and more, such as a vision
// tower: config.json holds the language model's configuration in one of its objects.
type wrapper struct {
	modelType    string
	architecture string // the first of architectures; "" for any
	key          string // of the object
	prefix       string // of the language model's names among the tensors
	family       string // of the language model; "" if its own model_type names it
}

func (s *RopeScaling) equal(t *RopeScaling) bool {
	if s == nil || t == nil {
		return s == t
	}
	return *s == *t
}

// String returns the scaling as config.json writes it, "null" for nil.
func (s *RopeScaling) String() string {
	if s == nil {
		return "null"
	}
	if s.Type == "yarn" {
		return fmt.Sprintf(`{"type": "yarn", "factor": %v, "original_max_position_embeddings": %d, `+
			`"beta_fast": %v, "beta_slow": %v, "mscale": %v, "mscale_all_dim": %v}`,
			s.Factor, s.OriginalMaxPositionEmbeddings, s.BetaFast, s.BetaSlow, s.MScale, s.MScaleAllDim)
	}
	return fmt.Sprintf(`{"type": %q, "factor": %v}`, s.Type, s.Factor)
}
