package config

import (
	"errors"
	"fmt"
	"slices"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
)

// v4 is transformers' DeepseekV4Config with its defaults, DeepSeek-V4-Flash's. LayerTypes and MLPLayerTypes without
// their keys: see layersAreTyped.
var v4 = family{
	modelType: "deepseek_v4", class: "DeepseekV4ForCausalLM", reference: Native,
	fields: slices.Concat([]field{
		{"head_dim", 512, integer(func(c *Config) *int { return &c.Attention.VHeadDim }, 1, maxDim)},
		v2.row("model_type", nil),
		v2.row("vocab_size", 129280),
		v2.row("hidden_size", 4096),
		v2.row("moe_intermediate_size", 2048),
		{"intermediate_size", nil, readBy(readWidthAgain)},
		v2.row("num_hidden_layers", 43),
		v2.row("num_attention_heads", 64),
		{"num_key_value_heads", 1, integer(func(c *Config) *int { return &c.Attention.NumKeyValueHeads }, 1, 1)},
		{"n_shared_experts", 1, integer(func(c *Config) *int { return &c.MoE.NSharedExperts }, 1, 1)},
		{"n_routed_experts", 256, integer(func(c *Config) *int { return &c.MoE.NRoutedExperts }, 1, maxExperts)},
		{"num_experts_per_tok", 6, integer(func(c *Config) *int { return &c.MoE.NumExpertsPerTok }, 1, maxExperts)},
		v2.row("scoring_func", "sqrtsoftplus"),
		v2.row("hidden_act", "silu"),
		v2.row("max_position_embeddings", 1048576),
		v2.row("initializer_range", 0.02),
		v2.row("rms_norm_eps", 1e-6),
		v2.row("tie_word_embeddings", nil),
		{"q_lora_rank", 1024, integer(func(c *Config) *int { return &c.Attention.QLoraRank }, 1, maxDim)},
		v2.row("qk_rope_head_dim", nil),
		{"partial_rotary_factor", nil, readBy(readRotaryShare).ifSet()},
		{"o_groups", 8, integer(func(c *Config) *int { return &c.Windows.OGroups }, 1, maxDim)},
		{"o_lora_rank", 1024, integer(func(c *Config) *int { return &c.Windows.OLoraRank }, 1, maxDim)},
		{"sliding_window", 128, integer(func(c *Config) *int { return &c.Windows.SlidingWindow }, 1, maxDim).
			deciding(either((*Config).HasWindows))},
		{"compress_rates", nil, readBy(readCompressRates).ifSet()},
		{"compress_rate_csa", 4, integer(func(c *Config) *int { return &c.Windows.CompressRateCSA }, 1, maxDim)},
		{"compress_rate_hca", 128, integer(func(c *Config) *int { return &c.Windows.CompressRateHCA }, 1, maxDim)},
		{"compress_ratios", nil, readBy(readCompressRatios).ifSet()},
		{"layer_types", nil, layerTypes(func(c *Config) *[]string { return &c.Layers.LayerTypes }, slidingAttention,
			compressedSparse,
			heavyCompression)},
		// the first layers, which choose experts by the token
		{"num_hash_layers", nil, readBy(func(d *decoding, key string, value jsontext.Value) {
			n, err := parseInteger(value, 0, maxLayers)
			store(d, key, &d.config.Layers.MLPLayerTypes, mlpTypes(d.config.NumHiddenLayers, n), err)
		}).ifSet()},
		{"mlp_layer_types", nil, layerTypes(func(c *Config) *[]string { return &c.Layers.MLPLayerTypes }, hashMoE, "moe")},
		v32.row("index_topk", 512),
		v32.row("index_head_dim", 128),
		v32.row("index_n_heads", 64),
		{"hc_mult", 4, integer(func(c *Config) *int { return &c.HyperConnections.HCMult }, 1, 64)},
		{"hc_sinkhorn_iters", 20, integer(func(c *Config) *int { return &c.HyperConnections.HCSinkhornIters }, 1, 1000)},
		{"hc_eps", 1e-6, number(func(c *Config) *float64 { return &c.HyperConnections.HCEps }, notNegative)},
		{"swiglu_limit", 10.0, number(func(c *Config) *float64 { return &c.SwiGLULimit }, positive)},
		v2.row("rope_theta", 10000.0),
		{"compress_rope_theta", 160000.0, number(func(c *Config) *float64 { return &c.RoPE.CompressRopeTheta }, positive)},
		{"rope_scaling", nil, readBy(readCompressedScaling)},
		{"rope_parameters", nil, reader{read: readTwoRopes,
			value: func(c *Config) any { return jsontext.Value(c.RoPE.CompressRopeScaling.String()) }}.ifSet()},
		v2.row("routed_scaling_factor", 1.5),
		v2.row("num_nextn_predict_layers", 1),
		v2.row("mlp_bias", nil),
	}, storedFields, []field{{"expert_dtype", nil, readBy(readExpertDType).ifSet()}}),
	// The reference always normalises the weights of the chosen experts, and knows one method and one layout.
	unread: []field{v2.row("norm_topk_prob", true), v2.row("topk_method", "noaux_tc"), v2.row("moe_layer_freq", 1),
		v2.row("pretraining_tp", 1), v2.row("rope_interleave", true)},
	rules: []rule{
		{[]string{"num_hidden_layers", "layer_types", "mlp_layer_types"}, layersAreTyped},
		{[]string{"qk_rope_head_dim", "head_dim"}, rotaryIsPart},
		{[]string{"partial_rotary_factor", "qk_rope_head_dim", "head_dim"}, rotaryIsPart},
		indexerRotates,
		{[]string{"o_groups", "num_attention_heads"}, func(c *Config) error {
			return errorIf(c.Attention.NumAttentionHeads%c.Windows.OGroups != 0, "%d does not divide num_attention_heads %d",
				c.Windows.OGroups,
				c.Attention.NumAttentionHeads)
		}},
		{[]string{"num_hidden_layers", "vocab_size", "hidden_size", "moe_intermediate_size", "n_routed_experts", "hc_mult",
			"num_attention_heads", "q_lora_rank", "head_dim", "o_groups", "o_lora_rank", "compress_rates"}, sizeIsSane},
		topKFitsExperts,
		// The class takes any name of an activation; the published models use one.
		{[]string{"scoring_func"}, func(c *Config) error {
			return errorIf(c.Router.ScoringFunc != "sqrtsoftplus",
				`%s is not "sqrtsoftplus", the scoring function of the published `+
					`models and the only one computed here`, quote(c.Router.ScoringFunc))
		}},
		activationIsSiLU,
	},
	rope: yarnForm,
	references: map[Reference]Rules{
		Native: {
			NormsOnce: true,
			MoE:       moeRules{IgnoresMoELayerFreq: true},
			Router:    routerRules{NormTopK: normAlways, ScalesNormalised: true},
			RoPE:      ropeRules{AnglesInFloat32: true, RotatesInFloat32: true, CastsRotation: true},
		},
	},
}

// readWidthAgain reads intermediate_size, which the reference takes for moe_intermediate_size.
func readWidthAgain(d *decoding, key string, value jsontext.Value) {
	n, err := parseInteger(value, 1, maxDim)
	if _, said := d.values["moe_intermediate_size"]; said && err == nil && n != d.config.MoE.MoEIntermediateSize {
		err = fmt.Errorf("%d; the reference takes it for moe_intermediate_size, which is %d", n,
			d.config.MoE.MoEIntermediateSize)
	}
	store(d, key, &d.config.MoE.MoEIntermediateSize, n, err)
}

// readRotaryShare reads partial_rotary_factor, qk_rope_head_dim over head_dim, which it must not contradict.
func readRotaryShare(d *decoding, key string, value jsontext.Value) {
	share, err := parseNumber(value, positive)
	n := rotated(d.config.Attention.VHeadDim, share)
	if known := d.config.Attention.QKRopeHeadDim; known > 0 && n != known && err == nil && d.valid("head_dim") {
		err = fmt.Errorf("%s of head_dim %d is %d; qk_rope_head_dim is %d", show(value), d.config.Attention.VHeadDim, n,
			known)
	}
	store(d, key, &d.config.Attention.QKRopeHeadDim, n, err)
}

// readCompressRates reads the tokens of an entry by the layer's type.
func readCompressRates(d *decoding, key string, value jsontext.Value) {
	o, ok := d.object(key, value, compressedSparse, heavyCompression)
	if !ok {
		return
	}
	for name, dst := range map[string]*int{compressedSparse: &d.config.Windows.CompressRateCSA,
		heavyCompression: &d.config.Windows.CompressRateHCA} {
		if _, said := o[name]; !said {
			*dst = 0 // an error of layersAreTyped, if a layer needs it
			continue
		}
		n, err := parseInteger(o[name], 1, maxDim)
		store(d, key+"."+name, dst, n, err)
	}
}

// readCompressRatios reads a rate for each layer: 0, 4 and 128 stand for the types of layers, whatever their
// compress_rates. layer_types, which is read later, overrules it.
func readCompressRatios(d *decoding, key string, value jsontext.Value) {
	var values []jsontext.Value
	if value.Kind() != '[' || json.Unmarshal(value, &values) != nil {
		d.fail(key, errors.New("not a list"))
		return
	}
	var types []string
	var err error
	for i, v := range values {
		n, failed := parseInteger(v, 0, maxDim)
		name, known := map[int]string{0: slidingAttention, 4: compressedSparse, 128: heavyCompression}[n]
		if failed == nil && !known {
			failed = fmt.Errorf("%d is not 0, 4 or 128, which are all that the reference knows; other rates are said "+
				"with layer_types and compress_rates", n)
		}
		if types = append(types, name); failed != nil && err == nil {
			err = fmt.Errorf("layer %d: %w", i, failed)
		}
	}
	store(d, key, &d.config.Layers.LayerTypes, types, err)
}

// mlpTypes returns the types of layers whose first ones choose experts by the token.
func mlpTypes(layers, hashed int) []string {
	return typed(layers, hashMoE, "moe", func(l int) bool { return l < hashed })
}

// layersAreTyped: each layer has a type, and a rate if it has entries. Without the keys two layers compress heavily, then
// such layers and sparse ones follow in turn; the first three layers choose experts by the token.
func layersAreTyped(c *Config) error {
	n, layers := c.NumHiddenLayers, &c.Layers
	if layers.LayerTypes == nil {
		layers.LayerTypes = typed(n, compressedSparse, heavyCompression, func(l int) bool { return l >= 2 && l%2 == 1 })
	}
	if layers.MLPLayerTypes == nil {
		layers.MLPLayerTypes = mlpTypes(n, 3)
	}
	layers.LayerTypes = layers.LayerTypes[:min(n, len(layers.LayerTypes))]
	layers.MLPLayerTypes = layers.MLPLayerTypes[:min(n, len(layers.MLPLayerTypes))]
	if len(layers.LayerTypes) != n || len(layers.MLPLayerTypes) != n {
		return fmt.Errorf("%d; attention has types for %d layers (layer_types, compress_ratios), mlp_layer_types for %d", n,
			len(layers.LayerTypes), len(layers.MLPLayerTypes))
	}
	for l, t := range layers.LayerTypes {
		if t != slidingAttention && c.CompressRate(l) == 0 {
			return fmt.Errorf("%d; layer %d has %s, which compress_rates does not have", n, l, t)
		}
	}
	return nil
}

// rotaryIsPart: RoPE rotates pairs of the last channels of a head; an eighth of them without a key.
func rotaryIsPart(c *Config) error {
	if c.Attention.QKRopeHeadDim == 0 {
		c.Attention.QKRopeHeadDim = rotated(c.Attention.VHeadDim, 64./512)
	}
	if n := c.Attention.QKRopeHeadDim; n < 2 || n%2 != 0 || n > c.Attention.VHeadDim {
		return fmt.Errorf("%d of head_dim %d: RoPE rotates pairs of a head's last channels", n, c.Attention.VHeadDim)
	}
	c.Attention.QKNopeHeadDim = c.Attention.VHeadDim - c.Attention.QKRopeHeadDim
	return nil
}

// readCompressedScaling reads rope_scaling, which layers with entries have.
func readCompressedScaling(d *decoding, key string, value jsontext.Value) {
	d.readScaling(key, value)
	d.config.RoPE.CompressRopeScaling, d.config.RoPE.RopeScaling = d.config.RoPE.RopeScaling, nil
	d.unscaled(key)
}

// unscaled refuses mscale, which the reference does not scale cosines and sines by.
func (d *decoding) unscaled(key string) {
	if s := d.config.RoPE.CompressRopeScaling; s != nil && s.MScale+s.MScaleAllDim != 0 {
		d.fail(key, errors.New("mscale and mscale_all_dim are not read: the reference scales no cosine"))
	}
}

// readTwoRopes reads rope_parameters: an object for layers without entries, "main", and one for those with,
// "compress"; or the latter's scaling alone.
func readTwoRopes(d *decoding, key string, value jsontext.Value) {
	doc, ok := d.document(key, value)
	if !ok {
		return
	}
	o := doc.values()
	if o["main"].Kind() != '{' || o["compress"].Kind() != '{' {
		d.readRope(key, withoutKeys(doc, "main", "compress", "rope_theta", "partial_rotary_factor"),
			&d.config.RoPE.CompressRopeScaling)
		return
	}
	var main *RopeScaling
	d.readRope(key+".main", d.takeTheta(key+".main", "rope_theta", o["main"], &d.config.RoPE.RopeTheta), &main)
	if main != nil {
		d.fail(key+".main", fmt.Errorf("%s: layers without entries have no scaling in a published model", main))
	}
	d.readRope(key+".compress", d.takeTheta(key+".compress", "compress_rope_theta", o["compress"],
		&d.config.RoPE.CompressRopeTheta), &d.config.RoPE.CompressRopeScaling)
}

// withoutKeys returns the members whose keys are not listed.
func withoutKeys(doc document, keys ...string) document {
	return slices.DeleteFunc(slices.Clone(doc), func(m member) bool { return slices.Contains(keys, m.key) })
}

// takeTheta reads what one of the two objects has beside its scaling, and returns the rest. The config's own key may
// say theta again.
func (d *decoding) takeTheta(key, again string, value jsontext.Value, theta *float64) document {
	doc, ok := d.document(key, value)
	if !ok {
		return nil
	}
	o := doc.values()
	d.part(key, "rope_theta", o, func(v jsontext.Value) error {
		x, err := parseNumber(v, positive)
		if err == nil && d.hasValid(again) && x != *theta {
			err = fmt.Errorf("%v disagrees with %s %v", x, again, *theta)
		}
		*theta = x
		return err
	})
	d.part(key, "partial_rotary_factor", o, func(v jsontext.Value) error {
		share, err := parseNumber(v, positive)
		if n := d.config.Attention.QKRopeHeadDim; err == nil && d.valid("head_dim") {
			if n == 0 {
				n = rotated(d.config.Attention.VHeadDim, 64./512)
			}
			if got := rotated(d.config.Attention.VHeadDim, share); got != n {
				err = fmt.Errorf("%s of head_dim %d is %d; qk_rope_head_dim is %d", show(v), d.config.Attention.VHeadDim, got, n)
			}
		}
		return err
	})
	if v, ok := o["attention_factor"]; ok && show(v) != "1.0" && show(v) != "1" {
		d.fail(key+".attention_factor", fmt.Errorf("%s: only 1 is supported, the published models'", show(v)))
	} else if !ok && show(o["rope_type"]) == `"yarn"` {
		d.fail(key+".attention_factor", errors.New("missing: the reference would scale cosines by 0.1·ln(factor) + 1; "+
			"the published models' is 1"))
	}
	return withoutKeys(doc, "rope_theta", "partial_rotary_factor", "attention_factor")
}

// readRope reads the scaling of an object; rope_scaling may say it again.
func (d *decoding) readRope(key string, doc document, dst **RopeScaling) {
	known := slices.Concat([]string{"rope_type", "type", "factor"}, d.rope.keys)
	if o, ok := d.object(key, doc.JSON(), known...); ok && d.adoptScaling(key, o, dst) {
		d.unscaled(key)
	}
}
