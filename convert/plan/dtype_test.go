package plan

import (
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"dsmoe/convert/checkpoint"
	"dsmoe/convert/internal/fixture"
	"dsmoe/convert/safetensors"
	"dsmoe/model/tensor"
)

// withTensors writes a checkpoint with the fixture's config and tensors, some changed or
// added; only headers count here, so all data is zero.
func withTensors(t *testing.T, name string, change func(infos map[string]tensor.Info)) string {
	t.Helper()
	src := open(t, fixture.Path(t, name))
	infos := map[string]tensor.Info{}
	for info := range src.Tensors() {
		infos[info.Name] = info
	}
	change(infos)
	var list []tensor.Info
	for _, info := range infos {
		list = append(list, info)
	}
	safetensors.Sort(list)
	l, err := safetensors.NewLayout(list, nil)
	require.NoError(t, err)
	dir := t.TempDir()
	fixture.Write(t, dir, "model.safetensors", string(l.Header())+strings.Repeat("\x00", int(l.Size())-len(l.Header())))
	fixture.Write(t, dir, checkpoint.ConfigName, fixture.Read(t, src.Dir, checkpoint.ConfigName))
	return dir
}

// put sets a tensor.
func put(infos map[string]tensor.Info, name string, d tensor.DType, shape ...int) {
	infos[name] = tensor.Info{Name: name, DType: d, Shape: shape}
}

// dtypesOf returns the dtype of each output.
func dtypesOf(p *Plan) map[string]tensor.DType {
	dtypes := map[string]tensor.DType{}
	for _, i := range p.order {
		x := &p.Tensors[i]
		dtypes[x.Name] = x.DType
	}
	return dtypes
}

// TestWhatIsCast: floats are; integers stay, and so does the bias that decides the
// routing, also that of a multi-token prediction layer, whatever the checkpoint is cast to.
func TestWhatIsCast(t *testing.T) {
	const bias, mtpBias = "model.layers.2.mlp.gate.e_score_correction_bias", "model.layers.5.mlp.gate.e_score_correction_bias"
	whole := []tensor.DType{tensor.I64, tensor.I32, tensor.I16, tensor.I8, tensor.U64, tensor.U32, tensor.U16, tensor.U8, tensor.Bool}
	dir := withTensors(t, "v3/checkpoint", func(infos map[string]tensor.Info) {
		putMTP(t, infos)
		put(infos, mtpBias, tensor.F32, 16)
		put(infos, "half", tensor.F16, 3)
		put(infos, "full", tensor.F32, 3)
		put(infos, "other.bias", tensor.BF16, 3)
		for _, d := range whole {
			put(infos, d.String(), d, 2)
		}
	})
	kept := open(t, dir)
	before := map[string]tensor.DType{}
	for info := range kept.Tensors() {
		before[info.Name] = info.DType
	}
	for _, to := range []tensor.DType{tensor.F32, tensor.F16, tensor.BF16} {
		p, err := Conversion(kept, Options{DType: to})
		require.NoError(t, err)
		got := dtypesOf(p)
		for name, from := range before {
			want := to
			if from.Integer() || strings.HasSuffix(name, ".e_score_correction_bias") {
				want = from
			}
			require.Equal(t, want, got[name], name)
		}
		require.Equal(t, before[bias], got[bias])
		require.Equal(t, tensor.F32, got[mtpBias])
		for _, d := range whole {
			require.Equal(t, d, got[d.String()])
		}
	}
	p, err := Conversion(kept, Options{})
	require.NoError(t, err)
	require.Equal(t, before, dtypesOf(p))
}

// TestWhatCannotBe: dtypes that nothing casts, and experts that cannot be put together,
// all in one error.
func TestWhatCannotBe(t *testing.T) {
	const expert = "model.layers.3.mlp.experts.5.up_proj.weight"
	for name, c := range map[string]struct {
		change func(infos map[string]tensor.Info)
		o      Options
		want   []string
	}{
		"dtypes": {func(infos map[string]tensor.Info) {
			put(infos, "double", tensor.F64, 1)
			put(infos, "e5m2", tensor.F8E5M2, 1)
			put(infos, "complex", tensor.C64, 1)
		}, Options{DType: tensor.F32}, []string{"3 problems", "tensor double: dtype F64 cannot be cast to F32", "dtype F8_E5M2 cannot be cast to F32", "dtype C64 cannot be cast to F32"}},
		"FP8 without scales": {func(infos map[string]tensor.Info) { put(infos, expert, tensor.F8E4M3, 24, 64) }, Options{DType: tensor.F16},
			[]string{"tensor " + expert + ": dtype F8_E4M3, but its scales, " + expert + "_scale_inv, are missing"}},
		"another dtype": {func(infos map[string]tensor.Info) { put(infos, expert, tensor.F32, 24, 64) }, Options{Experts: FusedExperts},
			[]string{"tensor " + expert + ": cannot be fused: it would be F32, but others of model.layers.3.mlp.experts.gate_up_proj BF16"}},
		"beyond the config": {func(infos map[string]tensor.Info) {
			put(infos, "model.layers.3.mlp.experts.16.up_proj.weight", tensor.BF16, 24, 64)
		}, Options{Experts: FusedExperts}, []string{"tensor model.layers.3.mlp.experts.16.up_proj.weight: cannot be fused: config says 16 experts"}},
		"another shape": {func(infos map[string]tensor.Info) {
			put(infos, "model.layers.9.mlp.experts.0.down_proj.weight", tensor.BF16, 4, 2)
			for e := 1; e < 16; e++ {
				put(infos, strings.Replace("model.layers.9.mlp.experts.E.down_proj.weight", "E", string("0123456789"[e%10]), 1), tensor.BF16, 4, 2)
			}
			for _, e := range []string{"10", "11", "12", "13", "14", "15"} {
				put(infos, "model.layers.9.mlp.experts."+e+".down_proj.weight", tensor.BF16, 2, 4)
			}
		}, Options{Experts: FusedExperts}, []string{"tensor model.layers.9.mlp.experts.down_proj: cannot be fused: model.layers.9.mlp.experts.0.down_proj.weight has shape [4 2], but model.layers.9.mlp.experts.10.down_proj.weight [2 4]"}},
	} {
		_, err := planOf(t, withTensors(t, "v3/checkpoint", c.change), c.o)
		for _, want := range c.want {
			require.ErrorContains(t, err, want, name)
		}
		if c.o.Experts == FusedExperts {
			_, err = planOf(t, withTensors(t, "v3/checkpoint", c.change), Options{})
			require.NoError(t, err, "%s: as they are", name)
		}
	}
}

// TestOnlyExpertsOfTheTableAreFused: names that merely look like those of experts, whatever is
// before them, are written as they are.
func TestOnlyExpertsOfTheTableAreFused(t *testing.T) {
	for _, prefix := range []string{"my model", "vision.layers.0", strings.Repeat("x", 300)} {
		name := prefix + ".mlp.experts.0.gate_proj.weight"
		p, err := planOf(t, withTensors(t, "v3/checkpoint", func(infos map[string]tensor.Info) {
			put(infos, name, tensor.BF16, 2, 4)
		}), Options{Experts: FusedExperts})
		require.NoError(t, err)
		require.True(t, slices.ContainsFunc(p.Tensors, func(x Tensor) bool { return x.Name == name }))
	}
}

// TestConfigFollows: what the output's config.json says of its weights.
func TestConfigFollows(t *testing.T) {
	for name, c := range map[string]struct {
		fixture, old, new string
		o                 Options
		has, hasNot       []string
	}{
		"kept":           {"v3-fp8/checkpoint", "", "", Options{}, []string{`"quantization_config"`}, nil},
		"dequantised":    {"v3-fp8/checkpoint", "", "", Options{DType: tensor.F16}, []string{`"float16"`}, []string{"quantization_config", `"bfloat16"`}},
		"no key":         {"v1-base/checkpoint", `"torch_dtype"`, `"x_dtype"`, Options{DType: tensor.F32}, []string{`"torch_dtype": "float32"`, `"x_dtype": "bfloat16"`}, nil},
		"transformers 5": {"v1-base/checkpoint", `"torch_dtype"`, `"dtype"`, Options{DType: tensor.F32}, []string{`"dtype": "float32"`}, []string{"torch_dtype", "bfloat16"}},
		"both":           {"v1-base/checkpoint", `"torch_dtype": "bfloat16"`, `"dtype": "bfloat16", "torch_dtype": "bfloat16"`, Options{DType: tensor.F16}, []string{`"dtype": "float16", "torch_dtype": "float16"`}, []string{"bfloat16"}},
		"first layers":   {"v3/checkpoint", "", "", Options{Layers: Layers{{0, 2}}}, []string{`"num_hidden_layers": 3`}, []string{`"num_nextn_predict_layers": 1`}},
		"other layers":   {"v3/checkpoint", "", "", Options{Layers: Layers{{1, 2}}}, []string{`"num_hidden_layers": 5`}, nil},
		"layer types":    {"glm4-moe-lite/checkpoint", "", "", Options{Layers: Layers{{0, 1}}}, []string{`"num_hidden_layers": 2`, `"mlp_layer_types": ["dense","sparse"]`}, nil},
		"all layers":     {"v3/checkpoint", "", "", Options{Layers: Layers{{0, 4}}}, []string{`"num_hidden_layers": 5`, `"num_nextn_predict_layers": 0`}, nil},
		"no MTP":         {"v3/checkpoint", "", "", Options{NoMTP: true}, []string{`"num_hidden_layers": 5`, `"num_nextn_predict_layers": 0`}, nil},
		"by default 1":   {"v3/checkpoint", `"num_nextn_predict_layers": 1`, `"x": 1`, Options{NoMTP: true}, []string{`"num_nextn_predict_layers": 0`}, nil},
		"no MTP in V1":   {"v1-base/checkpoint", "", "", Options{NoMTP: true}, nil, []string{"num_nextn_predict_layers"}},
	} {
		dir := fixture.Clone(t, fixture.Path(t, c.fixture))
		if c.old != "" {
			fixture.Replace(t, dir, checkpoint.ConfigName, c.old, c.new)
		}
		p, err := planOf(t, dir, c.o)
		require.NoError(t, err, name)
		text := ""
		for _, f := range p.Others {
			if f.Name == checkpoint.ConfigName {
				text = string(f.Text)
			}
		}
		for _, part := range c.has {
			require.Contains(t, text, part, name)
		}
		for _, part := range c.hasNot {
			require.NotContains(t, text, part, name)
		}
	}
}

// TestPlanText: the lines that a reader sees, in their order.
func TestPlanText(t *testing.T) {
	dir := fixture.Clone(t, fixture.Path(t, "v3/checkpoint"))
	fixture.Write(t, dir, "a b.txt", "text")
	fixture.Write(t, dir, "model.gguf", "")
	fixture.Write(t, dir, "stray.safetensors", "")
	p, err := planOf(t, dir, Options{Layers: Layers{{1, 2}}, MaxShardBytes: 150_000, DType: tensor.F32})
	require.NoError(t, err)
	var b strings.Builder
	require.NoError(t, p.WriteText(&b))
	lines := strings.Split(b.String(), "\n")
	require.Equal(t, []string{
		"plan " + p.Hash,
		"reads 375.97 KiB of weights from 7 files, writes 751.91 KiB: 77 tensors in 6 files",
	}, lines[:2])
	require.Equal(t, []string{
		"cast F32: 76 tensors",
		"copy: 1 tensor",
		"drops: 136 tensors",
		"not a whole model: 136 weights that config.json implies are not there " +
			"(mlp (dense) 3, mlp.experts 96, mlp.gate 4, mlp.shared_experts 6, norms 12, self_attn 15); it will not load as one",
		`carries along: "a b.txt", generation_config.json`,
		"leaves behind: model.gguf, stray.safetensors",
		"note: stray.safetensors: not read: model.safetensors.index.json does not name it",
		"note: the layers kept are not the first ones: they keep their numbers, and config.json its number of layers",
	}, lines[3:11])
	require.Regexp(t, `^model-00001-of-00006.safetensors +\d+ tensors? +[\d.]+ KiB$`, lines[11])
	require.Len(t, lines, 18)
	require.Empty(t, lines[17])
}

// TestSynthesisRefusals: what no file could hold is refused before anything is written.
func TestSynthesisRefusals(t *testing.T) {
	for want, infos := range map[string][]tensor.Info{
		"no tensors to write":         nil,
		"tensor a: name occurs twice": {{Name: "a", DType: tensor.F32, Shape: []int{1}}, {Name: "a", DType: tensor.F32, Shape: []int{2}}},
		"do not fill whole bytes":     {{Name: "a", DType: tensor.F4, Shape: []int{3}}},
	} {
		_, err := Synthesis(Synthetic{Tensors: infos, Config: []byte("{}"), Rule: "none"}, 0)
		require.ErrorContains(t, err, want)
	}
}

// TestNothingGoesAlong with a single weight file, whatever lies beside it.
func TestNothingGoesAlong(t *testing.T) {
	dir := fixture.Clone(t, fixture.Path(t, "v1-dense/checkpoint"))
	fixture.Write(t, dir, "tokenizer.json", "{}")
	p, err := planOf(t, filepath.Join(dir, "model.safetensors"), Options{})
	require.NoError(t, err)
	require.Empty(t, p.CarriedNames())
	require.Empty(t, p.Left)
}
