package config

// Which differences change the model's computation, and how values are shown.

import (
	"encoding/json"
	"slices"

	"github.com/go-json-experiment/json/jsontext"
)

func toJSON(value any) jsontext.Value {
	text, err := json.Marshal(value)
	if err != nil {
		panic("config: " + err.Error()) // fields are finite numbers, strings and truth values
	}
	return text
}

// shownQuantization is quantization_config as far as it says which modules are quantised in which blocks.
func shownQuantization(c *Config) jsontext.Value {
	q := c.Quantization
	if !q.Announced() {
		return jsontext.Value("null")
	}
	return toJSON(map[string]any{"modules_to_not_convert": slices.Concat([]string{}, q.Except), "weight_block_size": q.Block})
}

// never is the condition of keys about how weights are stored or were drawn, and how products are cut.
func never(a, b *Config) bool { return false }

// networksDiffer reports whether model_type names different networks: transformers' classes compute alike.
// Kimi-K2's and GLM-4.7-Flash's are DeepSeek-V3's.
func networksDiffer(a, b *Config) bool {
	rulesA, okA := a.rulesOf(Native)
	rulesB, okB := b.rulesOf(Native)
	return a.ModelType != b.ModelType && !(okA && okB && rulesA == rulesB)
}

// either is the condition of keys that count in configs for which is holds.
func either(is func(c *Config) bool) func(a, b *Config) bool {
	return func(a, b *Config) bool { return is(a) || is(b) }
}

func haveMoELayer(a, b *Config) bool { return len(a.MoELayers())+len(b.MoELayers()) > 0 }

func topKWeightsDiffer(a, b *Config) bool {
	normA, scaleA := a.TopKWeights()
	normB, scaleB := b.TopKWeights()
	return normA != normB || scaleA != scaleB || a.SumScale() != b.SumScale()
}

// layersDiffer reports whether a layer that both configs have is dense in one of them.
func layersDiffer(a, b *Config) bool {
	for l := range min(a.NumHiddenLayers, b.NumHiddenLayers) {
		if a.IsMoE(l) != b.IsMoE(l) {
			return true
		}
	}
	return false
}
