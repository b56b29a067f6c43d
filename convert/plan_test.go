package convert

import (
	"compress/gzip"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"dsmoe/model"
	"dsmoe/model/tensor"
)

func planOf(t testing.TB, dir string, o Options) (*Plan, error) {
	t.Helper()
	v, err := NewView(open(t, dir))
	require.NoError(t, err)
	t.Cleanup(func() { v.Close() })
	return NewPlan(v, o)
}

func TestFilters(t *testing.T) {
	src := fixtureOf("v3/checkpoint")
	all, err := planOf(t, src, Options{})
	require.NoError(t, err)
	for name, c := range map[string]struct {
		o    Options
		keep func(name string) bool
	}{
		"layers":  {Options{Layers: Layers{{1, 2}, {4, 4}}}, func(n string) bool { l, ok := layerOf(n); return !ok || l == 1 || l == 2 || l == 4 }},
		"include": {Options{Include: []string{"*.mlp.experts.*", "lm_head*"}}, func(n string) bool { return strings.Contains(n, ".mlp.experts.") || n == lmHead }},
		"exclude": {Options{Exclude: []string{"*.mlp.experts.1[0-5].*"}}, func(n string) bool {
			return !strings.Contains(n, ".mlp.experts.1") || strings.Contains(n, ".experts.1.")
		}},
		"all": {Options{Layers: Layers{{3, 3}}, Include: []string{"*.self_attn.*", "*.mlp.*"}, Exclude: []string{"*norm*"}}, func(n string) bool {
			return strings.Contains(n, "layers.3.") && (strings.Contains(n, ".self_attn.") || strings.Contains(n, ".mlp.")) && !strings.Contains(n, "norm")
		}},
	} {
		p, err := planOf(t, src, c.o)
		require.NoError(t, err, name)
		var got, want []string
		for _, x := range p.order {
			got = append(got, x.Name)
		}
		for _, x := range all.order {
			if c.keep(x.Name) {
				want = append(want, x.Name)
			}
		}
		require.Equal(t, want, got, name)
		require.Equal(t, len(all.order)-len(want), p.Dropped)
	}
}

// TestFewerLayers is a smaller model, which opens and fits its config.
func TestFewerLayers(t *testing.T) {
	c := open(t, converted(t, fixtureOf("v3/checkpoint"), Options{Layers: Layers{{0, 2}}}))
	require.Equal(t, 3, c.Config.NumHiddenLayers)
	require.Zero(t, c.Config.NumNextNPredictLayers)
	require.NoError(t, model.Check(c.Config, c))
}

// TestPlanProblems: all of a kind in one error, each named.
func TestPlanProblems(t *testing.T) {
	rename := func(old, new string) func(t *testing.T, dir string) {
		return func(t *testing.T, dir string) {
			require.Equal(t, len(old), len(new))
			names, err := filepath.Glob(filepath.Join(dir, "*"))
			require.NoError(t, err)
			for _, n := range names {
				data := readFile(t, dir, filepath.Base(n))
				writeFile(t, dir, filepath.Base(n), strings.ReplaceAll(data, `"`+old+`"`, `"`+new+`"`))
			}
		}
	}
	const expert = "model.layers.3.mlp.experts.7.up_proj.weight"
	for name, c := range map[string]struct {
		fixture string
		breakIt func(t *testing.T, dir string)
		o       Options
		want    []string
	}{
		"missing":          {"v3/checkpoint", rename(expert, strings.Replace(expert, "up", "us", 1)), Options{}, []string{expert + ": missing, shape [24 64] is due"}},
		"missing, dropped": {"v3/checkpoint", rename(expert, strings.Replace(expert, "up", "us", 1)), Options{Exclude: []string{"*.experts.7.*"}}, nil},
		"gap in fused": {"v3/checkpoint", nil, Options{Experts: FusedExperts, Exclude: []string{"*.experts.7.*", "*.layers.2.mlp.experts.0.down*"}},
			[]string{"model.layers.3.mlp.experts.gate_up_proj: cannot be fused: model.layers.3.mlp.experts.7.gate_proj.weight is not among", "model.layers.2.mlp.experts.down_proj: cannot"}},
		"config's shape": {"v3/checkpoint", func(t *testing.T, dir string) {
			replace(t, dir, configName, `"moe_intermediate_size": 24`, `"moe_intermediate_size": 25`)
		}, Options{}, []string{"shape [24 64], config says [25 64]"}},
		"fused shape": {"v3/checkpoint-fused", func(t *testing.T, dir string) {
			replace(t, dir, configName, `"moe_intermediate_size": 24`, `"moe_intermediate_size": 25`)
		}, Options{}, []string{"[24 64] for one expert's gate_proj, config says [25 64]"}},
		"fused experts": {"v3/checkpoint-fused", func(t *testing.T, dir string) {
			replace(t, dir, configName, `"n_routed_experts": 16`, `"n_routed_experts": 32`)
		}, Options{}, []string{"16 experts, config says 32"}},
		"scales missing":  {"v3-fp8/checkpoint", rename("model.layers.1.mlp.experts.2.up_proj.weight_scale_inv", "model.layers.1.mlp.experts.2.up_proj.weight_scale_out"), Options{DType: tensor.BF16}, []string{"its scales, model.layers.1.mlp.experts.2.up_proj.weight_scale_inv, are missing"}},
		"blocks":          {"v3-fp8/checkpoint", func(t *testing.T, dir string) { replace(t, dir, configName, "128,\n      128", "64,\n      64") }, Options{DType: tensor.BF16}, []string{"has scales of [5 3]"}},
		"glob of nothing": {"v3/checkpoint", nil, Options{Include: []string{"*.mlp.*"}, Exclude: []string{"experts", "*bias"}}, []string{`the glob "experts" matches no tensor`}},
		"nothing left":    {"v3/checkpoint", nil, Options{Exclude: []string{"*"}}, []string{"the filters leave no tensor"}},
		"bad glob":        {"v3/checkpoint", nil, Options{Exclude: []string{"["}}, []string{`"[" is not a glob`}},
		"dtype":           {"v3/checkpoint", nil, Options{DType: tensor.F8E4M3}, []string{"weights are written as F32, F16 or BF16"}},
		"memory":          {"v3/checkpoint", nil, Options{MaxMemory: 1000}, []string{"are too few"}},
	} {
		t.Run(name, func(t *testing.T) {
			dir := clone(t, fixtureOf(c.fixture))
			if c.breakIt != nil {
				c.breakIt(t, dir)
			}
			src, err := Open(dir)
			require.NoError(t, err)
			defer src.Close()
			v, err := NewView(src)
			if err == nil {
				defer v.Close()
				_, err = NewPlan(v, c.o)
			}
			if c.want == nil {
				require.NoError(t, err)
			}
			for _, w := range c.want {
				require.ErrorContains(t, err, w)
			}
		})
	}
}

// TestPlanNeedsNoWeights plans DeepSeek-V3, 1.3 TB of it, from its shapes: the
// shards are holes in sparse files.
func TestPlanNeedsNoWeights(t *testing.T) {
	dir := sparseModel(t, fixtureOf("states/deepseek-v3"))
	var before, after runtime.MemStats
	c := open(t, dir)
	v, err := NewView(c)
	require.NoError(t, err)
	defer v.Close()
	runtime.GC()
	runtime.ReadMemStats(&before)
	for _, experts := range []Experts{KeepExperts, FusedExperts} {
		p, err := NewPlan(v, Options{Experts: experts, DType: tensor.F16})
		require.NoError(t, err)
		_, out := p.Bytes()
		require.EqualValues(t, 2*671_026_419_200, out)
		require.Greater(t, len(p.Files), 100)
		require.Less(t, len(p.Files), 400)
		e := execution{plan: p, o: Options{MaxMemory: defaultMemory}}
		e.budget()
		require.LessOrEqual(t, e.workers*(e.tile+maxSource), defaultMemory/2)
	}
	runtime.GC()
	runtime.ReadMemStats(&after)
	require.Less(t, int64(after.HeapAlloc)-int64(before.HeapAlloc), int64(100<<20), "what planning holds")
}

// sparseModel writes a checkpoint of BF16 tensors whose data is holes.
func sparseModel(t *testing.T, state string) string {
	t.Helper()
	f, err := os.Open(filepath.Join(state, "tensors.json.gz"))
	require.NoError(t, err)
	defer f.Close()
	z, err := gzip.NewReader(f)
	require.NoError(t, err)
	var shapes map[string][]int
	require.NoError(t, json.NewDecoder(z).Decode(&shapes))
	dir := t.TempDir()
	var infos []tensor.Info
	for name, shape := range shapes {
		infos = append(infos, tensor.Info{Name: name, DType: tensor.BF16, Shape: shape})
	}
	slices.SortFunc(infos, func(a, b tensor.Info) int { return compareNames(a.Name, b.Name) })
	shards, err := planShards(Output{Tensors: infos}, 8_000_000_000)
	require.NoError(t, err)
	for _, s := range shards {
		writeFile(t, dir, s.name, string(s.layout.Header()))
		require.NoError(t, os.Truncate(filepath.Join(dir, s.name), s.layout.Size()))
	}
	writeFile(t, dir, indexName, string(indexOf(infos, shards)))
	writeFile(t, dir, configName, readFile(t, state, configName))
	return dir
}

func TestCarriedFiles(t *testing.T) {
	dir := clone(t, fixtureOf("v3/checkpoint"))
	for _, name := range []string{"tokenizer.json", "README.md", "modeling_deepseek.py", "optimizer.pt", "rng.bin", "other.gguf", ".gitattributes"} {
		writeFile(t, dir, name, name)
	}
	require.NoError(t, os.Mkdir(filepath.Join(dir, "figures"), 0o755))
	link(t, filepath.Join(dir, "README.md"), filepath.Join(dir, "LICENSE"))
	src := open(t, dir)
	dst := filepath.Join(t.TempDir(), "out")
	r, err := Run(t.Context(), dst, src, Options{})
	require.NoError(t, err)
	require.Equal(t, []string{"LICENSE", "README.md", "generation_config.json", "modeling_deepseek.py", "tokenizer.json"}, r.Carried)
	require.Equal(t, []string{".gitattributes", "figures", "optimizer.pt", "other.gguf", "rng.bin"}, r.Left)
	require.Equal(t, "README.md", readFile(t, dst, "LICENSE"))
	requireEntries(t, dst, "LICENSE", "README.md", configName, manifestName, "generation_config.json", "model.safetensors", "modeling_deepseek.py", "tokenizer.json")
}

func TestEditDocument(t *testing.T) {
	for _, c := range []struct {
		text  string
		edits []edit
		want  string
	}{
		{`{"a":1}`, nil, `{"a":1}`},
		{`{"a":1, "b" : [1, 2],` + "\n" + `"c":{}}`, []edit{{"b", []byte("7")}}, `{"a":1, "b" : 7,` + "\n" + `"c":{}}`},
		{`{"a":1, "b":2, "c":3}`, []edit{{"a", nil}}, `{"b":2, "c":3}`},
		{`{"a":1, "b":2, "c":3}`, []edit{{"b", nil}, {"c", nil}}, `{"a":1}`},
		{`{"a":1}`, []edit{{"a", nil}}, `{}`},
		{"{\n  \"a\": 1\n}\n", []edit{{"z", []byte("2")}, {"y", nil}}, "{\n  \"a\": 1,\n  \"z\": 2\n}\n"},
		{`{}`, []edit{{"a", []byte(`"x"`)}}, "{\"a\": \"x\"}\n"},
		{`{"\u0061":1}`, []edit{{"a", []byte("2")}}, `{"\u0061":2}`},
	} {
		got, err := editDocument([]byte(c.text), c.edits)
		require.NoError(t, err)
		require.Equal(t, c.want, string(got))
	}
}

func TestLayersFlag(t *testing.T) {
	for text, want := range map[string]Layers{"3": {{3, 3}}, "0-3,7": {{0, 3}, {7, 7}}, "1, 2-2": {{1, 1}, {2, 2}}} {
		var l Layers
		require.NoError(t, l.Set(text))
		require.Equal(t, want, l)
	}
	for _, text := range []string{"", "a", "3-1", "-1", "1-", "1,,2", "99999999999"} {
		var l Layers
		require.Error(t, l.Set(text), text)
	}
	for text, n := range map[string]int{"0-3": 4, "0,1,2": 3, "2-3,0-1": 4, "1-3": 0, "0-1,3": 0} {
		var l Layers
		require.NoError(t, l.Set(text))
		got, ok := l.prefix()
		require.Equal(t, n > 0, ok, text)
		if ok {
			require.Equal(t, n, got)
		}
	}
}

func TestExpertNames(t *testing.T) {
	for name, want := range map[string]string{
		"model.layers.3.mlp.experts.17.up_proj.weight":             "model.layers.3.mlp.experts.gate_up_proj 17 1",
		"model.layers.3.mlp.experts.0.down_proj.weight_scale_inv":  "model.layers.3.mlp.experts.down_proj_scale_inv 0 0",
		"model.layers.61.mlp.experts.255.gate_proj.weight":         "model.layers.61.mlp.experts.gate_up_proj 255 0",
		"model.layers.3.mlp.shared_experts.gate_proj.weight":       "",
		"model.layers.3.mlp.experts.01.up_proj.weight":             "",
		"model.layers.3.mlp.experts.1.up_proj.bias":                "",
		"model.layers.3.mlp.experts.1.up_proj.weight_scale":        "",
		"model.layers.3.mlp.experts.-1.up_proj.weight":             "",
		"model.layers.3.mlp.experts.gate_up_proj":                  "",
		"model.layers.3.mlp.shared_experts.1.gate_proj.weight_inv": "",
	} {
		fusedName, e, p, ok := parseExpert(name)
		if want == "" {
			require.False(t, ok, name)
			continue
		}
		require.Equal(t, want, fmt.Sprint(fusedName, " ", e, " ", p))
		f, ok := parseFused(fusedName)
		require.True(t, ok)
		require.Equal(t, name, f.expertName(e, f.parts[p]))
	}
	_, ok := parseFused("model.layers.3.mlp.experts.gate_up_proj.weight")
	require.False(t, ok)
}
