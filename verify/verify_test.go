package verify_test

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"iter"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/nlpodyssey/safetensors"
	"github.com/stretchr/testify/require"

	"dsmoe/config"
	"dsmoe/convert/checkpoint"
	"dsmoe/model"
	"dsmoe/model/tensor"
	"dsmoe/model/weights"
	"dsmoe/verify"
)

// packs are all packs of tiny V1 models.
var packs = []string{
	"v1-base/golden-f32", "v1-base/golden-bf16", "v1-gqa-norm-freq2/golden-f32", "v1-top1-noshared/golden-f32",
	"v1-rope-linear-tied-bias/golden-f32", "v1-rope-dynamic/golden-f32", "v1-dense/golden-f32",
	"v1-freq3-first2/golden-f32", "v1-router-ties/golden-f32", "v1-router-ties/golden-bf16",
	"v1-base/golden-train-seq", "v1-base/golden-train-batch",
	"v2-lite/golden-f32", "v2-lite/golden-bf16", "v2-group-yarn/golden-f32",
	"v3/golden-f32", "v3/golden-bf16", "v3-yarn/golden-f32", "v3-fp8/golden-f32",
}

func fixture(name string) string { return filepath.Join("..", "fixtures", filepath.FromSlash(name)) }

func open(t *testing.T, pack string) (*checkpoint.Checkpoint, *verify.Pack) {
	t.Helper()
	c, err := checkpoint.Open(fixture(filepath.Dir(pack) + "/checkpoint"))
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, c.Close()) })
	p, err := verify.OpenPack(fixture(pack))
	require.NoError(t, err)
	return c, p
}

func run(t *testing.T, c *config.Config, src weights.Source, p *verify.Pack, o verify.Options) *verify.Report {
	t.Helper()
	r, err := verify.Run(context.Background(), c, src, p, o)
	require.NoError(t, err)
	return r
}

// TestPacksPassStageByStage verifies every pack in local mode with both
// accumulators: everything is checked and within its limits.
func TestPacksPassStageByStage(t *testing.T) {
	t.Parallel()
	for _, pack := range packs {
		for _, acc := range []model.Accumulator{model.Float64, model.Float32} {
			t.Run(pack, func(t *testing.T) {
				t.Parallel()
				c, p := open(t, pack)
				r := run(t, c.Config, c, p, verify.Options{Accumulate: acc})
				require.Equal(t, verify.Pass, r.Verdict, "%v", r.FirstDivergence)
				require.Nil(t, r.FirstDivergence)
				require.Nil(t, r.Cause)
				require.Equal(t, r.Coverage.GoldenTensors, r.Coverage.GoldenChecked)
				require.Empty(t, r.Coverage.WeightsUnchecked)
				require.Zero(t, r.Routing.Mismatches)
				require.Len(t, r.Checks, len(p.Manifest.Tensors)-inputs(p))
				requireModelOrder(t, r)
			})
		}
	}
}

func inputs(p *verify.Pack) int {
	if p.Has("attention_mask") {
		return 2
	}
	return 1
}

func requireModelOrder(t *testing.T, r *verify.Report) {
	t.Helper()
	require.Equal(t, "model.embed_tokens.output", r.Checks[0].Tensor)
	require.Equal(t, "model.layers.0.input_layernorm.output", r.Checks[1].Tensor)
	forward := slices.DeleteFunc(slices.Clone(r.Checks), func(c verify.Check) bool {
		return strings.HasSuffix(c.Tensor, ".grad") || c.Tensor == "loss"
	})
	require.Equal(t, "lm_head.output", forward[len(forward)-1].Tensor)
	for i, c := range forward {
		require.Equal(t, r.Checks[i].Tensor, c.Tensor, "the loss and the gradients come last")
	}
}

// TestTrainingPacksCoverLossAndGradients counts what the packs are there for.
func TestTrainingPacksCoverLossAndGradients(t *testing.T) {
	t.Parallel()
	for pack, gradients := range map[string]int{"v1-base/golden-train-seq": 186, "v1-base/golden-train-batch": 52} {
		c, p := open(t, pack)
		got := map[string]int{}
		for _, check := range run(t, c.Config, c, p, verify.Options{}).Checks {
			kind := check.Tensor[strings.LastIndex(check.Tensor, ".")+1:]
			got[kind]++
			if kind == "grad" || kind == "aux_loss" {
				require.LessOrEqual(t, *check.RelRMS, 1e-5, check.Tensor)
				require.Equal(t, verify.Pass, check.Verdict)
			}
		}
		require.Equal(t, gradients, got["grad"])
		require.Equal(t, 3, got["aux_loss"])
		require.Equal(t, 1, got["loss"])
	}
}

// TestMistakesOfTheAuxiliaryLoss change what config_overrides says the reference ran
// with: the auxiliary loss is the first to differ, and the gradients of the router
// differ with it.
func TestMistakesOfTheAuxiliaryLoss(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		pack, key string
		value     any
		cause     string
	}{
		"sequence form for batch form": {"v1-base/golden-train-batch", "seq_aux", true, "aux-loss-form"},
		"batch form for sequence form": {"v1-base/golden-train-seq", "seq_aux", false, "aux-loss-form"},
		"alpha doubled":                {"v1-base/golden-train-seq", "aux_loss_alpha", 0.1, "aux-loss-alpha"},
		// 17 tokens × 4 choices / 16 experts = 4.25
		"counts not divided": {"v1-base/golden-train-seq", "aux_loss_alpha", 0.05 / 4.25, "aux-loss-counts"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := rewritten(t, test.pack, func(_ string, m map[string]any) {
				m["config_overrides"].(map[string]any)[test.key] = test.value
			})
			c, _ := open(t, test.pack)
			r := run(t, c.Config, c, must(verify.OpenPack(dir)), verify.Options{})
			require.Equal(t, verify.Fail, r.Verdict)
			require.Equal(t, "model.layers.1.mlp.gate.aux_loss", *r.FirstDivergence)
			require.Equal(t, test.cause, r.Cause.ID, r.Cause.Text)
			for _, check := range r.Checks {
				switch check.Tensor {
				case "model.layers.3.mlp.gate.weight.grad", "model.layers.3.mlp.gate.aux_loss":
					require.Equal(t, verify.Fail, check.Verdict, check.Tensor)
				case "loss", "model.layers.3.mlp.experts.0.up_proj.weight.grad":
					require.Equal(t, verify.Pass, check.Verdict, check.Tensor)
				}
			}
		})
	}
}

// TestPacksPassEndToEnd verifies every pack in chained mode; BF16 is a report only.
func TestPacksPassEndToEnd(t *testing.T) {
	t.Parallel()
	for _, pack := range packs {
		t.Run(pack, func(t *testing.T) {
			t.Parallel()
			c, p := open(t, pack)
			r := run(t, c.Config, c, p, verify.Options{Mode: verify.Chained})
			require.Nil(t, r.FirstDivergence)
			if p.DType == tensor.F32 {
				require.Equal(t, verify.Pass, r.Verdict, r.Reasons)
				require.Empty(t, r.Coverage.WeightsUnchecked)
			} else {
				require.Equal(t, verify.Inconclusive, r.Verdict)
				require.Contains(t, r.Reasons[0], "this is a report")
				require.Zero(t, r.Coverage.GoldenChecked)
			}
		})
	}
}

// TestTiesAreExcusedAndCounted: the pack has two identical router rows.
func TestTiesAreExcusedAndCounted(t *testing.T) {
	t.Parallel()
	c, p := open(t, "v1-router-ties/golden-f32")
	r := run(t, c.Config, c, p, verify.Options{})
	require.Positive(t, r.Routing.ExactTies)
	require.Zero(t, r.Routing.NearTies)
}

// TestSameReportOnAnyNumberOfThreads compares the JSON to the byte.
func TestSameReportOnAnyNumberOfThreads(t *testing.T) {
	t.Parallel()
	c, p := open(t, "v1-base/golden-f32")
	var first []byte
	for _, threads := range []int{1, 2, 3, 7} {
		for _, mode := range []verify.Mode{verify.Local, verify.Chained} {
			got, err := json.Marshal(run(t, c.Config, c, p, verify.Options{Mode: mode, Parallelism: threads}))
			require.NoError(t, err)
			if mode == verify.Local && first == nil {
				first = got
			} else if mode == verify.Local {
				require.Equal(t, string(first), string(got))
			}
		}
	}
}

// altered is a source with some tensors replaced.
type altered struct {
	weights.Source
	tensors map[string]tensor.Tensor
	missing string
}

func (a altered) Tensors() iter.Seq[tensor.Info] {
	return func(yield func(tensor.Info) bool) {
		for i := range a.Source.Tensors() {
			if t, ok := a.tensors[i.Name]; ok {
				i.Shape = t.Shape
			}
			if i.Name != a.missing && !yield(i) {
				return
			}
		}
	}
}

func (a altered) Tensor(name string) (tensor.Tensor, error) {
	if t, ok := a.tensors[name]; ok {
		return t, nil
	}
	return a.Source.Tensor(name)
}

// get returns a tensor with data of its own.
func get(t *testing.T, src weights.Source, name string) tensor.Tensor {
	t.Helper()
	w, err := src.Tensor(name)
	require.NoError(t, err)
	w.Data = slices.Clone(w.Data)
	return w
}

const moe1 = "model.layers.1.mlp."

func swap(t *testing.T, src weights.Source, pairs ...string) altered {
	a := altered{Source: src, tensors: map[string]tensor.Tensor{}}
	for i := 0; i < len(pairs); i += 2 {
		a.tensors[pairs[i]], a.tensors[pairs[i+1]] = get(t, src, pairs[i+1]), get(t, src, pairs[i])
	}
	return a
}

func replace(src weights.Source, name string, w tensor.Tensor) altered {
	return altered{Source: src, tensors: map[string]tensor.Tensor{name: w}}
}

// interleave reorders the rows of each head from halves to pairs, as a conversion
// for the other RoPE layout does.
func interleave(w tensor.Tensor, dim int) tensor.Tensor {
	var rows []byte
	for r := range w.Shape[0] {
		i := r % dim
		rows = append(rows, w.Row(r/dim*dim+i/2+i%2*dim/2).Data...)
	}
	w.Data = rows
	return w
}

func rotateRows(w tensor.Tensor) tensor.Tensor {
	n := len(w.Data) / w.Shape[0]
	w.Data = append(slices.Clone(w.Data[n:]), w.Data[:n]...)
	return w
}

func lexicographic(t *testing.T, src weights.Source, c *config.Config) altered {
	a := altered{Source: src, tensors: map[string]tensor.Tensor{}}
	for l := range c.NumHiddenLayers {
		var names []string
		for e := range c.NRoutedExperts {
			names = append(names, itoa(e))
		}
		slices.Sort(names)
		for at, name := range names {
			for _, proj := range []string{"gate_proj", "up_proj", "down_proj"} {
				if c.IsMoE(l) {
					prefix := "model.layers." + itoa(l) + ".mlp.experts."
					a.tensors[prefix+itoa(at)+"."+proj+".weight"] = get(t, src, prefix+name+"."+proj+".weight")
				}
			}
		}
	}
	return a
}

func itoa(i int) string { b, _ := json.Marshal(i); return string(b) }

func override(t *testing.T, c *config.Config, key, value string) *config.Config {
	t.Helper()
	changed, err := c.Override(map[string]jsontext.Value{key: jsontext.Value(value)})
	require.NoError(t, err)
	return changed
}

// TestMistakesAreFoundAndNamed alters a good checkpoint or its config in one way each,
// and demands the stage at fault and the name of the mistake.
func TestMistakesAreFoundAndNamed(t *testing.T) {
	t.Parallel()
	type mistake struct {
		name, pack, stage, cause string
		alter                    func(t *testing.T, c *config.Config, src weights.Source) (*config.Config, weights.Source)
	}
	altering := func(f func(t *testing.T, src weights.Source) altered) func(*testing.T, *config.Config, weights.Source) (*config.Config, weights.Source) {
		return func(t *testing.T, c *config.Config, src weights.Source) (*config.Config, weights.Source) {
			return c, f(t, src)
		}
	}
	setting := func(key, value string) func(*testing.T, *config.Config, weights.Source) (*config.Config, weights.Source) {
		return func(t *testing.T, c *config.Config, src weights.Source) (*config.Config, weights.Source) {
			return override(t, c, key, value), src
		}
	}
	const base, bf16 = "v1-base/golden-f32", "v1-base/golden-bf16"
	for _, m := range []mistake{
		{"two experts swapped", base, moe1 + "experts.output", "experts-swapped", altering(func(t *testing.T, src weights.Source) altered {
			e := moe1 + "experts."
			return swap(t, src, e+"3.gate_proj.weight", e+"9.gate_proj.weight", e+"3.up_proj.weight", e+"9.up_proj.weight", e+"3.down_proj.weight", e+"9.down_proj.weight")
		})},
		{"two experts swapped, bf16", bf16, moe1 + "experts.output", "experts-swapped", altering(func(t *testing.T, src weights.Source) altered {
			e := moe1 + "experts."
			return swap(t, src, e+"3.gate_proj.weight", e+"9.gate_proj.weight", e+"3.up_proj.weight", e+"9.up_proj.weight", e+"3.down_proj.weight", e+"9.down_proj.weight")
		})},
		{"one expert's up_proj swapped with another's", base, moe1 + "experts.output", "", altering(func(t *testing.T, src weights.Source) altered {
			return swap(t, src, moe1+"experts.3.up_proj.weight", moe1+"experts.9.up_proj.weight")
		})},
		{"gate and up swapped", base, "model.layers.0.mlp.output", "gate-up-swapped", altering(func(t *testing.T, src weights.Source) altered {
			return swap(t, src, "model.layers.0.mlp.gate_proj.weight", "model.layers.0.mlp.up_proj.weight")
		})},
		{"gate and up of the shared experts swapped", base, moe1 + "shared_experts.output", "gate-up-swapped", altering(func(t *testing.T, src weights.Source) altered {
			return swap(t, src, moe1+"shared_experts.gate_proj.weight", moe1+"shared_experts.up_proj.weight")
		})},
		{"experts in the order of their names", base, moe1 + "experts.output", "expert-order",
			func(t *testing.T, c *config.Config, src weights.Source) (*config.Config, weights.Source) {
				return c, lexicographic(t, src, c)
			}},
		{"q permuted for interleaved RoPE", base, "model.layers.2.self_attn.q_proj.output", "rope-permutation", altering(func(t *testing.T, src weights.Source) altered {
			name := "model.layers.2.self_attn.q_proj.weight"
			return replace(src, name, interleave(get(t, src, name), 16))
		})},
		{"v transposed", base, "model.layers.0.self_attn.v_proj.output", "transposed", altering(func(t *testing.T, src weights.Source) altered {
			name := "model.layers.0.self_attn.v_proj.weight"
			w := get(t, src, name)
			for r := range 64 {
				for c := range 64 {
					copy(w.Data[2*(64*r+c):2*(64*r+c)+2], must(src.Tensor(name)).Data[2*(64*c+r):])
				}
			}
			return replace(src, name, w)
		})},
		{"q and k swapped", base, "model.layers.1.self_attn.q_proj.output", "", altering(func(t *testing.T, src weights.Source) altered {
			return swap(t, src, "model.layers.1.self_attn.q_proj.weight", "model.layers.1.self_attn.k_proj.weight")
		})},
		{"eps 1e-5", base, "model.layers.0.input_layernorm.output", "norm-eps", setting("rms_norm_eps", "1e-5")},
		{"eps 1e-5, bf16", bf16, "model.layers.0.input_layernorm.output", "norm-eps", setting("rms_norm_eps", "1e-5")},
		{"norm_topk_prob flipped", base, moe1 + "gate.topk_weight", "norm-topk", setting("norm_topk_prob", "true")},
		{"norm_topk_prob flipped back", "v1-gqa-norm-freq2/golden-f32", "model.layers.0.mlp.gate.topk_weight", "norm-topk", setting("norm_topk_prob", "false")},
		{"rope_theta 1 % off", base, "model.layers.0.self_attn.o_proj.input", "rope-theta", setting("rope_theta", "10100.0")},
		{"rope scaled", base, "model.layers.0.self_attn.o_proj.input", "rope-scaling", setting("rope_scaling", `{"type":"linear","factor":2.0}`)},
		{"one expert zeroed", base, moe1 + "experts.output", "weight-zero", altering(func(t *testing.T, src weights.Source) altered {
			name := moe1 + "experts.5.down_proj.weight"
			w := get(t, src, name)
			clear(w.Data)
			return replace(src, name, w)
		})},
		{"router rows rotated", base, moe1 + "gate.logits", "router-rows", altering(func(t *testing.T, src weights.Source) altered {
			return replace(src, moe1+"gate.weight", rotateRows(get(t, src, moe1+"gate.weight")))
		})},
		{"NaN in a weight", base, "model.layers.3.self_attn.o_proj.output", "weight-not-finite", altering(func(t *testing.T, src weights.Source) altered {
			name := "model.layers.3.self_attn.o_proj.weight"
			w := get(t, src, name)
			w.Data[2*(64*10+7)], w.Data[2*(64*10+7)+1] = 0xc0, 0x7f
			return replace(src, name, w)
		})},
		{"one weight of the head changed", base, "lm_head.output", "", altering(func(t *testing.T, src weights.Source) altered {
			w := get(t, src, "lm_head.weight")
			w.Data[1] ^= 0x80
			return replace(src, "lm_head.weight", w)
		})},
		{"embedding rows rotated", base, "model.embed_tokens.output", "", altering(func(t *testing.T, src weights.Source) altered {
			return replace(src, "model.embed_tokens.weight", rotateRows(get(t, src, "model.embed_tokens.weight")))
		})},
	} {
		t.Run(m.name, func(t *testing.T) {
			t.Parallel()
			c, p := open(t, m.pack)
			cfg, src := m.alter(t, c.Config, c)
			r := run(t, cfg, src, p, verify.Options{})
			require.Equal(t, verify.Fail, r.Verdict)
			require.Equal(t, m.stage, *r.FirstDivergence)
			if m.cause == "" {
				require.Nil(t, r.Cause)
			} else {
				require.NotNil(t, r.Cause)
				require.Equal(t, m.cause, r.Cause.ID, r.Cause.Text)
			}
			var text strings.Builder
			require.NoError(t, r.WriteText(&text))
			require.Contains(t, text.String(), m.stage)
			_, err := json.Marshal(r)
			require.NoError(t, err)
		})
	}
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

// TestChainedModeFails when only the end is looked at, too.
func TestChainedModeFails(t *testing.T) {
	t.Parallel()
	c, p := open(t, "v1-base/golden-f32")
	src := swap(t, c, moe1+"experts.3.up_proj.weight", moe1+"experts.9.up_proj.weight")
	r := run(t, c.Config, src, p, verify.Options{Mode: verify.Chained})
	require.Equal(t, verify.Fail, r.Verdict)
	require.Equal(t, "model.layers.1.output", *r.FirstDivergence)
}

// TestTensorsThatDoNotFitAreAnError with every mismatch in it.
func TestTensorsThatDoNotFitAreAnError(t *testing.T) {
	t.Parallel()
	c, p := open(t, "v1-base/golden-f32")
	cfg := override(t, c.Config, "first_k_dense_replace", "2")
	_, err := verify.Run(context.Background(), cfg, c, p, verify.Options{})
	var mismatch *model.MismatchError
	require.ErrorAs(t, err, &mismatch)
	require.Len(t, mismatch.Missing, 3)
	require.Len(t, mismatch.Unexpected, 16*3+1+3)
}

// TestRotaryDType: the pack was made after model.to(bfloat16); told otherwise, the
// attention differs, and the cause says what to do.
func TestRotaryDType(t *testing.T) {
	t.Parallel()
	c, p := open(t, "v1-base/golden-bf16")
	r := run(t, c.Config, c, p, verify.Options{RotaryDType: tensor.F32})
	require.Equal(t, "model.layers.0.self_attn.o_proj.input", *r.FirstDivergence)
	require.Equal(t, "rotary-dtype", r.Cause.ID)
}

// TestLimitOverride applies to the stages that end with the key.
func TestLimitOverride(t *testing.T) {
	t.Parallel()
	c, p := open(t, "v1-base/golden-f32")
	r := run(t, c.Config, c, p, verify.Options{Limits: map[string]float64{"mlp.experts.output": 1e-12, "output": 1}})
	require.Equal(t, moe1+"experts.output", *r.FirstDivergence)
	for _, check := range r.Checks {
		switch {
		case strings.HasSuffix(check.Tensor, "mlp.experts.output"):
			require.Equal(t, 1e-12, *check.Limit)
		case strings.HasSuffix(check.Tensor, "output"):
			require.Equal(t, 1.0, *check.Limit)
		}
	}
}

// rewritten copies a pack and lets edit change its files and manifest.
func rewritten(t *testing.T, pack string, edit func(dir string, m map[string]any)) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "golden")
	require.NoError(t, os.CopyFS(dir, os.DirFS(fixture(pack))))
	data, err := os.ReadFile(filepath.Join(dir, "manifest.json"))
	require.NoError(t, err)
	var m map[string]any
	require.NoError(t, json.Unmarshal(data, &m))
	edit(dir, m)
	data, err = json.Marshal(m)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(dir, "manifest.json"), data, 0o600))
	return dir
}

// prune makes a pack's files hold what its edited manifest says, and no more.
func prune(t *testing.T, dir string, m map[string]any) {
	t.Helper()
	tensors, files := m["tensors"].(map[string]any), m["files"].(map[string]any)
	for file := range files {
		path := filepath.Join(dir, file)
		parsed := must(safetensors.Deserialize(must(os.ReadFile(path))))
		kept := map[string]safetensors.TensorView{}
		for _, x := range parsed.Tensors() {
			if _, ok := tensors[x.Name]; ok {
				kept[x.Name] = x.TensorView
			}
		}
		if len(kept) == 0 {
			delete(files, file)
			continue
		}
		require.NoError(t, os.WriteFile(path, must(safetensors.Serialize(kept, nil)), 0o600))
		files[file] = must(verify.HashFile(path))
	}
}

// TestBrokenPacksAreRefused with the file and the cause.
func TestBrokenPacksAreRefused(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		edit func(dir string, m map[string]any)
		want string
	}{
		"a file changed": {func(dir string, m map[string]any) {
			path := filepath.Join(dir, "layer-001.safetensors")
			data := must(os.ReadFile(path))
			data[len(data)-1] ^= 1
			if err := os.WriteFile(path, data, 0o600); err != nil {
				panic(err)
			}
		}, "layer-001.safetensors: is sha256:"},
		"a file missing": {func(dir string, m map[string]any) {
			if err := os.Remove(filepath.Join(dir, "head.safetensors")); err != nil {
				panic(err)
			}
		}, "head.safetensors: missing"},
		"another format": {func(_ string, m map[string]any) { m["format"] = "golden/9" }, `format "golden/9"`},
		"another mode":   {func(_ string, m map[string]any) { m["mode"] = "predict" }, `mode "predict"`},
		"training in bfloat16": {func(_ string, m map[string]any) {
			m["mode"], m["compute_dtype"] = "train", "bfloat16"
		}, `a training pack in "bfloat16"`},
		"another dtype": {func(_ string, m map[string]any) { m["compute_dtype"] = "float8" }, `compute_dtype "float8"`},
		"a path for a file": {func(_ string, m map[string]any) {
			m["files"].(map[string]any)["../x.safetensors"] = "sha256:00"
		}, `files: "../x.safetensors"`},
		"a tensor in no file": {func(_ string, m map[string]any) {
			m["tensors"].(map[string]any)["x"] = map[string]any{"file": "y.safetensors", "dtype": "F32", "shape": []int{1}}
		}, `"x": file "y.safetensors"`},
		"a tensor left out": {func(_ string, m map[string]any) {
			delete(m["tensors"].(map[string]any), "model.embed_tokens.output")
		}, `files: "embed.safetensors" holds no tensor of the manifest`},
		"a negative shape": {func(_ string, m map[string]any) {
			m["tensors"].(map[string]any)["lm_head.output"].(map[string]any)["shape"] = []int{-1, 17}
		}, `"lm_head.output": shape [-1 17]`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, err := verify.OpenPack(rewritten(t, "v1-base/golden-f32", test.edit))
			require.ErrorContains(t, err, test.want)
		})
	}
	_, err := verify.OpenPack(t.TempDir())
	require.ErrorContains(t, err, "there is no manifest.json")
}

// TestPackThatContradictsItsFiles passes its hashes, but a file holds another shape.
func TestPackThatContradictsItsFiles(t *testing.T) {
	t.Parallel()
	dir := rewritten(t, "v1-base/golden-f32", func(_ string, m map[string]any) {
		m["tensors"].(map[string]any)["lm_head.output"].(map[string]any)["shape"] = []int{17, 2, 256}
	})
	c, _ := open(t, "v1-base/golden-f32")
	p, err := verify.OpenPack(dir)
	require.NoError(t, err)
	r, err := verify.Run(context.Background(), c.Config, c, p, verify.Options{})
	require.NoError(t, err)
	require.Equal(t, "lm_head.output", *r.FirstDivergence)
	require.Contains(t, r.Checks[len(r.Checks)-1].Reason, "shape: golden [17 2 256], model [2 17 256]")
}

// TestMissingAndExtraGoldenTensors: what the pack has in other layers is expected in all;
// what the model has no stage for was not checked. A pack without router tensors
// proves nothing about the routing.
func TestMissingAndExtraGoldenTensors(t *testing.T) {
	t.Parallel()
	const gone = "model.layers.2.self_attn.q_proj.output"
	for name, test := range map[string]struct {
		edit    func(tensors map[string]any)
		verdict verify.Verdict
		first   string
	}{
		"missing in one layer": {func(x map[string]any) { delete(x, gone) }, verify.Fail, gone},
		"extra": {func(x map[string]any) {
			x["model.layers.0.mlp.gate.logits"] = x["model.layers.1.mlp.gate.logits"]
		}, verify.Fail, "model.layers.0.mlp.gate.logits"},
		"no projections at all": {func(x map[string]any) {
			for k := range x {
				if strings.Contains(k, "_proj.output") {
					delete(x, k)
				}
			}
		}, verify.Pass, ""},
		"no router tensors": {func(x map[string]any) {
			for k := range x {
				if strings.Contains(k, ".gate.") {
					delete(x, k)
				}
			}
		}, verify.Inconclusive, ""},
		"logits only": {func(x map[string]any) {
			for k := range x {
				if k != "lm_head.output" && k != "input_ids" && k != "attention_mask" && !strings.Contains(k, ".gate.") {
					delete(x, k)
				}
			}
		}, verify.Pass, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := rewritten(t, "v1-base/golden-f32", func(dir string, m map[string]any) {
				test.edit(m["tensors"].(map[string]any))
				prune(t, dir, m)
			})
			c, _ := open(t, "v1-base/golden-f32")
			p, err := verify.OpenPack(dir)
			require.NoError(t, err)
			r := run(t, c.Config, c, p, verify.Options{})
			require.Equal(t, test.verdict, r.Verdict, "%v %v", r.FirstDivergence, r.Reasons)
			if test.first != "" {
				require.Equal(t, test.first, *r.FirstDivergence)
			}
		})
	}
}

// TestUncheckedWeightsAreInconclusive: with layer 3 cut off the pack, nothing checks it.
func TestUncheckedWeightsAreInconclusive(t *testing.T) {
	t.Parallel()
	dir := rewritten(t, "v1-base/golden-f32", func(dir string, m map[string]any) {
		for k := range m["tensors"].(map[string]any) {
			if k == "lm_head.output" || k == "model.norm.output" {
				delete(m["tensors"].(map[string]any), k)
			}
		}
		prune(t, dir, m)
	})
	c, _ := open(t, "v1-base/golden-f32")
	r := run(t, c.Config, c, must(verify.OpenPack(dir)), verify.Options{})
	require.Equal(t, verify.Inconclusive, r.Verdict)
	require.Equal(t, []string{"model.norm.weight", "lm_head.weight"}, r.Coverage.WeightsUnchecked)
}

// TestCompare pins the metrics by hand-made cases.
func TestCompare(t *testing.T) {
	t.Parallel()
	want := []float32{1, -1, 1, -1, 0.01, 0, 0, 0}
	got := slices.Clone(want)
	m := verify.Compare(got, want, 4, tensor.F32)
	require.Equal(t, verify.Metrics{BitEqual: 1, OneULP: 1, Finite: true}, m)

	got[2] += 0x1p-23
	m = verify.Compare(got, want, 4, tensor.F32)
	rms := math.Sqrt((4 + 0.0001) / 8)
	require.InEpsilon(t, 0x1p-23/rms, m.MaxRMS, 1e-6)
	require.InEpsilon(t, 0x1p-23/math.Sqrt(8)/rms, m.RelRMS, 1e-6)
	require.InEpsilon(t, 0x1p-23/2, m.RowRMS, 1e-6)
	require.Equal(t, 2, m.Worst)
	require.Equal(t, 7.0/8, m.BitEqual)
	require.Equal(t, 1.0, m.OneULP)

	got[6] = float32(math.NaN())
	require.Equal(t, verify.Metrics{Worst: 6}, verify.Compare(got, want, 4, tensor.F32))

	zero := make([]float32, 4)
	m = verify.Compare([]float32{0, 0, 1e-30, 0}, zero, 4, tensor.F32)
	require.True(t, math.IsInf(m.RelRMS, 1), "a golden of zeros demands zeros")
	require.Zero(t, verify.Compare(zero, zero, 4, tensor.F32).RelRMS)

	m = verify.Compare([]float32{1, 1.0078125, 1.015625, 2}, []float32{1, 1, 1, 2}, 4, tensor.BF16)
	require.Equal(t, 0.5, m.BitEqual)
	require.Equal(t, 0.75, m.OneULP)
}

// TestPackOfALargerModel: a golden of a layer that the model has not is a failed check.
func TestPackOfALargerModel(t *testing.T) {
	t.Parallel()
	c, p := open(t, "v1-base/golden-f32")
	cfg := override(t, c.Config, "num_hidden_layers", "3")
	r, err := verify.Run(context.Background(), cfg, shallow{c}, p, verify.Options{})
	require.NoError(t, err)
	require.Equal(t, verify.Fail, r.Verdict)
	require.Equal(t, "model.layers.3.input_layernorm.output", *r.FirstDivergence)
	require.Nil(t, r.Cause)
}

// shallow is a source without layer 3.
type shallow struct{ weights.Source }

func (s shallow) Tensors() iter.Seq[tensor.Info] {
	return func(yield func(tensor.Info) bool) {
		for i := range s.Source.Tensors() {
			if !strings.HasPrefix(i.Name, "model.layers.3.") && !yield(i) {
				return
			}
		}
	}
}

// TestTieExcusesTheExpertThatTies, and no other: a router that chooses a tied expert in
// place of the best one is wrong, though the one it did choose ties with the last.
func TestTieExcusesTheExpertThatTies(t *testing.T) {
	t.Parallel()
	const gate = "model.layers.1.mlp.gate."
	c, p := open(t, "v1-router-ties/golden-f32")
	idx := must(p.Ints(gate + "topk_idx"))
	k := p.Manifest.Tensors[gate+"topk_idx"].Shape[1]
	twins := []int{-1, -1}
	w := get(t, c, gate+"weight")
	for a := range w.Shape[0] {
		for b := range a {
			if string(w.Row(a).Data) == string(w.Row(b).Data) {
				twins = []int{b, a}
			}
		}
	}
	row := -1 // where exactly one of the twins is chosen
	for r := range len(idx) / k {
		chosen := idx[r*k : (r+1)*k]
		if slices.Contains(chosen, twins[0]) != slices.Contains(chosen, twins[1]) {
			row = r
		}
	}
	require.GreaterOrEqual(t, row, 0)
	dir := rewritten(t, "v1-router-ties/golden-f32", func(dir string, m map[string]any) {
		chosen := slices.Clone(idx)
		for i := row * k; i < (row+1)*k; i++ { // the other twin for somebody else
			if chosen[i] != twins[0] && chosen[i] != twins[1] {
				other := twins[0]
				if slices.Contains(chosen[row*k:(row+1)*k], other) {
					other = twins[1]
				}
				chosen[i] = other
				break
			}
		}
		rewriteInts(t, dir, m, "layer-001.safetensors", gate+"topk_idx", chosen)
	})
	r := run(t, c.Config, c, must(verify.OpenPack(dir)), verify.Options{})
	require.Equal(t, verify.Fail, r.Verdict)
	require.Equal(t, gate+"topk_idx", *r.FirstDivergence)
	require.Equal(t, 1, r.Routing.Mismatches)
}

// rewriteInts replaces an I64 tensor of a pack's file, and the file's hash.
func rewriteInts(t *testing.T, dir string, m map[string]any, file, name string, values []int) {
	t.Helper()
	path := filepath.Join(dir, file)
	data := must(os.ReadFile(path))
	view, ok := must(safetensors.Deserialize(data)).Tensor(name)
	require.True(t, ok)
	for i, v := range values {
		binary.LittleEndian.PutUint64(view.Data()[8*i:], uint64(v))
	}
	require.NoError(t, os.WriteFile(path, data, 0o600))
	m["files"].(map[string]any)[file] = must(verify.HashFile(path))
}

// TestAttentionMustBeExercised: one token sees nobody, and proves nothing of RoPE.
func TestAttentionMustBeExercised(t *testing.T) {
	t.Parallel()
	for name, masked := range map[string]bool{"one id": false, "all masked": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c, p := open(t, "v1-base/golden-f32")
			dir := rewritten(t, "v1-base/golden-f32", func(dir string, m map[string]any) {
				ids := must(p.Ints("input_ids"))
				for i := range ids {
					ids[i] = 7
				}
				if !masked {
					rewriteInts(t, dir, m, "inputs.safetensors", "input_ids", ids)
				} else {
					rewriteInts(t, dir, m, "inputs.safetensors", "attention_mask", make([]int, len(ids)))
				}
			})
			r := run(t, c.Config, c, must(verify.OpenPack(dir)), verify.Options{})
			require.Contains(t, strings.Join(r.Reasons, "; "), "attention and RoPE were not exercised")
		})
	}
}

// TestOptionsAreChecked: limits out of range or for no stage, a mode that is none, a
// mask that is no mask.
func TestOptionsAreChecked(t *testing.T) {
	t.Parallel()
	c, p := open(t, "v1-base/golden-f32")
	for want, o := range map[string]verify.Options{
		"limit output=-1: not above 0":                {Limits: map[string]float64{"output": -1}},
		"limit output=2: not above 0":                 {Limits: map[string]float64{"output": 2}},
		"limit mlp.expert.output: no stage":           {Limits: map[string]float64{"mlp.expert.output": 1e-5}},
		`mode "sideways": not local`:                  {Mode: "sideways"},
		"model_type deepseek has no native reference": {Reference: config.Native},
	} {
		_, err := verify.Run(context.Background(), c.Config, c, p, o)
		require.ErrorContains(t, err, want)
	}
	dir := rewritten(t, "v1-base/golden-f32", func(dir string, m map[string]any) {
		mask := must(p.Ints("attention_mask"))
		mask[20] = 2
		rewriteInts(t, dir, m, "inputs.safetensors", "attention_mask", mask)
	})
	_, err := verify.Run(context.Background(), c.Config, c, must(verify.OpenPack(dir)), verify.Options{})
	require.ErrorContains(t, err, "attention_mask[1, 3]: 2 is not 0 or 1")
}

// TestTextIsPlain: a pack cannot forge lines of the report.
func TestTextIsPlain(t *testing.T) {
	t.Parallel()
	dir := rewritten(t, "v1-base/golden-f32", func(_ string, m map[string]any) {
		m["reference"].(map[string]any)["model"] = "x\x1b[2K\nverdict    PASS"
	})
	c, _ := open(t, "v1-base/golden-f32")
	var text strings.Builder
	require.NoError(t, run(t, c.Config, c, must(verify.OpenPack(dir)), verify.Options{}).WriteText(&text))
	require.NotContains(t, text.String(), "\x1b")
	require.Equal(t, 1, strings.Count(text.String(), "\nverdict"))
}
