package main

import (
	"encoding/binary"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"dsmoe/model/tensor"
)

// mistake is one row of the table: what is made, and what is to be said of it.
type mistake struct {
	name  string
	cause string // that is to be named; "" where none is known
	stage string // at which it is to be seen first, with the braces of subject.expand
	where string // what the report is to say too, likewise
	make  func(s *subject) bool
}

// editing makes a mistake in one weight, scaling in some of its elements.
func editing(name string, change func(t *tensor.Tensor) bool) func(*subject) bool {
	return func(s *subject) bool { return s.edit(name, change) }
}

func scaling(name string, by float32, of func(t *tensor.Tensor) []int) func(*subject) bool {
	return editing(name, func(t *tensor.Tensor) bool { return scale(t, by, of(t)) })
}

func rowOf(r int) func(*tensor.Tensor) []int {
	return func(t *tensor.Tensor) []int { return row(t, r) }
}

func element(i int) func(*tensor.Tensor) []int {
	return func(*tensor.Tensor) []int { return []int{i} }
}

const (
	gateLogits = "{moe}gate.logits"
	topKIdx    = "{moe}gate.topk_idx"
	topKWeight = "{moe}gate.topk_weight"
	experts    = "{moe}experts.output"
	attended   = "model.layers.0.self_attn.o_proj.input"
	rotated    = "{rotated}"
)

func ofGate() []mistake {
	return []mistake{
		{"norm_topk_prob the other way", "norm-topk", topKWeight, "", func(s *subject) bool {
			was, _ := s.config.TopKWeights()
			s.set(map[string]string{"norm_topk_prob": strconv.FormatBool(!s.config.Router.NormTopKProb)})
			is, _ := s.config.TopKWeights()
			return was != is
		}},
		{"routed_scaling_factor doubled", "routed-scale", topKWeight, "", func(s *subject) bool {
			_, was := s.config.TopKWeights()
			factor := strconv.FormatFloat(2*s.config.Router.RoutedScalingFactor, 'g', -1, 64)
			if !s.set(map[string]string{s.config.Key("routed_scaling_factor"): factor}) {
				return false
			}
			_, is := s.config.TopKWeights()
			return was != is
		}},
		{"groups that the reference has not", "group-mask", topKIdx, "in whose place it is", func(s *subject) bool {
			return s.config.Router.TopKMethod == "greedy" &&
				s.set(map[string]string{"topk_method": `"group_limited_greedy"`, "n_group": "4", "topk_group": "1"})
		}},
		{"groups ignored", "group-mask", topKIdx, "in whose place it is", func(s *subject) bool {
			return s.config.Router.TopKGroup < s.config.Router.NGroup && s.set(map[string]string{"n_group": "1",
				"topk_group": "1"})
		}},
		{"topk_group less 1", "topk-group", topKIdx, "the score of group ", func(s *subject) bool {
			return s.config.Router.TopKGroup > 1 && s.config.Router.TopKGroup < s.config.Router.NGroup &&
				s.set(map[string]string{"topk_group": strconv.Itoa(s.config.Router.TopKGroup - 1)})
		}},
		{"n_group doubled", "group-count", topKIdx, "in whose place it is", func(s *subject) bool {
			return s.config.Router.TopKGroup < s.config.Router.NGroup && s.set(map[string]string{"n_group": strconv.Itoa(2 *
				s.config.Router.NGroup)})
		}},
		{"num_experts_per_tok less 1", "experts-per-token", topKIdx, "", func(s *subject) bool {
			return !s.config.Hashes(0) && // tables have as many columns
				s.set(map[string]string{s.config.Key("num_experts_per_tok"): strconv.Itoa(s.config.MoE.NumExpertsPerTok - 1)})
		}},
		{"e_score_correction_bias zero", "weight-zero", topKIdx, "in whose place it is",
			editing("{moe}gate.e_score_correction_bias", func(t *tensor.Tensor) bool {
				clear(t.Data)
				return true
			})},
		{"the router's rows rotated", "router-rows", gateLogits, "", editing("{moe}gate.weight", func(t *tensor.Tensor) bool {
			return reorder(t, func(r int) int { return (r + 1) % t.Shape[0] })
		})},
		{"router and experts renumbered", "experts-renumbered", gateLogits, "", func(s *subject) bool {
			n := s.config.MoE.NRoutedExperts
			order := func(e int) int { return (e + 3) % n }
			rows := func(t *tensor.Tensor) bool {
				if shape := t.Shape; shape[0] == 1 { // a row with an element for each expert
					t.Shape = shape[1:]
					defer func() { t.Shape = shape }()
				}
				return reorder(t, order)
			}
			s.edit("{moe}gate.e_score_correction_bias", rows)
			return s.edit("{moe}gate.weight", rows) && s.permute(order)
		}},
		{"a row of the router × 1.01", "weight-scaled", gateLogits, "row 3 of {moe}gate.weight",
			scaling("{moe}gate.weight", 1.01, rowOf(3))},
	}
}

func ofExperts() []mistake {
	return []mistake{
		{"two experts exchanged", "experts-swapped", experts, "", func(s *subject) bool {
			chosen, err := s.golden.Ints(s.expand("{moe}gate.topk_idx"))
			if s.err = err; err != nil {
				return false
			}
			other := slices.IndexFunc(chosen[1:], func(e int) bool { return e != s.expert })
			return s.swapMLPs("{moe}experts.{e}.", "{moe}experts."+strconv.Itoa(chosen[1+other])+".")
		}},
		{"experts in the order of their names", "expert-order", experts, "", func(s *subject) bool {
			var names []string
			for e := range s.config.MoE.NRoutedExperts {
				names = append(names, strconv.Itoa(e))
			}
			slices.Sort(names)
			return len(names) > 10 && s.permute(func(e int) int { n, _ := strconv.Atoi(names[e]); return n })
		}},
		{"experts numbered from 1", "experts-rotated", experts, "", func(s *subject) bool {
			return s.permute(func(e int) int { return (e + s.config.MoE.NRoutedExperts - 1) % s.config.MoE.NRoutedExperts })
		}},
		{"halves of the experts exchanged", "experts-rotated", experts, "", func(s *subject) bool {
			return s.permute(func(e int) int { return (e + s.config.MoE.NRoutedExperts/2) % s.config.MoE.NRoutedExperts })
		}},
		{"gate and up of one expert exchanged", "gate-up-swapped", experts, "expert {e}", func(s *subject) bool {
			return s.swapProjections("{moe}experts.{e}.gate_proj", "{moe}experts.{e}.up_proj")
		}},
		{"gate and up of a dense MLP exchanged", "gate-up-swapped", "{dense}output", "", func(s *subject) bool {
			return s.swapProjections("{dense}gate_proj", "{dense}up_proj")
		}},
		{"gate and up of shared experts exchanged", "gate-up-swapped", "{moe}shared_experts.output", "",
			func(s *subject) bool {
				return s.swapProjections("{moe}shared_experts.gate_proj", "{moe}shared_experts.up_proj")
			}},
		{"one expert zero", "weight-zero", experts, "",
			editing("{moe}experts.{e}.down_proj.weight", func(t *tensor.Tensor) bool {
				clear(t.Data)
				return true
			})},
		{"the shared experts zero", "weight-zero", "{moe}shared_experts.output", "",
			editing("{moe}shared_experts.down_proj.weight", func(t *tensor.Tensor) bool {
				clear(t.Data)
				return true
			})},
		{"one expert's up_proj is another's", "other-weight", experts, "tokens of expert ", func(s *subject) bool {
			return s.swap("{moe}experts.{e}.up_proj.weight",
				"{moe}experts."+strconv.Itoa((s.expert+1)%s.config.MoE.NRoutedExperts)+".up_proj.weight")
		}},
		{"one neuron of an expert zero", "mlp-neurons", experts, "expert {e}, neuron 5:",
			scaling("{moe}experts.{e}.up_proj.weight", 0, rowOf(5))},
		{"one neuron of a dense MLP × 1.1", "mlp-neurons", "{dense}output", "neuron 5:",
			scaling("{dense}up_proj.weight", 1.1, rowOf(5))},
		{"one weight of an expert doubled", "weight-elements", experts, "all in tokens of expert ",
			scaling("{moe}experts.{e}.down_proj.weight", 2, element(100))},
		{"a channel of all experts × 1.02", "weight-scaled", experts, "all in column 20", func(s *subject) bool {
			for e := range s.config.MoE.NRoutedExperts {
				if !s.edit("{moe}experts."+strconv.Itoa(e)+".down_proj.weight",
					func(t *tensor.Tensor) bool { return scale(t, 1.02, row(t, 20)) }) {
					return false
				}
			}
			return true
		}},
	}
}

func ofAttention() []mistake {
	permuted := func(proj string, width, rotated func(s *subject) int) func(s *subject) bool {
		return func(s *subject) bool {
			return s.editBoth("{attn}"+proj, func(t *tensor.Tensor) bool {
				return t.DType == tensor.BF16 && reorder(t, func(r int) int { return interleaved(r, width(s), rotated(s), s.config.RotaryFirst()) })
			})
		}
	}
	rotated := func(s *subject) int { return s.config.HeadDim() }
	head := func(s *subject) int { return s.config.QKHeadDim() }
	latent := func(s *subject) int { return s.config.Attention.KVLoraRank + s.config.Attention.QKRopeHeadDim }
	kvB := func(order func(r, heads, nope, v int) int) func(s *subject) bool {
		return func(s *subject) bool {
			return s.edit("{attn}kv_b_proj.weight", func(t *tensor.Tensor) bool {
				c := s.config
				return t.DType == tensor.BF16 && reorder(t,
					func(r int) int {
						return order(r, c.Attention.NumAttentionHeads, c.Attention.QKNopeHeadDim, c.Attention.VHeadDim)
					})
			})
		}
	}
	transposed := func(proj string) func(s *subject) bool {
		return editing("{attn}"+proj+".weight", func(t *tensor.Tensor) bool {
			n := t.Shape[0]
			if t.Shape[1] != n || t.DType != tensor.BF16 {
				return false
			}
			was := slices.Clone(t.Data)
			for i := range n * n {
				copy(t.Data[2*i:2*i+2], was[2*(i%n*n+i/n):])
			}
			return true
		})
	}
	return []mistake{
		{"rows of q_proj for the other RoPE layout", "rope-permutation", "{attn}q_proj.output", "",
			permuted("q_proj", head, rotated)},
		{"rows of q_b_proj for the other RoPE layout", "rope-permutation", "{attn}q_b_proj.output", "",
			permuted("q_b_proj", head, rotated)},
		{"rows of k_proj for the other RoPE layout", "rope-permutation", "{attn}k_proj.output", "",
			permuted("k_proj", head, rotated)},
		{"rows of kv_a_proj_with_mqa for the other RoPE layout", "rope-permutation", "{attn}kv_a_proj_with_mqa.output", "",
			permuted("kv_a_proj_with_mqa", latent, rotated)},
		{"v_proj transposed", "transposed", "{attn}v_proj.output", "", transposed("v_proj")},
		{"o_proj transposed", "transposed", "{attn}o_proj.output", "", transposed("o_proj")},
		{"q_proj and k_proj exchanged", "projections-exchanged", "{attn}q_proj.output", "",
			func(s *subject) bool { return s.swapProjections("{attn}q_proj", "{attn}k_proj") }},
		{"k_proj and v_proj exchanged", "projections-exchanged", "{attn}k_proj.output", "",
			func(s *subject) bool { return s.swapProjections("{attn}k_proj", "{attn}v_proj") }},
		{"keys and values of kv_b_proj exchanged", "keys-values-exchanged", "{attn}kv_b_proj.output", "",
			kvB(func(r, _, nope, v int) int {
				if i := r % (nope + v); i < v {
					return r - i + nope + i
				} else {
					return r - v
				}
			})},
		{"all keys of kv_b_proj first", "keys-values-exchanged", "{attn}kv_b_proj.output", "",
			kvB(func(r, heads, nope, v int) int {
				if r < heads*nope {
					return r/nope*(nope+v) + r%nope
				}
				r -= heads * nope
				return r/v*(nope+v) + nope + r%v
			})},
		{"num_attention_heads doubled", "head-count", attended, "", func(s *subject) bool {
			n := strconv.Itoa(2 * s.config.Attention.NumAttentionHeads)
			return s.config.Attention.VHeadDim == 0 && s.set(map[string]string{"num_attention_heads": n,
				"num_key_value_heads": n})
		}},
		{"a row of o_proj × 1.02", "weight-scaled", "{attn}o_proj.output", "that is row 3 of {attn}o_proj.weight",
			scaling("{attn}o_proj.weight", 1.02, rowOf(3))},
		{"one weight of o_proj doubled", "weight-elements", "{attn}o_proj.output", "row 0 of {attn}o_proj.weight",
			scaling("{attn}o_proj.weight", 2, element(7))},
		{"scales of q_b_proj transposed", "scales-transposed", "{attn}q_b_proj.output", "",
			editing("{attn}q_b_proj.weight_scale_inv", transposeScales)},
		{"scales of a dense MLP transposed", "scales-transposed", "{dense}output", "", func(s *subject) bool {
			gate := s.edit("{dense}gate_proj.weight_scale_inv", transposeScales)
			up := s.edit("{dense}up_proj.weight_scale_inv", transposeScales)
			down := s.edit("{dense}down_proj.weight_scale_inv", transposeScales)
			return gate || up || down
		}},
	}
}

// interleaved is the row of a head of width rows, the last of which are rotated, or the first, that is at
// r when halves are written as pairs.
func interleaved(r, width, rotated int, atFirst bool) int {
	first := r/width*width + width - rotated
	if atFirst {
		first = r / width * width
	}
	if r < first || r >= first+rotated {
		return r
	}
	i := r - first
	return first + i%2*(rotated/2) + i/2
}

// transposeScales writes scales column by column.
func transposeScales(t *tensor.Tensor) bool {
	rows, cols := t.Shape[0], t.Shape[1]
	if rows == 1 || cols == 1 {
		return false
	}
	was, size := slices.Clone(t.Data), len(t.Data)/(rows*cols)
	for r := range rows {
		for c := range cols {
			copy(t.Data[size*(c*rows+r):][:size], was[size*(r*cols+c):])
		}
	}
	return true
}

func ofRotary() []mistake {
	return []mistake{
		{"rope_theta 1 % off", "rope-theta", rotated, "", func(s *subject) bool {
			if s.config.RoPE.RopeScaling != nil || s.config.CompressRate(0) > 0 { // whose table has another theta
				return false
			}
			theta := strconv.FormatFloat(1.01*s.config.RoPE.RopeTheta, 'f', -1, 64)
			return s.set(map[string]string{"rope_theta": theta}) ||
				s.set(map[string]string{"rope_parameters": `{"rope_type":"default","rope_theta":` + theta + `}`})
		}},
		{"rope_theta 50000, as Kimi-K2's", "rope-theta", rotated, "", func(s *subject) bool {
			if s.config.RoPE.RopeScaling != nil || s.config.CompressRate(0) > 0 {
				return false
			}
			return s.set(map[string]string{"rope_theta": "50000"}) ||
				s.set(map[string]string{"rope_parameters": `{"rope_type":"default","rope_theta":50000.0}`})
		}},
		{"YaRN's factor doubled", "rope-scaling", rotated, "", func(s *subject) bool {
			scaling := s.config.RoPE.RopeScaling
			return scaling != nil && scaling.Type == "yarn" && !s.config.Windowed() &&
				s.set(map[string]string{"rope_parameters": fmt.Sprintf(`{"rope_type":"yarn","rope_theta":%g,"factor":%g,`+
					`"original_max_position_embeddings":%d,"mscale":%g,"mscale_all_dim":%g,"beta_fast":%g,"beta_slow":%g}`,
					s.config.RoPE.RopeTheta, 2*scaling.Factor, scaling.OriginalMaxPositionEmbeddings, scaling.MScale,
					scaling.MScaleAllDim, scaling.BetaFast, scaling.BetaSlow)})
		}},
		{"rope_interleave the other way", "rope-layout", attended, "", func(s *subject) bool {
			return s.set(map[string]string{"rope_interleave": strconv.FormatBool(!s.config.RoPE.RopeInterleave)}) &&
				s.config.LatentAttention()
		}},
		{"RoPE scaled where the reference does not", "rope-scaling", rotated, "", func(s *subject) bool {
			if s.config.RoPE.RopeScaling != nil {
				return false
			}
			return s.set(map[string]string{"rope_scaling": `{"type":"linear","factor":2.0}`}) &&
				s.config.RoPE.RopeScaling != nil ||
				s.set(map[string]string{"rope_parameters": `{"rope_type":"yarn","rope_theta":` +
					strconv.FormatFloat(s.config.RoPE.RopeTheta, 'f', -1, 64) +
					`,"factor":4.0,"original_max_position_embeddings":32}`})
		}},
		{"RoPE not scaled where the reference does", "rope-scaling", rotated, "", func(s *subject) bool {
			return s.config.RoPE.RopeScaling != nil &&
				s.set(map[string]string{"rope_parameters": `{"rope_type":"default","rope_theta":10000.0}`})
		}},
		{"mscale missing", "yarn-mscale", attended, "", func(s *subject) bool {
			scaling := s.config.RoPE.RopeScaling
			if scaling == nil {
				return false
			}
			return s.set(map[string]string{"rope_parameters": `{"rope_type":"yarn","rope_theta":10000.0,"factor":` +
				strconv.FormatFloat(scaling.Factor, 'g', -1, 64) +
				`,"original_max_position_embeddings":32,"mscale":0,"mscale_all_dim":0}`})
		}},
		{"RoPE's angles in float32", "rotary-dtype", attended, "", func(s *subject) bool {
			s.options.RotaryDType = tensor.F32
			return s.golden.DType != tensor.F32 && s.golden.Manifest.RotaryDType() != tensor.F32 && !s.config.LatentAttention()
		}},
	}
}

func ofNorms() []mistake {
	const input = "model.layers.1.input_layernorm"
	return []mistake{
		{"rms_norm_eps 1e-5", "norm-eps", "model.layers.0.input_layernorm.output", "", func(s *subject) bool {
			return s.config.RMSNormEps != 1e-5 && s.set(map[string]string{"rms_norm_eps": "1e-5"})
		}},
		{"rms_norm_eps 3e-4", "norm-eps", "model.layers.0.input_layernorm.output", "", func(s *subject) bool {
			return !s.config.Windowed() && s.set(map[string]string{"rms_norm_eps": "3e-4"}) // V4's first norm is another one
		}},
		{"a norm's weight less 1", "norm-off-by-one", input + ".output", "",
			editing(input+".weight", func(t *tensor.Tensor) bool {
				return apply(t, every(t), func(v float32) float32 { return v - 1 })
			})},
		{"the last norm's weight plus 1", "norm-off-by-one", "model.norm.output", "",
			editing("model.norm.weight", func(t *tensor.Tensor) bool {
				return apply(t, every(t), func(v float32) float32 { return v + 1 })
			})},
		{"the last norm's weight all 1", "norm-weight", "model.norm.output", "",
			editing("model.norm.weight", func(t *tensor.Tensor) bool {
				return apply(t, every(t), func(float32) float32 { return 1 })
			})},
		{"one element of a norm × 1.01", "norm-weight", input + ".output", "all in column 3",
			scaling(input+".weight", 1.01, element(3))},
		{"two layers exchanged", "layers-exchanged", "model.layers.{last}.input_layernorm.output", "", exchangeLayers},
	}
}

// exchangeLayers exchanges the last two layers.
func exchangeLayers(s *subject) bool {
	last := s.config.NumHiddenLayers - 1
	a, b := "model.layers."+strconv.Itoa(last-1)+".", "model.layers."+strconv.Itoa(last)+"."
	for t := range s.Tensors() {
		if rest, ok := strings.CutPrefix(t.Name, a); ok && !s.swap(t.Name, b+rest) {
			return false
		}
	}
	return len(s.changed) > 0
}

func ofNumbers() []mistake {
	return []mistake{
		{"rows of the embedding rotated", "embedding-rows", "model.embed_tokens.output", "",
			editing("model.embed_tokens.weight", func(t *tensor.Tensor) bool {
				return reorder(t, func(r int) int { return (r + 1) % t.Shape[0] })
			})},
		{"the embedding for the head", "weight-copied", "lm_head.output", "", func(s *subject) bool {
			if !s.has("lm_head.weight") {
				return false
			}
			w, err := s.Tensor(s.stored("model.embed_tokens.weight"))
			s.err = err
			s.changed[s.stored("lm_head.weight")] = w
			return true
		}},
		{"a row of lm_head × 1.03", "weight-scaled", "lm_head.output", "row 3 of lm_head.weight",
			scaling("lm_head.weight", 1.03, rowOf(3))},
		{"NaN in o_proj", "weight-not-finite", "{attn}o_proj.output", "{attn}o_proj.weight holds NaN at [10 7]",
			editing("{attn}o_proj.weight", func(t *tensor.Tensor) bool {
				if t.DType != tensor.BF16 {
					return false
				}
				binary.LittleEndian.PutUint16(t.Data[2*(10*t.Shape[1]+7):], 0x7fc0)
				return true
			})},
		{"lm_head × 1e38, which overflows", "overflow", "lm_head.output", "",
			editing("lm_head.weight", func(t *tensor.Tensor) bool {
				return apply(t, every(t), func(v float32) float32 { return float32(math.Copysign(3e38, float64(v))) })
			})},
	}
}

// outOfReach are mistakes that change no stage of a pack, or by no more than rounding does.
func outOfReach() []mistake {
	return []mistake{
		{name: "an expert that no token chose zero", make: func(s *subject) bool {
			weight := s.expand(s.unchosen() + "down_proj.weight")
			return s.edit(weight, func(t *tensor.Tensor) bool {
				clear(t.Data)
				return true
			})
		}},
		{name: "embedding of a token that is not in the pack zero", make: func(s *subject) bool {
			in, err := s.golden.Input()
			if s.err = err; err != nil {
				return false
			}
			return s.edit("model.embed_tokens.weight", func(t *tensor.Tensor) bool {
				id := 0
				for slices.Contains(in.InputIDs, id) {
					id++
				}
				return id < t.Shape[0] && scale(t, 0, row(t, id))
			})
		}},
		{name: "one weight of an expert one unit of BF16 off", make: editing("{moe}experts.{e}.down_proj.weight",
			func(t *tensor.Tensor) bool {
				if t.DType != tensor.BF16 {
					return false
				}
				t.Data[2*100]++ // the low byte of element 100
				return t.Data[2*100] != 0
			})},
		{name: "an e_score_correction_bias × 1.01",
			make: scaling("{moe}gate.e_score_correction_bias", 1.01, element(0))},
		{name: "RoPE scaled beyond the pack's positions only", make: func(s *subject) bool {
			return s.config.RoPE.RopeScaling == nil && !s.config.LatentAttention() &&
				s.set(map[string]string{"rope_scaling": `{"type":"dynamic","factor":2.0}`})
		}},
		{name: "aux_loss_alpha 0, which inference does not read", make: func(s *subject) bool {
			return s.config.Router.AuxLossAlpha > 0 && s.set(map[string]string{"aux_loss_alpha": "0"})
		}},
	}
}
