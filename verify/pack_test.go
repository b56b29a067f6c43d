package verify_test

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/nlpodyssey/safetensors"
	"github.com/stretchr/testify/require"

	"dsmoe/verify"
	"dsmoe/verify/pack"
	"dsmoe/verify/report"
)

// rewritten copies a pack and lets edit change its files and manifest.
func rewritten(t *testing.T, golden string, edit func(dir string, m map[string]any)) string {
	t.Helper()
	dir, original := filepath.Join(t.TempDir(), "golden"), copied(t, golden)
	require.NoError(t, os.Mkdir(dir, 0o700))
	for _, file := range must(os.ReadDir(original)) {
		require.NoError(t, os.Link(filepath.Join(original, file.Name()), filepath.Join(dir, file.Name())))
	}
	data, err := os.ReadFile(filepath.Join(dir, "manifest.json"))
	require.NoError(t, err)
	var m map[string]any
	require.NoError(t, json.Unmarshal(data, &m))
	edit(dir, m)
	data, err = json.Marshal(m)
	require.NoError(t, err)
	renew(t, filepath.Join(dir, "manifest.json"), data)
	return dir
}

// copied is the folder of a copy of a pack, one for all tests, which they may link and must not write to.
func copied(t *testing.T, golden string) string {
	t.Helper()
	copies.Lock()
	defer copies.Unlock()
	dir := filepath.Join(verify.Temp, golden)
	if _, err := os.Stat(dir); err != nil {
		require.NoError(t, os.CopyFS(dir, os.DirFS(fixture(golden))))
	}
	return dir
}

var copies sync.Mutex

// renew puts a new file in the place of one that may be a link.
func renew(t *testing.T, path string, data []byte) {
	t.Helper()
	require.NoError(t, os.Remove(path))
	require.NoError(t, os.WriteFile(path, data, 0o600))
}

// view is a tensor to be written to a pack's file.
type view struct {
	dtype string
	shape []uint64
	data  []byte
}

func (v view) DType() safetensors.DType { return must(safetensors.ParseDType(v.dtype)) }
func (v view) Shape() []uint64          { return v.shape }
func (v view) Data() []byte             { return v.data }
func (v view) DataLen() uint64          { return uint64(len(v.data)) }

// refile lets edit change the tensors of one file of a pack, and updates its hash.
func refile(t *testing.T, dir string, m map[string]any, file string, edit func(tensors map[string]view)) {
	t.Helper()
	path, tensors := filepath.Join(dir, file), map[string]view{}
	for _, x := range must(safetensors.Deserialize(must(os.ReadFile(path)))).Tensors() {
		tensors[x.Name] = view{x.TensorView.DType().String(), x.TensorView.Shape(), x.TensorView.Data()}
	}
	edit(tensors)
	write(t, dir, m, file, must(safetensors.Serialize(tensors, nil)))
}

// write replaces a file of a pack, and its hash.
func write(t *testing.T, dir string, m map[string]any, file string, data []byte) {
	t.Helper()
	renew(t, filepath.Join(dir, file), data)
	m["files"].(map[string]any)[file] = must(pack.HashFile(filepath.Join(dir, file)))
}

// prune makes a pack's files hold what its edited manifest says, and no more.
func prune(t *testing.T, dir string, m map[string]any) {
	t.Helper()
	left := m["tensors"].(map[string]any)
	for file := range m["files"].(map[string]any) {
		none := false
		refile(t, dir, m, file, func(tensors map[string]view) {
			maps.DeleteFunc(tensors, func(name string, _ view) bool { return left[name] == nil })
			none = len(tensors) == 0
		})
		if none {
			delete(m["files"].(map[string]any), file)
		}
	}
}

// rewrite replaces a golden tensor, in the file and in the manifest: by float32 values or
// by integers, of the same shape unless another is given.
func rewrite[T float32 | int](t *testing.T, dir string, m map[string]any, name string, values []T, shape ...int) {
	t.Helper()
	entry := m["tensors"].(map[string]any)[name].(map[string]any)
	refile(t, dir, m, entry["file"].(string), func(tensors map[string]view) {
		x := view{dtype: "F32", shape: tensors[name].shape}
		_, isInt := any(*new(T)).(int)
		if isInt {
			x.dtype = "I64"
		}
		for _, v := range values {
			if isInt {
				x.data = binary.LittleEndian.AppendUint64(x.data, uint64(v))
			} else {
				x.data = binary.LittleEndian.AppendUint32(x.data, math.Float32bits(float32(v)))
			}
		}
		if shape != nil {
			x.shape = nil
			for _, n := range shape {
				x.shape = append(x.shape, uint64(n))
			}
		}
		tensors[name], entry["dtype"], entry["shape"] = x, x.dtype, x.shape
	})
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
			renew(t, path, data)
		}, "layer-001.safetensors: is sha256:"},
		"a file missing": {func(dir string, m map[string]any) {
			if err := os.Remove(filepath.Join(dir, "head.safetensors")); err != nil {
				panic(err)
			}
		}, "head.safetensors: missing"},
		"no reference": {func(_ string, m map[string]any) { delete(m, "reference") }, `manifest.json: reference: kind "", not "remote code", "transformers native" or "engine": whose rules the pack follows is not known`},
		"an engine": {func(_ string, m map[string]any) { m["reference"].(map[string]any)["kind"] = "vllm 0.11" },
			`reference: kind "vllm 0.11", not "remote code", "transformers native" or "engine"`},
		"nearly a kind": {func(_ string, m map[string]any) { m["reference"].(map[string]any)["kind"] = "transformers" },
			`reference: kind "transformers", not`},
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
		"a directory for a file": {func(dir string, _ map[string]any) {
			path := filepath.Join(dir, "head.safetensors")
			if err := errors.Join(os.Remove(path), os.Mkdir(path, 0o700)); err != nil {
				panic(err)
			}
		}, "head.safetensors: not a regular file"},
		"no dimension": {func(_ string, m map[string]any) {
			m["tensors"].(map[string]any)["lm_head.output"].(map[string]any)["shape"] = []int{}
		}, `"lm_head.output": shape []`},
		"many faults": {func(_ string, m map[string]any) {
			for i := range 50 {
				m["files"].(map[string]any)[fmt.Sprint(i)] = "sha256:00"
			}
		}, "; and 80 more"},
		"not an object": {func(_ string, m map[string]any) { m["reference"] = "torch" }, "manifest.json: "},
		"a negative shape": {func(_ string, m map[string]any) {
			m["tensors"].(map[string]any)["lm_head.output"].(map[string]any)["shape"] = []int{-1, 17}
		}, `"lm_head.output": shape [-1 17]`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, err := pack.Open(rewritten(t, "v1-base/golden-f32", test.edit))
			require.ErrorContains(t, err, test.want)
		})
	}
	dir := t.TempDir()
	_, err := pack.Open(dir)
	require.EqualError(t, err, dir+": not a golden pack: there is no manifest.json")
	manifest := filepath.Join(dir, "manifest.json")
	require.NoError(t, os.WriteFile(manifest, nil, 0o600))
	require.NoError(t, os.Truncate(manifest, 16<<20+1))
	_, err = pack.Open(dir)
	require.EqualError(t, err, manifest+": not a regular file of at most 16.00 MiB")
}

// TestFilesThatAreNotWhatTheManifestSays have the hashes that it says: what is wrong is
// found when they are read, and no verdict is given.
func TestFilesThatAreNotWhatTheManifestSays(t *testing.T) {
	t.Parallel()
	const file, embedding = "embed.safetensors", "model.embed_tokens.output"
	for name, test := range map[string]struct {
		edit func(t *testing.T, dir string, m map[string]any)
		want string
	}{
		"empty": {func(t *testing.T, dir string, m map[string]any) { write(t, dir, m, file, nil) },
			"embed.safetensors: not a safetensors file with a header"},
		"endless header": {func(t *testing.T, dir string, m map[string]any) {
			write(t, dir, m, file, binary.LittleEndian.AppendUint64(nil, 1<<40))
		}, "embed.safetensors: not a safetensors file with a header of at most 16.00 MiB"},
		"no header": {func(t *testing.T, dir string, m map[string]any) {
			write(t, dir, m, file, append(binary.LittleEndian.AppendUint64(nil, 4), "none"...))
		}, "embed.safetensors: "},
		"cut off": {func(t *testing.T, dir string, m map[string]any) {
			data := must(os.ReadFile(filepath.Join(dir, file)))
			write(t, dir, m, file, data[:len(data)-1])
		}, "embed.safetensors: "},
		"longer than its tensors": {func(t *testing.T, dir string, m map[string]any) {
			write(t, dir, m, file, nil)
			require.NoError(t, os.Truncate(filepath.Join(dir, file), 17<<20))
			m["files"].(map[string]any)[file] = must(pack.HashFile(filepath.Join(dir, file)))
		}, "embed.safetensors: larger than the tensors that manifest.json puts there"},
		"a tensor more": {func(t *testing.T, dir string, m map[string]any) {
			refile(t, dir, m, file, func(tensors map[string]view) {
				for _, name := range []string{"x", "x1", "x2", "x3", "x4", "x5", "x6", "x7"} { // the first is named
					tensors[name] = tensors[embedding]
				}
			})
			// The file may be as large as the manifest makes it.
			m["tensors"].(map[string]any)["y"] = map[string]any{"file": file, "dtype": "F32", "shape": []int{1 << 20}}
		}, `embed.safetensors: tensor "x" is not in manifest.json`},
		"another name": {func(t *testing.T, dir string, m map[string]any) {
			tensors := m["tensors"].(map[string]any)
			tensors["model.layers.0.output"].(map[string]any)["file"] = file
		}, `layer-000.safetensors: tensor "model.layers.0.output": manifest.json says that it is in embed.safetensors`},
		"another shape": {func(t *testing.T, dir string, m map[string]any) {
			refile(t, dir, m, file, func(tensors map[string]view) {
				x := tensors[embedding]
				x.shape = []uint64{34, 64}
				tensors[embedding] = x
			})
		}, "embed.safetensors: " + embedding + ": file has F32 [34 64], manifest.json says F32 [2 17 64]"},
		"inputs missing": {func(t *testing.T, dir string, m map[string]any) {
			delete(m["tensors"].(map[string]any), "input_ids")
			prune(t, dir, m)
		}, `there is no tensor input_ids`},
		"inputs that are no integers": {func(t *testing.T, dir string, m map[string]any) {
			rewrite(t, dir, m, "input_ids", make([]float32, 34))
		}, "input_ids: dtype F32, I64 expected"},
		"inputs without a batch": {func(t *testing.T, dir string, m map[string]any) {
			rewrite(t, dir, m, "input_ids", make([]int, 34), 34)
		}, "input_ids: shape [34], [batch, seq] expected"},
		"inputs of no token": {func(t *testing.T, dir string, m map[string]any) {
			rewrite(t, dir, m, "input_ids", []int{}, 2, 0)
			delete(m["tensors"].(map[string]any), "attention_mask")
			prune(t, dir, m)
		}, "golden: input_ids: no token"},
		"an id outside the vocabulary": {func(t *testing.T, dir string, m map[string]any) {
			rewrite(t, dir, m, "input_ids", append(make([]int, 33), 256))
		}, "input_ids[1, 16]: 256 is not in the vocabulary of 256"},
		"a negative id": {func(t *testing.T, dir string, m map[string]any) {
			rewrite(t, dir, m, "input_ids", append(make([]int, 33), -1))
		}, "input_ids[1, 16]: -1 is not in the vocabulary of 256"},
		"a mask of another shape": {func(t *testing.T, dir string, m map[string]any) {
			rewrite(t, dir, m, "attention_mask", make([]int, 34), 17, 2)
		}, "attention_mask: shape [17 2], input_ids has [2 17]"},
		"an override of no key": {func(_ *testing.T, _ string, m map[string]any) {
			m["config_overrides"] = map[string]any{"rope_tehta": 5e4, "seq_aux": true}
		}, `manifest.json: config_overrides: "rope_tehta" is not a key of model_type deepseek, nor of config.json`},
		"a config that cannot be": {func(_ *testing.T, _ string, m map[string]any) {
			m["config_overrides"] = map[string]any{"hidden_size": 63}
		}, "config_overrides: hidden_size: 63 is not divisible by num_attention_heads 4"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := rewritten(t, "v1-base/golden-f32", func(dir string, m map[string]any) { test.edit(t, dir, m) })
			c, _ := open(t, "v1-base/golden-f32")
			p, err := pack.Open(dir)
			require.NoError(t, err)
			_, err = verify.Run(context.Background(), c.Config, c, p, verify.Options{})
			require.ErrorContains(t, err, test.want)
		})
	}
}

// TestManifestsMayHoldAnything in fields that are not read: Python writes numbers that JSON
// does not have.
func TestManifestsMayHoldAnything(t *testing.T) {
	t.Parallel()
	dir := rewritten(t, "v1-base/golden-f32", func(string, map[string]any) {})
	path := filepath.Join(dir, "manifest.json")
	data := must(os.ReadFile(path))
	data = append([]byte(`{"router_gap_min":{"a":Infinity,"b":[-Infinity, NaN],"c \"Infinity":"\\"},`), data[1:]...)
	data = []byte(strings.Replace(string(data), `"router_gap_min":{"model`, `"router_gaps":{"model`, 1))
	renew(t, path, data)
	_, err := pack.Open(dir)
	require.NoError(t, err)
}

// TestErrorsKeepTheirCauses, also where they are several.
func TestErrorsKeepTheirCauses(t *testing.T) {
	t.Parallel()
	dir := rewritten(t, "v1-base/golden-f32", func(dir string, m map[string]any) {
		for _, name := range []string{"head.safetensors", "embed.safetensors"} {
			if err := os.Remove(filepath.Join(dir, name)); err != nil {
				panic(err)
			}
		}
	})
	_, err := pack.Open(dir)
	require.ErrorIs(t, err, os.ErrNotExist)
	require.EqualError(t, err, dir+": 2 problems: embed.safetensors: missing; head.safetensors: missing")
}

// TestFileThatIsGone: the cause is kept.
func TestFileThatIsGone(t *testing.T) {
	t.Parallel()
	dir := rewritten(t, "v1-base/golden-f32", func(string, map[string]any) {})
	c, _ := open(t, "v1-base/golden-f32")
	p := must(pack.Open(dir))
	require.NoError(t, os.Remove(filepath.Join(dir, "layer-002.safetensors")))
	_, err := verify.Run(context.Background(), c.Config, c, p, verify.Options{})
	require.ErrorIs(t, err, os.ErrNotExist)
	require.ErrorContains(t, err, dir+": layer-002.safetensors: ")
}

// TestGoldensThatCannotBe: a golden tensor that is no right answer fails its own check,
// and none before it nor outside its layer. (A choice that cannot be used leaves the
// top-k weights without experts to pair them by.)
func TestGoldensThatCannotBe(t *testing.T) {
	t.Parallel()
	const layer = "model.layers.2."
	const norm, idx = layer + "input_layernorm.output", layer + "mlp.gate.topk_idx"
	_, p := open(t, "v1-base/golden-f32")
	values, chosen := must(p.Float32s(norm)), must(p.Ints(idx))
	with := func(i int, v float32) []float32 {
		changed := slices.Clone(values)
		changed[i] = v
		return changed
	}
	choosing := func(i, expert int) []int {
		changed := slices.Clone(chosen)
		changed[i] = expert
		return changed
	}
	for name, test := range map[string]struct {
		edit           func(t *testing.T, dir string, m map[string]any)
		stage, want    string
		index          []int
		gotten, golden string
	}{
		"not a number": {func(t *testing.T, dir string, m map[string]any) {
			rewrite(t, dir, m, norm, with(64*26+5, float32(math.NaN())))
		}, norm, "not finite", []int{1, 9, 5}, number(values[64*26+5]), "NaN"},
		"infinite": {func(t *testing.T, dir string, m map[string]any) {
			rewrite(t, dir, m, norm, with(64*26+5, float32(math.Inf(-1))))
		}, norm, "not finite", []int{1, 9, 5}, number(values[64*26+5]), "-Inf"},
		"another dtype": {func(t *testing.T, dir string, m map[string]any) {
			rewrite(t, dir, m, norm, make([]int, len(values)))
		}, norm, "dtype: golden I64, computed in F32", nil, "", ""},
		"an expert that is not there": {func(t *testing.T, dir string, m map[string]any) { rewrite(t, dir, m, idx, choosing(4*7+2, 16)) },
			idx, "golden expert 16 of token 7 is not one of 16; the largest is 16: record the numbers of the router's rows, not of a load balancer's physical slots or of fused shared experts", nil, "", ""},
		"a negative expert": {func(t *testing.T, dir string, m map[string]any) { rewrite(t, dir, m, idx, choosing(4*7+2, -1)) },
			idx, "golden expert -1 of token 7 is not one of 16; 1 of 34 tokens have negative numbers, as those have that an engine did not route", nil, "", ""},
		"an expert twice": {func(t *testing.T, dir string, m map[string]any) {
			rewrite(t, dir, m, idx, choosing(4*7+2, chosen[4*7+1]))
		}, idx, fmt.Sprintf("golden expert %d of token 7 appears twice", chosen[4*7+1]), nil, "", ""},
		"too few experts": {func(t *testing.T, dir string, m map[string]any) { rewrite(t, dir, m, idx, chosen[:34*3], 34, 3) },
			idx, "shape: golden [34 3], model [34 4]", nil, "", ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := rewritten(t, "v1-base/golden-f32", func(dir string, m map[string]any) { test.edit(t, dir, m) })
			c, _ := open(t, "v1-base/golden-f32")
			r := run(t, c.Config, c, must(pack.Open(dir)), verify.Options{})
			require.Equal(t, test.stage, *r.FirstDivergence)
			misfit := strings.HasPrefix(test.want, "dtype: ") || strings.HasPrefix(test.want, "shape: ")
			require.Equal(t, misfit, r.Next != nil && strings.HasPrefix(r.Next.Text, "no value of this stage was compared"))
			merged, _, err := verify.Merge([]*report.Report{r})
			require.NoError(t, err)
			require.Equal(t, r.Next, merged.Next)
			for _, check := range r.Checks {
				if check.Tensor != test.stage {
					after := *r.FirstDivergence == idx && strings.HasPrefix(check.Tensor, layer+"mlp.")
					require.True(t, after || check.Verdict == report.Pass, check.Tensor)
					continue
				}
				require.Equal(t, test.want, check.Reason)
				require.Equal(t, test.index, check.Index)
				require.Equal(t, []string{test.gotten, test.golden}, []string{check.Got, check.Want})
			}
		})
	}
}

// number is a float32 as a report prints it.
func number(v float32) string { return strconv.FormatFloat(float64(v), 'g', -1, 32) }

// TestPackThatContradictsItsFiles passes its hashes, but a file holds another shape.
func TestPackThatContradictsItsFiles(t *testing.T) {
	t.Parallel()
	dir := rewritten(t, "v1-base/golden-f32", func(_ string, m map[string]any) {
		m["tensors"].(map[string]any)["lm_head.output"].(map[string]any)["shape"] = []int{17, 2, 256}
	})
	c, _ := open(t, "v1-base/golden-f32")
	p, err := pack.Open(dir)
	require.NoError(t, err)
	r, err := verify.Run(context.Background(), c.Config, c, p, verify.Options{})
	require.NoError(t, err)
	require.Equal(t, "lm_head.output", *r.FirstDivergence)
	require.Contains(t, r.Checks[len(r.Checks)-1].Reason, "shape: golden [17 2 256], model [2 17 256]")
}

// TestMissingAndExtraGoldenTensors: what the pack has in other layers is expected in all;
// what the model has no stage for was not checked. A pack that lacks a kind of stage
// without saying so proves too little.
func TestMissingAndExtraGoldenTensors(t *testing.T) {
	t.Parallel()
	const gone = "model.layers.2.self_attn.q_proj.output"
	for name, test := range map[string]struct {
		edit    func(tensors map[string]any)
		verdict report.Verdict
		first   string
	}{
		"missing in one layer": {func(x map[string]any) { delete(x, gone) }, report.Fail, gone},
		"extra": {func(x map[string]any) {
			x["model.layers.0.mlp.gate.logits"] = x["model.layers.1.mlp.gate.logits"]
		}, report.Fail, "model.layers.0.mlp.gate.logits"},
		"no projections at all": {func(x map[string]any) {
			for k := range x {
				if strings.Contains(k, "_proj.output") {
					delete(x, k)
				}
			}
		}, report.Inconclusive, ""},
		"no router tensors": {func(x map[string]any) {
			for k := range x {
				if strings.Contains(k, ".gate.") {
					delete(x, k)
				}
			}
		}, report.Inconclusive, ""},
		"logits only": {func(x map[string]any) {
			for k := range x {
				if k != "lm_head.output" && k != "input_ids" && k != "attention_mask" && !strings.Contains(k, ".gate.") {
					delete(x, k)
				}
			}
		}, report.Inconclusive, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := rewritten(t, "v1-base/golden-f32", func(dir string, m map[string]any) {
				test.edit(m["tensors"].(map[string]any))
				prune(t, dir, m)
			})
			c, _ := open(t, "v1-base/golden-f32")
			p, err := pack.Open(dir)
			require.NoError(t, err)
			r := run(t, c.Config, c, p, verify.Options{})
			require.Equal(t, test.verdict, r.Verdict, "%v %v", r.FirstDivergence, r.Reasons)
			if test.first != "" {
				require.Equal(t, test.first, *r.FirstDivergence)
			}
		})
	}
}

// TestPackOfALargerModel: a golden of a layer that the model has not is a failed check.
func TestPackOfALargerModel(t *testing.T) {
	t.Parallel()
	c, p := open(t, "v1-base/golden-f32")
	cfg := override(t, c.Config, "num_hidden_layers", "3")
	r, err := verify.Run(context.Background(), cfg, shallow{c}, p, verify.Options{})
	require.NoError(t, err)
	require.Equal(t, report.Fail, r.Verdict)
	require.Equal(t, "model.layers.3.input_layernorm.output", *r.FirstDivergence)
	require.Nil(t, r.Cause)
}
