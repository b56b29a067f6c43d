package plan

import (
	"compress/gzip"
	"encoding/json"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"dsmoe/config/configtest"
	"dsmoe/convert/checkpoint"
	"dsmoe/convert/internal/fixture"
	"dsmoe/convert/safetensors"
	"dsmoe/model/table"
	"dsmoe/model/tensor"
	"dsmoe/text"
)

// open opens a checkpoint until the test ends.
func open(t testing.TB, path string) *checkpoint.Checkpoint {
	t.Helper()
	c, err := checkpoint.Open(path)
	require.NoError(t, err)
	t.Cleanup(func() { c.Close() })
	return c
}

func planOf(t testing.TB, dir string, o Options) (*Plan, error) {
	t.Helper()
	return Conversion(open(t, dir), o)
}

func TestFilters(t *testing.T) {
	src := fixture.Path(t, "v3/checkpoint")
	all, err := planOf(t, src, Options{})
	require.NoError(t, err)
	for name, c := range map[string]struct {
		o    Options
		keep func(name string) bool
	}{
		"layers":  {Options{Layers: Layers{{1, 2}, {4, 4}}}, func(n string) bool { l := table.PlaceOf(nil, n).Layer; return l < 0 || l == 1 || l == 2 || l == 4 }},
		"include": {Options{Include: []string{"*.mlp.experts.*", "lm_head*"}}, func(n string) bool { return strings.Contains(n, ".mlp.experts.") || n == "lm_head.weight" }},
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
		for _, i := range p.order {
			x := &p.Tensors[i]
			got = append(got, x.Name)
		}
		for _, i := range all.order {
			x := &all.Tensors[i]
			if c.keep(x.Name) {
				want = append(want, x.Name)
			}
		}
		require.Equal(t, want, got, name)
		require.Equal(t, len(all.Tensors)-len(want), p.Dropped)
	}
}

// TestPlanProblems: all of a kind in one error, each named.
func TestPlanProblems(t *testing.T) {
	rename := func(old, new string) func(t *testing.T, dir string) {
		return func(t *testing.T, dir string) {
			require.Equal(t, len(old), len(new))
			names, err := filepath.Glob(filepath.Join(dir, "*"))
			require.NoError(t, err)
			for _, n := range names {
				data := fixture.Read(t, dir, filepath.Base(n))
				fixture.Write(t, dir, filepath.Base(n), strings.ReplaceAll(data, `"`+old+`"`, `"`+new+`"`))
			}
		}
	}
	const expert = "model.layers.3.mlp.experts.7.up_proj.weight"
	for name, c := range map[string]struct {
		src     string
		breakIt func(t *testing.T, dir string)
		o       Options
		want    []string
	}{
		"missing":          {"v3/checkpoint", rename(expert, strings.Replace(expert, "up", "us", 1)), Options{}, []string{expert + ": missing, shape [24 64] is expected"}},
		"missing, dropped": {"v3/checkpoint", rename(expert, strings.Replace(expert, "up", "us", 1)), Options{Exclude: []string{"*.experts.7.*"}}, nil},
		"gap in fused": {"v3/checkpoint", nil, Options{Experts: FusedExperts, Exclude: []string{"*.experts.7.*", "*.layers.2.mlp.experts.0.down*"}},
			[]string{"model.layers.3.mlp.experts.gate_up_proj: cannot be fused: model.layers.3.mlp.experts.7.gate_proj.weight is not among", "model.layers.2.mlp.experts.down_proj: cannot"}},
		"config's shape": {"v3/checkpoint", func(t *testing.T, dir string) {
			fixture.Replace(t, dir, checkpoint.ConfigName, `"moe_intermediate_size": 24`, `"moe_intermediate_size": 25`)
		}, Options{}, []string{"shape [24 64], config says [25 64]"}},
		"fused shape": {"v3/checkpoint-fused", func(t *testing.T, dir string) {
			fixture.Replace(t, dir, checkpoint.ConfigName, `"moe_intermediate_size": 24`, `"moe_intermediate_size": 25`)
		}, Options{}, []string{"experts.0.gate_proj.weight: shape [24 64], config says [25 64]"}},
		"fused experts": {"v3/checkpoint-fused", func(t *testing.T, dir string) {
			fixture.Replace(t, dir, checkpoint.ConfigName, `"n_routed_experts": 16`, `"n_routed_experts": 32`)
		}, Options{}, []string{"16 experts, config says 32"}},
		"scales missing": {"v3-fp8/checkpoint", rename("model.layers.1.mlp.experts.2.up_proj.weight_scale_inv", "model.layers.1.mlp.experts.2.up_proj.weight_scale_out"), Options{DType: tensor.BF16}, []string{"its scales, model.layers.1.mlp.experts.2.up_proj.weight_scale_inv, are missing"}},
		"blocks": {"v3-fp8/checkpoint", func(t *testing.T, dir string) {
			fixture.Replace(t, dir, checkpoint.ConfigName, "128,\n      128", "64,\n      64")
		}, Options{DType: tensor.BF16}, []string{"blocks of [64 64] give [5 3]"}},
		"glob of nothing": {"v3/checkpoint", nil, Options{Include: []string{"*.mlp.*"}, Exclude: []string{"experts", "*bias"}}, []string{`the glob "experts" matches no tensor`}},
		"nothing left":    {"v3/checkpoint", nil, Options{Exclude: []string{"*"}}, []string{"the filters leave no tensor"}},
		"bad glob":        {"v3/checkpoint", nil, Options{Exclude: []string{"["}}, []string{`"[" is not a glob`}},
		"dtype":           {"v3/checkpoint", nil, Options{DType: tensor.I8}, []string{"weights are written as F32, F16, BF16 or F8_E4M3"}},
	} {
		t.Run(name, func(t *testing.T) {
			dir := fixture.Clone(t, fixture.Path(t, c.src))
			if c.breakIt != nil {
				c.breakIt(t, dir)
			}
			_, err := planOf(t, dir, c.o)
			if c.want == nil {
				require.NoError(t, err)
			}
			for _, w := range c.want {
				require.ErrorContains(t, err, w)
			}
		})
	}
}

// TestPlanNeedsNoWeights_every plans DeepSeek-V3, 1.3 TB of it, from its shapes: the
// shards are holes in sparse files.
func TestPlanNeedsNoWeights_every(t *testing.T) {
	dir := sparseModel(t, fixture.Path(t, "states/deepseek-v3"))
	var before, after runtime.MemStats
	c := open(t, dir)
	runtime.GC()
	runtime.ReadMemStats(&before)
	for _, experts := range []Experts{KeepExperts, FusedExperts} {
		if experts == KeepExperts && !configtest.Every(t) {
			continue // TestMemory_every has it, of fewer layers
		}
		p, err := Conversion(c, Options{Experts: experts, DType: tensor.F16})
		require.NoError(t, err)
		_, out := p.Bytes()
		require.Equal(t, int64(2*671_026_419_200), out)
		require.Greater(t, len(p.Files), 100)
		require.Less(t, len(p.Files), 400)
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
	slices.SortFunc(infos, func(a, b tensor.Info) int { return strings.Compare(a.Name, b.Name) })
	fixture.Sparse(t, dir, safetensors.Format(), infos, 8_000_000_000)
	fixture.Write(t, dir, checkpoint.ConfigName, fixture.Read(t, state, checkpoint.ConfigName))
	return dir
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
		{`{"a":{"b":1, "c":2}}`, []edit{{"a.b", []byte("3")}, {"a.c", nil}}, `{"a":{"b":3}}`},
		{`{"a.b":1}`, []edit{{"a.b", []byte("2")}}, `{"a.b":2}`},
	} {
		got, err := editDocument([]byte(c.text), c.edits)
		require.NoError(t, err)
		require.Equal(t, c.want, string(got))
	}
	for _, value := range []string{"[]", "[1, 2]", "null", "7", `"x"`} {
		_, err := editDocument([]byte(`{"a": `+value+`}`), []edit{{"a.b", []byte("2")}})
		require.EqualError(t, err, "a: not an object")
	}
}

func TestLayersFlag(t *testing.T) {
	for list, want := range map[string]Layers{"3": {{3, 3}}, "0-3,7": {{0, 3}, {7, 7}}, "1, 2-2": {{1, 1}, {2, 2}}} {
		l, err := text.ParseSpans(list, "layers")
		require.NoError(t, err)
		require.Equal(t, want, l)
		again, err := text.ParseSpans(l.String(), "layers")
		require.NoError(t, err)
		require.Equal(t, l, again)
	}
	for _, list := range []string{"", "a", "3-1", "-1", "1-", "1,,2", "99999999999"} {
		_, err := text.ParseSpans(list, "layers")
		require.Error(t, err, list)
	}
	for list, n := range map[string]int{"0-3": 4, "0,1,2": 3, "2-3,0-1": 4, "1-3": 0, "0-1,3": 0} {
		l, err := text.ParseSpans(list, "layers")
		require.NoError(t, err)
		got, ok := l.Prefix()
		require.Equal(t, n > 0, ok, list)
		if ok {
			require.Equal(t, n, got)
		}
	}
}

func TestPlanHashFollowsEverything(t *testing.T) {
	src := open(t, fixture.Path(t, "v3/checkpoint"))
	seen := map[string]string{}
	for name, o := range map[string]Options{
		"default": {}, "shards": {MaxShardBytes: 100_000}, "fused": {Experts: FusedExperts}, "f32": {DType: tensor.F32}, "f16": {DType: tensor.F16},
		"layers": {Layers: Layers{{0, 2}}}, "exclude": {Exclude: []string{"*.mlp.*"}},
	} {
		p, err := Conversion(src, o)
		require.NoError(t, err)
		again, err := Conversion(src, o)
		require.NoError(t, err)
		require.Equal(t, p.Hash, again.Hash)
		require.Empty(t, seen[p.Hash], name)
		seen[p.Hash] = name
	}
}

// TestWriteJSON: tensor by tensor, and the same as all at once.
func TestWriteJSON(t *testing.T) {
	p, err := planOf(t, fixture.Path(t, "v3-fp8/checkpoint"), Options{DType: tensor.BF16, Experts: FusedExperts})
	require.NoError(t, err)
	for _, n := range []int{len(p.Tensors), 1, 0} {
		p.Tensors = p.Tensors[:n]
		var got, want strings.Builder
		require.NoError(t, p.WriteJSON(&got))
		e := json.NewEncoder(&want)
		e.SetIndent("", "  ")
		require.NoError(t, e.Encode(p))
		require.Equal(t, want.String(), got.String())
	}
}

// TestShardsUnlessSaid: safetensors goes into shards of 5 GB, as transformers writes them, GGUF
// into one file.
func TestShardsUnlessSaid(t *testing.T) {
	for format, want := range map[string]int64{"": 5_000_000_000, "safetensors": 5_000_000_000, "gguf": 1 << 62} {
		p, err := planOf(t, fixture.Path(t, "v1-base/checkpoint"), Options{Format: format, NoVocab: format == "gguf"})
		require.NoError(t, err)
		require.Equal(t, want, p.Options.(recordedOptions).MaxShardBytes, format)
	}
}
