package model_test

import (
	"context"
	"iter"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"dsmoe/config"
	"dsmoe/config/configtest"
	"dsmoe/model"
	"dsmoe/model/synth"
	"dsmoe/model/table"
	"dsmoe/model/tensor"
	"dsmoe/model/tensor/tensortest"
	"dsmoe/model/weights"
	"dsmoe/text/problem"
)

const tinyConfig = `{"model_type":"deepseek","vocab_size":11,"hidden_size":8,"intermediate_size":12,
"moe_intermediate_size":4,"num_hidden_layers":2,"num_attention_heads":2,"num_key_value_heads":1,
"n_shared_experts":2,"n_routed_experts":5,"num_experts_per_tok":2,"first_k_dense_replace":1}`

// memory is a source of tensors in memory, in the order of their names.
type memory map[string]tensor.Tensor

func (m memory) Tensors() iter.Seq[tensor.Info] {
	return func(yield func(tensor.Info) bool) {
		for _, name := range slices.Sorted(maps.Keys(m)) {
			if !yield(tensor.Info{Name: name, DType: m[name].DType, Shape: m[name].Shape}) {
				return
			}
		}
	}
}

func (m memory) Tensor(name string) (tensor.Tensor, error) { return m[name], nil }

// synthetic is a source of a config's synthetic weights that can be changed.
func synthetic(t *testing.T, c *config.Config) memory {
	t.Helper()
	s, m := synth.New(c, 1), memory{}
	for i := range s.Tensors() {
		w, err := s.Tensor(i.Name)
		require.NoError(t, err)
		m[i.Name] = w
	}
	return m
}

// TestLoadListsEveryMismatch: all that is missing, wrong or unexpected, at once.
func TestLoadListsEveryMismatch(t *testing.T) {
	c := configtest.Parse(t, tinyConfig)
	src := synthetic(t, c)
	const experts = "model.layers.1.mlp.experts."
	delete(src, experts+"3.up_proj.weight")
	delete(src, "model.norm.weight")
	src["model.layers.0.self_attn.q_proj.weight"] = tensor.Tensor{DType: tensor.BF16, Shape: []int{8, 4}}
	src["lm_head.weight"] = tensor.Tensor{DType: tensor.F64, Shape: []int{11, 8}}
	src[experts+"5.up_proj.weight"] = src[experts+"4.up_proj.weight"]
	src["model.layers.2.input_layernorm.weight"] = src["model.layers.1.input_layernorm.weight"]

	_, err := model.Load(c, src)
	var mismatch *weights.MismatchError
	require.ErrorAs(t, err, &mismatch)
	require.Equal(t, []problem.Problem{
		{Tensor: experts + "3.up_proj.weight", Cause: "missing, shape [4 8] is expected"},
		{Tensor: "model.norm.weight", Cause: "missing, shape [8] is expected"},
		{Tensor: "model.layers.0.self_attn.q_proj.weight", Cause: "shape [8 4], config says [8 8]"},
		{Tensor: "lm_head.weight",
			Cause: "dtype F64, the model computes with F32, F16, BF16, codes with scales and the blocks of GGUF"},
		{Tensor: experts + "5.up_proj.weight", Cause: "unexpected, shape [4 8]"},
		{Tensor: "model.layers.2.input_layernorm.weight", Cause: "unexpected, shape [8]"},
	}, mismatch.Problems())
	require.NotContains(t, err.Error(), "\n")
}

// TestMismatchMessageIsBounded: twenty findings, then how many more.
func TestMismatchMessageIsBounded(t *testing.T) {
	_, err := model.Load(configtest.Parse(t, tinyConfig), memory{})
	require.Contains(t, err.Error(), "37 findings")
	require.Contains(t, err.Error(), "; and 17 more")
}

// TestIgnoredTensors are accepted: buffers of old checkpoints, and the stored head of
// a model that ties it to the embedding.
func TestIgnoredTensors(t *testing.T) {
	c := configtest.Parse(t, strings.Replace(tinyConfig, "{", `{"tie_word_embeddings":true,`, 1))
	src := synthetic(t, c)
	require.NotContains(t, src, "lm_head.weight")
	src["lm_head.weight"] = src["model.embed_tokens.weight"]
	src["model.layers.1.self_attn.rotary_emb.inv_freq"] = tensor.Tensor{DType: tensor.F32, Shape: []int{2}}
	m, err := model.Load(c, src)
	require.NoError(t, err)
	require.Equal(t, "model.embed_tokens.weight", m.LMHead.Weight.Name)
}

// TestForwardRefusesBadInput before it computes anything.
func TestForwardRefusesBadInput(t *testing.T) {
	c := configtest.Parse(t, tinyConfig)
	m, err := model.Load(c, synthetic(t, c))
	require.NoError(t, err)
	ctx := context.Background()
	for want, in := range map[string]model.Input{
		"input_ids[1, 0]: 11 is not in the vocabulary of 11": {Batch: 2, Seq: 2, InputIDs: []int{0, 1, 11, 2}},
		"input_ids[0, 1]: -1 is not in the vocabulary":       {Batch: 1, Seq: 2, InputIDs: []int{0, -1}},
		"3 ids and 0 mask values for a batch of 1 × 2":       {Batch: 1, Seq: 2, InputIDs: []int{0, 1, 2}},
		"2 ids and 1 mask values":                            {Batch: 1, Seq: 2, InputIDs: []int{0, 1}, AttentionMask: []int{1}},
		"0 ids and 0 mask values for a batch of 0 × 0":       {},
	} {
		_, err := m.Forward(ctx, &in, model.Options{})
		require.ErrorContains(t, err, want)
	}
	good := &model.Input{Batch: 1, Seq: 2, InputIDs: []int{0, 1}}
	_, err = m.Forward(ctx, good, model.Options{DType: tensor.I64})
	require.ErrorContains(t, err, "not F32, BF16 or F16")
	done, cancel := context.WithCancel(ctx)
	cancel()
	_, err = m.Forward(done, good, model.Options{})
	require.ErrorIs(t, err, context.Canceled)
	logits, err := m.Forward(ctx, good, model.Options{})
	require.NoError(t, err)
	require.Equal(t, []int{1, 2, 11}, logits.Shape)
}

// TestWeightsAreCastToTheComputeDType: weights that BF16 cannot hold are rounded to it
// first, as model.to(torch.bfloat16) does.
func TestWeightsAreCastToTheComputeDType(t *testing.T) {
	c := configtest.Parse(t, tinyConfig)
	wide, narrow := memory{}, memory{}
	for name, w := range synthetic(t, c) {
		values, err := w.Float32s(nil)
		require.NoError(t, err)
		for i := range values {
			values[i] *= 1.0007
		}
		wide[name] = tensortest.New(t, tensor.F32, w.Shape, values)
		narrow[name] = tensortest.New(t, tensor.BF16, w.Shape, values)
	}
	in := &model.Input{Batch: 1, Seq: 5, InputIDs: []int{1, 2, 3, 4, 5}}
	var logits [2][]float32
	for i, src := range []memory{wide, narrow} {
		m, err := model.Load(c, src)
		require.NoError(t, err)
		y, err := m.Forward(context.Background(), in, model.Options{DType: tensor.BF16})
		require.NoError(t, err)
		logits[i] = y.Values
	}
	require.Equal(t, logits[1], logits[0])
}

// TestBlockTypes: a model whose matrices are blocks computes what one does that has their
// numbers in float32, few tokens and many.
func TestBlockTypes(t *testing.T) {
	c := configtest.Parse(t, `{"model_type":"deepseek","vocab_size":16,"hidden_size":256,"intermediate_size":256,
"moe_intermediate_size":256,"num_hidden_layers":2,"num_attention_heads":2,"num_key_value_heads":1,
"n_shared_experts":1,"n_routed_experts":3,"num_experts_per_tok":2,"first_k_dense_replace":1}`)
	weights := synthetic(t, c)
	for _, d := range []tensor.DType{tensor.Q4_0, tensor.Q8_0, tensor.Q5_K, tensor.Q6_K} {
		q, err := tensor.NewQuantiser(d)
		require.NoError(t, err)
		blocks, wide := memory{}, memory{}
		for name, w := range weights {
			values, err := w.Float32s(nil)
			require.NoError(t, err)
			if len(w.Shape) == 2 {
				w = tensor.Tensor{DType: d, Shape: w.Shape, Data: make([]byte, d.Bytes(int64(len(values))))}
				q.Convert(w.Data, values, &tensor.Loss{})
				values, err = w.Float32s(nil)
				require.NoError(t, err)
			}
			blocks[name], wide[name] = w, tensortest.New(t, tensor.F32, w.Shape, values)
		}
		for _, o := range []model.Options{{}, {Accumulate: model.Float32}} {
			for _, seq := range []int{1, 14} {
				in := &model.Input{Batch: 1, Seq: seq, InputIDs: []int{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14}[:seq]}
				var logits [2][]float32
				for i, src := range []memory{blocks, wide} {
					m, err := model.Load(c, src)
					require.NoError(t, err)
					y, err := m.Forward(t.Context(), in, o)
					require.NoError(t, err)
					logits[i] = y.Values
				}
				require.Equal(t, logits[1], logits[0], d)
			}
		}
	}
	c = configtest.Parse(t, tinyConfig)
	weights = synthetic(t, c)
	weights["lm_head.weight"] = tensor.Tensor{DType: tensor.Q4_K, Shape: []int{11, 8}}
	_, err := model.Load(c, weights)
	require.ErrorContains(t, err, "lm_head.weight: rows of shape [11 8] are no whole blocks of 256 elements of Q4_K")
}

// TestTopK: largest first, the lower expert among equals, as sets stable under order.
func TestTopK(t *testing.T) {
	require.Equal(t, []int{1, 2, 0}, model.TopK([]float32{0.1, 0.4, 0.4, 0.1}, 3))
	require.Equal(t, []int{0, 1, 2}, model.TopK([]float32{0.25, 0.25, 0.25, 0.25}, 3))
}

// TestMismatchesCutNames: a name of any length takes a line that can be read.
func TestMismatchesCutNames(t *testing.T) {
	long := strings.Repeat("x", 1<<20)
	e := &weights.MismatchError{Missing: []table.Slot{{Name: long}}, Unexpected: []tensor.Info{{Name: long}},
		Wrong: []weights.Wrong{{Got: tensor.Info{Name: long}}, {Got: tensor.Info{Name: long}, Cause: "odd"}}}
	require.Len(t, e.Problems(), 4)
	require.Less(t, len(e.Error()), 1500)
}
