package main

import (
	"encoding/binary"
	"math"
	"slices"
	"strconv"

	"dsmoe/config"
	"dsmoe/model/tensor"
)

// ofIndexer are mistakes of an indexer, and of the norm that its queries come from. Those of an implementation
// are in what it would have recorded: they replace tensors of the pack.
func ofIndexer() []mistake {
	const normed = "model.layers.0.self_attn.q_a_layernorm.output"
	return []mistake{
		{"a pack whose q_a_layernorm has rms_norm_eps", "latent-eps", normed, "", func(s *subject) bool {
			return s.indexes() && s.config.RMSNormEps != config.LatentEps && s.normedBy(s.config.RMSNormEps)
		}},
		{"the indexer's LayerNorm bias zero", "indexer-norm-bias", "{index}k_norm.output", "",
			editing("{index}k_norm.bias", func(t *tensor.Tensor) bool {
				clear(t.Data)
				return true
			})},
		{"a pack whose indexer rotates the other pairs", "indexer-rope-layout", "{index}q", "",
			func(s *subject) bool {
				return s.indexes() && s.rotateOtherwise("q", "wq_b") && s.rotateOtherwise("k", "k_norm")
			}},
		{"a pack whose indexer lacks ReLU", "indexer-relu", "{index}scores", "",
			func(s *subject) bool { return s.scoreOtherwise(1, false) }},
		{"a pack without 1/√index_n_heads", "indexer-head-scale", "{index}scores", "",
			func(s *subject) bool { return s.scoreOtherwise(math.Sqrt(float64(s.config.IndexNHeads)), true) }},
		{"index_topk less 1", "index-topk", "{index}topk_idx", "", func(s *subject) bool {
			return s.indexes() && s.set(map[string]string{"index_topk": strconv.Itoa(s.config.IndexTopK - 1)})
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

// numbers returns a golden tensor.
func (s *subject) numbers(name string) []float32 {
	values, err := s.golden.Float32s(s.expand(name))
	if err != nil {
		s.err = err
	}
	return values
}

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

// normedBy records q_a_layernorm of the first layer with another eps.
func (s *subject) normedBy(eps float64) bool {
	const module = "model.layers.0.self_attn."
	x, w := s.numbers(module+"q_a_proj.output"), s.weight(module+"q_a_layernorm.weight")
	if s.err != nil {
		return false
	}
	y, dtype := make([]float32, len(x)), s.golden.DType
	for first := 0; first < len(x); first += len(w) {
		sum := 0.0
		for _, v := range x[first : first+len(w)] {
			sum += float64(v) * float64(v)
		}
		scale := 1 / math.Sqrt(sum/float64(len(w))+eps)
		for i, by := range w {
			y[first+i] = tensor.Rounded(float32(float64(x[first+i])*scale), dtype) * by
		}
	}
	return s.record(module+"q_a_layernorm.output", y)
}

// weight returns the numbers of a weight.
func (s *subject) weight(name string) []float32 {
	t, err := s.Tensor(s.expand(name))
	if err != nil {
		s.err = err
		return nil
	}
	values, err := t.Float32s(nil)
	if err != nil {
		s.err = err
	}
	return values
}

// rotateOtherwise records the first indexer's queries or keys, made of what a module gives, with the other
// layout of RoPE: pairs, which are moved to halves, or halves.
func (s *subject) rotateOtherwise(stage, from string) bool {
	c, x := s.config, s.numbers("{index}"+from+".output")
	if s.err != nil {
		return false
	}
	in, err := s.golden.Input()
	if err != nil {
		s.err = err
		return false
	}
	width, half, dtype := c.IndexHeadDim, c.QKRopeHeadDim/2, s.golden.DType
	heads := len(x) / width / (in.Batch * in.Seq)
	y := slices.Clone(x)
	for row := range len(x) / width {
		position, head := float32(row/heads%in.Seq), x[row*width:(row+1)*width]
		for i := range half {
			a, b := head[i], head[i+half]
			if !c.Rules().IndexerInterleaves {
				a, b = head[2*i], head[2*i+1]
			}
			angle := position * float32(1/math.Pow(c.RopeTheta, float64(2*i)/float64(2*half)))
			sin, cos := math.Sincos(float64(angle))
			rounded := func(v float64) float32 { return tensor.Rounded(float32(v), dtype) }
			times := func(v float32, by float64) float64 { return float64(rounded(float64(v) * float64(rounded(by)))) }
			y[row*width+i] = rounded(times(a, cos) - times(b, sin))
			y[row*width+i+half] = rounded(times(b, cos) + times(a, sin))
		}
	}
	return s.record("{index}"+stage, y)
}

// scoreOtherwise records the first indexer's scores with other weights of the heads, or without ReLU.
func (s *subject) scoreOtherwise(scale float64, relu bool) bool {
	if !s.indexes() {
		return false
	}
	q, k, w := s.numbers("{index}q"), s.numbers("{index}k"), s.numbers("{index}weights_proj.output")
	scores := slices.Clone(s.numbers("{index}scores"))
	in, err := s.golden.Input()
	if s.err != nil || err != nil {
		return false
	}
	width, heads, seq := s.config.IndexHeadDim, s.config.IndexNHeads, in.Seq
	for i := range scores {
		if scores[i] <= -0x1.fep127 {
			continue
		}
		row, key := i/seq, i/seq/seq*seq+i%seq
		sum := 0.0
		for h := range heads {
			product := 0.0
			for c := range width {
				product += float64(q[(row*heads+h)*width+c]) * float64(k[key*width+c])
			}
			if relu {
				product = max(product, 0)
			}
			sum += product * float64(w[row*heads+h])
		}
		scores[i] = float32(sum * scale / math.Sqrt(float64(width)*float64(heads)))
	}
	return s.record("{index}scores", scores)
}
