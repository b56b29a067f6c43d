package config

// The differences between two configs, after defaults and aliases, and which of them change
// the model's computation.

import (
	"bytes"
	"encoding/json"
	"slices"

	"github.com/go-json-experiment/json/jsontext"
)

// Difference is a key of config.json under which two configs hold different values, be it
// spelled out, left to the family's default, or said by another key.
type Difference struct {
	Key     string         `json:"key"`     // such as "rms_norm_eps"; "auto_map" where the references to follow differ
	A       jsontext.Value `json:"a"`       // the one's value, as JSON
	B       jsontext.Value `json:"b"`       // the other's
	Meaning bool           `json:"meaning"` // it changes the model's computation, the training loss included
}

// Differences compares all that a Config holds, in the order of the families' keys.
func Differences(a, b *Config) []Difference {
	differences, seen := []Difference{}, map[string]bool{}
	for _, family := range families {
		for _, row := range family.fields {
			x, y := row.shown(a), row.shown(b)
			if !seen[row.key] && !bytes.Equal(x, y) {
				differences = append(differences, Difference{row.key, x, y, decides(row.key, a, b)})
			}
			seen[row.key] = seen[row.key] || x != nil
		}
	}
	return differences
}

// shown returns what c holds under the row's key, as JSON; nil under a key that is an alias
// of one before it, or that no Config can hold a value of.
func (row field) shown(c *Config) jsontext.Value {
	var v any
	switch {
	case row.value != nil:
		v = row.value(c)
	case row.key == "rope_scaling":
		return jsontext.Value(c.RopeScaling.String())
	case row.key == "torch_dtype":
		if c.TorchDType == "" {
			return jsontext.Value("null")
		}
		v = c.TorchDType
	case row.key == "quantization_config":
		q := c.Quantization
		if q.Method == "" {
			return jsontext.Value("null")
		}
		v = map[string]any{"modules_to_not_convert": slices.Concat([]string{}, q.Except), "weight_block_size": q.Block}
	case row.key == "auto_map":
		v = c.Reference
	default:
		return nil
	}
	text, err := json.Marshal(v)
	if err != nil {
		panic("config: Differences: " + row.key + ": " + err.Error()) // fields are finite numbers, strings and truth values
	}
	return text
}

// decides reports whether a difference under a key changes the model's computation.
func decides(key string, a, b *Config) bool {
	switch key {
	case "model_type":
		return !sameNetwork(a, b)
	case "torch_dtype", "quantization_config": // how weights are stored
		return false
	case "initializer_range", "pretraining_tp": // how they were drawn, how products are cut
		return false
	case "num_nextn_predict_layers": // the forward pass leaves them out; their weights are compared as such
		return false
	case "max_position_embeddings":
		return a.scalesDynamically() || b.scalesDynamically()
	case "n_group", "topk_group":
		return a.LimitsGroups() || b.LimitsGroups()
	case "norm_topk_prob", "routed_scaling_factor":
		return !sameTopKWeights(a, b)
	case "moe_layer_freq", "first_k_dense_replace":
		return !sameLayers(a, b)
	case "intermediate_size":
		return len(a.MoELayers()) < a.NumHiddenLayers || len(b.MoELayers()) < b.NumHiddenLayers
	case "moe_intermediate_size", "n_shared_experts":
		return len(a.MoELayers())+len(b.MoELayers()) > 0
	case "auto_map":
		return !sameTopKWeights(a, b) || !sameLayers(a, b)
	}
	return true
}

// sameNetwork reports whether model_type names the same network for both: transformers' classes compute alike.
// Kimi-K2's and GLM-4.7-Flash's are DeepSeek-V3's.
func sameNetwork(a, b *Config) bool {
	rulesA, okA := a.rulesOf(Native)
	rulesB, okB := b.rulesOf(Native)
	return a.ModelType == b.ModelType || okA && okB && rulesA == rulesB
}

// scalesDynamically reports whether RoPE changes beyond max_position_embeddings.
func (c *Config) scalesDynamically() bool {
	return c.RopeScaling != nil && c.RopeScaling.Type == "dynamic"
}

func sameTopKWeights(a, b *Config) bool {
	normA, scaleA := a.TopKWeights()
	normB, scaleB := b.TopKWeights()
	return normA == normB && scaleA == scaleB
}

// sameLayers reports whether both configs have the same kind, dense or not, for each layer
// that both have.
func sameLayers(a, b *Config) bool {
	for l := range min(a.NumHiddenLayers, b.NumHiddenLayers) {
		if a.IsMoE(l) != b.IsMoE(l) {
			return false
		}
	}
	return true
}
