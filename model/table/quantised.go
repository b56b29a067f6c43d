package table

import (
	"strings"

	"dsmoe/config"
)

// FP8 says whether a checkpoint of c's quantization_config holds the weight in F8_E4M3 with
// a scale per block, as DeepSeek-V3 is published: the matrices of attention, MLPs and
// experts, those of prediction layers too. Embedding, head, gates, norms, biases and what a
// prediction layer has of its own keep torch_dtype, and so do the modules that
// modules_to_not_convert lists. It is false for all without quantization_config.
func (s Slot) FP8(c *config.Config) bool {
	if c.FP8Block[0] == 0 || len(s.Shape) != 2 || s.Excepted(c) {
		return false
	}
	switch s.Module() {
	case Attention, DenseMLP, RoutedExperts, SharedExperts:
		return true
	}
	return false
}

// Excepted says whether modules_to_not_convert lists the weight's module.
func (s Slot) Excepted(c *config.Config) bool {
	return c.StaysUnquantised(strings.TrimSuffix(s.Name, ".weight"))
}
