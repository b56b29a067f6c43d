package config

// Rules are the differences between references that config.json does not express. Each family lists the rules of its
// references: see family.references. The zero value is the first DeepSeekMoE's modeling_deepseek.py.
type Rules struct {
	Attention attentionRules
	RoPE      ropeRules
	Router    routerRules
	MoE       moeRules

	// NormsOnce: RMSNorm multiplies with its weight in float32 and rounds once; otherwise it rounds before that, too.
	NormsOnce bool
}

// attentionRules are the rules of attention.
type attentionRules struct {
	// AbsorbsKVB: latent attention multiplies kv_b_proj into queries and context, which is not what is computed here.
	AbsorbsKVB bool
	// QKNorm is how queries and keys are normed with use_qk_norm.
	QKNorm QKNorm
	// QKV is where files and the reference's modules have queries, keys and values.
	QKV QKV
	// OutputUnbiased: attention_bias gives o_proj no bias.
	OutputUnbiased bool
	// ScalesScores: scores are multiplied with 1/sqrt(head_dim), not divided by sqrt(head_dim).
	ScalesScores bool
}

// ropeRules are the rules of RoPE.
type ropeRules struct {
	// AnglesInFloat32: RoPE's positions and angles are float32, whatever inv_freq's
	// dtype; otherwise they have that.
	AnglesInFloat32 bool
	// RotatesInFloat32: the rotation is computed in float32, by cos and sin in float32,
	// and rounded once; otherwise cos, sin and each product are rounded to the compute
	// dtype.
	RotatesInFloat32 bool
	// CastsRotation: where RotatesInFloat32, cos and sin are cast to the compute dtype first.
	CastsRotation bool
	// JoinsTables: where RotatesInFloat32, RoPE's module still gives each cosine and sine twice, side by side.
	JoinsTables bool
	// RotatesWindows: RoPE rotates only in layers with a window.
	RotatesWindows bool
	// IndexerInterleaves: RoPE rotates pairs (2i, 2i+1) of the indexer's channels, not halves.
	// GLM-5's does, DeepSeek-V3.2's does not; attention's own pairs are interleaved in both.
	IndexerInterleaves bool
}

// routerRules are the rules of the gate.
type routerRules struct {
	// RouterFloat32: the gate computes in float32, whatever the compute dtype.
	RouterFloat32 bool
	// ScoresInFloat32: the gate's scores are float32, whatever its logits are.
	ScoresInFloat32 bool
	// WidensLogits: the gate's module gives its logits in float32, whatever dtype they are computed in.
	WidensLogits bool
	// KeepsGate: the gate's weight stays float32, whatever the compute dtype.
	KeepsGate bool
	// CastsRouterBias: e_score_correction_bias is cast to the compute dtype, as other weights are.
	CastsRouterBias bool
	// UnbiasedChoice: noaux_tc chooses by the scores alone, for the files have no e_score_correction_bias.
	UnbiasedChoice bool
	// MasksToZero: noaux_tc sets the scores of groups that are not chosen to 0, not to -inf.
	MasksToZero bool
	// ChoosesByLogits: experts are chosen by the logits, to which e_score_correction_bias is added, not by the scores.
	ChoosesByLogits bool
	// NormTopK is when norm_topk_prob normalises the top-k weights, see TopKWeights.
	NormTopK normTopK
	// NormsBare: nothing is added to the sum that top-k weights are divided by, see TopKDivisor.
	NormsBare bool
	// ScalesNormalised: top-k weights are scaled by routed_scaling_factor though they
	// were normalised; otherwise they are scaled only if they were not.
	ScalesNormalised bool
	// CastsTopKWeights: top-k weights are cast to the compute dtype.
	CastsTopKWeights bool
}

// moeRules are the rules of the mixture of experts.
type moeRules struct {
	// IgnoresMoELayerFreq: moe_layer_freq does not count, see IsMoE.
	IgnoresMoELayerFreq bool
	// DensePredictions: prediction layers have no experts, whatever the other layers have.
	DensePredictions bool
	// RoutedSum is the order in which the experts' outputs are added.
	RoutedSum RoutedSum
	// ScalesSum: routed_scaling_factor multiplies the routed sum, not the top-k weights.
	ScalesSum bool
	// NormsExperts: an RMSNorm stands behind the sum of routed and shared experts, A.X-K1's.
	NormsExperts bool
	// GatesShared: the output of the shared experts is multiplied with the sigmoid of a row's product with the token.
	GatesShared bool
	// NormsBlock: an RMSNorm stands behind the MLP of a layer, before the residual is added.
	NormsBlock bool
	// Activation is what MLPs make of their projections.
	Activation activation
	// LimitsRouted: swiglu_limit is of routed experts alone.
	LimitsRouted bool
	// SumsInFloat32: routed experts' outputs are added in float32, and the sum is rounded once.
	SumsInFloat32 bool
	// FlatShared: the shared experts see [tokens, hidden_size], as the routed ones do, not [batch, seq, hidden_size].
	FlatShared bool
}

// QKV is where files and modules have the matrices of queries, keys and values in plain attention.
type QKV uint8

// The matrices of queries, keys and values. Of one matrix the rows of all queries are first, then those of all keys.
const (
	_          QKV = iota // three matrices, three modules
	QKVInFiles            // one matrix, three modules
	QKVJoined             // one matrix, one module
)

// QKNorm is how queries and keys are normed, and how the reference's module shows them.
type QKNorm uint8

// The norms of queries and keys.
const (
	PerHead           QKNorm = iota // each head, [batch, seq, heads, head_dim]
	PerHeadTransposed               // each head, [batch, heads, seq, head_dim]
	AllHeads                        // all heads of a token together, [batch, seq, heads·head_dim]
)

// activation is what an MLP makes of the outputs of its projections, gate and up.
type activation uint8

// The activations. A limit is Config.Limit; it clamps the outputs but where another place is said.
const (
	SwiGLU        activation = iota // silu(gate) · up
	SwiGLUOnce                      // the same in float32, rounded once
	SwiGLULimited                   // the same with a limit of silu(gate), not of gate
	SwiGLUShifted                   // gate · sigmoid(swiglu_alpha · gate) · (up + 1)
	SquaredReLU                     // relu(up)², without a gate
)

// normTopK is the condition under which norm_topk_prob has an effect.
type normTopK uint8

// The conditions under which norm_topk_prob normalises.
const (
	normAboveOne normTopK = iota // if num_experts_per_tok > 1
	normAlways                   // for any num_experts_per_tok
	normNever                    // not at all
)

// RoutedSum is the order in which the outputs of a token's experts are added.
type RoutedSum uint8

// The orders of the routed sum.
const (
	// ByExpert adds in the order of ascending experts in the compute dtype, rounding
	// each product and each partial sum: moe_infer's scatter_reduce_ or index_add_.
	ByExpert RoutedSum = iota
	// ByChoice sums in the order of topk_idx, rounding each product to the dtype of the
	// weights and the sum to the compute dtype once.
	ByChoice
)
