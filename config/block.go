package config

import (
	"fmt"
	"slices"
)

// block is what the families share whose attention is not computed: the keys that their mixtures of experts and dense
// layers depend on, with DeepSeek-V3's gate. transformers' class is the only reference, in 5.24 and later.
var block = family{
	reference: Native, blockOnly: true,
	fields: slices.Concat([]field{
		v3.row("model_type", nil),
		v3.row("vocab_size", nil),
		v3.row("hidden_size", nil),
		v3.row("intermediate_size", nil),
		v3.row("moe_intermediate_size", nil),
		v3.row("num_hidden_layers", nil),
		{"n_shared_experts", 1, natural(func(c *Config) *int { return &c.MoE.NSharedExperts }, maxExperts)},
		grouped.row("n_routed_experts", 256),
		grouped.row("num_experts_per_tok", 8),
		v3.row("first_k_dense_replace", 0),
		v3.row("n_group", 1),
		v3.row("topk_group", 1),
		v3.row("norm_topk_prob", true),
		{"routed_scaling_factor", 1.0, v3.row("routed_scaling_factor", nil).ifSet()},
		v3.row("hidden_act", "silu"),
		v3.row("mlp_bias", nil),
		v3.row("initializer_range", 0.02),
		v3.row("rms_norm_eps", nil),
		v3.row("tie_word_embeddings", nil),
	}, storedFields, []field{grouped.row("mlp_layer_types", nil)}),
	unread: []field{
		v3.row("scoring_func", "sigmoid"), v3.row("topk_method", "noaux_tc"), v3.row("moe_layer_freq", 1),
		v3.row("pretraining_tp", 1), v3.row("num_attention_heads", 1), v3.row("num_key_value_heads", 1),
		v3.row("num_nextn_predict_layers", 0),
	},
	rules: []rule{
		{[]string{"num_hidden_layers", "vocab_size", "hidden_size", "intermediate_size", "moe_intermediate_size",
			"n_shared_experts", "n_routed_experts"}, sizeIsSane},
		topKFitsExperts,
		groupsAreEqual,
		activationIsSiLU,
	},
	references: v3.native(func(r *Rules) { r.Router.KeepsGate = true }),
}

// sumScaled has the rules of the mixtures that have a sigmoid in float32 over logits in the weights' dtype, a cast bias, weights
// that are normalised without an addend, and a factor of the routed sum.
var sumScaled = family{references: v3.native(func(r *Rules) {
	r.Router.RouterFloat32, r.Router.ScoresInFloat32, r.Router.CastsRouterBias, r.Router.NormsBare, r.MoE.ScalesSum,
		r.MoE.FlatShared = false, true, true, true, true, true
})}

// sharedWidth is the row of the width of shared experts, which are one.
func sharedWidth(missing int) field {
	return field{"shared_expert_intermediate_size", missing,
		integer(func(c *Config) *int { return &c.MoE.SharedIntermediateSize }, 1, maxDim)}
}

// named returns the row under another key.
func (row field) named(key string) field {
	row.key = key
	return row
}

// BlockOnly reports whether of the decoder's layers the mixtures of experts and the dense MLPs alone are computed, not
// attention.
func (c *Config) BlockOnly() bool { return c.family != nil && c.family.blockOnly }

// Alone returns a copy of c of which the MLPs alone are computed: see BlockOnly.
func (c *Config) Alone() *Config {
	alone, family := *c, *c.family
	family.blockOnly = true
	alone.family = &family
	return &alone
}

// Attends returns why no forward pass is computed: Computable's reason, or that of BlockOnly. It is nil for most.
func (c *Config) Attends() error {
	if c.BlockOnly() {
		return fmt.Errorf("model_type %s: attention is not computed for it; its mixtures of experts and dense MLPs are", c.ModelType)
	}
	return c.Computable()
}
