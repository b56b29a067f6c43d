package operation

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"dsmoe/model/tensor"
)

// TestRepack: blocks of ggml stand for the numbers of the codes; a scale that they cannot hold is refused,
// and a changed byte is found, unless it makes one zero of the other.
func TestRepack(t *testing.T) {
	b := tensor.Blocks{Rows: 2, Cols: 64, BlockRows: 1, BlockCols: 64}
	for _, c := range []struct {
		from, to, scales tensor.DType
		sides            []byte // two scales
		refused          bool
	}{
		{tensor.INT4, tensor.Q4_0, tensor.BF16, []byte{0x81, 0x3c, 0x80, 0xbf}, false}, // 0.0157…, -1
		{tensor.INT4, tensor.Q4_0, tensor.BF16, []byte{0x80, 0x33, 0, 0}, false},       // the least of F16, 0
		{tensor.INT4, tensor.Q4_0, tensor.BF16, []byte{0xc0, 0x33, 0, 0}, true},        // half of that more
		{tensor.INT4, tensor.Q4_0, tensor.BF16, []byte{0x80, 0x47, 0, 0}, true},        // 65536
		{tensor.INT4, tensor.Q4_0, tensor.BF16, []byte{0xc0, 0x7f, 0, 0}, true},        // NaN
		{tensor.F4, tensor.MXFP4, tensor.F8E8M0, []byte{0, 1}, false},
		{tensor.F4, tensor.MXFP4, tensor.F8E8M0, []byte{127, 252}, false},
		{tensor.F4, tensor.MXFP4, tensor.F8E8M0, []byte{127, 254}, true}, // times 6 is infinite
		{tensor.F4, tensor.MXFP4, tensor.F8E8M0, []byte{255, 127}, true},
	} {
		s := tensor.Scaling{Scales: c.scales, Blocks: b}
		require.Equal(t, c.to, RepackTo(c.from, s))
		r := &Repack{From: c.from, To: c.to, Scaling: s}
		in := Input{Data: random(64), Sides: [][]byte{c.sides}}
		_, size := c.to.Block()
		out := make([]byte, 4*size)
		err := r.Apply(out, in, &tensor.Loss{})
		if c.refused {
			var e *scaleError
			require.ErrorAs(t, err, &e)
			require.ErrorContains(t, err, "; --type bf16 decodes the codes")
			continue
		}
		require.NoError(t, err)
		require.NoError(t, r.Prove(out, in))
		numbers := make([]float32, 128)
		grid, err := s.Grid(in.Sides, 0)
		require.NoError(t, err)
		c.from.Form().Widen(numbers, in.Data, 0, b, grid)
		got, err := tensor.Tensor{DType: c.to, Shape: []int{2, 64}, Data: out}.Float32s(nil)
		require.NoError(t, err)
		for i := range got {
			require.Equal(t, math.Float32bits(numbers[i]+0), math.Float32bits(got[i]+0), "element %d", i)
		}
		for i := range out {
			out[i] ^= 0x10
			changed, err := tensor.Tensor{DType: c.to, Shape: []int{2, 64}, Data: out}.Float32s(nil)
			require.NoError(t, err)
			same := true
			for k := range got {
				same = same && got[k] == changed[k]
			}
			require.Equal(t, same, r.Prove(out, in) == nil, "byte %d", i)
			out[i] ^= 0x10
		}
	}
	for _, s := range []tensor.Scaling{{Scales: tensor.BF16, Zeros: tensor.INT4, Blocks: b}, {Scales: tensor.F8E4M3, Second: "divided", Blocks: b},
		{Scales: tensor.BF16, Blocks: tensor.Blocks{Rows: 2, Cols: 64, BlockRows: 1, BlockCols: 16}}} {
		require.Equal(t, tensor.Invalid, RepackTo(tensor.INT4, s))
	}
	require.Equal(t, tensor.Invalid, RepackTo(tensor.F4, tensor.Scaling{Scales: tensor.F32, Blocks: b}))
}
