package engine

import (
	"encoding/binary"
	"errors"
	"io"
	"io/fs"
	"math/rand/v2"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"dsmoe/convert/checkpoint"
	"dsmoe/convert/format"
	"dsmoe/convert/internal/fixture"
	"dsmoe/convert/operation"
	"dsmoe/convert/plan"
	"dsmoe/convert/safetensors"
	"dsmoe/model/tensor"
)

// bytesSource is one weight file in memory.
type bytesSource []byte

// ReadFile reads from memory.
func (b bytesSource) ReadFile(_ int, dst []byte, offset int64) error {
	if copy(dst, b[offset:]) < len(dst) {
		return io.ErrUnexpectedEOF
	}
	return nil
}

// OpenOther is never called.
func (bytesSource) OpenOther(string) (fs.File, error) { return nil, errors.New("no such file") }

// Key is constant.
func (bytesSource) Key() (string, error) { return "memory", nil }

func (bytesSource) States() (map[string]string, error) { return nil, nil }

// planOf plans tensors whose segments are given.
func planOf(t *testing.T, tensors ...plan.Tensor) *plan.Plan {
	p := &plan.Plan{Hash: "test", Options: "test", Format: safetensors.Format()}
	var infos []tensor.Info
	for _, x := range tensors {
		infos = append(infos, x.Info())
	}
	shards, err := safetensors.Format().Shards(infos, 1<<40, format.Described{})
	require.NoError(t, err)
	l := shards[0].Layout
	p.Files = []plan.File{{Name: shards[0].Name, Size: l.Size(), Tensors: len(l.Infos)}}
	for i := range l.Infos {
		for _, x := range tensors {
			if x.Name == l.Infos[i].Name {
				x.Offset = l.Offsets[i]
				p.Tensors = append(p.Tensors, x)
			}
		}
	}
	p.Others = []plan.Other{{Name: checkpoint.ConfigName, Text: []byte(`{}`)}}
	return p
}

// TestViewsAreWritten: rows permuted, a matrix split per head with one half transposed,
// cast and dequantised on the way, are what picking them element by element gives; the
// proof accepts them, and finds any change.
func TestViewsAreWritten(t *testing.T) {
	const heads, nope, value, rank = 3, 16, 24, 640 // more than one window in all
	const rows = heads * (nope + value)
	r := rand.New(rand.NewPCG(1, 2))
	matrix := make([]uint16, rows*rank) // BF16
	var src []byte
	for i := range matrix {
		matrix[i] = uint16(0x3f80 + r.IntN(512)) // 1 … 4
		src = binary.LittleEndian.AppendUint16(src, matrix[i])
	}
	codes := int64(len(src)) // the same shape in FP8 follows, then its scales
	for range matrix {
		src = append(src, byte(0x30+r.IntN(32)))
	}
	blocks := tensor.Blocks{Rows: rows, Cols: rank, BlockRows: 32, BlockCols: 128}
	gridRows, gridCols := blocks.Grid()
	scales := int64(len(src))
	for range gridRows * gridCols {
		src = binary.LittleEndian.AppendUint16(src, uint16(0x3c00+r.IntN(512))) // F16
	}
	keys := &tensor.View{Shape: []int64{heads, rank, nope}, Stride: []int64{(nope + value) * rank, 1, rank}}
	permuted := &tensor.View{Shape: []int64{heads, (nope + value) / 2, 2, rank}, Stride: []int64{(nope + value) * rank, rank, (nope + value) / 2 * rank, 1}}

	cast, err := operation.NewCast(tensor.BF16, tensor.F32)
	require.NoError(t, err)
	dequantise, err := operation.NewDequantise(tensor.F8E4M3, tensor.F32, tensor.Scaling{Scales: tensor.F16, Blocks: blocks})
	require.NoError(t, err)
	tensorOf := func(name string, d tensor.DType, v *tensor.View, s plan.Segment) plan.Tensor {
		s.View, s.Bytes = v, d.Bytes(v.Len())
		return plan.Tensor{Name: name, DType: d, Shape: []int{int(v.Len())}, Segments: []plan.Segment{s}, Operations: []string{s.Operation.Name()}}
	}
	stored := plan.Segment{Tensor: "matrix", DType: tensor.BF16, End: codes}
	copied, widened, scaled := stored, stored, plan.Segment{Tensor: "codes", DType: tensor.F8E4M3, Offset: codes, End: scales - codes}
	copied.Operation, widened.Operation, scaled.Operation = operation.Copy{DType: tensor.BF16}, cast, dequantise
	scaled.Sides = []plan.Side{{Tensor: "scales", Offset: scales}}
	p := planOf(t,
		tensorOf("keys", tensor.BF16, keys, copied), tensorOf("keys widened", tensor.F32, keys, widened),
		tensorOf("permuted", tensor.BF16, permuted, copied), tensorOf("permuted widened", tensor.F32, permuted, widened),
		tensorOf("keys scaled", tensor.F32, keys, scaled), tensorOf("permuted scaled", tensor.F32, permuted, scaled))

	dst := filepath.Join(t.TempDir(), "out")
	_, err = Run(t.Context(), dst, p, bytesSource(src), inMemory())
	require.NoError(t, err)
	f, err := safetensors.Open(filepath.Join(dst, "model.safetensors"))
	require.NoError(t, err)
	defer f.Close()
	value32 := func(at int64) float32 { return wide(t, src[2*at:2*at+2], tensor.BF16) }
	scaled32 := func(at int64) float32 {
		block := at/rank/32*int64(gridCols) + at%rank/128
		return tensor.E4M3(src[codes+at]) * wide(t, src[scales+2*block:scales+2*block+2], tensor.F16)
	}
	for name, c := range map[string]struct {
		view *tensor.View
		want func(at int64) float32
	}{
		"keys": {keys, value32}, "keys widened": {keys, value32}, "permuted": {permuted, value32}, "permuted widened": {permuted, value32},
		"keys scaled": {keys, scaled32}, "permuted scaled": {permuted, scaled32},
	} {
		x, err := f.Tensor(name)
		require.NoError(t, err)
		got, err := x.Float32s(nil)
		require.NoError(t, err)
		want := make([]float32, c.view.Len())
		for i := range want {
			want[i] = c.want(c.view.Element(int64(i)))
		}
		require.Equal(t, want, got, name)
	}
	requireProof(t, p, bytesSource(src))
}

// wide returns the value of one element.
func wide(t *testing.T, data []byte, d tensor.DType) float32 {
	v, err := tensor.Tensor{DType: d, Shape: []int{1}, Data: data}.Float32s(nil)
	require.NoError(t, err)
	return v[0]
}

// TestMadeTensors: elements of any size are made in whole units, in tiles, and what was
// made can be proven.
func TestMadeTensors(t *testing.T) {
	fill := func(info tensor.Info, dst []byte, offset int64) error {
		for i := range dst {
			dst[i] = byte(offset) + byte(i) + info.Name[0]
		}
		return nil
	}
	s := plan.Synthetic{Config: []byte("{}"), Rule: "counting", Fill: fill, Tensors: []tensor.Info{
		{Name: "f6", DType: tensor.F6E2M3, Shape: []int{400}},
		{Name: "f4", DType: tensor.F4, Shape: []int{10, 100}},
		{Name: "f64", DType: tensor.F64, Shape: []int{300_000}},
		{Name: "bf16", DType: tensor.BF16, Shape: []int{33}},
		{Name: "empty", DType: tensor.F32, Shape: []int{0, 5}},
		{Name: "scalar", DType: tensor.F32, Shape: []int{}},
	}}
	p, err := plan.Synthesis(s, 0)
	require.NoError(t, err)
	settings, done := inMemory(), int64(0)
	settings.Unverified = true
	settings.Progress = func(_ string, n, of int64) { done = n }
	dst := filepath.Join(t.TempDir(), "out")
	_, err = Run(t.Context(), dst, p, bytesSource(nil), settings)
	require.NoError(t, err)
	require.EqualValues(t, 300+500+8*300_000+66+4, done)
	f, err := safetensors.Open(filepath.Join(dst, "model.safetensors"))
	require.NoError(t, err)
	defer f.Close()
	for info := range f.Tensors() {
		x, err := f.Tensor(info.Name)
		require.NoError(t, err)
		want := make([]byte, info.Bytes())
		require.NoError(t, fill(info, want, 0))
		require.Equal(t, string(want), string(x.Data), info.Name)
	}
	fixture.RequireEntries(t, filepath.Dir(dst), "out")

	boom := errors.New("boom")
	s.Fill = func(tensor.Info, []byte, int64) error { return boom }
	p, err = plan.Synthesis(s, 0)
	require.NoError(t, err)
	_, err = Run(t.Context(), filepath.Join(t.TempDir(), "out"), p, bytesSource(nil), settings)
	require.ErrorIs(t, err, boom)
	require.ErrorContains(t, err, "tensor ")
}
