package main

import (
	"cmp"
	"slices"
	"strconv"

	"dsmoe/model/tensor"
)

// ofGrouped are mistakes of plain attention with norms of queries and keys, windows and layers without RoPE, and of its
// gates.
func ofGrouped() []mistake {
	window := func(by int) func(s *subject) bool {
		return func(s *subject) bool {
			return s.config.HasWindows() && !s.config.Windowed() &&
				s.set(map[string]string{"sliding_window": strconv.Itoa(s.config.Windows.SlidingWindow + by)})
		}
	}
	return []mistake{
		{"q_norm and k_norm exchanged", "head-norms-exchanged", "{attn}q_norm.output", "", func(s *subject) bool {
			return s.swap("{attn}q_norm.weight", "{attn}k_norm.weight")
		}},
		{"one element of q_norm × 1.01", "norm-weight", "{attn}q_norm.output", "all in column 3",
			scaling("{attn}q_norm.weight", 1.01, element(3))},
		{"queries and keys normed after RoPE", "norm-after-rope", "model.layers.0.self_attn.q_norm.output", "", planted(0)},
		{"all channels of a head rotated, not a part", "", "{rotated}", "differs (pack", func(s *subject) bool {
			return s.config.Attention.QKNopeHeadDim > 0 && !s.config.LatentAttention() && !s.config.Windowed() &&
				(s.set(map[string]string{"partial_rotary_factor": "1.0"}) || s.set(map[string]string{"rotary_dim": "null"}))
		}},
		{"a window of one token more", "sliding-window", "{windowed}o_proj.input", "", window(1)},
		{"a window of one token less", "sliding-window", "{windowed}o_proj.input", "", window(-1)},
		{"RoPE in layers without it", "rope-in-layer", "{unrotated}o_proj.input", "", func(s *subject) bool {
			for s.moe < s.config.NumHiddenLayers && s.config.Rotates(s.moe) { // where it is planted
				s.moe++
			}
			return s.moe < s.config.NumHiddenLayers && planted(0)(s)
		}},
		{"score 0 for experts of other groups", "group-fill", topKIdx, "in whose place it is", withNegativeScores(planted(0))},
		{"weights with the router's bias", "bias-leak", topKWeight, "", planted(0)},
		{"moe_norm_min 0.9", "norm-topk", topKWeight, "", func(s *subject) bool {
			return s.config.Router.MoENormMin > 0 && s.set(map[string]string{"moe_norm_min": "0.9"})
		}},
		{"q_proj's bias zero", "bias-wrong", "model.layers.0.self_attn.q_proj.output", "",
			editing("model.layers.0.self_attn.q_proj.bias", func(t *tensor.Tensor) bool {
				clear(t.Data)
				return true
			})},
	}
}

// withNegativeScores makes a mistake where most router biases are so negative that scores are with them, too.
func withNegativeScores(make func(s *subject) bool) func(s *subject) bool {
	return func(s *subject) bool {
		name := s.stored("{moe}gate.e_score_correction_bias")
		if !s.has(name) {
			return false
		}
		bias, err := s.Tensor(name)
		values, failed := bias.Float32s(nil)
		s.err = cmp.Or(err, failed)
		slices.Sort(values)
		return s.err == nil && values[len(values)/2] < -0.5 && make(s)
	}
}
