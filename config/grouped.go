package config

import (
	"errors"
	"fmt"
	"slices"
)

// grouped is what the families share that have DeepSeek-V3's mixture of experts behind plain attention, whose width of
// heads is head_dim. transformers' class is the only reference. It reads neither topk_method nor scoring_func.
var grouped = family{
	reference: Native,
	fields: slices.Concat([]field{
		v3.row("model_type", nil),
		v3.row("vocab_size", nil),
		v3.row("hidden_size", nil),
		v3.row("intermediate_size", nil),
		v3.row("moe_intermediate_size", nil),
		v3.row("num_hidden_layers", nil),
		v3.row("num_attention_heads", nil),
		v3.row("num_key_value_heads", nil),
		// without a default: hidden_size / num_attention_heads
		{"head_dim", nil, optional(func(c *Config) *int { return &c.Attention.VHeadDim }, maxDim)},
		{"n_shared_experts", 1, integer(func(c *Config) *int { return &c.MoE.NSharedExperts }, 1, maxExperts)},
		{"n_routed_experts", nil, integer(func(c *Config) *int { return &c.MoE.NRoutedExperts }, 1, maxExperts)},
		{"num_experts_per_tok", nil, integer(func(c *Config) *int { return &c.MoE.NumExpertsPerTok }, 1, maxExperts)},
		v3.row("first_k_dense_replace", nil),
		v3.row("n_group", 1),
		v3.row("topk_group", 1),
		v3.row("norm_topk_prob", true),
		v3.row("routed_scaling_factor", 1.0),
		v3.row("hidden_act", "silu"),
		v3.row("max_position_embeddings", nil),
		v3.row("initializer_range", 0.02),
		v3.row("rms_norm_eps", nil),
		v3.row("tie_word_embeddings", nil),
		{"partial_rotary_factor", nil, number(func(c *Config) *float64 { return &c.RoPE.RotaryShare }, positive).ifSet().
			deciding(func(a, b *Config) bool { return a.Attention.QKRopeHeadDim != b.Attention.QKRopeHeadDim })},
		v3.row("rope_theta", 10000.0),
		v3.row("rope_scaling", nil),
		v3.row("rope_parameters", nil),
		v3.row("attention_bias", nil),
		v3.row("mlp_bias", nil),
	}, storedFields),
	unread: []field{
		v3.row("scoring_func", "sigmoid"), v3.row("topk_method", "noaux_tc"), v3.row("moe_layer_freq", 1),
		v3.row("pretraining_tp", 1), v3.row("rope_interleave", false),
		v3.row("num_nextn_predict_layers", 0),
		{"use_qk_norm", true, boolean(func(c *Config) *bool { return &c.Attention.UseQKNorm })},
		{"sliding_window", nil, optional(func(c *Config) *int { return &c.Windows.SlidingWindow },
			maxDim).deciding(either((*Config).HasWindows))},
		{"layer_types", nil, layerTypes(func(c *Config) *[]string { return &c.Layers.LayerTypes }, slidingAttention,
			fullAttention)},
		{"mlp_layer_types", nil, layerTypes(func(c *Config) *[]string { return &c.Layers.MLPLayerTypes }, denseMLP,
			sparseMLP)},
	},
	rules: slices.Concat(groupedRules, []rule{
		// The class has tables for all channels of a head.
		{[]string{"partial_rotary_factor", "head_dim"}, func(c *Config) error {
			return errorIf(c.Attention.QKRopeHeadDim != c.Attention.VHeadDim,
				"RoPE rotates %d of head_dim %d: the reference rotates all",
				c.Attention.QKRopeHeadDim, c.Attention.VHeadDim)
		}},
	}),
	rope:       &ropeForm{types: yarnForm.types, keys: yarnForm.keys, number: yarnForm.number, others: []string{ropeShare}},
	references: v3.native(func(r *Rules) { r.Attention.ScalesScores = true }),
}

// groupedRules hold for all of these families.
var groupedRules = []rule{
	{[]string{"head_dim", "hidden_size", "num_attention_heads", "partial_rotary_factor"}, headsAreSet},
	{[]string{"num_hidden_layers", "vocab_size", "hidden_size", "intermediate_size", "moe_intermediate_size",
		"n_shared_experts", "n_routed_experts", "num_attention_heads", "head_dim"}, sizeIsSane},
	groupsDivideHeads,
	{[]string{"n_routed_experts"}, func(c *Config) error {
		return errorIf(c.MoE.NRoutedExperts == 0, "missing: the reference has no default for it")
	}},
	topKFitsExperts,
	groupsAreEqual,
	activationIsSiLU,
}

var groupsAreEqual = rule{[]string{"n_routed_experts", "n_group", "topk_group", "num_experts_per_tok"},
	func(c *Config) error {
		if c.Router.NGroup == 0 && c.Router.TopKGroup == 0 {
			return nil // no groups
		}
		return groupsFit(c, 2) // a group is worth its two best
	}}

// headsAreSet gives heads their width, and RoPE its part of it: the first channels of a head, all without
// partial_rotary_factor and rotary_dim.
func headsAreSet(c *Config) error {
	if c.Attention.VHeadDim == 0 {
		c.Attention.VHeadDim = c.HiddenSize / c.Attention.NumAttentionHeads
	}
	switch {
	case c.RoPE.RotaryShare > 0:
		c.Attention.QKRopeHeadDim = rotated(c.Attention.VHeadDim, c.RoPE.RotaryShare)
	case c.Attention.QKRopeHeadDim == 0:
		c.Attention.QKRopeHeadDim = c.Attention.VHeadDim
	}
	if n := c.Attention.QKRopeHeadDim; n < 2 || n%2 != 0 || n > c.Attention.VHeadDim {
		by := ""
		if c.RoPE.RotaryShare > 0 {
			by = fmt.Sprintf(", by partial_rotary_factor %v", c.RoPE.RotaryShare)
		}
		return fmt.Errorf("%d, of which RoPE rotates %d%s: it rotates pairs of a head's first channels",
			c.Attention.VHeadDim, n, by)
	}
	c.Attention.QKNopeHeadDim = c.Attention.VHeadDim - c.Attention.QKRopeHeadDim
	return nil
}

// typed returns the type one for the layers of which is holds, the type other for the rest.
func typed(layers int, one, other string, is func(l int) bool) (types []string) {
	for l := range layers {
		if types = append(types, other); is(l) {
			types[l] = one
		}
	}
	return types
}

// layersHave fills in *types, which layers have without their key, and refuses a list for fewer layers.
func layersHave(types *[]string, layers int, missing func(n int) []string) error {
	if *types == nil {
		*types = missing(layers)
	}
	if *types == nil {
		return errors.New("missing")
	}
	if len(*types) < layers {
		return fmt.Errorf("%d layers; num_hidden_layers is %d", len(*types), layers)
	}
	*types = (*types)[:layers]
	return nil
}

// windowed is the rule of layer_types; missing returns the types of layers without the key, nil if they have none.
func windowed(missing func(c *Config, n int) []string) rule {
	return rule{[]string{"layer_types", "num_hidden_layers", "sliding_window"}, func(c *Config) error {
		err := layersHave(&c.Layers.LayerTypes, c.NumHiddenLayers, func(n int) []string { return missing(c, n) })
		if err == nil && c.Windows.SlidingWindow == 0 && slices.Contains(c.Layers.LayerTypes, slidingAttention) {
			err = errors.New("has layers with a window, and sliding_window is null")
		}
		return err
	}}
}

// sparseFrom is the rule of mlp_layer_types; missing returns the first layer that has experts without the key. Of the layers
// from there on each moe_layer_freq-th has them.
func sparseFrom(missing func(c *Config) int) rule {
	return rule{[]string{"mlp_layer_types", "num_hidden_layers", "first_k_dense_replace"}, func(c *Config) error {
		first := missing(c)
		c.Layers.FirstKDenseReplace = 0
		return layersHave(&c.Layers.MLPLayerTypes, c.NumHiddenLayers, func(n int) []string {
			return typed(n, denseMLP, sparseMLP, func(l int) bool { return l < first || l%c.Layers.MoELayerFreq != 0 })
		})
	}}
}
