package config

import (
	"fmt"
	"slices"

	"github.com/go-json-experiment/json/jsontext"
)

// The families that have DeepSeek-V3's network under another model_type.

// kimiK2Defaults are those of the configuration_deepseek.py that is published with Kimi-K2:
// DeepSeek-V3's.
var kimiK2Defaults = named(v3Defaults, "kimi_k2")

// glm4MoELiteDefaults are the defaults of transformers' Glm4MoeLiteConfig, GLM-4.7-Flash's.
var glm4MoELiteDefaults = glm4MoELite(v3Defaults)

func glm4MoELite(c Config) Config {
	c.ModelType, c.VocabSize, c.HiddenSize, c.NumHiddenLayers = "glm4_moe_lite", 154880, 2048, 47
	c.IntermediateSize, c.MoEIntermediateSize, c.NumAttentionHeads, c.NumKeyValueHeads = 10240, 1536, 20, 20
	c.NRoutedExperts, c.NumExpertsPerTok, c.NGroup, c.TopKGroup, c.RoutedScalingFactor = 64, 4, 1, 1, 1.8
	c.FirstKDenseReplace, c.NumNextNPredictLayers = 1, 0 // as without mlp_layer_types
	c.MaxPositionEmbeddings, c.RMSNormEps = 202752, 1e-5
	c.QLoraRank, c.QKNopeHeadDim, c.VHeadDim = 768, 192, 256
	return c
}

// glm4MoELiteFields are DeepSeek-V3's, but mlp_layer_types says which layers are dense, and
// auto_map is ignored: transformers' class is the only reference.
var glm4MoELiteFields = layerTypesDecide(v3Fields)

// glm4MoELiteReferences: Glm4MoeLiteForCausalLM computes as DeepseekV3ForCausalLM.
var glm4MoELiteReferences = map[Reference]Rules{Native: v3References[Native]}

// named returns defaults under another model_type.
func named(defaults Config, modelType string) Config {
	defaults.ModelType = modelType
	return defaults
}

// layerTypesDecide returns the fields of a family in which mlp_layer_types says which layers are
// dense. Its reference ignores first_k_dense_replace, moe_layer_freq and scoring_func, which
// therefore have to say the same. It knows one RoPE width.
func layerTypesDecide(fields []field) (all []field) {
	for _, f := range fields {
		switch f.key {
		case "first_k_dense_replace":
			all = append(all, field{"mlp_layer_types", reader{read: readLayerTypes}},
				field{f.key, reader{read: readDenseAgain, value: f.value}})
		case "moe_layer_freq":
			all = append(all, field{f.key, integer(func(c *Config) *int { return &c.MoELayerFreq }, 1, 1)})
		case "auto_map":
		default:
			all = append(all, f)
		}
	}
	return append(all, field{"partial_rotary_factor", reader{read: readWholeRotary}})
}

// readLayerTypes reads mlp_layer_types: "dense" for the first layers, "sparse" for the rest.
// Config has no place for another order; no published model has one.
func readLayerTypes(d *decoding, key string, value jsontext.Value) {
	if value.Kind() == 'n' {
		return // then the first layer is dense
	}
	types, err := parseNames(value)
	dense := slices.Index(append(slices.Clone(types), "sparse"), "sparse")
	for i, t := range types {
		switch {
		case err != nil:
		case t != "dense" && t != "sparse":
			err = fmt.Errorf("layer %d: %s is neither dense nor sparse", i, quote(t))
		case t == "dense" && i > dense:
			err = fmt.Errorf("layer %d is dense and layer %d before it is not: no published model has this order, and "+
				"it is not supported", i, dense)
		}
	}
	if layers := d.config.NumHiddenLayers; err == nil && d.valid("num_hidden_layers") && len(types) < layers {
		err = fmt.Errorf("%d layers; num_hidden_layers is %d", len(types), layers)
	}
	store(d, key, &d.config.FirstKDenseReplace, func() (int, error) { return dense, err })
}

// readDenseAgain refuses a first_k_dense_replace that contradicts mlp_layer_types. The reference
// uses mlp_layer_types alone.
func readDenseAgain(d *decoding, key string, value jsontext.Value) {
	n, err := parseInteger(value, 0, maxLayers)
	if dense := d.config.FirstKDenseReplace; err == nil && d.valid("mlp_layer_types") && n != dense {
		err = fmt.Errorf("%d; mlp_layer_types, by which the reference goes, says %d (without it: the first layer)", n, dense)
	}
	d.fail(key, err)
}

// readWholeRotary refuses a partial_rotary_factor other than 1.
func readWholeRotary(d *decoding, key string, value jsontext.Value) {
	x, err := parseNumber(value, positive)
	if err == nil && x != 1 {
		err = fmt.Errorf("%s: only 1, the whole of qk_rope_head_dim, is supported", show(value))
	}
	d.fail(key, err)
}

// axk1Defaults are the defaults of transformers' AXK1Config, A.X-K1's.
var axk1Defaults = axk1(v3Defaults)

func axk1(c Config) Config {
	c.ModelType, c.VocabSize, c.NRoutedExperts, c.FirstKDenseReplace = "axk1", 163840, 192, 1
	c.NumAttentionHeads, c.NumKeyValueHeads, c.MaxPositionEmbeddings = 64, 64, 32768
	c.NumNextNPredictLayers = 0
	return c
}

// axk1Fields are DeepSeek-V3's, but mlp_layer_types, where it is set, says which layers are dense. The class has no
// prediction layers, and auto_map is ignored: transformers' class is the only reference.
var axk1Fields = replaced(layerTypesDecide(v3Fields), map[string]reader{
	"first_k_dense_replace":    {read: readDenseWithoutTypes, value: func(c *Config) any { return c.FirstKDenseReplace }},
	"num_nextn_predict_layers": natural(func(c *Config) *int { return &c.NumNextNPredictLayers }, 0),
})

var axk1Rules = append([]rule{{[]string{"q_lora_rank"}, queriesAreCompressed}}, v3Rules...)

// axk1References: Transformers' DeepseekV3ForCausalLM with a norm behind the experts, and no router bias in the files.
var axk1References = map[Reference]Rules{Native: normedExperts(v3References[Native])}

func normedExperts(r Rules) Rules {
	r.NormsExperts, r.UnbiasedChoice = true, true
	return r
}

// readDenseWithoutTypes reads first_k_dense_replace, which mlp_layer_types, where it is set, must
// not contradict.
func readDenseWithoutTypes(d *decoding, key string, value jsontext.Value) {
	if types, ok := d.values["mlp_layer_types"]; ok && types.Kind() != 'n' {
		readDenseAgain(d, key, value)
		return
	}
	store(d, key, &d.config.FirstKDenseReplace, func() (int, error) { return parseInteger(value, 0, maxLayers) })
}

// queriesAreCompressed: the indexer's queries are made of the compressed ones.
func queriesAreCompressed(c *Config) error {
	if c.QLoraRank == 0 {
		return fmt.Errorf("null: the indexer reads queries of this rank")
	}
	return nil
}
