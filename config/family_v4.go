package config

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/go-json-experiment/json/jsontext"
)

// v4Defaults are the defaults of transformers' DeepseekV4Config, DeepSeek-V4-Flash's. LayerTypes and
// MLPLayerTypes without their keys: see fillLayers.
var v4Defaults = Config{
	ModelType:             "deepseek_v4",
	VocabSize:             129280,
	HiddenSize:            4096,
	MoEIntermediateSize:   2048,
	NumHiddenLayers:       43,
	NumAttentionHeads:     64,
	NumKeyValueHeads:      1,
	NSharedExperts:        1,
	NRoutedExperts:        256,
	NumExpertsPerTok:      6,
	MoELayerFreq:          1,
	NormTopKProb:          true,
	ScoringFunc:           "sqrtsoftplus",
	TopKMethod:            "noaux_tc",
	HiddenAct:             "silu",
	MaxPositionEmbeddings: 1048576,
	InitializerRange:      0.02,
	RMSNormEps:            1e-6,
	PretrainingTP:         1,
	RopeTheta:             10000,
	CompressRopeTheta:     160000,
	RopeInterleave:        true,
	VHeadDim:              512,
	QLoraRank:             1024,
	OGroups:               8,
	OLoraRank:             1024,
	SlidingWindow:         128,
	CompressRateCSA:       4,
	CompressRateHCA:       128,
	IndexNHeads:           64,
	IndexHeadDim:          128,
	IndexTopK:             512,
	HCMult:                4,
	HCSinkhornIters:       20,
	HCEps:                 1e-6,
	SwiGLULimit:           10,
	RoutedScalingFactor:   1.5,
	NumNextNPredictLayers: 1,
	Reference:             Native,
}

// v4Fields are the keys of DeepseekV4Config that the model depends on. It ignores norm_topk_prob, for weights are
// always normalised, topk_method, n_group and attention_bias.
var v4Fields = slices.Concat([]field{
	{"head_dim", integer(func(c *Config) *int { return &c.VHeadDim }, 1, maxDim)},
}, only(mlaFields, "model_type", "vocab_size", "hidden_size", "moe_intermediate_size"), []field{
	{"intermediate_size", reader{read: readWidthAgain}},
}, only(mlaFields, "num_hidden_layers", "num_attention_heads"), []field{
	{"num_key_value_heads", integer(func(c *Config) *int { return &c.NumKeyValueHeads }, 1, 1)},
	{"n_shared_experts", integer(func(c *Config) *int { return &c.NSharedExperts }, 1, 1)},
	{"n_routed_experts", integer(func(c *Config) *int { return &c.NRoutedExperts }, 1, maxExperts)},
	{"num_experts_per_tok", integer(func(c *Config) *int { return &c.NumExpertsPerTok }, 1, maxExperts)},
}, only(mlaFields, "scoring_func", "hidden_act", "max_position_embeddings", "initializer_range", "rms_norm_eps",
	"tie_word_embeddings"), []field{
	{"q_lora_rank", integer(func(c *Config) *int { return &c.QLoraRank }, 1, maxDim)},
	{"qk_rope_head_dim", integer(func(c *Config) *int { return &c.QKRopeHeadDim }, 1, maxDim)},
	{"partial_rotary_factor", reader{read: readRotaryShare}},
	{"o_groups", integer(func(c *Config) *int { return &c.OGroups }, 1, maxDim)},
	{"o_lora_rank", integer(func(c *Config) *int { return &c.OLoraRank }, 1, maxDim)},
	{"sliding_window", integer(func(c *Config) *int { return &c.SlidingWindow }, 1, maxDim)},
	{"compress_rates", reader{read: readCompressRates}},
	{"compress_rate_csa", integer(func(c *Config) *int { return &c.CompressRateCSA }, 1, maxDim)},
	{"compress_rate_hca", integer(func(c *Config) *int { return &c.CompressRateHCA }, 1, maxDim)},
	{"compress_ratios", reader{read: readCompressRatios}},
	{"layer_types", reader{read: readAttentionTypes, value: func(c *Config) any { return c.LayerTypes }}},
	{"num_hash_layers", reader{read: readHashLayers}},
	{"mlp_layer_types", reader{read: readMLPTypes, value: func(c *Config) any { return c.MLPLayerTypes }}},
	{"index_topk", integer(func(c *Config) *int { return &c.IndexTopK }, 1, maxDim)},
	{"index_head_dim", integer(func(c *Config) *int { return &c.IndexHeadDim }, 1, maxDim)},
	{"index_n_heads", integer(func(c *Config) *int { return &c.IndexNHeads }, 1, maxDim)},
	{"hc_mult", integer(func(c *Config) *int { return &c.HCMult }, 1, 64)},
	{"hc_sinkhorn_iters", integer(func(c *Config) *int { return &c.HCSinkhornIters }, 1, 1000)},
	{"hc_eps", number(func(c *Config) *float64 { return &c.HCEps }, notNegative)},
	{"swiglu_limit", number(func(c *Config) *float64 { return &c.SwiGLULimit }, positive)},
	{"rope_theta", number(func(c *Config) *float64 { return &c.RopeTheta }, positive)},
	{"compress_rope_theta", number(func(c *Config) *float64 { return &c.CompressRopeTheta }, positive)},
	{"rope_scaling", reader{read: readCompressedScaling}},
	{"rope_parameters", reader{read: readTwoRopes, value: func(c *Config) any { return jsontext.Value(c.CompressRopeScaling.String()) }}},
}, only(mlaFields, "routed_scaling_factor", "num_nextn_predict_layers", "mlp_bias", "torch_dtype", "dtype",
	"quantization_config", "quantization", "rotation_config", "spinquant_config"), []field{
	{"expert_dtype", reader{read: readExpertDType}},
})

var v4Rules = []rule{
	{[]string{"num_hidden_layers", "layer_types", "mlp_layer_types"}, layersAreTyped},
	{[]string{"qk_rope_head_dim", "head_dim"}, rotaryIsPart},
	{[]string{"partial_rotary_factor", "qk_rope_head_dim", "head_dim"}, rotaryIsPart},
	{[]string{"index_head_dim", "qk_rope_head_dim"}, indexerRotates},
	{[]string{"o_groups", "num_attention_heads"}, groupsOfHeads},
	{[]string{"num_hidden_layers", "vocab_size", "hidden_size", "moe_intermediate_size", "n_routed_experts", "hc_mult",
		"num_attention_heads", "q_lora_rank", "head_dim", "o_groups", "o_lora_rank", "compress_rates"}, sizeIsSane},
	{[]string{"num_experts_per_tok", "n_routed_experts"}, topKFitsExperts},
	{[]string{"scoring_func"}, scoringIsSqrtSoftplus},
	{[]string{"hidden_act"}, activationIsSiLU},
}

// readWidthAgain reads intermediate_size, which the reference takes for moe_intermediate_size.
func readWidthAgain(d *decoding, key string, value jsontext.Value) {
	n, err := parseInteger(value, 1, maxDim)
	if _, said := d.values["moe_intermediate_size"]; said && err == nil && n != d.config.MoEIntermediateSize {
		err = fmt.Errorf("%d; the reference takes it for moe_intermediate_size, which is %d", n,
			d.config.MoEIntermediateSize)
	}
	store(d, key, &d.config.MoEIntermediateSize, func() (int, error) { return n, err })
}

// readRotaryShare reads partial_rotary_factor, qk_rope_head_dim over head_dim, which it must not contradict.
func readRotaryShare(d *decoding, key string, value jsontext.Value) {
	if value.Kind() == 'n' {
		return
	}
	share, err := parseNumber(value, positive)
	n := rotated(d.config.VHeadDim, share)
	if known := d.config.QKRopeHeadDim; known > 0 && n != known && err == nil && d.valid("head_dim") {
		err = fmt.Errorf("%s of head_dim %d is %d; qk_rope_head_dim is %d", show(value), d.config.VHeadDim, n, known)
	}
	store(d, key, &d.config.QKRopeHeadDim, func() (int, error) { return n, err })
}

// rotated is the number of a head's channels that are a share of them, as Python's int rounds it.
func rotated(head int, share float64) int { return int(float64(head) * min(share, 2)) }

// readCompressRates reads the tokens of an entry by the layer's type.
func readCompressRates(d *decoding, key string, value jsontext.Value) {
	if value.Kind() == 'n' {
		return
	}
	o, ok := d.object(key, value, compressedSparse, heavyCompression)
	if !ok {
		return
	}
	for name, dst := range map[string]*int{compressedSparse: &d.config.CompressRateCSA,
		heavyCompression: &d.config.CompressRateHCA} {
		if _, said := o[name]; !said {
			*dst = 0 // an error of fillLayers, if a layer needs it
			continue
		}
		store(d, key+"."+name, dst, func() (int, error) { return parseInteger(o[name], 1, maxDim) })
	}
}

// readCompressRatios reads a rate for each layer: 0, 4 and 128 stand for the types of layers, whatever their
// compress_rates. layer_types, which is read later, overrules it.
func readCompressRatios(d *decoding, key string, value jsontext.Value) {
	if value.Kind() == 'n' {
		return
	}
	var types []string
	values, err := parseList(value)
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
	store(d, key, &d.config.LayerTypes, func() ([]string, error) { return types, err })
}

// readAttentionTypes reads layer_types.
func readAttentionTypes(d *decoding, key string, value jsontext.Value) {
	readTypes(d, key, value, &d.config.LayerTypes, slidingAttention, compressedSparse, heavyCompression)
}

// readMLPTypes reads mlp_layer_types.
func readMLPTypes(d *decoding, key string, value jsontext.Value) {
	readTypes(d, key, value, &d.config.MLPLayerTypes, hashMoE, "moe")
}

// readTypes reads a list of types of layers; null leaves what another key said.
func readTypes(d *decoding, key string, value jsontext.Value, dst *[]string, known ...string) {
	if value.Kind() == 'n' {
		return
	}
	types, err := parseNames(value)
	for i, t := range types {
		if err == nil && !slices.Contains(known, t) {
			err = fmt.Errorf("layer %d: %s is not one of %s", i, quote(t), strings.Join(known, ", "))
		}
	}
	store(d, key, dst, func() ([]string, error) { return types, err })
}

// readHashLayers reads the number of first layers that choose experts by the token.
func readHashLayers(d *decoding, key string, value jsontext.Value) {
	if value.Kind() == 'n' {
		return
	}
	n, err := parseInteger(value, 0, maxLayers)
	types := slices.Repeat([]string{hashMoE}, min(n, d.config.NumHiddenLayers))
	for len(types) < d.config.NumHiddenLayers {
		types = append(types, "moe")
	}
	store(d, key, &d.config.MLPLayerTypes, func() ([]string, error) { return types, err })
}

// fillLayers gives layers the types that they have without the keys: two that compress heavily, then such layers and
// sparse ones in turn; the first three choose experts by the token.
func fillLayers(c *Config) {
	n := c.NumHiddenLayers
	if c.LayerTypes == nil {
		for l := range n {
			c.LayerTypes = append(c.LayerTypes, heavyCompression)
			if l >= 2 && l%2 == 1 {
				c.LayerTypes[l] = compressedSparse
			}
		}
	}
	if c.MLPLayerTypes == nil {
		for l := range n {
			c.MLPLayerTypes = append(c.MLPLayerTypes, map[bool]string{true: hashMoE, false: "moe"}[l < 3])
		}
	}
	c.LayerTypes, c.MLPLayerTypes = c.LayerTypes[:min(n, len(c.LayerTypes))], c.MLPLayerTypes[:min(n, len(c.MLPLayerTypes))]
}

// layersAreTyped: each layer has a type, and a rate if it has entries.
func layersAreTyped(c *Config) error {
	fillLayers(c)
	n := c.NumHiddenLayers
	if len(c.LayerTypes) != n || len(c.MLPLayerTypes) != n {
		return fmt.Errorf("%d; attention has types for %d layers (layer_types, compress_ratios), mlp_layer_types for %d", n,
			len(c.LayerTypes), len(c.MLPLayerTypes))
	}
	for l, t := range c.LayerTypes {
		if t != slidingAttention && c.CompressRate(l) == 0 {
			return fmt.Errorf("%d; layer %d has %s, which compress_rates does not have", n, l, t)
		}
	}
	return nil
}

// rotaryIsPart: RoPE rotates pairs of the last channels of a head; an eighth of them without a key.
func rotaryIsPart(c *Config) error {
	if c.QKRopeHeadDim == 0 {
		c.QKRopeHeadDim = rotated(c.VHeadDim, 64./512)
	}
	if n := c.QKRopeHeadDim; n < 2 || n%2 != 0 || n > c.VHeadDim {
		return fmt.Errorf("%d of head_dim %d: RoPE rotates pairs of a head's last channels", n, c.VHeadDim)
	}
	c.QKNopeHeadDim = c.VHeadDim - c.QKRopeHeadDim
	return nil
}

// groupsOfHeads: each group has as many heads.
func groupsOfHeads(c *Config) error {
	if c.NumAttentionHeads%c.OGroups != 0 {
		return fmt.Errorf("%d does not divide num_attention_heads %d", c.OGroups, c.NumAttentionHeads)
	}
	return nil
}

// scoringIsSqrtSoftplus: the class takes any name of an activation; the published models use one.
func scoringIsSqrtSoftplus(c *Config) error {
	if c.ScoringFunc != "sqrtsoftplus" {
		return fmt.Errorf(`%s is not "sqrtsoftplus", the scoring function of the published models and the only one `+
			`computed here`, quote(c.ScoringFunc))
	}
	return nil
}

// readCompressedScaling reads rope_scaling, which layers with entries have.
func readCompressedScaling(d *decoding, key string, value jsontext.Value) {
	d.readScaling(key, value)
	d.config.CompressRopeScaling, d.config.RopeScaling = d.config.RopeScaling, nil
	d.unscaled(key)
}

// unscaled refuses mscale, which the reference does not scale cosines and sines by.
func (d *decoding) unscaled(key string) {
	if s := d.config.CompressRopeScaling; s != nil && s.MScale+s.MScaleAllDim != 0 {
		d.fail(key, errors.New("mscale and mscale_all_dim are not read: the reference scales no cosine"))
	}
}

// readTwoRopes reads rope_parameters: an object for layers without entries, "main", and one for those with,
// "compress"; or the latter's scaling alone.
func readTwoRopes(d *decoding, key string, value jsontext.Value) {
	if value.Kind() == 'n' {
		return
	}
	doc, ok := d.document(key, value)
	if !ok {
		return
	}
	o := doc.values()
	if o["main"].Kind() != '{' || o["compress"].Kind() != '{' {
		d.readRope(key, withoutKeys(doc, "main", "compress", "rope_theta", "partial_rotary_factor"), &d.config.CompressRopeScaling)
		return
	}
	var main *RopeScaling
	d.readRope(key+".main", d.takeTheta(key+".main", "rope_theta", o["main"], &d.config.RopeTheta), &main)
	if main != nil {
		d.fail(key+".main", fmt.Errorf("%s: layers without entries have no scaling in a published model", main))
	}
	d.readRope(key+".compress", d.takeTheta(key+".compress", "compress_rope_theta", o["compress"],
		&d.config.CompressRopeTheta), &d.config.CompressRopeScaling)
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
		if n := d.config.QKRopeHeadDim; err == nil && d.valid("head_dim") {
			if n == 0 {
				n = rotated(d.config.VHeadDim, 64./512)
			}
			if got := rotated(d.config.VHeadDim, share); got != n {
				err = fmt.Errorf("%s of head_dim %d is %d; qk_rope_head_dim is %d", show(v), d.config.VHeadDim, got, n)
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
	o, ok := d.object(key, doc.JSON(), known...)
	if !ok {
		return
	}
	found := len(d.problems)
	s := d.parametersScaling(key, o)
	if len(d.problems) > found {
		return
	}
	if old := *dst; d.hasValid("rope_scaling") && !s.equal(old) {
		d.fail(key, fmt.Errorf("%s disagrees with rope_scaling %s", s, old))
		return
	}
	*dst = s
	d.unscaled(key)
}
