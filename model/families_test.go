package model_test

import (
	"encoding/binary"
	"fmt"
	"iter"
	"maps"
	"math"
	"math/rand/v2"
	"os"
	"strings"
	"testing"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/stretchr/testify/require"

	"dsmoe/config"
	"dsmoe/config/configtest"
	"dsmoe/convert/checkpoint"
	"dsmoe/model"
	"dsmoe/model/table"
	"dsmoe/model/tensor"
	"dsmoe/model/weights"
)

// withMTP adds prediction layers to a config's synthetic weights: norms about 1, and matrices
// of rows about as long.
func withMTP(t *testing.T, c *config.Config) memory {
	src, r := synthetic(t, c), rand.New(rand.NewPCG(1, 2))
	for s := range table.FamilyOf(c).MTPSlots(c) {
		w := tensor.Tensor{DType: tensor.BF16, Shape: s.Shape}
		for range s.Info(tensor.BF16).Len() {
			v := 1 + 0.2*(r.Float64()-0.5)
			if len(s.Shape) > 1 {
				v = 2 * math.Sqrt(3/float64(s.Shape[1])) * (r.Float64() - 0.5)
			}
			w.Data = binary.LittleEndian.AppendUint16(w.Data, uint16(math.Float32bits(float32(v))>>16))
		}
		src[s.Name] = w
	}
	return src
}

// TestPredictionLayersAreOptionalButChecked: they may be absent; a wrong shape is found.
func TestPredictionLayersAreOptionalButChecked(t *testing.T) {
	c := configtest.Fixture(t, "v3/checkpoint")
	require.NoError(t, weights.New(c, synthetic(t, c)).Check(c))
	src := withMTP(t, c)
	require.NoError(t, weights.New(c, src).Check(c))
	src["model.layers.5.eh_proj.weight"] = tensor.Tensor{DType: tensor.BF16, Shape: []int{64, 64}}
	require.ErrorContains(t, weights.New(c, src).Check(c), "model.layers.5.eh_proj.weight: shape [64 64], config says [64 128]")
}

// renamed is a source under other names.
type renamed struct {
	memory
	from func(name string) string
}

func (r renamed) Tensors() iter.Seq[tensor.Info] {
	return func(yield func(tensor.Info) bool) {
		for i := range r.memory.Tensors() {
			i.Name = r.from(i.Name)
			if !yield(i) {
				return
			}
		}
	}
}

func (r renamed) Tensor(name string) (tensor.Tensor, error) {
	for own := range r.memory {
		if r.from(own) == name {
			return r.memory[own], nil
		}
	}
	return tensor.Tensor{}, os.ErrNotExist
}

// TestDecoderSavedWithoutItsHead: names without "model.", and the head missing by name
// unless it is tied.
func TestDecoderSavedWithoutItsHead(t *testing.T) {
	c := configtest.Parse(t, tinyConfig)
	src := renamed{synthetic(t, c), func(name string) string { return strings.TrimPrefix(name, "model.") }}
	m, err := model.Load(c, src)
	require.NoError(t, err)
	require.Equal(t, "model.layers.1.mlp.experts.4.up_proj.weight", m.Model.Layers[1].MoE.Experts[4].UpProj.Weight.Name)
	delete(src.memory, "lm_head.weight")
	require.ErrorContains(t, weights.New(c, src).Check(c), "1 findings: lm_head.weight: missing")
}

// TestFusedExpertsAreViews: the fused checkpoint's experts are the other's, and no byte
// is copied.
func TestFusedExpertsAreViews(t *testing.T) {
	apart, err := checkpoint.Open("../fixtures/v3/checkpoint")
	require.NoError(t, err)
	defer apart.Close()
	fused, err := checkpoint.Open("../fixtures/v3/checkpoint-fused")
	require.NoError(t, err)
	defer fused.Close()
	m, err := model.Load(fused.Config, fused)
	require.NoError(t, err)
	want, err := apart.Tensor("model.layers.2.mlp.experts.1.up_proj.weight")
	require.NoError(t, err)
	got := m.Model.Layers[2].MoE.Experts[1].UpProj.Weight
	require.Equal(t, want, got.Tensor)
	whole, err := fused.Tensor("model.layers.2.mlp.experts.gate_up_proj")
	require.NoError(t, err)
	at := len(whole.Data) / 16 * 3 / 2
	require.Same(t, &whole.Data[at], &got.Data[0])
}

// TestScalesAreChecked: missing, misshapen, of another dtype, without a config that
// announces them.
func TestScalesAreChecked(t *testing.T) {
	src, err := checkpoint.Open("../fixtures/v3-fp8/checkpoint")
	require.NoError(t, err)
	defer src.Close()
	const name = "model.layers.1.self_attn.o_proj.weight"
	for want, change := range map[string]func(m memory){
		"dtype F8_E4M3, but its scales, " + name + "_scale_inv, are missing": func(m memory) { delete(m, name+"_scale_inv") },
		"dtype F8_E4M3, but its scales have shape [1 2]: blocks of [128 128] give [2 1]": func(m memory) {
			m[name+"_scale_inv"] = tensor.Tensor{DType: tensor.F32, Shape: []int{1, 2}}
		},
		"dtype F8_E4M3, but its scales have dtype I32: F32, F16, BF16 or F8_E8M0 is expected": func(m memory) {
			m[name+"_scale_inv"] = tensor.Tensor{DType: tensor.I32, Shape: []int{2, 1}}
		},
	} {
		m := memory{}
		for i := range src.Tensors() {
			m[i.Name] = tensor.Tensor{DType: i.DType, Shape: i.Shape}
		}
		change(m)
		require.ErrorContains(t, weights.New(src.Config, m).Check(src.Config), "1 findings: "+name+": "+want)
	}
	for module, wrong := range map[string]bool{"model.layers.1.self_attn": true, "o_proj": true, "lm_head": false} {
		excepting, err := src.Config.Override(map[string]jsontext.Value{"quantization_config": jsontext.Value(
			`{"quant_method":"fp8","weight_block_size":[128,128],"modules_to_not_convert":["` + module + `"]}`)})
		require.NoError(t, err)
		if err := weights.New(excepting, src).Check(excepting); wrong {
			require.ErrorContains(t, err, name+": dtype F8_E4M3, but modules_to_not_convert of quantization_config lists it")
		} else {
			require.NoError(t, err)
		}
	}
	plain := configtest.Fixture(t, "v3/checkpoint")
	m := synthetic(t, plain)
	m["lm_head.weight"] = tensor.Tensor{DType: tensor.F8E4M3, Shape: []int{256, 64}}
	require.ErrorContains(t, weights.New(plain, m).Check(plain), "lm_head.weight: dtype F8_E4M3, but config.json has no quantization_config")
}

// TestEmbeddingInFP8 is refused: rows are looked up in it, and no product scales them.
func TestEmbeddingInFP8(t *testing.T) {
	c := configtest.Fixture(t, "v3-fp8/checkpoint")
	src := synthetic(t, c)
	src["model.embed_tokens.weight"] = tensor.Tensor{DType: tensor.F8E4M3, Shape: src["model.embed_tokens.weight"].Shape}
	require.ErrorContains(t, weights.New(c, src).Check(c), "1 findings: model.embed_tokens.weight: dtype F8_E4M3, which only matrix products take")
}

// TestPredictionLayersAreWholeOrAbsent: a layer that is present may lack only the copies of the
// main model's weights; absent layers are noted.
func TestPredictionLayersAreWholeOrAbsent(t *testing.T) {
	c := configtest.Parse(t, strings.Replace(tinyLatentConfig, "{", `{"num_nextn_predict_layers":2,`, 1))
	require.Equal(t, 2, c.NumNextNPredictLayers)
	layer := func(l int) string { return fmt.Sprintf("model.layers.%d.", c.NumHiddenLayers+l) }
	src := withMTP(t, c)
	require.NoError(t, weights.New(c, src).Check(c))
	require.Empty(t, table.FamilyOf(c).Notes(c, weights.New(c, src).Has))

	delete(src, layer(1)+"embed_tokens.weight")
	delete(src, layer(1)+"shared_head.head.weight")
	src[layer(1)+"self_attn.rotary_emb.inv_freq"] = tensor.Tensor{DType: tensor.F32, Shape: []int{2}}
	require.NoError(t, weights.New(c, src).Check(c))

	delete(src, layer(1)+"hnorm.weight")
	_, err := model.Load(c, src)
	require.ErrorContains(t, err, "1 findings: "+layer(1)+"hnorm.weight: missing, shape [")
	require.Empty(t, table.FamilyOf(c).Notes(c, weights.New(c, src).Has))

	maps.DeleteFunc(src, func(name string, _ tensor.Tensor) bool { return strings.HasPrefix(name, layer(1)) })
	require.NoError(t, weights.New(c, src).Check(c))
	require.Equal(t, []string{fmt.Sprintf("num_nextn_predict_layers is 2, but there are no tensors of multi-token prediction layers %d", c.NumHiddenLayers+1)}, table.FamilyOf(c).Notes(c, weights.New(c, src).Has))
	maps.DeleteFunc(src, func(name string, _ tensor.Tensor) bool { return strings.HasPrefix(name, layer(0)) })
	require.Equal(t, []string{"num_nextn_predict_layers is 2, but there are no tensors of multi-token prediction layers"}, table.FamilyOf(c).Notes(c, weights.New(c, src).Has))
}
