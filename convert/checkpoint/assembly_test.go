package checkpoint_test

import (
	"math/rand/v2"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"dsmoe/convert"
	"dsmoe/convert/checkpoint"
	"dsmoe/convert/internal/fixture"
	"dsmoe/convert/plan"
	"dsmoe/model/tensor"
)

// TestPartsAreRead: any run of elements of any tensor of a GGUF file, in order, permuted or
// put together of two, is that of the checkpoint that it was made of; what is in order can be
// viewed.
func TestPartsAreRead(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for _, name := range []string{"v1-base", "v3"} {
		want, err := checkpoint.Open(fixture.Path(t, name+"/checkpoint"))
		require.NoError(t, err)
		dst := filepath.Join(t.TempDir(), "out")
		_, err = convert.Run(t.Context(), dst, want, convert.Options{Options: plan.Options{Format: "gguf", DType: tensor.F32, MaxShardBytes: 200_000}})
		require.NoError(t, err)
		got, err := checkpoint.Open(dst)
		require.NoError(t, err)
		scattered := 0
		for info := range got.Tensors() {
			stored, err := want.Tensor(info.Name)
			require.NoError(t, err)
			values, err := stored.Float32s(nil)
			require.NoError(t, err)
			for range 20 {
				from := r.IntN(info.Len())
				n := 1 + r.IntN(min(info.Len()-from, 5000))
				data := make([]byte, 4*n)
				require.NoError(t, got.ReadAt(info.Name, data, int64(4*from)))
				read, err := tensor.Tensor{DType: tensor.F32, Shape: []int{n}, Data: data}.Float32s(nil)
				require.NoError(t, err)
				require.Equal(t, values[from:from+n], read, "%s from %d", info.Name, from)
			}
			view, err := got.Tensor(info.Name)
			if !got.HasView(info.Name) {
				scattered++
				require.ErrorContains(t, err, "is stored in another order, which has no view")
				continue
			}
			require.NoError(t, err)
			all, err := view.Float32s(nil)
			require.NoError(t, err)
			require.Equal(t, values, all, info.Name)
		}
		require.Equal(t, map[string]int{"v1-base": 8, "v3": 5}[name], scattered)
		require.ErrorContains(t, got.ReadAt("nothing", nil, 0), "tensor nothing: not in this checkpoint")
		_, err = got.Tensor("nothing")
		require.ErrorContains(t, err, "tensor nothing: not in this checkpoint")
		_, err = got.Parts("nothing")
		require.Error(t, err)
		require.NoError(t, got.Close())
		require.NoError(t, want.Close())
	}
}
