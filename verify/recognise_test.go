package verify_test

import (
	"encoding/binary"
	"math"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"dsmoe/config/configtest"
	"dsmoe/convert/checkpoint"
	"dsmoe/model/tensor"
	"dsmoe/model/weights"
	"dsmoe/text"
	"dsmoe/verify"
	"dsmoe/verify/pack"
	"dsmoe/verify/report"
)

// engines16 are traces of engines in BF16 that declare nothing, by the checkpoint that they are of.
var engines16 = map[string]string{
	"sglang-v3-trained-bf16":   "v3-trained",
	"megatron-v3-trained-bf16": "v3-trained",
	"torch-v3-add-norm-bf16":   "v3",
}

// traced opens a trace and its checkpoint.
func traced(t *testing.T, name string) (*checkpoint.Checkpoint, *pack.Pack) {
	t.Helper()
	c := must(checkpoint.Open(fixture(engines16[name] + "/checkpoint")))
	t.Cleanup(func() { require.NoError(t, c.Close()) })
	return c, must(pack.Open(fixture("engines/" + name)))
}

// selected returns the layers or stages to which a run is limited: these, or with -every none, which means all.
func selected[S ~[]E, E any](t *testing.T, some S) S {
	t.Helper()
	if configtest.Every(t) {
		return nil
	}
	return some
}

// TestEnginesAreRecognised_every: right engines that round elsewhere than HuggingFace's eager classes pass, and the report
// says where.
func TestEnginesAreRecognised_every(t *testing.T) {
	t.Parallel()
	for name, ways := range map[string]map[string]string{
		"sglang-v3-trained-bf16": {"norm": "once", "latent-norm": "once", "input-add-norm": "unrounded, once",
			"post-add-norm": "unrounded, once", "final-add-norm": "unrounded, once", "score": "t", "scores": "f32", "probs": "f32",
			"absorbed.q": "t", "absorbed.ctx": "t", "experts.factor": "R(R(sum)·s)", "experts.sum": "f32"},
		"megatron-v3-trained-bf16": {"norm": "once", "latent-norm": "once", "input-add-norm": "rounded, once",
			"post-add-norm": "rounded, once", "final-add-norm": "rounded, once", "experts.weight": "R(h·w) before", "experts.sum": "f32",
			"scores": "f32", "probs": "f32", "absorbed.q": "none"},
		"torch-v3-add-norm-bf16": {"post-add-norm": "unrounded, once", "experts.sum": "f32"},
	} {
		if name != "megatron-v3-trained-bf16" && !configtest.Every(t) {
			continue
		}
		c, p := traced(t, name)
		r := run(t, c.Config, c, p, verify.Options{})
		require.Equal(t, report.Pass, r.Verdict, "%s: %v %v", name, r.FirstDivergence, r.Reasons)
		got := map[string]string{}
		for _, k := range r.Golden.Recognised {
			for operation, way := range k.Ways {
				got[operation] = way
			}
			require.Zero(t, k.Missed)
			require.NotZero(t, k.Alone, "%s: %s", name, k.Kind)
		}
		for operation, way := range ways {
			require.Equal(t, way, got[operation], "%s: %s", name, operation)
		}
		require.Contains(t, printed(t, r), "\n           recognised: ")
		require.Len(t, r.Limits, 1, "float32's line says what holds in 16 bits, too")
		has(t, junit(t, r), `<property name="arithmetic recognised" value="`)
		has(t, html(t, r), "<dt>arithmetic recognised</dt><dd>")
	}
}

// TestWrongEnginesFail_every: a fault in what an engine computes fails at its stage, whatever the engine's arithmetic.
// Without -every it tries the least fault of each kind: limits that let a larger one pass let the least pass, too.
func TestWrongEnginesFail_every(t *testing.T) {
	t.Parallel()
	const layer, least = "model.layers.2.", "the least: "
	for name := range engines16 {
		if !configtest.Every(t) && !strings.HasPrefix(name, "sglang") {
			continue
		}
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c, p := traced(t, name)
			experts := reachedMost(t, p, layer)
			down := layer + "mlp.experts." + experts + ".down_proj.weight"
			scale := func(of string, factor float32, elements func(w tensor.Tensor) []int) weights.Source {
				w := get(t, c, of)
				return replace(c, of, scaled(t, w, factor, elements(w)...))
			}
			all := func(w tensor.Tensor) (elements []int) {
				for i := range int(w.Len()) {
					elements = append(elements, i)
				}
				return elements
			}
			some := func(n int) func(tensor.Tensor) []int { return func(tensor.Tensor) []int { return []int{n} } }
			channel := func(w tensor.Tensor) []int { return row(w, 3) }
			half := func(w tensor.Tensor) (elements []int) { // of the columns
				for i := range int(w.Len()) {
					if i%w.Shape[1] < w.Shape[1]/2 {
						elements = append(elements, i)
					}
				}
				return elements
			}
			rows := func(of string) weights.Source {
				w := get(t, c, of)
				return replace(c, of, rowsBy(w, func(i int) int {
					if i < 2 {
						return 1 - i
					}
					return i
				}))
			}
			for fault, test := range map[string]struct {
				src   weights.Source
				stage string
			}{
				"one channel of a norm": {scale(layer+"post_attention_layernorm.weight", 1.01, some(5)), layer + "post_attention_layernorm.output"},
				"one norm":              {scale(layer+"input_layernorm.weight", 1.01, all), layer + "input_layernorm.output"},
				"another norm's weight": {replace(c, layer+"input_layernorm.weight", get(t, c, layer+"post_attention_layernorm.weight")),
					layer + "input_layernorm.output"},
				"an expert is nothing":              {scale(down, 0, all), layer + "mlp."},
				"two rows exchanged":                {rows(down), layer + "mlp."},
				"one expert":                        {scale(down, 1.01, all), layer + "mlp."},
				least + "one channel of an expert":  {scale(down, 1.01, channel), layer + "mlp."},
				"one channel of o_proj":             {scale(layer+"self_attn.o_proj.weight", 1.02, channel), layer + "self_attn.o"},
				"one channel of kv_a_proj":          {scale(layer+"self_attn.kv_a_proj_with_mqa.weight", 1.02, channel), layer + "self_attn.kv_a_proj_with_mqa.output"},
				"a channel of the final norm":       {scale("model.norm.weight", 1.02, some(5)), "model.norm.output"},
				least + "one rank's half of o_proj": {scale(layer+"self_attn.o_proj.weight", 1.01, half), layer + "self_attn.o"},
			} {
				if !configtest.Every(t) && !strings.HasPrefix(fault, least) {
					continue
				}
				r := run(t, c.Config, test.src, p, verify.Options{Undiagnosed: true})
				require.Equal(t, report.Fail, r.Verdict, fault)
				require.True(t, strings.HasPrefix(*r.FirstDivergence, test.stage), "%s: %s", fault, *r.FirstDivergence)
			}
			for key, fault := range map[string][2]string{"rms_norm_eps": {"1e-5", "model.layers.0.input_layernorm.output"},
				"routed_scaling_factor": {"2.525", "mlp.gate.topk_weight"}} {
				if !configtest.Every(t) {
					break
				}
				r := run(t, override(t, c.Config, key, fault[0]), c, p, verify.Options{Undiagnosed: true})
				require.Equal(t, report.Fail, r.Verdict, key)
				require.True(t, strings.HasSuffix(*r.FirstDivergence, fault[1]), "%s: %s", key, *r.FirstDivergence)
			}
			residual, own := must(p.Float32s("model.layers.1.output")), must(p.Float32s("model.layers.2.output"))
			before := must(p.Float32s("model.layers.0.output"))
			p.Replaced = map[string]tensor.Tensor{layer + "output": in16(p, layer+"output", func(yield func(float64)) {
				for i, y := range own {
					yield(float64(y) - float64(residual[i]) + float64(before[i]))
				}
			})}
			r := run(t, c.Config, c, p, verify.Options{Undiagnosed: true})
			require.Equal(t, layer+"output", *r.FirstDivergence, "the residual of another layer")
		})
	}
}

// reachedMost returns the number of the expert that most tokens of a trace chose.
func reachedMost(t *testing.T, p *pack.Pack, layer string) string {
	t.Helper()
	counts := map[int]int{}
	for _, e := range must(p.Ints(layer + "mlp.gate.topk_idx")) {
		counts[e]++
	}
	best := 0
	for e, n := range counts {
		if n > counts[best] || n == counts[best] && e < best {
			best = e
		}
	}
	return strconv.Itoa(best)
}

// TestRoundingsThatAreNotKnown_every: a norm that rounds otherwise than engines are known to is inconclusive, by name; with a
// factor beside it fails.
func TestRoundingsThatAreNotKnown_every(t *testing.T) {
	t.Parallel()
	for factor, verdict := range map[float64]report.Verdict{1: report.Inconclusive, 1.02: report.Fail} {
		c, p := traced(t, "sglang-v3-trained-bf16")
		stream, weight := must(p.Float32s("model.layers.3.output")), must(get(t, c, "model.norm.weight").Float32s(nil))
		p.Replaced = map[string]tensor.Tensor{"model.norm.output": in16(p, "model.norm.output", func(yield func(float64)) {
			for row := range slices.Chunk(stream, len(weight)) {
				sum := 0.0
				for _, v := range row {
					sum += float64(v) * float64(v)
				}
				r := 1 / math.Sqrt(sum/float64(len(row))+1e-6)
				for i, v := range row {
					yield(to16(float64(v)*float64(weight[i])) * r * factor)
				}
			}
		})}
		r := run(t, c.Config, c, p, verify.Options{Undiagnosed: true, Stages: selected(t, []string{"model.norm.output"})})
		require.Equal(t, verdict, r.Verdict, "%v %v", factor, r.Reasons)
		if verdict == report.Inconclusive {
			require.Contains(t, r.Reasons[0], "the engine rounds final-add-norm in a way that is not known")
			require.Contains(t, printed(t, r), "not recognised: final-add-norm\n")
			const held = "held to wider limits, which allow for any rounding: model.norm.output"
			for name, value := range map[string]string{"arithmetic not recognised": "final-add-norm", "stages not recognised": held} {
				has(t, junit(t, r), `<property name="`+name+`" value="`+value+`"></property>`)
				has(t, html(t, r), "<dt>"+name+"</dt><dd>"+value+"</dd>")
			}
			continue
		}
		require.Equal(t, "model.norm.output", *r.FirstDivergence)
	}
}

// TestFewTokens_every: no stage of a right engine fails at one token or two; what these cannot tell apart is said. A wrong
// channel fails.
func TestFewTokens_every(t *testing.T) {
	t.Parallel()
	const norm = "model.layers.2.post_attention_layernorm."
	for name := range engines16 {
		for _, n := range []int{1, 2} {
			if n == 2 && !configtest.Every(t) {
				continue
			}
			c, p := traced(t, name)
			p = must(p.First(c.Config, n, func(pack.Stage) bool { return true }))
			r := run(t, c.Config, c, p, verify.Options{})
			require.Equal(t, report.Inconclusive, r.Verdict, "%s: %v %v", name, r.FirstDivergence, r.Reasons) // most experts did not run
			require.NotEmpty(t, r.Golden.Recognised)
			r = run(t, c.Config, replace(c, norm+"weight", scaled(t, get(t, c, norm+"weight"), 1.02, 5)), p, verify.Options{Undiagnosed: true})
			require.Equal(t, norm+"output", *r.FirstDivergence, "%s: %d", name, n)
		}
	}
}

// to16 rounds to BF16.
func to16(x float64) float64 { return float64(tensor.Rounded(float32(x), tensor.BF16)) }

// in16 is a tensor of BF16 of the shape of a stage of a pack.
func in16(p *pack.Pack, stage string, values func(yield func(float64))) tensor.Tensor {
	of := tensor.Tensor{DType: tensor.BF16, Shape: p.Manifest.Tensors[stage].Shape}
	values(func(y float64) {
		of.Data = binary.LittleEndian.AppendUint16(of.Data, uint16(math.Float32bits(tensor.Rounded(float32(y), tensor.BF16))>>16))
	})
	return of
}

// TestLayersThatRoundOtherwise: one layer of a run may have a way of its own; the report names it. A wrong channel in it
// fails there.
func TestLayersThatRoundOtherwise(t *testing.T) {
	t.Parallel()
	const stage = "model.layers.2.post_attention_layernorm.output"
	for factor, verdict := range map[float64]report.Verdict{1: report.Pass, 1.01: report.Fail} {
		c, p := traced(t, "sglang-v3-trained-bf16")
		weight := must(get(t, c, "model.layers.2.post_attention_layernorm.weight").Float32s(nil))
		before, attention := must(p.Float32s("model.layers.1.output")), must(p.Float32s("model.layers.2.self_attn.output"))
		p.Replaced = map[string]tensor.Tensor{stage: in16(p, stage, func(yield func(float64)) {
			for first := 0; first < len(before); first += len(weight) {
				row, squares := make([]float64, len(weight)), 0.0
				for i := range row {
					row[i] = to16(float64(before[first+i]) + float64(attention[first+i]))
					squares += row[i] * row[i]
				}
				r := 1 / math.Sqrt(squares/float64(len(row))+1e-6)
				for i, x := range row {
					y := to16(to16(x*r) * float64(weight[i]))
					if i == 5 {
						y *= factor
					}
					yield(y)
				}
			}
		})}
		r := run(t, c.Config, c, p, verify.Options{Undiagnosed: true, Stages: []string{"*.post_attention_layernorm.output"}})
		require.Equal(t, verdict, r.Verdict, r.Reasons)
		if verdict == report.Fail {
			require.Equal(t, stage, *r.FirstDivergence)
			continue
		}
		require.Equal(t, map[string]map[string]string{"2": {"post-add-norm": "rounded, twice"}}, r.Golden.Recognised[0].Layers)
		require.Contains(t, printed(t, r), "post-add-norm: unrounded, once, but in layer 2 rounded, twice; ")
	}
}

// TestRanksOfExperts_every: routed experts that are cut over ranks, or shared out among them, with sums that are rounded on
// each rank, are inconclusive by name; a factor of 1.02 fails.
func TestRanksOfExperts_every(t *testing.T) {
	t.Parallel()
	c, p := traced(t, "sglang-v3-trained-bf16")
	const width, hidden, k = 160, 32, 4
	matrices := map[string][]float32{}
	product := func(name string, x []float64, row, first, last int) (sum float64) {
		if matrices[name] == nil {
			matrices[name] = must(get(t, c, name).Float32s(nil))
		}
		for i := first; i < last; i++ {
			sum += x[i] * float64(matrices[name][row*len(x)+i])
		}
		return sum
	}
	for _, test := range []struct {
		ranks   int
		parts   bool // experts are whole
		factor  float64
		verdict report.Verdict
	}{{2, false, 1, report.Inconclusive}, {4, false, 1, report.Inconclusive}, {8, false, 1, report.Inconclusive},
		{2, true, 1, report.Inconclusive}, {8, true, 1, report.Inconclusive}, {2, false, 1.02, report.Fail}, {8, true, 1.02, report.Fail}} {
		if (test.ranks != 2 || test.parts) && !configtest.Every(t) {
			continue
		}
		p.Replaced = map[string]tensor.Tensor{}
		layers, stages := []string{"model.layers.1.", "model.layers.2.", "model.layers.3."}, "model.layers.*.mlp.output"
		if !configtest.Every(t) {
			layers, stages = layers[:1], "model.layers.1.mlp.output"
		}
		for _, layer := range layers {
			in, shared := must(p.Float32s(layer+"post_attention_layernorm.output")), must(p.Float32s(layer+"mlp.shared_experts.output"))
			chosen, weights := must(p.Ints(layer+"mlp.gate.topk_idx")), must(p.Float32s(layer+"mlp.gate.topk_weight"))
			p.Replaced[layer+"mlp.output"] = in16(p, layer+"mlp.output", func(yield func(float64)) {
				for token := range len(in) / width {
					x := make([]float64, width)
					for i := range x {
						x[i] = float64(in[token*width+i])
					}
					ranks := make([][]float64, test.ranks)
					for rank := range ranks {
						ranks[rank] = make([]float64, width)
					}
					for slot := token * k; slot < (token+1)*k; slot++ {
						expert, h := layer+"mlp.experts."+strconv.Itoa(chosen[slot])+".", make([]float64, hidden)
						for n := range h {
							gate, up := to16(product(expert+"gate_proj.weight", x, n, 0, width)), to16(product(expert+"up_proj.weight", x, n, 0, width))
							h[n] = to16(to16(gate/(1+math.Exp(-gate))) * up)
						}
						for rank := range ranks {
							first, last := rank*hidden/test.ranks, (rank+1)*hidden/test.ranks
							if test.parts {
								if first, last = 0, hidden; chosen[slot]*test.ranks/32 != rank {
									continue
								}
							}
							for column := range width {
								ranks[rank][column] += float64(weights[slot]) / 2.5 * to16(product(expert+"down_proj.weight", h, column, first, last))
							}
						}
					}
					for column := range width {
						sum := 0.0
						for _, rank := range ranks {
							sum += to16(to16(rank[column]) * 2.5 * test.factor)
						}
						yield(to16(sum) + float64(shared[token*width+column]))
					}
				}
			})
		}
		r := run(t, c.Config, c, p, verify.Options{Undiagnosed: true, Stages: []string{stages}})
		require.Equal(t, test.verdict, r.Verdict, "%+v: %v", test, r.Reasons)
		if test.verdict == report.Inconclusive {
			require.Contains(t, printed(t, r), "the engine rounds experts and shared in a way that is not known")
		}
	}
}

// TestStagesOfTwoKinds: without the input of down_proj, an MLP's output shows the roundings of SwiGLU and of ranks. SwiGLU is
// recognised, and no doubt is left of the ranks.
func TestStagesOfTwoKinds(t *testing.T) {
	t.Parallel()
	const mlp, stage = "model.layers.0.mlp.", "model.layers.0.mlp.output"
	c, p := traced(t, "torch-v3-add-norm-bf16")
	p = must(p.First(c.Config, 24, func(pack.Stage) bool { return true })) // all: no tensor is read from a file
	gate, up := must(p.Float32s(mlp+"gate_proj.output")), must(p.Float32s(mlp+"up_proj.output"))
	w := get(t, c, mlp+"down_proj.weight")
	down, width := must(w.Float32s(nil)), w.Shape[1]
	p.Replaced[stage] = in16(p, stage, func(yield func(float64)) {
		for from := 0; from < len(gate); from += width {
			for row := range slices.Chunk(down, width) {
				sum := 0.0
				for i, w := range row {
					g := float64(gate[from+i])
					sum += to16(g/(1+math.Exp(-g))*float64(up[from+i])) * float64(w)
				}
				yield(sum)
			}
		}
	})
	delete(p.Manifest.Tensors, mlp+"down_proj.input")
	o := verify.Options{Undiagnosed: true, Stages: []string{stage}}
	r := run(t, c.Config, c, p, o)
	require.Equal(t, report.Pass, r.Verdict, "%v %v", r.FirstDivergence, r.Reasons)
	require.Len(t, r.Golden.Recognised, 1)
	require.Equal(t, map[string]string{"swiglu": "once"}, r.Golden.Recognised[0].Ways)
	r = run(t, c.Config, replace(c, mlp+"down_proj.weight", scaled(t, w, 1.02, row(w, 3)...)), p, o)
	require.Equal(t, report.Fail, r.Verdict)
}

// TestRecognitionWithOptions_every: a right engine passes a run that stops at the first failure, that has a wider limit for
// another stage, or that is in parts.
func TestRecognitionWithOptions_every(t *testing.T) {
	t.Parallel()
	c, p := traced(t, "sglang-v3-trained-bf16")
	wrong := replace(c, "model.norm.weight", scaled(t, get(t, c, "model.norm.weight"), 1.02, 5))
	for _, o := range []verify.Options{{FailFast: true}, {Limits: map[string]float64{"self_attn.q_a_proj.output": 2}}} {
		r := run(t, c.Config, c, p, o)
		require.Equal(t, report.Pass, r.Verdict, "%v %v", r.FirstDivergence, r.Reasons)
		o.Undiagnosed = true
		r = run(t, c.Config, wrong, p, o)
		require.Equal(t, "model.norm.output", *r.FirstDivergence)
		require.Equal(t, o.FailFast, r.Stopped)
		if !configtest.Every(t) {
			return
		}
	}
	var parts []*report.Report
	for n := range 2 {
		parts = append(parts, run(t, c.Config, c, p, verify.Options{Part: &report.Part{Index: n + 1, Of: 2}}))
	}
	merged, _, err := verify.Merge(parts)
	require.NoError(t, err)
	require.Equal(t, report.Pass, merged.Verdict, merged.Reasons)
	whole := run(t, c.Config, c, p, verify.Options{})
	require.Len(t, merged.Golden.Recognised, len(whole.Golden.Recognised))
}

// TestDeclaredRoundings_every: roundings that a manifest declares are demanded, and unknown ones refused. Others are recognised.
func TestDeclaredRoundings_every(t *testing.T) {
	t.Parallel()
	c, p := traced(t, "sglang-v3-trained-bf16")
	p.Manifest.Arithmetic = &pack.Arithmetic{Rounding: map[string]string{"final-add-norm": "unrounded, once", "experts.sum": "f32"}}
	o := verify.Options{Undiagnosed: true, Stages: selected(t, []string{"model.norm.output", "mlp.output"})}
	r := run(t, c.Config, c, p, o)
	require.Equal(t, report.Pass, r.Verdict, r.Reasons)
	p.Manifest.Arithmetic.Rounding["experts.sum"] = "t by expert"
	r = run(t, c.Config, c, p, o)
	require.Equal(t, "model.layers.1.mlp.output", *r.FirstDivergence)
	if configtest.Every(t) {
		delete(p.Manifest.Arithmetic.Rounding, "experts.sum")
		p.Manifest.Arithmetic.Rounding["final-add-norm"] = "rounded, twice"
		r = run(t, c.Config, c, p, verify.Options{Undiagnosed: true})
		require.Equal(t, report.Fail, r.Verdict)
		require.Equal(t, "model.norm.output", *r.FirstDivergence)
		p.Manifest.Arithmetic.Rounding = map[string]string{"router": "f32"}
		r = run(t, c.Config, c, p, verify.Options{Undiagnosed: true})
		require.Equal(t, "model.layers.1.mlp.gate.logits", *r.FirstDivergence)
	}
	p.Manifest.Arithmetic.Rounding = map[string]string{"final-add-norm": "thrice", "norms": "once"}
	_, err := verify.Run(t.Context(), c.Config, c, p, verify.Options{})
	require.ErrorContains(t, err, `arithmetic.rounding: final-add-norm: "thrice" is not one of rounded, twice; rounded, once`)
	require.ErrorContains(t, err, `arithmetic.rounding: norms: no operation`)
}

// TestMistakesOfEnginesAreNamed: what is wrong with a checkpoint is named beside an engine that rounds in ways of its
// own: in all layers, which the config that the trace holds explains; in a sum that is recorded with shared experts
// alone; in a router whose logits are rounded, and in a norm that reads a sum before it is rounded.
func TestMistakesOfEnginesAreNamed_every(t *testing.T) {
	t.Parallel()
	const layer, moe = "model.layers.1.", "model.layers.1.mlp."
	type setting struct{ key, value, cause, stage string }
	theta := setting{"rope_theta", "10100", "rope-theta", "model.layers.0.self_attn.o_proj.input"}
	for name, settings := range map[string][]setting{
		"sglang-v3-trained-bf16":   {theta, {"norm_topk_prob", "false", "norm-topk", moe + "gate.topk_weight"}},
		"megatron-v3-trained-bf16": {theta},
	} {
		if !configtest.Every(t) && !strings.HasPrefix(name, "sglang") {
			continue
		}
		for i, s := range settings {
			if i > 0 && !configtest.Every(t) {
				break
			}
			c, p := traced(t, name)
			layer := pack.Parse(s.stage).Layer
			r := run(t, override(t, c.Config, s.key, s.value), c, p, verify.Options{Layers: selected(t, text.Spans{{layer, layer}})})
			require.Equal(t, report.Fail, r.Verdict, "%s: %s: %v", name, s.key, r.Reasons)
			require.Equal(t, []string{s.cause}, causesOf(r))
			has(t, printed(t, r), "\n           with the config that the trace holds, not with the checkpoint's: ")
			require.Equal(t, s.stage, *r.FirstDivergence, name)
		}
		c, p := traced(t, name)
		chosen, exchanged := must(p.Ints(moe+"gate.topk_idx")), map[string]tensor.Tensor{}
		for _, role := range []string{"gate_proj", "up_proj", "down_proj"} {
			a := moe + "experts." + strconv.Itoa(chosen[0]) + "." + role + ".weight"
			b := moe + "experts." + strconv.Itoa(chosen[1]) + "." + role + ".weight"
			exchanged[a], exchanged[b] = get(t, c, b), get(t, c, a)
		}
		r := run(t, c.Config, altered{Source: c, tensors: exchanged}, p, verify.Options{Layers: selected(t, text.Spans{{1, 1}})})
		require.Equal(t, moe+"output", *r.FirstDivergence)
		require.Equal(t, []string{"experts-swapped"}, causesOf(r), name)
	}
	if !configtest.Every(t) {
		return
	}
	c, p := traced(t, "sglang-v3-trained-bf16")
	p.Manifest.Config = nil // what is wrong with the attention of all layers is not told from its roundings
	r := run(t, override(t, c.Config, "rope_theta", "50000"), c, p, verify.Options{})
	require.Equal(t, report.Fail, r.Verdict)
	require.NotContains(t, causesOf(r), "cache-rounded")
	c, p = traced(t, "sglang-v3-trained-bf16")
	w := get(t, c, moe+"gate.weight")
	reversed := rowsBy(w, func(i int) int { return w.Shape[0] - 1 - i })
	r = run(t, c.Config, replace(c, moe+"gate.weight", reversed), p, verify.Options{})
	require.Equal(t, moe+"gate.logits", *r.FirstDivergence)
	require.Equal(t, []string{"router-rows"}, causesOf(r))
	for _, check := range r.Checks {
		require.False(t, check.Verdict == report.Fail && check.Layer() != 1, "%s: the other routers are right", check.Tensor)
	}
	const norm = layer + "input_layernorm.weight"
	r = run(t, c.Config, replace(c, norm, scaled(t, get(t, c, norm), 1.01, 3)), p, verify.Options{})
	require.Equal(t, []string{"norm-weight"}, causesOf(r))
}

// causesOf are the ids of a report's causes.
func causesOf(r *report.Report) (ids []string) {
	for _, c := range r.Causes {
		ids = append(ids, c.ID)
	}
	return ids
}

// TestSumsOfUnknownOrder: an engine that declares that the order of its experts' sum is not known passes, with limits
// that allow for any order. A wrong factor fails beyond these.
func TestSumsOfUnknownOrder(t *testing.T) {
	t.Parallel()
	const stage = "model.layers.2.mlp.output"
	c, p := traced(t, "megatron-v3-trained-bf16")
	o, sees := verify.Options{Undiagnosed: true, Stages: []string{"*.mlp.output"}}, map[string]float64{}
	for _, order := range []string{"f32", "unknown order"} {
		p.Manifest.Arithmetic = &pack.Arithmetic{Rounding: map[string]string{"experts.sum": order}}
		r := run(t, c.Config, c, p, o)
		require.Nil(t, r.FirstDivergence, "%s: %v", order, r.Reasons)
		for _, check := range r.Checks {
			if check.Tensor == stage {
				require.Equal(t, report.Pass, check.Verdict)
				sees[order] = float64(*check.Sees)
			}
		}
	}
	require.Greater(t, sees["unknown order"], 2*sees["f32"])
	require.Less(t, sees["unknown order"], 0.1)
	experts := map[string]tensor.Tensor{}
	for e := range c.Config.MoE.NRoutedExperts {
		name := "model.layers.2.mlp.experts." + strconv.Itoa(e) + ".down_proj.weight"
		w := get(t, c, name)
		all := make([]int, w.Len())
		for i := range all {
			all[i] = i
		}
		experts[name] = scaled(t, w, 1.1, all...)
	}
	r := run(t, c.Config, altered{Source: c, tensors: experts}, p, o)
	require.Equal(t, stage, *r.FirstDivergence)
}
