package config

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/go-json-experiment/json/jsontext"
)

// The families with DeepSeek Sparse Attention: DeepSeek-V3's network, and indexers that choose the
// keys of each query.

// v32 is transformers' DeepseekV32Config. mlp_layer_types, where it is set, says which layers are dense.
var v32 = layerTyped.derive("deepseek_v32", delta{
	class:   "DeepseekV32ForCausalLM",
	missing: map[string]any{"max_position_embeddings": 163840, "num_nextn_predict_layers": 0},
	aliases: map[string]string{"num_experts": "n_routed_experts", "num_local_experts": "n_routed_experts"},
	fields: []field{
		{"first_k_dense_replace", nil, readBy(readDenseWithoutTypes)},
		{"rope_interleave", nil, interleaved},
		{"index_topk", 2048, integer(func(c *Config) *int { return &c.Indexer.IndexTopK }, 1, maxDim)},
		{"index_head_dim", 128, integer(func(c *Config) *int { return &c.Indexer.IndexHeadDim }, 1, maxDim)},
		{"index_n_heads", 64, integer(func(c *Config) *int { return &c.Indexer.IndexNHeads }, 1, maxDim)},
		{"layer_types", nil, refusal(func(value jsontext.Value) error {
			types, err := parseNames(value)
			for i, t := range types {
				if t != "indexed_attention" && t != "deepseek_sparse_attention" {
					return fmt.Errorf("layer %d: %s is not indexed_attention", i, quote(t))
				}
			}
			return err
		})},
	},
	rules: slices.Concat([]rule{
		queriesAreCompressed,
		indexerRotates,
	}, v3.rules),
})

// glmMoEDsa is transformers' GlmMoeDsaConfig, GLM-5's: DeepSeek-V3.2's, and which layers have an indexer of their own.
var glmMoEDsa = v32.derive("glm_moe_dsa", delta{
	aliases: localExperts,
	class:   "GlmMoeDsaForCausalLM",
	missing: map[string]any{
		"vocab_size": 154880, "hidden_size": 6144, "intermediate_size": 12288, "num_hidden_layers": 78,
		"num_attention_heads": 64, "num_key_value_heads": 64, "q_lora_rank": 2048, "qk_nope_head_dim": 192,
		"v_head_dim": 256, "n_group": 1, "topk_group": 1, "max_position_embeddings": 202752, "rms_norm_eps": 1e-5,
		"index_n_heads": 32,
	},
	fields: []field{
		{"indexer_rope_interleave", nil, interleaved},
		{"index_topk_freq", nil, readBy(readIndexerFrequency)},
		{"index_topk_pattern", nil, readBy(readIndexerTypes).ifSet()},
		// the layer whose indexer chooses, for each layer of the decoder; with windowed attention layer_types says it
		{"indexer_types", nil, reader{read: readIndexerTypes, value: func(c *Config) any {
			var layers []int
			for l := 0; l < c.NumHiddenLayers && !c.Windowed(); l++ {
				layers = append(layers, c.IndexerOf(l))
			}
			return layers
		}}.ifSet()},
	},
	rules: slices.Concat([]rule{{[]string{"indexer_types"}, func(c *Config) error {
		return errorIf(len(c.Indexer.IndexerTypes) > 0 && c.Indexer.IndexerTypes[0] == sharedIndexer,
			"layer 0 shares the choice of an indexer before it, and there is none")
	}}}, v32.rules),
	references: v3.native(func(r *Rules) { r.RoPE.IndexerInterleaves = true }),
})

var interleaved = always(true, "the reference rotates interleaved pairs")

// readIndexerFrequency reads index_topk_freq, of which index_skip_topk_offset is a part: layer l has
// an indexer if max(l - offset + 1, 0) is a multiple of it. index_topk_pattern and indexer_types,
// which are read later, overrule it.
func readIndexerFrequency(d *decoding, key string, value jsontext.Value) {
	frequency, err := parseInteger(value, 0, maxLayers)
	offset := 2
	if v, ok := d.values["index_skip_topk_offset"]; ok && err == nil {
		offset, err = parseInteger(v, 0, maxLayers)
	}
	var types []string
	for l := range d.config.NumHiddenLayers {
		types = append(types, "full")
		if max(l-offset+1, 0)%max(frequency, 1) != 0 {
			types[l] = sharedIndexer
		}
	}
	store(d, key, &d.config.Indexer.IndexerTypes, types, err)
}

// readIndexerTypes reads indexer_types, "full" for a layer with an indexer and "shared" for one
// that takes the choice of the layer before, or index_topk_pattern, which may have their initials.
func readIndexerTypes(d *decoding, key string, value jsontext.Value) {
	types, err := parseNames(value)
	if value.Kind() == '"' {
		types, err = strings.Split(unquote(value), ""), nil
		for i, initial := range types {
			types[i] = cmp.Or(map[string]string{"F": "full", "S": sharedIndexer}[initial], initial)
		}
	}
	for i, t := range types {
		if t != sharedIndexer && t != "full" && err == nil {
			err = fmt.Errorf("layer %d: %s is neither full nor shared", i, quote(t))
		}
	}
	if n := d.config.NumHiddenLayers; err == nil && d.valid("num_hidden_layers") && len(types) < n {
		err = fmt.Errorf("%d layers; num_hidden_layers is %d", len(types), n)
	}
	store(d, key, &d.config.Indexer.IndexerTypes, types, err)
}

// indexerRotates: the first qk_rope_head_dim channels of the indexer's heads are rotated.
var indexerRotates = rule{[]string{"index_head_dim", "qk_rope_head_dim"}, func(c *Config) error {
	return errorIf(c.Indexer.IndexHeadDim < c.Attention.QKRopeHeadDim, "%d is less than qk_rope_head_dim %d",
		c.Indexer.IndexHeadDim, c.Attention.QKRopeHeadDim)
}}
