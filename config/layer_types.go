package config

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/go-json-experiment/json/jsontext"
)

// layerTyped is what the families share that have DeepSeek-V3's network under the names of transformers alone:
// mlp_layer_types says which layers are dense. Their references ignore first_k_dense_replace, moe_layer_freq and
// scoring_func, which therefore have to say the same, and auto_map, for transformers' class is the only reference.
// They know one RoPE width.
var layerTyped = v3.derive("", delta{
	before: map[string]field{"first_k_dense_replace": {"mlp_layer_types", nil, readBy(readLayerTypes).ifSet()}},
	fields: []field{
		{"first_k_dense_replace", nil, readBy(readDenseAgain)},
		{"moe_layer_freq", nil, integer(func(c *Config) *int { return &c.Layers.MoELayerFreq }, 1, 1)},
		{"partial_rotary_factor", nil, refusal(func(value jsontext.Value) error {
			x, err := parseNumber(value, positive)
			return cmp.Or(err, errorIf(x != 1, "%s: only 1, the whole of qk_rope_head_dim, is supported", show(value)))
		})},
	},
	unread:     []string{"auto_map"},
	references: v3.native(func(*Rules) {}),
})

// readLayerTypes reads mlp_layer_types: "dense" for the first layers, "sparse" for the rest; the first layer without it.
// Config has no place for another order; no published model has one.
func readLayerTypes(d *decoding, key string, value jsontext.Value) {
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
	store(d, key, &d.config.Layers.FirstKDenseReplace, dense, err)
}

// readDenseAgain refuses a first_k_dense_replace that contradicts mlp_layer_types. The reference
// uses mlp_layer_types alone.
func readDenseAgain(d *decoding, key string, value jsontext.Value) {
	n, err := parseInteger(value, 0, maxLayers)
	if dense := d.config.Layers.FirstKDenseReplace; err == nil && d.valid("mlp_layer_types") && n != dense {
		err = fmt.Errorf("%d; mlp_layer_types, by which the reference goes, says %d (without it: the first layer)", n, dense)
	}
	d.fail(key, err)
}

// readDenseWithoutTypes reads first_k_dense_replace, which mlp_layer_types, where it is set, must
// not contradict.
func readDenseWithoutTypes(d *decoding, key string, value jsontext.Value) {
	if types, ok := d.values["mlp_layer_types"]; ok && types.Kind() != 'n' {
		readDenseAgain(d, key, value)
		return
	}
	n, err := parseInteger(value, 0, maxLayers)
	store(d, key, &d.config.Layers.FirstKDenseReplace, n, err)
}

// queriesAreCompressed: the indexer's queries are made of the compressed ones.
var queriesAreCompressed = rule{[]string{"q_lora_rank"}, func(c *Config) error {
	return errorIf(c.Attention.QLoraRank == 0, "null: the indexer reads queries of this rank")
}}
