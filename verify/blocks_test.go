package verify_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"dsmoe/model/tensor"
	"dsmoe/verify"
)

// quantised is a checkpoint whose matrices of rows of whole blocks are in a block type, the
// router aside, as GGUF has them.
func quantised(t *testing.T, src altered, d tensor.DType) altered {
	q, err := tensor.NewQuantiser(d)
	require.NoError(t, err)
	elements, _ := d.Block()
	out := altered{Source: src, tensors: map[string]tensor.Tensor{}}
	for info := range src.Tensors() {
		w, err := src.Tensor(info.Name)
		require.NoError(t, err)
		if len(w.Shape) != 2 || w.Shape[1]%elements != 0 || strings.HasSuffix(info.Name, ".mlp.gate.weight") {
			continue
		}
		values, err := w.Float32s(nil)
		require.NoError(t, err)
		w = tensor.Tensor{DType: d, Shape: w.Shape, Data: make([]byte, d.Bytes(int64(len(values))))}
		q.Convert(w.Data, values, &tensor.Loss{})
		out.tensors[info.Name] = w
	}
	return out
}

// TestQuantisedPacks: what quantising did to the weights is the explanation, whoever did it;
// a weight of which a row is wrong beside that is none.
func TestQuantisedPacks(t *testing.T) {
	for _, pack := range []string{"v1-base/golden-f32", "v1-massive/golden-bf16"} {
		c, p := open(t, pack)
		for _, d := range []tensor.DType{tensor.Q8_0, tensor.Q4_0} {
			src := quantised(t, altered{Source: c}, d)
			require.NotEmpty(t, src.tensors)
			r := run(t, c.Config, src, p, verify.Options{Undiagnosed: true})
			require.NotNil(t, r.Rounding, "%s %s", pack, d)
			require.Equal(t, []string{"quantise " + d.String()}, r.Rounding.Operations)
			require.Equal(t, len(src.tensors), r.Rounding.Weights)
			require.NotEmpty(t, r.Rounding.Stages)
			require.NotEqual(t, verify.Fail, r.Verdict, "%s %s: %v", pack, d, r.FirstDivergence)

			const name = "model.layers.0.self_attn.v_proj.weight"
			w := src.tensors[name]
			w.Data = append([]byte{}, w.Data...)
			row := len(w.Data) / w.Shape[0]
			copy(w.Data[row:2*row], w.Data[2*row:3*row])
			src.tensors[name] = w
			r = run(t, c.Config, src, p, verify.Options{Undiagnosed: true})
			require.Equal(t, verify.Fail, r.Verdict, "%s %s", pack, d)
		}
	}
}
