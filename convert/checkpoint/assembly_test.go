package checkpoint_test

import (
	"math"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"dsmoe/config"
	"dsmoe/convert"
	"dsmoe/convert/checkpoint"
	"dsmoe/convert/internal/fixture"
	"dsmoe/convert/plan"
	"dsmoe/model/synth"
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
		_, err = convert.Run(t.Context(), dst, want, convert.Options{Options: plan.Options{Format: "gguf", NoVocab: true, DType: tensor.F32, MaxShardBytes: 200_000}})
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

// synthetic writes a checkpoint of v3's config with a change.
func synthetic(t *testing.T, old, replacement string) string {
	document := strings.Replace(fixture.Read(t, fixture.Path(t, "v3/checkpoint"), checkpoint.ConfigName), old, replacement, 1)
	require.Contains(t, document, replacement)
	c, err := config.Parse(strings.NewReader(document))
	require.NoError(t, err)
	source := synth.New(c, 3)
	p, err := plan.Synthesis(plan.Synthetic{Tensors: slices.Collect(source.Tensors()), Config: []byte(document), Rule: "seed 3", Fill: source.Fill}, 0)
	require.NoError(t, err)
	dst := filepath.Join(t.TempDir(), "made")
	_, err = convert.Synthesise(t.Context(), dst, p, convert.Settings{})
	require.NoError(t, err)
	return dst
}

// TestHalfSteps: a decoded number is no further from the one that was quantised than half a step
// of the dtype that its part is stored in, and half steps are not larger than they must be.
func TestHalfSteps(t *testing.T) {
	wideHeads := synthetic(t, `"qk_nope_head_dim": 24`, `"qk_nope_head_dim": 32`) // a head's keys are a block, across the weight
	for name, from := range map[string]string{fixture.Path(t, "v2-lite/checkpoint"): "F16 and Q8_0", fixture.Path(t, "v3/checkpoint"): "F16 and Q8_0", wideHeads: "Q8_0"} {
		src, err := checkpoint.Open(name)
		require.NoError(t, err)
		want, dst := filepath.Join(t.TempDir(), "wide"), filepath.Join(t.TempDir(), "q8")
		_, err = convert.Run(t.Context(), want, src, convert.Options{Options: plan.Options{DType: tensor.F32}})
		require.NoError(t, err)
		_, err = convert.Run(t.Context(), dst, src, convert.Options{Options: plan.Options{Format: "gguf", NoVocab: true, Mixture: "q8_0"}})
		require.NoError(t, err)
		wide, err := checkpoint.Open(want)
		require.NoError(t, err)
		got, err := checkpoint.Open(dst)
		require.NoError(t, err)
		decoded := 0
		for info := range got.Tensors() {
			if got.DecodedFrom(info.Name) == "" {
				continue
			}
			decoded++
			require.Equal(t, from, got.DecodedFrom(info.Name), name)
			steps, err := got.HalfSteps(info.Name)
			require.NoError(t, err)
			require.Len(t, steps, info.Len())
			before, after := make([]byte, 4*info.Len()), make([]byte, 4*info.Len())
			require.NoError(t, wide.ReadAt(info.Name, before, 0))
			require.NoError(t, got.ReadAt(info.Name, after, 0))
			x, err := tensor.Tensor{DType: tensor.F32, Shape: info.Shape, Data: before}.Float32s(nil)
			require.NoError(t, err)
			y, err := tensor.Tensor{DType: tensor.F32, Shape: info.Shape, Data: after}.Float32s(nil)
			require.NoError(t, err)
			most := 0.0
			for i, h := range steps {
				off := math.Abs(float64(x[i]) - float64(y[i]))
				require.LessOrEqual(t, off, float64(h)*1.01, "%s %s element %d", name, info.Name, i)
				most = max(most, off/float64(h))
			}
			require.Greater(t, most, 0.9, "%s %s", name, info.Name)
		}
		require.Positive(t, decoded, name)
		for _, c := range []*checkpoint.Checkpoint{src, wide, got} {
			require.NoError(t, c.Close())
		}
	}
}
