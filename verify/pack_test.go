package verify_test

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nlpodyssey/safetensors"
	"github.com/stretchr/testify/require"

	"dsmoe/verify"
)

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

// rewriteTensor replaces a float32 tensor of a pack's file, and the file's hash.
func rewriteTensor(t *testing.T, dir string, m map[string]any, file, name string, values []float32) {
	t.Helper()
	path := filepath.Join(dir, file)
	data, err := os.ReadFile(path)
	require.NoError(t, err)
	parsed, err := safetensors.Deserialize(data)
	require.NoError(t, err)
	view, ok := parsed.Tensor(name)
	require.True(t, ok)
	for i, v := range values {
		binary.LittleEndian.PutUint32(view.Data()[4*i:], math.Float32bits(v))
	}
	require.NoError(t, os.WriteFile(path, data, 0o600))
	m["files"].(map[string]any)[file] = must(verify.HashFile(path))
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
