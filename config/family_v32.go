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

// v32Defaults are the defaults of transformers' DeepseekV32Config.
var v32Defaults = indexed(v3Defaults, "deepseek_v32", 2048, 128, 64)

// glmMoEDsaDefaults are the defaults of transformers' GlmMoeDsaConfig, GLM-5's.
var glmMoEDsaDefaults = glm5(indexed(v3Defaults, "glm_moe_dsa", 2048, 128, 32))

// indexed returns defaults of a model with indexers.
func indexed(c Config, modelType string, topK, dim, heads int) Config {
	c.ModelType, c.MaxPositionEmbeddings, c.NumNextNPredictLayers = modelType, 163840, 0
	c.IndexTopK, c.IndexHeadDim, c.IndexNHeads = topK, dim, heads
	return c
}

// glm5 returns c with GLM-5's sizes.
func glm5(c Config) Config {
	c.VocabSize, c.HiddenSize, c.IntermediateSize, c.NumHiddenLayers = 154880, 6144, 12288, 78
	c.NumAttentionHeads, c.NumKeyValueHeads, c.QLoraRank, c.QKNopeHeadDim, c.VHeadDim = 64, 64, 2048, 192, 256
	c.NGroup, c.TopKGroup, c.MaxPositionEmbeddings, c.RMSNormEps = 1, 1, 202752, 1e-5
	return c
}

// v32Fields are DeepSeek-V3's, those of the indexer, and mlp_layer_types, without which
// first_k_dense_replace says which layers are dense. auto_map is ignored: transformers' class is the
// only reference.
var v32Fields = append(replaced(layerTypesDecide(v3Fields), map[string]reader{
	"first_k_dense_replace": {read: readDenseWithoutTypes, value: func(c *Config) any { return c.FirstKDenseReplace }},
	"rope_interleave":       {read: readInterleaved},
}), []field{
	{"num_experts", reader{read: integer(func(c *Config) *int { return &c.NRoutedExperts }, 1, maxExperts).read}},
	{"index_topk", integer(func(c *Config) *int { return &c.IndexTopK }, 1, maxDim)},
	{"index_head_dim", integer(func(c *Config) *int { return &c.IndexHeadDim }, 1, maxDim)},
	{"index_n_heads", integer(func(c *Config) *int { return &c.IndexNHeads }, 1, maxDim)},
	{"layer_types", reader{read: readIndexedLayers}},
}...)

// glmMoEDsaFields are DeepSeek-V3.2's, and which layers have an indexer of their own.
var glmMoEDsaFields = append(slices.Clone(v32Fields), []field{
	{"indexer_rope_interleave", reader{read: readInterleaved}},
	{"index_topk_freq", reader{read: readIndexerFrequency}},
	{"index_topk_pattern", reader{read: readIndexerTypes}},
	{"indexer_types", reader{read: readIndexerTypes, value: func(c *Config) any { return c.indexers() }}},
}...)

var v32Rules = append([]rule{
	{[]string{"q_lora_rank"}, queriesAreCompressed},
	{[]string{"index_head_dim", "qk_rope_head_dim"}, indexerRotates},
}, v3Rules...)

var glmMoEDsaRules = append([]rule{{[]string{"indexer_types"}, firstIndexerIsFull}}, v32Rules...)

// v32References: transformers' classes are the only ones.
var (
	v32References       = map[Reference]Rules{Native: v3References[Native]}
	glmMoEDsaReferences = map[Reference]Rules{Native: pairsInIndexer(v3References[Native])}
)

func pairsInIndexer(r Rules) Rules {
	r.IndexerInterleaves = true
	return r
}

// readInterleaved refuses a layout that the reference, which reads no such key, has not.
func readInterleaved(d *decoding, key string, value jsontext.Value) {
	pairs, err := parseBoolean(value)
	if err == nil && !pairs {
		err = fmt.Errorf("false: the reference rotates interleaved pairs")
	}
	d.fail(key, err)
}

// readIndexedLayers refuses layer_types other than layers with indexed attention.
func readIndexedLayers(d *decoding, key string, value jsontext.Value) {
	types, err := parseNames(value)
	for i, t := range types {
		if t != "indexed_attention" && t != "deepseek_sparse_attention" && err == nil {
			err = fmt.Errorf("layer %d: %s is not indexed_attention", i, quote(t))
		}
	}
	d.fail(key, err)
}

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
	store(d, key, &d.config.IndexerTypes, func() ([]string, error) { return types, err })
}

// readIndexerTypes reads indexer_types, "full" for a layer with an indexer and "shared" for one
// that takes the choice of the layer before, or index_topk_pattern, which may have their initials.
func readIndexerTypes(d *decoding, key string, value jsontext.Value) {
	if value.Kind() == 'n' {
		return
	}
	types, err := parseIndexerTypes(value)
	for i, t := range types {
		if t != sharedIndexer && t != "full" && err == nil {
			err = fmt.Errorf("layer %d: %s is neither full nor shared", i, quote(t))
		}
	}
	if n := d.config.NumHiddenLayers; err == nil && d.valid("num_hidden_layers") && len(types) < n {
		err = fmt.Errorf("%d layers; num_hidden_layers is %d", len(types), n)
	}
	store(d, key, &d.config.IndexerTypes, func() ([]string, error) { return types, err })
}

// parseIndexerTypes reads a list of types, or a string of their initials.
func parseIndexerTypes(value jsontext.Value) ([]string, error) {
	if value.Kind() != '"' {
		return parseNames(value)
	}
	initials, err := parseString(value)
	types := strings.Split(initials, "")
	for i, initial := range types {
		types[i] = cmp.Or(map[string]string{"F": "full", "S": sharedIndexer}[initial], initial)
	}
	return types, err
}

// indexerRotates: the first qk_rope_head_dim channels of the indexer's heads are rotated.
func indexerRotates(c *Config) error {
	if c.IndexHeadDim < c.QKRopeHeadDim {
		return fmt.Errorf("%d is less than qk_rope_head_dim %d", c.IndexHeadDim, c.QKRopeHeadDim)
	}
	return nil
}

// firstIndexerIsFull: the first layer has none before it to share with.
func firstIndexerIsFull(c *Config) error {
	if len(c.IndexerTypes) > 0 && c.IndexerTypes[0] == sharedIndexer {
		return fmt.Errorf("layer 0 shares the choice of an indexer before it, and there is none")
	}
	return nil
}
