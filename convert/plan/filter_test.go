package plan

import (
	"maps"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"dsmoe/config/configtest"
	"dsmoe/convert/checkpoint"
	"dsmoe/convert/internal/fixture"
	"dsmoe/model/table"
	"dsmoe/model/tensor"
	"dsmoe/text"
)

// putMTP adds the prediction layer of the v3 fixture's config, model.layers.5.
func putMTP(t *testing.T, infos map[string]tensor.Info) {
	t.Helper()
	c := configtest.Fixture(t, "v3/checkpoint")
	for s := range table.FamilyOf(c).MTPSlots(c) {
		put(infos, s.Name, tensor.BF16, s.Shape...)
	}
}

// configText is the config.json that a plan writes.
func configText(p *Plan) string {
	i := slices.IndexFunc(p.Others, func(f Other) bool { return f.Name == checkpoint.ConfigName })
	return string(p.Others[i].Text)
}

const (
	ehProj = "model.layers.5.eh_proj.weight"
	noMTP  = "num_nextn_predict_layers is 1, but there are no tensors of multi-token prediction layers"
)

// TestMTPIsWholeOrAbsent: of a prediction layer that is there all must be, in the right
// shape, but its copies of the embedding and the head; absence is noted.
func TestMTPIsWholeOrAbsent(t *testing.T) {
	for name, c := range map[string]struct {
		change func(infos map[string]tensor.Info)
		want   []string // nil: it is planned
	}{
		"whole":       {func(map[string]tensor.Info) {}, nil},
		"wrong shape": {func(infos map[string]tensor.Info) { put(infos, ehProj, tensor.BF16, 64, 64) }, []string{"tensor " + ehProj + ": shape [64 64], config says [64 128]"}},
		"incomplete": {func(infos map[string]tensor.Info) {
			delete(infos, ehProj)
			delete(infos, "model.layers.5.mlp.experts.3.up_proj.weight")
		}, []string{"2 problems", "tensor " + ehProj + ": missing, shape [64 128] is expected", "experts.3.up_proj.weight: missing"}},
		"no copies": {func(infos map[string]tensor.Info) {
			delete(infos, "model.layers.5.embed_tokens.weight")
			delete(infos, "model.layers.5.shared_head.head.weight")
		}, nil},
		"copy of another shape": {func(infos map[string]tensor.Info) {
			put(infos, "model.layers.5.shared_head.head.weight", tensor.BF16, 3, 64)
		},
			[]string{"shared_head.head.weight: shape [3 64], config says [256 64]"}},
		"fused, of another number": {func(infos map[string]tensor.Info) {
			maps.DeleteFunc(infos, func(n string, _ tensor.Info) bool { return strings.Contains(n, "layers.5.mlp.experts.") })
			put(infos, "model.layers.5.mlp.experts.gate_up_proj", tensor.BF16, 15, 48, 64)
			put(infos, "model.layers.5.mlp.experts.down_proj", tensor.BF16, 16, 64, 24)
		}, []string{"gate_up_proj: shape [15 48 64]: 15 experts, config says 16"}},
	} {
		p, err := planOf(t, withTensors(t, "v3/checkpoint", func(infos map[string]tensor.Info) {
			putMTP(t, infos)
			c.change(infos)
		}), Options{})
		for _, want := range c.want {
			require.ErrorContains(t, err, want, name)
		}
		if c.want == nil {
			require.NoError(t, err, name)
			require.Empty(t, p.Missing, name)
			require.Empty(t, p.Notes, name)
			require.Contains(t, configText(p), `"num_nextn_predict_layers": 1`)
		}
	}
	p, err := planOf(t, fixture.Path(t, "v3/checkpoint"), Options{})
	require.NoError(t, err)
	require.Equal(t, []string{noMTP}, p.Notes)
	require.Empty(t, p.Missing)
}

// TestWithoutMTP: however the prediction layer is left out, config.json does not announce
// it, and what remains is a whole model.
func TestWithoutMTP(t *testing.T) {
	src := open(t, withTensors(t, "v3/checkpoint", func(infos map[string]tensor.Info) { putMTP(t, infos) }))
	for name, o := range map[string]Options{
		"flag": {NoMTP: true}, "glob": {Exclude: []string{"model.layers.5.*"}}, "layers": {Layers: Layers{{0, 4}}}, "fewer": {Layers: Layers{{0, 2}}},
	} {
		p, err := Conversion(src, o)
		require.NoError(t, err, name)
		require.Contains(t, configText(p), `"num_nextn_predict_layers": 0`, name)
		require.Empty(t, p.Notes, name)
		require.Empty(t, p.Missing, name)
		require.GreaterOrEqual(t, p.Dropped, 68, name)
		for _, i := range p.order {
			x := &p.Tensors[i]
			require.NotContains(t, x.Name, "layers.5.", name)
		}
	}
	p, err := Conversion(src, Options{Layers: Layers{{0, 5}}})
	require.NoError(t, err, "the prediction layer has a number, too")
	require.Contains(t, configText(p), `"num_nextn_predict_layers": 1`)
	require.Empty(t, p.Notes)
	require.Zero(t, p.Dropped)

	p, err = Conversion(src, Options{Exclude: []string{"model.layers.5.enorm.*"}})
	require.NoError(t, err)
	require.Contains(t, configText(p), `"num_nextn_predict_layers": 1`)
	require.Equal(t, []Missing{{"mtp", 1}}, p.Missing)
}

// TestOneOfTwoPredictionLayers: the last may be left out; without the first, the second is
// no first one.
func TestOneOfTwoPredictionLayers(t *testing.T) {
	dir := withTensors(t, "v3/checkpoint", func(infos map[string]tensor.Info) {
		putMTP(t, infos)
		for name, info := range maps.Clone(infos) {
			if rest, ok := strings.CutPrefix(name, "model.layers.5."); ok {
				put(infos, "model.layers.6."+rest, info.DType, info.Shape...)
			}
		}
	})
	fixture.Replace(t, dir, checkpoint.ConfigName, `"num_nextn_predict_layers": 1`, `"num_nextn_predict_layers": 2`)
	src := open(t, dir)
	for glob, want := range map[string]string{"model.layers.6.*": `"num_nextn_predict_layers": 1`, "model.layers.5.*": `"num_nextn_predict_layers": 2`, "model.layers.[56].*": `"num_nextn_predict_layers": 0`} {
		p, err := Conversion(src, Options{Exclude: []string{glob}})
		require.NoError(t, err)
		require.Contains(t, configText(p), want)
		require.Equal(t, glob == "model.layers.5.*", slices.Equal(p.Notes, []string{"num_nextn_predict_layers is 2, but there are no tensors of multi-token prediction layers 5"}))
		require.Empty(t, p.Missing)
	}
}

// TestPartOfAModel: what config.json implies and the output has not is counted by kind, in
// the plan, which is JSON as it stands, and in its text.
func TestPartOfAModel(t *testing.T) {
	for name, c := range map[string]struct {
		o    Options
		want []Missing
	}{
		"experts":       {Options{Exclude: []string{"*.experts.*"}, NoMTP: true}, []Missing{{"mlp.experts", 144}}},
		"included":      {Options{Include: []string{"*.experts.*", "*self_attn*", "*mlp*"}, Exclude: []string{"*_bias"}}, []Missing{{"embed_tokens", 1}, {"lm_head", 1}, {"mlp.gate", 3}, {"norms", 11}}},
		"not the first": {Options{Layers: Layers{{1, 4}}}, []Missing{{"mlp (dense)", 3}, {"norms", 4}, {"self_attn", 5}}},
		"smaller":       {Options{Layers: Layers{{0, 3}}}, nil},
		"whole":         {Options{}, nil},
	} {
		p, err := planOf(t, fixture.Path(t, "v3/checkpoint"), c.o)
		require.NoError(t, err, name)
		var b strings.Builder
		require.NoError(t, p.WriteText(&b))
		require.Equal(t, c.want != nil, strings.Contains(b.String(), "\nnot a whole model: "), name)
		if c.want == nil {
			c.want = []Missing{}
		}
		require.Equal(t, c.want, p.Missing, name)
	}
}

// TestLayersAreThere: layers that the checkpoint does not have are named.
func TestLayersAreThere(t *testing.T) {
	for list, want := range map[string]string{
		"0-100": "layers 0-100: 5-100 not there: the checkpoint has 0-4",
		"3,7,9": "layers 3,7,9: 7, 9 not there",
		"5":     "layers 5: 5 not there",
	} {
		l, err := text.ParseSpans(list, "layers")
		require.NoError(t, err)
		_, err = planOf(t, fixture.Path(t, "v3/checkpoint"), Options{Layers: l})
		require.ErrorContains(t, err, want)
	}
}

// TestGlobsThatDoNothing: one that matches no name is refused; one whose tensors are left
// out anyhow is noted, and not said to match nothing.
func TestGlobsThatDoNothing(t *testing.T) {
	src := open(t, fixture.Path(t, "v3/checkpoint"))
	for name, o := range map[string]Options{
		"by layers":  {Layers: Layers{{0, 2}}, Exclude: []string{"*.layers.4.*"}},
		"by include": {Include: []string{"*.layers.1.*"}, Exclude: []string{"*.layers.4.*"}},
		"included":   {Layers: Layers{{0, 2}}, Include: []string{"*.layers.1.*", "*.layers.4.*"}},
	} {
		p, err := Conversion(src, o)
		require.NoError(t, err, name)
		require.Contains(t, p.Notes, `the glob "*.layers.4.*" matches only tensors that are left out anyhow`, name)
	}
	p, err := Conversion(src, Options{Exclude: []string{"*.layers.4.*", "*.layers.4.mlp.*"}})
	require.NoError(t, err)
	require.NotContains(t, strings.Join(p.Notes, "\n"), "anyhow", "either would do")
	_, err = Conversion(src, Options{Layers: Layers{{0, 2}}, Exclude: []string{"*.layers.40.*"}})
	require.ErrorContains(t, err, `the glob "*.layers.40.*" matches no tensor`)
}

// TestReadersOfFusedExperts: a family without a class in transformers has none, and remote
// code is none.
func TestReadersOfFusedExperts(t *testing.T) {
	_, err := planOf(t, fixture.Path(t, "v1-base/checkpoint"), Options{Experts: FusedExperts})
	require.ErrorContains(t, err, "tensor model.layers.1.mlp.experts.gate_up_proj: nothing can read fused experts of model_type deepseek")
	_, err = planOf(t, fixture.Path(t, "v1-dense/checkpoint"), Options{Experts: FusedExperts})
	require.NoError(t, err, "there are none")
	fused := withTensors(t, "v1-base/checkpoint", func(infos map[string]tensor.Info) {
		maps.DeleteFunc(infos, func(n string, _ tensor.Info) bool { return strings.Contains(n, ".mlp.experts.") })
		for l := 1; l < 4; l++ {
			group := "model.layers." + strconv.Itoa(l) + ".mlp.experts."
			put(infos, group+"gate_up_proj", tensor.BF16, 16, 48, 64)
			put(infos, group+"down_proj", tensor.BF16, 16, 64, 24)
		}
	})
	p, err := planOf(t, fused, Options{})
	require.NoError(t, err)
	require.Contains(t, strings.Join(p.Notes, "\n"), "nothing can read fused experts of model_type deepseek, such as model.layers.1.mlp.experts.gate_up_proj: ask for per-expert experts")
	p, err = planOf(t, fused, Options{Experts: PerExpert})
	require.NoError(t, err)
	require.Empty(t, p.Notes)

	dir := fixture.Clone(t, fixture.Path(t, "v3/checkpoint"))
	for _, remote := range []bool{false, true} {
		if remote {
			fixture.Replace(t, dir, checkpoint.ConfigName, `"model_type"`, `"auto_map": {"AutoModelForCausalLM": "modeling_deepseek.DeepseekV3ForCausalLM"}, "model_type"`)
		}
		p, err := planOf(t, dir, Options{Experts: FusedExperts})
		require.NoError(t, err)
		require.Equal(t, remote, strings.Contains(strings.Join(p.Notes, "\n"), "the code that auto_map in config.json names cannot read fused experts"))
	}
}
