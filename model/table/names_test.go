package table_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"dsmoe/config/configtest"
	"dsmoe/model/table"
)

// TestNamesArePlaces: the name of every slot gives the slot's own place back, and module and
// role are in the name.
func TestNamesArePlaces(t *testing.T) {
	for _, fixture := range []string{"v1-base", "v1-rope-linear-tied-bias", "v2-lite", "v3"} {
		c := configtest.Fixture(t, fixture+"/checkpoint")
		f := table.FamilyOf(c)
		seen := map[table.Place]bool{}
		for s := range f.Slots(c) {
			require.Equal(t, s.Place, f.Place(s.Name), s.Name)
			require.Same(t, s.Row, f.Row(s.Module(), s.Role()), s.Name)
			require.True(t, strings.HasSuffix(strings.TrimSuffix(s.Name, ".weight"), string(s.Role())), s.Name)
			seen[s.Place] = true
		}
		for s := range f.MTPSlots(c) {
			require.Equal(t, s.Place, f.Place(s.Name), s.Name)
			require.Same(t, s.Row, f.Row(s.Module(), s.Role()), s.Name)
			seen[s.Place] = true
		}
		for l := range c.NumHiddenLayers + f.PredictionLayers(c) {
			for p := range f.LayerPlaces(c, l) {
				require.True(t, seen[p], p.Row.Name)
				delete(seen, p)
			}
		}
		for p := range seen {
			require.Negative(t, p.Layer, p.Row.Name)
		}
	}
}

// TestOtherNames: what no row has still has its numbers, as they are usually written.
func TestOtherNames(t *testing.T) {
	c := configtest.Fixture(t, "v1-base/checkpoint")
	for name, want := range map[string]table.Place{
		"model.layers.3.mlp.experts.17.extra.weight":                      {Layer: 3, Expert: 17},
		"layers.3.mlp.experts.17.extra":                                   {Layer: 3, Expert: 17},
		"model.layers.3.mlp.experts.17":                                   {Layer: 3, Expert: 17},
		"model.layers.03.mlp.experts.+1.up_proj.weight":                   {Layer: -1, Expert: -1},
		"model.layers.-1.mlp.experts.01.up_proj.weight":                   {Layer: -1, Expert: -1},
		"model.layers.3.mlp.shared_experts.1.up_proj.weight":              {Layer: 3, Expert: -1},
		"model.layers.99999999999999999999.input_layernorm.weight":        {Layer: -1, Expert: -1},
		"prefix.model.layers.3.input_layernorm.weight":                    {Layer: -1, Expert: -1},
		"model.layers.{l}.input_layernorm.weight":                         {Layer: -1, Expert: -1},
		"model.layers.3.mlp.experts.{e}.up_proj.weight":                   {Layer: 3, Expert: -1},
		"model.layers.3.mlp.experts.gate_up_proj":                         {Layer: 3, Expert: -1},
		"model.layers.3.mlp.experts.1.mlp.experts.2.gate_proj.weight.x.y": {Layer: 3, Expert: 2},
	} {
		require.Equal(t, want, table.PlaceOf(c, name), name)
		require.Equal(t, want, table.PlaceOf(nil, name), name)
	}
	up := table.PlaceOf(c, "layers.3.mlp.experts.17.up_proj.weight")
	require.True(t, up.Is(table.RoutedExperts, table.UpProj))
	require.Equal(t, []int{3, 17}, []int{up.Layer, up.Expert})
	require.Nil(t, table.PlaceOf(c, "model.lm_head.weight").Row)
}

// TestFusedNames: which matrices go into which fused tensor, and which names are one's.
func TestFusedNames(t *testing.T) {
	f := table.FamilyOf(configtest.Fixture(t, "v3/checkpoint"))
	for name, want := range map[string]int{
		"model.layers.3.mlp.experts.17.gate_proj.weight": 0, "model.layers.3.mlp.experts.17.up_proj.weight": 1,
		"model.layers.3.mlp.experts.17.down_proj.weight": 0,
	} {
		p := f.Place(name)
		fused, at := table.FusedOf(p)
		require.Equal(t, want, at)
		require.Equal(t, p.Role(), fused.Roles[at])
		again, layer := table.FusedAt(fused.NameIn(3))
		require.Same(t, fused, again)
		require.Equal(t, 3, layer)
	}
	for _, name := range []string{"model.layers.3.mlp.gate_proj.weight", "model.layers.3.mlp.shared_experts.up_proj.weight",
		"model.layers.3.mlp.experts.17.up_proj.bias"} {
		fused, _ := table.FusedOf(f.Place(name))
		require.Nil(t, fused, name)
	}
	for _, name := range []string{"model.layers.3.mlp.experts.gate_up_proj.weight", "model.layers.3.mlp.gate_up_proj", "model.layers.{l}.mlp.experts.gate_up_proj", ""} {
		fused, _ := table.FusedAt(name)
		require.Nil(t, fused, name)
	}
}

// TestCut: the numbers of layer and routed expert of a weight's name.
func TestCut(t *testing.T) {
	for name, want := range map[string]struct {
		pattern       string
		layer, expert int
	}{
		"lm_head.weight":                               {"lm_head.weight", -1, -1},
		"model.layers.07.mlp.gate.weight":              {"model.layers.07.mlp.gate.weight", -1, -1},
		"model.layers.12.mlp.gate.weight":              {"model.layers.{l}.mlp.gate.weight", 12, -1},
		"layers.3.mlp.experts.40.up_proj.weight":       {"model.layers.{l}.mlp.experts.{e}.up_proj.weight", 3, 40},
		"model.layers.3.mlp.experts.down_proj":         {"model.layers.{l}.mlp.experts.down_proj", 3, -1},
		"vision.layers.0.mlp.experts.1.up_proj.weight": {"vision.layers.0.mlp.experts.{e}.up_proj.weight", -1, 1},
	} {
		pattern, layer, expert := table.Cut(name)
		require.Equal(t, want.pattern, pattern)
		require.Equal(t, [2]int{want.layer, want.expert}, [2]int{layer, expert}, name)
	}
}

// TestCutExpert: names of weights and of stages, whole or within their layer.
func TestCutExpert(t *testing.T) {
	for name, want := range map[string]struct {
		pattern string
		expert  int
	}{
		"model.layers.1.mlp.experts.17.up_proj.weight":          {"model.layers.1.mlp.experts.{e}.up_proj.weight", 17},
		"model.layers.1.mlp.experts.0.up_proj.weight_scale_inv": {"model.layers.1.mlp.experts.{e}.up_proj.weight_scale_inv", 0},
		"model.layers.1.mlp.experts.01.up_proj.weight":          {"model.layers.1.mlp.experts.01.up_proj.weight", -1},
		"model.layers.1.mlp.experts.-1.up_proj.weight":          {"model.layers.1.mlp.experts.-1.up_proj.weight", -1},
		"model.layers.1.mlp.experts.gate_up_proj":               {"model.layers.1.mlp.experts.gate_up_proj", -1},
		"model.layers.1.mlp.shared_experts.up_proj.weight":      {"model.layers.1.mlp.shared_experts.up_proj.weight", -1},
		"a.mlp.experts.3":              {"a.mlp.experts.{e}", 3},
		"mlp.experts.3.up_proj.output": {"mlp.experts.{e}.up_proj.output", 3},
	} {
		pattern, expert := table.CutExpert(name)
		require.Equal(t, want.pattern, pattern)
		require.Equal(t, want.expert, expert)
	}
}

// TestNamesOfOtherFamilies: what published files and transformers' modules call the weights of families with both.
func TestNamesOfOtherFamilies(t *testing.T) {
	for model, names := range map[string]map[string][2]string{
		"hy_v3": {
			"mlp.gate.weight":                        {"mlp.router.gate.weight", "mlp.gate.weight"},
			"mlp.gate.e_score_correction_bias":       {"mlp.expert_bias", "mlp.e_score_correction_bias"},
			"mlp.shared_experts.up_proj.weight":      {"mlp.shared_mlp.up_proj.weight", "mlp.shared_experts.up_proj.weight"},
			"mlp.experts.3.down_proj.weight":         {"mlp.experts.3.down_proj.weight", "mlp.experts.3.down_proj.weight"},
			"self_attn.q_norm.weight":                {"self_attn.q_norm.weight", "self_attn.q_norm.weight"},
			"mlp.experts.3.up_proj.weight_scale_inv": {"mlp.experts.3.up_proj.weight_scale_inv", "mlp.experts.3.up_proj.weight_scale_inv"},
		},
		"minimax_m2": {
			"mlp.gate.weight":                        {"block_sparse_moe.gate.weight", "mlp.gate.weight"},
			"mlp.gate.e_score_correction_bias":       {"block_sparse_moe.e_score_correction_bias", "mlp.e_score_correction_bias"},
			"mlp.experts.3.gate_proj.weight":         {"block_sparse_moe.experts.3.w1.weight", "mlp.experts.3.gate_proj.weight"},
			"mlp.experts.3.down_proj.weight":         {"block_sparse_moe.experts.3.w2.weight", "mlp.experts.3.down_proj.weight"},
			"mlp.experts.3.up_proj.weight_scale_inv": {"block_sparse_moe.experts.3.w3.weight_scale_inv", "mlp.experts.3.up_proj.weight_scale_inv"},
		},
		"exaone_moe":   {"mlp.gate.e_score_correction_bias": {"mlp.e_score_correction_bias", "mlp.gate.e_score_correction_bias"}},
		"ernie4_5_moe": {"mlp.gate.e_score_correction_bias": {"mlp.moe_statics.e_score_correction_bias", "mlp.gate.moe_statics.e_score_correction_bias"}},
	} {
		c := configtest.Parse(t, `{"model_type":"`+model+`"}`)
		f := table.FamilyOf(c)
		for name, want := range names {
			for i, stored := range want {
				require.Equal(t, "model.layers.1."+stored, f.Namings[i].Of(c, "model.layers.1."+name), model)
				got, namings := f.Spell(c, "model.layers.1."+stored)
				require.Equal(t, "model.layers.1."+name, got, model)
				require.NotZero(t, namings&(1<<i), model)
			}
		}
	}
}

// TestCarriedPredictions: prediction layers that the reference leaves out have rows, under the names of files.
func TestCarriedPredictions(t *testing.T) {
	for model, names := range map[string]map[string]string{
		"hy_v3": {"model.layers.80.shared_head.norm.weight": "model.layers.80.final_layernorm.weight",
			"model.layers.80.eh_proj.weight": "model.layers.80.eh_proj.weight", "model.layers.80.mlp.gate.weight": "model.layers.80.mlp.router.gate.weight"},
		"exaone_moe": {"model.layers.32.shared_head.norm.weight": "mtp.norm.weight", "model.layers.32.eh_proj.weight": "mtp.fc.weight",
			"model.layers.32.enorm.weight": "mtp.pre_fc_norm_embedding.weight", "model.layers.32.hnorm.weight": "mtp.pre_fc_norm_hidden.weight",
			"model.layers.32.mlp.up_proj.weight": "mtp.layers.0.mlp.up_proj.weight", "model.layers.32.self_attn.q_norm.weight": "mtp.layers.0.self_attn.q_norm.weight"},
	} {
		c := configtest.Parse(t, `{"model_type":"`+model+`","head_dim":128,"num_nextn_predict_layers":1}`)
		f, held := table.FamilyOf(c), map[string]bool{}
		for s := range f.MTPSlots(c) {
			held[s.Name] = true
		}
		for name, stored := range names {
			require.True(t, held[name], name)
			for _, n := range f.Namings {
				if model != "hy_v3" || n.Name == "published" {
					require.Equal(t, stored, n.Of(c, name))
				}
			}
			got, _ := f.Spell(c, stored)
			require.Equal(t, name, got)
		}
		require.Equal(t, model == "hy_v3", held[fmt.Sprintf("model.layers.%d.mlp.experts.0.up_proj.weight", c.NumHiddenLayers)], model)
	}
}

// TestTensorsThatAreLeft: of prediction layers whose weights are not known.
func TestTensorsThatAreLeft(t *testing.T) {
	for model, names := range map[string]map[string]bool{
		"hy_v3":        {"model.layers.80.final_layernorm.weight": false, "mtp.fc.weight": false},
		"exaone_moe":   {"mtp.other.weight": false, "model.layers.32.enorm.weight": false},
		"ernie4_5_moe": {"model.mtp_block.0.mlp.up_proj.weight": true, "model.mtp_linear_proj.0.weight": true, "model.layers.28.enorm.weight": false},
		"glm4_moe":     {"model.layers.46.final_layernorm.weight": false, "mtp.fc.weight": false},
		"step3p5":      {"model.layers.45.transformer.shared_head.norm.weight": true, "model.layers.44.transformer.shared_head.norm.weight": false},
		"mistral4":     {"model.layers.36.enorm.weight": false},
	} {
		c := configtest.Parse(t, `{"model_type":"`+model+`","head_dim":128}`)
		for name, left := range names {
			require.Equal(t, left, table.FamilyOf(c).Ignores(c, name), model+" "+name)
		}
	}
}

// TestStreamsOfHy4: published files and those that transformers 5.24 saves put hc_pre into other places.
func TestStreamsOfHy4(t *testing.T) {
	f := table.FamilyOf(configtest.Parse(t, `{"model_type":"hy_v4"}`))
	for _, name := range []string{"model.layers.1.hc_attn_layer.hc_pre.hc_fn", "model.layers.1.hc_pre.hc_attn_layer.hc_fn",
		"model.hc_head.hc_head_fn", "model.hc_pre.hc_head.hc_head_fn"} {
		require.True(t, f.HasUnknown(name), name)
	}
	require.False(t, f.HasUnknown("model.layers.1.mlp.gate.weight"))
}
