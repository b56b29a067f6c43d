package main

import (
	"math"
	"math/rand/v2"
	"strconv"

	"dsmoe/model/tensor"
)

// ofWeights are weights in another order, times a number, in another's place, and changed in a few places: what is read
// off the numbers.
func ofWeights() []mistake {
	const o, shared, norm = "{attn}o_proj", "{moe}shared_experts.", "model.layers.1.input_layernorm"
	rows := func(weight string, of func(n, r int) int) func(*subject) bool {
		return editing(weight+".weight", func(t *tensor.Tensor) bool {
			return plain(t) && reorder(t, func(r int) int { return of(t.Shape[0], r) })
		})
	}
	reversed := func(n, r int) int { return n - 1 - r }
	halves := func(n, r int) int { return (r + n/2) % n }
	times := func(weight string, by float32) func(*subject) bool { return scaling(weight+".weight", by, every) }
	root := func(weight string, power float64) func(*subject) bool {
		return func(s *subject) bool {
			return times(weight, float32(math.Pow(float64(s.config.HiddenSize), power)))(s)
		}
	}
	swap := func(a, b string) func(*subject) bool {
		return func(s *subject) bool { return s.swapProjections(a, b) }
	}
	all := func(makes ...func(*subject) bool) func(*subject) bool {
		return func(s *subject) bool {
			for _, m := range makes {
				if !m(s) {
					return false
				}
			}
			return true
		}
	}
	next := func(name string, of func(a, b string) func(*subject) bool) func(*subject) bool { // {moe} and the layer behind
		return func(s *subject) bool {
			return of("{moe}"+name, "model.layers."+strconv.Itoa(s.moe+1)+".mlp."+name)(s)
		}
	}
	mlps := func(a, b string) func(*subject) bool {
		return func(s *subject) bool { return s.swapMLPs(a+".", b+".") }
	}
	downs := func(by func(s *subject) float32) func(*subject) bool {
		return func(s *subject) bool {
			for e := range s.config.MoE.NRoutedExperts {
				if !scaling("{moe}experts."+strconv.Itoa(e)+".down_proj.weight", by(s), every)(s) {
					return false
				}
			}
			return true
		}
	}
	bias := func(f func(v float32) float32) func(*subject) bool {
		return editing("{moe}gate.e_score_correction_bias", func(t *tensor.Tensor) bool { return apply(t, every(t), f) })
	}
	return []mistake{
		{"rows of o_proj reversed", "rows-permuted", o + ".output", "", rows(o, reversed)},
		{"halves of o_proj's rows exchanged", "rows-permuted", o + ".output", "", rows(o, halves)},
		{"even rows of o_proj first", "rows-permuted", o + ".output", "",
			rows(o, func(n, r int) int { return r%((n+1)/2)*2 + r/((n+1)/2) })},
		{"two rows of o_proj exchanged", "rows-permuted", o + ".output", "", rows(o, exchanged(3, 9, 1))},
		{"heads of v_proj rotated", "rows-permuted", "{attn}v_proj.output", "", func(s *subject) bool {
			order := func(n, r int) int { return (r + s.config.ValueHeadDim()) % n }
			s.edit("{attn}v_proj.bias", func(t *tensor.Tensor) bool {
				return reorder(t, func(r int) int { return order(t.Shape[0], r) })
			})
			return rows("{attn}v_proj", order)(s)
		}},
		{"heads of kv_b_proj rotated", "rows-permuted", "{attn}kv_b_proj.output", "", func(s *subject) bool {
			return rows("{attn}kv_b_proj", func(n, r int) int {
				return (r + s.config.Attention.QKNopeHeadDim +
					s.config.Attention.VHeadDim) % n
			})(s)
		}},
		{"two heads of kv_b_proj exchanged", "rows-permuted", "{attn}kv_b_proj.output", "", func(s *subject) bool {
			width := s.config.Attention.QKNopeHeadDim + s.config.Attention.VHeadDim
			return rows("{attn}kv_b_proj", exchanged(0, 2*width, width))(s)
		}},
		{"rows of q_a_proj reversed", "rows-permuted", "{attn}q_a_proj.output", "", rows("{attn}q_a_proj", reversed)},
		{"rows of lm_head rotated", "rows-permuted", "lm_head.output", "", rows("lm_head", func(n, r int) int { return (r + 1) % n })},
		{"two rows of lm_head exchanged", "rows-permuted", "lm_head.output", "", rows("lm_head", exchanged(5, 7, 1))},
		{"the router's rows reversed", "router-rows", gateLogits, "", rows("{moe}gate", reversed)},
		{"rows of the shared experts' down_proj reversed", "rows-permuted", shared + "output", "", rows(shared+"down_proj", reversed)},
		{"rows of the shared experts' gate_proj reversed", "rows-permuted", shared + "output", "", rows(shared+"gate_proj", reversed)},
		{"neurons of the shared experts reversed, but not their outputs", "rows-permuted", shared + "output", "",
			all(rows(shared+"gate_proj", reversed), rows(shared+"up_proj", reversed))},
		{"rows of one expert's down_proj reversed", "rows-permuted", experts, "", rows("{moe}experts.{e}.down_proj", reversed)},
		{"two rows of the embedding exchanged", "embedding-rows", "model.embed_tokens.output", "", func(s *subject) bool {
			in, err := s.golden.Input()
			s.err = err
			return err == nil && rows("model.embed_tokens", exchanged(in.InputIDs[0], in.InputIDs[1], 1))(s)
		}},
		{"hidden channels of the embedding reversed", "columns-permuted", "model.embed_tokens.output", "",
			editing("model.embed_tokens.weight", func(t *tensor.Tensor) bool {
				values, err := t.Float32s(nil)
				n := t.Shape[1]
				return err == nil && put(t, func(i int, _ float32) float32 { return values[i/n*n+n-1-i%n] })
			})},

		{"o_proj × 4", "weight-scaled", o + ".output", "", times(o, 4)},
		{"o_proj × 0.3", "weight-scaled", o + ".output", "", times(o, 0.3)},
		{"o_proj × √hidden_size", "weight-scaled", o + ".output", "", root(o, .5)},
		{"o_proj negated", "weight-scaled", o + ".output", "", times(o, -1)},
		{"each row of o_proj × a number", "weight-scaled", o + ".output", "", editing(o+".weight", func(t *tensor.Tensor) bool {
			return put(t, func(i int, v float32) float32 { return v * (1 + float32(i/t.Shape[1]%7)/4) })
		})},
		{"eight rows of o_proj halved", "weight-scaled", o + ".output", "", scaling(o+".weight", .5,
			func(t *tensor.Tensor) []int { return every(t)[:8*t.Shape[1]] })},
		{"q_a_proj × 0.125", "weight-scaled", "{attn}q_a_proj.output", "", times("{attn}q_a_proj", .125)},
		{"scales of o_proj doubled", "weight-scaled", o + ".output", "", scaling(o+".weight_scale_inv", 2, every)},
		{"scales of o_proj lost", "weight-scaled", o + ".output", "", editing(o+".weight_scale_inv",
			func(t *tensor.Tensor) bool {
				return t.Shape[1] == 1 && put(t, func(int, float32) float32 { return 1 })
			})},
		{"scales of o_proj inverted", "weight-scaled", o + ".output", "", editing(o+".weight_scale_inv",
			func(t *tensor.Tensor) bool {
				return t.Shape[1] == 1 && put(t, func(_ int, v float32) float32 { return 1 / v })
			})},
		{"channels of a norm reversed", "norm-weight", norm + ".output", "in another order", editing(norm+".weight",
			func(t *tensor.Tensor) bool {
				values, err := t.Float32s(nil)
				return err == nil && put(t, func(i int, _ float32) float32 { return values[len(values)-1-i] })
			})},
		{"the router × 2", "weight-scaled", gateLogits, "", times("{moe}gate", 2)},
		{"lm_head × 1/√hidden_size", "weight-scaled", "lm_head.output", "", root("lm_head", -.5)},
		{"the shared experts' up_proj × 2", "weight-scaled", shared + "output", "", times(shared+"up_proj", 2)},
		{"the shared experts' down_proj × 0.4", "weight-scaled", shared + "output", "", times(shared+"down_proj", .4)},
		{"one expert's down_proj × 4", "weight-scaled", experts, "", times("{moe}experts.{e}.down_proj", 4)},
		{"routed_scaling_factor in down_proj of all experts", "routed-sum-scaled", experts, "",
			downs(func(s *subject) float32 { return float32(s.config.Router.RoutedScalingFactor) })},
		{"down_proj of all experts halved", "routed-sum-scaled", experts, "", downs(func(*subject) float32 { return .5 })},
		{"the embedding × √hidden_size", "embedding-scaled", "model.embed_tokens.output", "", root("model.embed_tokens", .5)},
		{"the embedding × 0.4", "embedding-scaled", "model.embed_tokens.output", "", times("model.embed_tokens", .4)},
		{"a norm's weight doubled", "norm-weight", norm + ".output", "", times(norm, 2)},
		{"kv_a_layernorm's weight all 1", "norm-weight", "{attn}kv_a_layernorm.output", "",
			editing("{attn}kv_a_layernorm.weight", func(t *tensor.Tensor) bool {
				return put(t, func(int, float32) float32 { return 1 })
			})},
		{"the two norms of a layer exchanged", "norm-weight", norm + ".output", "stored as",
			swap(norm, "model.layers.1.post_attention_layernorm")},
		{"kv_a_layernorm of another layer", "norm-weight", "{attn}kv_a_layernorm.output", "stored as",
			swap("{attn}kv_a_layernorm", "model.layers.2.self_attn.kv_a_layernorm")},

		{"o_proj of another layer", "other-weight", o + ".output", "", swap(o, "model.layers.2.self_attn.o_proj")},
		{"kv_b_proj of another layer", "other-weight", "{attn}kv_b_proj.output", "",
			swap("{attn}kv_b_proj", "model.layers.2.self_attn.kv_b_proj")},
		{"the router of another layer", "other-weight", gateLogits, "", next("gate", swap)},
		{"shared experts of another layer", "other-weight", shared + "output", "", next("shared_experts", mlps)},
		{"one projection of the shared experts of another layer", "other-weight", shared + "output", "",
			next("shared_experts.up_proj", swap)},
		{"one expert of another layer", "other-weight", experts, "", func(s *subject) bool {
			return next("experts."+strconv.Itoa(s.expert), mlps)(s)
		}},
		{"one expert's gate_proj of another layer", "other-weight", experts, "", func(s *subject) bool {
			return next("experts."+strconv.Itoa(s.expert)+".gate_proj", swap)(s)
		}},
		{"down_proj of two experts exchanged", "other-weight", experts, "", func(s *subject) bool {
			return swap("{moe}experts.{e}.down_proj",
				"{moe}experts."+strconv.Itoa((s.expert+1)%s.config.MoE.NRoutedExperts)+".down_proj")(s)
		}},
		{"the embedding and the head exchanged", "other-weight", "model.embed_tokens.output", "", swap("model.embed_tokens", "lm_head")},

		{"tid2eid of another layer", "hash-table", topKIdx, "", func(s *subject) bool {
			return s.swap("model.layers.0.mlp.gate.tid2eid", "model.layers.1.mlp.gate.tid2eid")
		}},
		{"e_score_correction_bias negated", "router-bias", topKIdx, "", bias(func(v float32) float32 { return -v })},
		{"e_score_correction_bias doubled", "router-bias", topKIdx, "", bias(func(v float32) float32 { return 2 * v })},
		{"e_score_correction_bias of another layer", "router-bias", topKIdx, "", func(s *subject) bool {
			return s.swap("{moe}gate.e_score_correction_bias",
				"model.layers."+strconv.Itoa(s.moe+1)+".mlp.gate.e_score_correction_bias")
		}},
		{"the router renumbered, but not the experts' biases", "experts-renumbered", gateLogits, "", func(s *subject) bool {
			n := s.config.MoE.NRoutedExperts
			order := func(e int) int { return (e + 3) % n }
			return s.has("{moe}gate.e_score_correction_bias") &&
				s.edit("{moe}gate.weight", func(t *tensor.Tensor) bool { return reorder(t, order) }) && s.permute(order)
		}},

		{"three weights of o_proj off", "weight-elements", o + ".output", "", scaling(o+".weight", -1,
			func(t *tensor.Tensor) []int { return []int{3, 2*t.Shape[1] + 5, 7*t.Shape[1] + 1} })},
		{"one weight of lm_head off", "weight-elements", "lm_head.output", "", scaling("lm_head.weight", 1.5, element(70))},
		{"a column of o_proj doubled", "weight-column", o + ".output", "", scaling(o+".weight", 2,
			func(t *tensor.Tensor) (column []int) {
				for r := range t.Shape[0] {
					column = append(column, r*t.Shape[1]+5)
				}
				return column
			})},
		{"a LoRA of rank 2 in o_proj", "low-rank", o + ".output", "", merging(o, 2)},
		{"a LoRA of rank 1 in kv_b_proj", "low-rank", "{attn}kv_b_proj.output", "", merging("{attn}kv_b_proj", 1)},
		{"a LoRA of rank 2 in the shared experts' down_proj", "low-rank", shared + "output", "", merging(shared+"down_proj", 2)},
		{"a LoRA of rank 2 in lm_head", "low-rank", "lm_head.output", "", merging("lm_head", 2)},

		{"o_proj of random numbers", "", o + ".output", "", randomly(o, 1)},
		{"o_proj with noise of a hundredth", "", o + ".output", "", randomly(o, .01)},
		{"o_proj through 4 bits", "weight-coded", o + ".output", "", rounding(o, 7)},
		{"o_proj through 8-bit integers", "weight-coded", o + ".output", "", rounding(o, 127)},
		{"o_proj through FP8", "weight-coded", o + ".output", "", editing(o+".weight", func(t *tensor.Tensor) bool {
			return put(t, func(_ int, v float32) float32 {
				fraction, exponent := math.Frexp(float64(v))
				return float32(math.Ldexp(math.Round(fraction*16)/16, exponent))
			})
		})},
		{"the shared experts' down_proj through 4 bits", "weight-coded", shared + "output", "", rounding(shared+"down_proj", 7)},
		{"the last rows of o_proj zero", "", o + ".output", "", scaling(o+".weight", 0,
			func(t *tensor.Tensor) []int { return every(t)[8*t.Shape[1]:] })},
		{"rows of o_proj reversed, and one weight doubled", "", o + ".output", "", all(rows(o, reversed), scaling(o+".weight", 2, element(100)))},
		{"o_proj × 4, and a row × 1.1 more", "", o + ".output", "", all(times(o, 4), scaling(o+".weight", 1.1, rowOf(3)))},
		{"gate_proj of the shared experts of random numbers", "", shared + "output", "", randomly(shared+"gate_proj", 1)},
		{"rows of the shared experts' gate_proj rotated by 3", "", shared + "output", "",
			rows(shared+"gate_proj", func(n, r int) int { return (r + 3) % n })},
	}
}

// plain says whether a weight has no scales.
func plain(t *tensor.Tensor) bool { return t.DType == tensor.BF16 || t.DType == tensor.F32 }

// exchanged exchanges runs of rows that begin at a and at b.
func exchanged(a, b, size int) func(n, r int) int {
	return func(_, r int) int {
		switch {
		case r >= a && r < a+size:
			return r - a + b
		case r >= b && r < b+size:
			return r - b + a
		}
		return r
	}
}

// put gives each element another number.
func put(t *tensor.Tensor, f func(i int, v float32) float32) bool {
	i := 0
	return apply(t, every(t), func(v float32) float32 {
		i++
		return f(i-1, v)
	})
}

// size is the root mean square of a weight's numbers; 0 if it is not of plain numbers.
func size(t *tensor.Tensor) float32 {
	sum := 0.0
	if plain(t) {
		values, _ := t.Float32s(nil)
		for _, v := range values {
			sum += float64(v) * float64(v) / float64(len(values))
		}
	}
	return float32(math.Sqrt(sum))
}

// merging adds a matrix of a rank, of a tenth of a weight's size for each. The weight is BF16 afterwards as before, so
// that what is rounded has no low rank: the weight is stored in F32.
func merging(weight string, rank int) func(*subject) bool {
	return editing(weight+".weight", func(t *tensor.Tensor) bool {
		by := .1 * size(t)
		if by == 0 || !widen(t) {
			return false
		}
		rng := rand.New(rand.NewPCG(1, uint64(rank)))
		for range rank {
			var a, b []float32
			for range t.Shape[0] {
				a = append(a, float32(rng.NormFloat64()))
			}
			for range t.Shape[1] {
				b = append(b, float32(rng.NormFloat64()))
			}
			put(t, func(i int, v float32) float32 { return v + by*a[i/len(b)]*b[i%len(b)] })
		}
		return true
	})
}

// randomly adds normal numbers of a share of a weight's size.
func randomly(weight string, share float32) func(*subject) bool {
	return editing(weight+".weight", func(t *tensor.Tensor) bool {
		by, rng := share*size(t), rand.New(rand.NewPCG(1, 2))
		return by > 0 && put(t, func(_ int, v float32) float32 { return v + by*float32(rng.NormFloat64()) })
	})
}

// rounding rounds each row to integers up to most, times a scale.
func rounding(weight string, most float32) func(*subject) bool {
	return editing(weight+".weight", func(t *tensor.Tensor) bool {
		if !plain(t) {
			return false
		}
		values, _ := t.Float32s(nil)
		return put(t, func(i int, v float32) float32 {
			n := t.Shape[1]
			largest := float32(0)
			for _, w := range values[i/n*n : i/n*n+n] {
				largest = max(largest, float32(math.Abs(float64(w))))
			}
			return float32(math.Round(float64(v/largest*most))) * (largest / most)
		})
	})
}
