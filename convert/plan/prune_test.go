package plan

import (
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"dsmoe/convert/checkpoint"
	"dsmoe/convert/internal/fixture"
	"dsmoe/convert/safetensors"
	"dsmoe/model/tensor"
	"dsmoe/text"
)

// half keeps half of the experts of v3-fp8's two groups.
var half = Prune{All: text.Spans{{0, 1}, {6, 7}}}

// TestPrunedRouters: what a router has beyond a row per expert cannot be divided, and is refused.
func TestPrunedRouters(t *testing.T) {
	const gate = "model.layers.1.mlp.gate.weight"
	src := open(t, fixture.Path(t, "v3-fp8/checkpoint"))
	for name, more := range map[string]tensor.Info{
		gate + "_scale_inv":               {DType: tensor.F32, Shape: []int{1, 2}},
		"model.layers.1.mlp.gate.tid2eid": {DType: tensor.I64, Shape: []int{256, 2}},
	} {
		more.Name = name
		dir := t.TempDir()
		fixture.Sparse(t, dir, safetensors.Format(), append(slices.Collect(src.Tensors()), more), 1<<30)
		fixture.Write(t, dir, checkpoint.ConfigName, fixture.Read(t, fixture.Path(t, "v3-fp8/checkpoint"), checkpoint.ConfigName))
		_, err := planOf(t, dir, Options{})
		require.NoError(t, err)
		_, err = planOf(t, dir, Options{Prune: half})
		require.ErrorContains(t, err, "tensor "+name+": cannot be divided among the experts")
	}
}

// TestPrunedExceptions: quantization_config may except experts by numbers only if these stay or the codes are decoded.
func TestPrunedExceptions(t *testing.T) {
	for excepted, refused := range map[string]bool{"model.layers.1.mlp.experts.6": true, "model.layers.1.mlp.experts.0": false,
		"model.layers.1.mlp.gate": false} {
		dir := fixture.Clone(t, fixture.Path(t, "v3-fp8/checkpoint"))
		fixture.Replace(t, dir, checkpoint.ConfigName, `"quant_method": "fp8"`,
			`"quant_method": "fp8", "modules_to_not_convert": ["`+excepted+`"]`)
		_, err := planOf(t, dir, Options{Prune: half})
		if refused {
			require.ErrorContains(t, err, "quantization_config excepts some experts by their numbers, which change")
		} else {
			require.NoError(t, err)
		}
		_, err = planOf(t, dir, Options{Prune: half, DType: tensor.BF16})
		require.NoError(t, err)
	}
}

// TestPrunedForms: the same of groups that are stored in several forms.
func TestPrunedForms(t *testing.T) {
	for experts, refused := range map[string]bool{"0-3": false, "3": true, "0": false} {
		dir := fixture.Clone(t, fixture.Path(t, "forms/mixed"))
		fixture.Replace(t, dir, checkpoint.ConfigName, `"re:.*experts\\..*\\.down_proj"`, `"re:.*experts\\.[`+experts+`]\\.down_proj"`)
		_, err := planOf(t, dir, Options{Prune: Prune{All: text.Spans{{0, 0}, {3, 3}}}})
		if refused {
			require.ErrorContains(t, err, "quantization_config stores some experts in another form, by their numbers, which change")
		} else {
			require.NoError(t, err)
		}
	}
}

// TestPrunedNeeds: the shards of dropped experts need not be there, and layers that config.json does not imply are
// refused.
func TestPrunedNeeds(t *testing.T) {
	o := Options{Prune: Prune{Layers: map[int][]int{1: {0, 1, 4, 5}, 2: {7, 6, 2, 3}}}}
	c := open(t, fixture.Path(t, "v3-fp8/checkpoint"))
	needed, err := o.Needed(c.Config, c)
	require.NoError(t, err)
	for info := range c.Tensors() {
		dropped := strings.Contains(info.Name, "layers.1.mlp.experts.2.") || strings.Contains(info.Name, "layers.2.mlp.experts.1.")
		if dropped || strings.Contains(info.Name, "layers.2.mlp.experts.7.") || strings.HasPrefix(info.Name, "lm_head") {
			require.Equal(t, !dropped, needed[info.Name], info.Name)
		}
	}
	dir := fixture.Clone(t, fixture.Path(t, "v3-mtp/checkpoint"))
	fixture.Replace(t, dir, checkpoint.ConfigName, `"num_nextn_predict_layers": 1`, `"num_nextn_predict_layers": 0`)
	_, err = planOf(t, dir, Options{Prune: Prune{All: text.Spans{{0, 7}}}})
	require.ErrorContains(t, err, "config.json does not imply that these layers have routed experts: 2; leave them out with --layers")
	_, err = planOf(t, dir, Options{Prune: Prune{All: text.Spans{{0, 7}}}, Layers: Layers{{0, 1}}})
	require.NoError(t, err)
	dir = fixture.Clone(t, fixture.Path(t, "blocks/qwen3-next/checkpoint"))
	fixture.Replace(t, dir, "model.safetensors", "model.layers.2.", "mtp.x.layers.2.")
	_, err = planOf(t, dir, Options{Prune: Prune{All: text.Spans{{0, 5}}}})
	require.ErrorContains(t, err, "belongs to experts outside the decoder, which are not pruned; leave them out with --exclude")
}

// TestTablesOfExperts: numbers of experts are cast to nothing, whatever dtype they have, and only I64 is renumbered.
func TestTablesOfExperts(t *testing.T) {
	const tables = "layers.0.ffn.gate.tid2eid"
	src := open(t, fixture.Path(t, "v4/checkpoint"))
	for _, d := range []tensor.DType{tensor.I64, tensor.I32, tensor.F32} {
		infos := slices.Collect(src.Tensors())
		i := slices.IndexFunc(infos, func(x tensor.Info) bool { return x.Name == tables })
		infos[i].DType = d
		dir := t.TempDir()
		fixture.Sparse(t, dir, safetensors.Format(), infos, 1<<30)
		fixture.Write(t, dir, checkpoint.ConfigName, fixture.Read(t, fixture.Path(t, "v4/checkpoint"), checkpoint.ConfigName))
		p, err := planOf(t, dir, Options{DType: tensor.BF16})
		require.NoError(t, err)
		i = slices.IndexFunc(p.Tensors, func(x Tensor) bool { return x.Name == tables })
		require.Equal(t, d, p.Tensors[i].DType)
		_, err = planOf(t, dir, Options{Prune: Prune{All: text.Spans{{0, 3}}}})
		if d == tensor.I64 {
			require.NoError(t, err)
		} else {
			require.ErrorContains(t, err, "tensor "+tables+": cannot be divided among the experts")
		}
	}
}
