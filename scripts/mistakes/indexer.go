package main

import (
	"encoding/binary"
	"math"
	"strconv"

	"dsmoe/model/tensor"
)

// ofIndexer are mistakes of an indexer, and of the norm that its queries come from.
func ofIndexer() []mistake {
	return []mistake{
		{"norms inside latent attention with rms_norm_eps", "latent-eps", "{moe-attn}q_a_layernorm.output", "", planted(0)},
		{"the indexer's LayerNorm bias zero", "indexer-norm-bias", "{index}k_norm.output", "",
			editing("{index}k_norm.bias", func(t *tensor.Tensor) bool {
				clear(t.Data)
				return true
			})},
		{"an indexer that rotates the other pairs", "indexer-rope-layout", "{index}q", "", planted(0)},
		{"an indexer without ReLU", "indexer-relu", "{scores}", "", planted(0)},
		{"an indexer without 1/√index_n_heads", "indexer-head-scale", "{scores}", "", planted(0)},
		{"index_topk less 1", "index-topk", "{index}topk_idx", "", func(s *subject) bool {
			return s.indexes() && s.set(map[string]string{"index_topk": strconv.Itoa(s.config.Indexer.IndexTopK - 1)})
		}},
		{"the next layer's indexer", "indexer-layer", "{index}wq_b.output", "", func(s *subject) bool {
			next := 1
			for next < s.config.NumHiddenLayers && s.config.IndexerOf(next) != next {
				next++
			}
			swapped := s.indexes()
			for _, name := range []string{"wq_b.weight", "wk.weight", "k_norm.weight", "k_norm.bias", "weights_proj.weight"} {
				swapped = swapped && s.swap("{index}"+name, "model.layers."+strconv.Itoa(next)+".self_attn.indexer."+name)
			}
			return swapped
		}},
	}
}

// indexes reports whether the model has indexers of DeepSeek-V3.2's form.
func (s *subject) indexes() bool { return s.config.HasIndexer() && s.config.LatentAttention() }

// record puts numbers in the place of a golden tensor.
func (s *subject) record(name string, values []float32) bool {
	name = s.expand(name)
	e := s.golden.Manifest.Tensors[name]
	t := tensor.Tensor{DType: e.DType, Shape: e.Shape}
	for _, v := range values {
		bits := math.Float32bits(tensor.Rounded(v, e.DType))
		if e.DType == tensor.BF16 {
			t.Data = binary.LittleEndian.AppendUint16(t.Data, uint16(bits>>16))
		} else {
			t.Data = binary.LittleEndian.AppendUint32(t.Data, bits)
		}
	}
	if s.golden.Replaced == nil {
		s.golden.Replaced = map[string]tensor.Tensor{}
	}
	s.golden.Replaced[name] = t
	return s.err == nil
}
