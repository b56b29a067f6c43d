package model_test

import (
	"context"
	"encoding/binary"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/stretchr/testify/require"

	"dsmoe/config"
	"dsmoe/config/configtest"
	"dsmoe/model"
	"dsmoe/model/tensor"
	"dsmoe/model/weights"
)

// predicting is a V3 of two layers and two prediction layers.
func predicting(t *testing.T) (*config.Config, memory) {
	c := configtest.Parse(t, `{"model_type":"deepseek_v3","num_nextn_predict_layers":2,`+latentFields+`"q_lora_rank":5}`)
	return c, withMTP(t, c)
}

// recorder is a listener that keeps stages, too.
type recorder struct {
	listener
	stages map[string]*model.Activation
}

func (r *recorder) Stage(name string, x *model.Activation) error {
	kept := *x
	kept.Shape, kept.Values = slices.Clone(x.Shape), slices.Clone(x.Values)
	r.stages[name] = &kept
	return nil
}

// recorded runs the decoder and some prediction layers.
func recorded(t *testing.T, m *model.DeepseekForCausalLM, in *model.Input, layers int, o model.Options) (*recorder, *model.Activation) {
	t.Helper()
	heard := &recorder{listener{idx: map[int][]int{}}, map[string]*model.Activation{}}
	plain := model.NewPlain(o)
	net := &model.Network[*model.Activation]{Model: m, Input: in, Options: o, Arithmetic: plain, Trace: heard}
	logits, err := net.ForwardMTP(context.Background(), layers)
	require.NoError(t, err)
	plain.Close(logits)
	return heard, logits
}

// TestPredictionIsTheFormula compares the logits of two prediction layers, and their choices of
// experts, with the formulas in float64, with their own embedding and head, and with the model's.
// The model's logits do not change.
func TestPredictionIsTheFormula(t *testing.T) {
	for _, copies := range []bool{true, false} {
		t.Run(fmt.Sprint("copies ", copies), func(t *testing.T) {
			c, src := predicting(t)
			given := maps.Clone(src)
			for k := range 2 {
				name := fmt.Sprintf("model.layers.%d.", c.NumHiddenLayers+k)
				if !copies {
					delete(given, name+"embed_tokens.weight")
					delete(given, name+"shared_head.head.weight")
					src[name+"embed_tokens.weight"], src[name+"shared_head.head.weight"] = src["model.embed_tokens.weight"], src["lm_head.weight"]
				}
			}
			m, err := model.Load(c, given)
			require.NoError(t, err)
			o := ask(t, c, src)
			o.t = t
			o.mask[2], o.mask[6] = 0, 0 // padding in between, which prediction layers do not know of
			heard, logits := recorded(t, m, o.input(), 2, model.Options{})
			want, err := m.Forward(context.Background(), o.input(), model.Options{})
			require.NoError(t, err)
			require.Equal(t, want.Values, logits.Values)
			o.idx = heard.idx
			hidden, _ := o.hidden()
			for k, rows := range o.predicted(hidden) {
				got := heard.stages[fmt.Sprintf("model.layers.%d.shared_head.head.output", c.NumHiddenLayers+k)]
				require.Equal(t, []int{2, 4 - k, c.VocabSize}, got.Shape)
				for row := range rows {
					require.InDeltaSlice(t, rows[row], float64s(got.Row(row)), 1e-5)
				}
			}
		})
	}
}

func float64s(x []float32) (y []float64) {
	for _, v := range x {
		y = append(y, float64(v))
	}
	return y
}

// TestPredictionLayersAreReadWhenRun: a plain forward pass does not read their weights, a pass with
// them reads each once, experts that were chosen among them; only layers that are present, in sequences long enough, run.
func TestPredictionLayersAreReadWhenRun(t *testing.T) {
	c, src := predicting(t)
	in := &model.Input{Batch: 1, Seq: 3, InputIDs: []int{1, 2, 3}}
	read, most := map[string]int{}, int64(0)
	m, err := model.Load(c, unviewed{src, 1 << 40, &most, func(name string) { read[name]++ }, new(int)})
	require.NoError(t, err)
	_, err = m.Forward(context.Background(), in, model.Options{})
	require.NoError(t, err)
	for name := range read {
		require.False(t, strings.HasPrefix(name, "model.layers.2.") || strings.HasPrefix(name, "model.layers.3."), name)
	}
	clear(read)
	recorded(t, m, in, 2, model.Options{})
	for name := range src {
		if strings.HasPrefix(name, "model.layers.") && !strings.Contains(name, ".mlp.experts.") {
			require.Equal(t, 1, read[name], name)
		}
		require.LessOrEqual(t, read[name], 1, name)
	}
	require.Nil(t, m.Model.MTP[1].EHProj.Weight.Data, "let go")

	fails := func(m *model.DeepseekForCausalLM, in *model.Input, layers int, want string) {
		net := &model.Network[*model.Activation]{Model: m, Input: in, Arithmetic: model.NewPlain(model.Options{})}
		_, err := net.ForwardMTP(context.Background(), layers)
		require.EqualError(t, err, want)
	}
	fails(m, in, 3, "3 prediction layers, the model has 2")
	fails(m, &model.Input{Batch: 1, Seq: 2, InputIDs: []int{1, 2}}, 2, "input: sequences of 2 tokens leave nothing to predict for 2 prediction layers")
	maps.DeleteFunc(src, func(name string, _ tensor.Tensor) bool { return strings.HasPrefix(name, "model.layers.2.") })
	m, err = model.Load(c, src)
	require.NoError(t, err)
	fails(m, in, 1, "1 prediction layers, the model has 0")
}

// TestPredictionPages: the weights of a prediction layer are fetched ahead when it runs, except its
// embedding, of which the layer reads only rows.
func TestPredictionPages(t *testing.T) {
	c, src := predicting(t)
	m, err := model.Load(c, src)
	require.NoError(t, err)
	in := &model.Input{Batch: 1, Seq: 3, InputIDs: []int{1, 2, 3}}
	fetched := func(layers int) (proj, embedding, expert bool) {
		p := &pages{map[*byte]int{}, map[*byte]int{}}
		recorded(t, m, in, layers, model.Options{Pages: p})
		has := func(w *model.Weight) bool { return p.needed[&w.Data[0]] > 0 }
		for e := range m.Model.MTP[0].MoE.Experts {
			expert = expert || has(&m.Model.MTP[0].MoE.Experts[e].UpProj.Weight)
		}
		return has(&m.Model.MTP[0].EHProj.Weight), has(&m.Model.MTP[0].EmbedTokens), expert
	}
	proj, embedding, expert := fetched(0)
	require.Equal(t, []bool{false, false, false}, []bool{proj, embedding, expert})
	proj, embedding, expert = fetched(1)
	require.Equal(t, []bool{true, false, true}, []bool{proj, embedding, expert})
}

// TestPredictionPositions: a prediction layer's first row is at position 1+k, which shows in
// the last bits only; angles rounded to BF16 make it plain.
func TestPredictionPositions(t *testing.T) {
	c, src := predicting(t)
	m, err := model.Load(c, src)
	require.NoError(t, err)
	in := &model.Input{Batch: 1, Seq: 5, InputIDs: []int{1, 7, 3, 3, 10}}
	o := model.Options{DType: tensor.BF16}
	heard, _ := recorded(t, m, in, 1, o)
	plain := model.NewPlain(o)
	defer plain.Close(nil)
	again := &recorder{listener{idx: map[int][]int{}}, map[string]*model.Activation{}}
	net := &model.Network[*model.Activation]{Model: m, Input: &model.Input{Batch: 1, Seq: 4, InputIDs: in.InputIDs[1:]}, Options: o, Arithmetic: plain, Trace: again}
	_, err = net.Layer(context.Background(), 2, heard.stages["model.layers.2.eh_proj.output"])
	require.NoError(t, err)
	const context = "model.layers.2.self_attn.o_proj.input"
	require.NotEqual(t, heard.stages[context].Values, again.stages[context].Values, "positions 0 … 3 in place of 1 … 4")
	require.InDeltaSlice(t, float64s(heard.stages[context].Values), float64s(again.stages[context].Values), 0.05)
}

// TestPredictionEmbeddingInFP8 is refused, as the model's is.
func TestPredictionEmbeddingInFP8(t *testing.T) {
	c := configtest.Fixture(t, "v3-fp8/checkpoint")
	src := withMTP(t, c)
	name := fmt.Sprintf("model.layers.%d.embed_tokens.weight", c.NumHiddenLayers)
	src[name] = tensor.Tensor{DType: tensor.F8E4M3, Shape: src[name].Shape}
	require.ErrorContains(t, weights.New(c, src).Check(c), "1 findings: "+name+": dtype F8_E4M3, which only matrix products take")
}

// TestPredictionInFP8: with weights of a prediction layer in FP8, in blocks with scales, every
// stage is to the bit what it is with their products in float32.
func TestPredictionInFP8(t *testing.T) {
	plainConfig, src := predicting(t)
	c, err := plainConfig.Override(map[string]jsontext.Value{"quantization_config": jsontext.Value(`{"quant_method":"fp8","weight_block_size":[4,4]}`)})
	require.NoError(t, err)
	apart := maps.Clone(src)
	for _, name := range []string{"eh_proj", "self_attn.q_b_proj", "mlp.shared_experts.up_proj", "mlp.experts.3.down_proj", "mlp.experts.5.gate_proj", "shared_head.head"} {
		name = "model.layers.2." + name + ".weight"
		rows, cols := src[name].Shape[0], src[name].Shape[1]
		w := tensor.Tensor{DType: tensor.F8E4M3, Shape: []int{rows, cols}}
		wide := tensor.Tensor{DType: tensor.F32, Shape: w.Shape}
		scales := tensor.Tensor{DType: tensor.F32, Shape: []int{(rows + 3) / 4, (cols + 3) / 4}}
		scale := func(i int) float32 { return float32(math.Ldexp(1, -3-i%3)) }
		for i := range scales.Shape[0] * scales.Shape[1] {
			scales.Data = binary.LittleEndian.AppendUint32(scales.Data, math.Float32bits(scale(i)))
		}
		for i := range rows * cols {
			w.Data = append(w.Data, byte(0x38+i%7)|byte(i%2<<7)) // ±(1 + i%7/8)
			v := (1 + float32(i%7)/8) * scale(i/cols/4*scales.Shape[1]+i%cols/4) * float32(1-i%2*2)
			wide.Data = binary.LittleEndian.AppendUint32(wide.Data, math.Float32bits(v))
		}
		src[name], src[name+"_scale_inv"], apart[name] = w, scales, wide
	}
	in := &model.Input{Batch: 2, Seq: 4, InputIDs: []int{1, 7, 3, 3, 10, 0, 5, 2}}
	quantised, err := model.Load(c, src)
	require.NoError(t, err)
	dequantised, err := model.Load(plainConfig, apart)
	require.NoError(t, err)
	got, _ := recorded(t, quantised, in, 2, model.Options{})
	want, _ := recorded(t, dequantised, in, 2, model.Options{})
	require.Equal(t, want.stages, got.stages)
	require.Contains(t, got.stages, "model.layers.3.shared_head.head.output")
}
