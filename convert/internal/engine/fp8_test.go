package engine

import (
	"errors"
	"math/rand/v2"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"dsmoe/convert/internal/fixture"
	"dsmoe/convert/operation"
	"dsmoe/convert/plan"
	"dsmoe/convert/safetensors"
	"dsmoe/model/tensor"
)

// The rows of the matrices of fp8Plan, and their columns: of several tiles and rows longer than a
// unit, and of one that is stored transposed. Both have partial blocks at both edges.
const fp8Rows, fp8Cols, turnedCols = 150, 17000, 700

// fp8Plan plans FP8 of two BF16 matrices, of the first in two segments that meet within a block.
func fp8Plan(t *testing.T) (*plan.Plan, bytesSource) {
	src := make([]byte, 2*fp8Rows*fp8Cols)
	rand.NewChaCha8([32]byte{3, 4}).Read(src)
	for i := 1; i < len(src); i += 2 {
		src[i] = src[i]&0x83 | 0x3c
	}
	segment := func(op operation.Operation, first, n int64) plan.Segment {
		return plan.Segment{Tensor: "x", DType: tensor.BF16, Offset: 2 * first, Begin: 2 * first, End: 2 * (first + n), Bytes: n, Operation: op}
	}
	wide, wideScales := fp8Operations(t, fp8Cols)
	turned, turnedScales := fp8Operations(t, turnedCols)
	view := segment(turned, 0, fp8Rows*turnedCols)
	view.View = &tensor.View{Shape: []int64{fp8Rows, turnedCols}, Stride: []int64{1, fp8Rows}}
	const half = 77 * fp8Cols
	tensors := append(fp8Tensors("a", wideScales, segment(wide, 0, half), segment(wide, half, fp8Rows*fp8Cols-half)),
		fp8Tensors("b", turnedScales, view)...)
	p := planOf(t, tensors...)
	for i := range p.Tensors {
		for j := range p.Tensors {
			if p.Tensors[i].Name == p.Tensors[j].Name+"_scale_inv" {
				p.Tensors[i].Codes = &p.Tensors[j]
			}
		}
	}
	return p, src
}

func fp8Operations(t *testing.T, cols int) (*operation.Encode, *operation.Scales) {
	b := tensor.Blocks{Rows: fp8Rows, Cols: cols, BlockRows: 128, BlockCols: 128}
	encode, err := operation.NewEncode(tensor.BF16, tensor.F8E4M3, b, false)
	require.NoError(t, err)
	scales, err := operation.NewScales(tensor.BF16, tensor.F8E4M3, b, false)
	require.NoError(t, err)
	return encode, scales
}

// fp8Tensors are the codes of segments and their scales.
func fp8Tensors(name string, op *operation.Scales, segments ...plan.Segment) []plan.Tensor {
	rows, cols := op.Blocks.Grid()
	grid := plan.Segment{DType: tensor.BF16, Sides: []plan.Side{{Tensor: "x"}}, Bytes: int64(4 * rows * cols), Operation: op}
	return []plan.Tensor{
		{Name: name, DType: tensor.F8E4M3, Shape: []int{op.Blocks.Rows, op.Blocks.Cols}, Segments: segments, Operations: []string{"codes"}},
		{Name: name + "_scale_inv", DType: tensor.F32, Shape: []int{rows, cols}, Segments: []plan.Segment{grid}, Operations: []string{"scales"}},
	}
}

// TestFP8Tensors: codes and scales are those of the whole matrix at once, whatever memory and
// goroutines there are, and so are the sums of their errors.
func TestFP8Tensors(t *testing.T) {
	t.Parallel()
	p, src := fp8Plan(t)
	var first []LostTensor
	var whole [][]byte
	for i := range p.Tensors {
		whole = append(whole, wholeFP8(t, &p.Tensors[i], src))
	}
	for _, s := range []Settings{{IO: 1, Compute: 1, Memory: minMemory}, {IO: 3, Compute: 2}, {IO: 2, Unverified: true}} {
		s.Disk = inMemory().Disk
		dst := filepath.Join(t.TempDir(), "out")
		done, err := Run(t.Context(), dst, p, src, s)
		require.NoError(t, err)
		if first == nil {
			first = done.Lost
			require.Len(t, first, 2)
		}
		require.Equal(t, first, done.Lost)
		f, err := safetensors.Open(filepath.Join(dst, p.Files[0].Name))
		require.NoError(t, err)
		for i := range p.Tensors {
			x, err := f.Tensor(p.Tensors[i].Name)
			require.NoError(t, err)
			require.True(t, string(whole[i]) == string(x.Data), p.Tensors[i].Name)
		}
		require.NoError(t, f.Close())
	}
}

// wholeFP8 returns the bytes of a tensor, made from the whole matrix at once.
func wholeFP8(t *testing.T, x *plan.Tensor, src []byte) []byte {
	codes := x
	if x.Codes != nil {
		codes = x.Codes
	}
	op := x.Segments[0].Operation.(operation.Blockwise)
	b := op.Grid()
	data := make([]byte, 2*b.Rows*b.Cols)
	for i := range len(data) / 2 {
		at := int64(i)
		if v := codes.Segments[0].View; v != nil {
			at = v.Element(at)
		}
		copy(data[2*i:], src[2*at:2*at+2])
	}
	rows, cols := b.Grid()
	in := operation.Input{Data: data, Largest: make([]float32, rows*cols)}
	for r := range b.Rows {
		op.MagnitudesByDefinition(in.Largest[r/128*cols:][:cols], data[2*r*b.Cols:][:2*b.Cols], int64(r*b.Cols))
	}
	out := make([]byte, x.Bytes())
	require.NoError(t, op.Apply(out, in, &tensor.Loss{}))
	return out
}

// TestFP8IsProven: a code or a scale that is off by one, or of another source, is found by reading it again.
func TestFP8IsProven(t *testing.T) {
	t.Parallel()
	p, src := fp8Plan(t)
	e := begun(t, filepath.Join(t.TempDir(), "out"), p, src, inMemory())
	w := onlyWorker(e)
	for i := range p.Tensors {
		require.NoError(t, w.writeSpan(t.Context(), i))
		written := e.State(i)
		path, at := e.out.PathOf(0), p.Tensors[i].Offset+p.Tensors[i].Bytes()*3/4
		fixture.Flip(t, path, at)
		require.ErrorContains(t, w.proveSpan(t.Context(), i), "but the source gives")
		require.Zero(t, e.State(i).Done)
		fixture.Flip(t, path, at)
		e.Mark(i, written)
		require.NoError(t, w.proveSpan(t.Context(), i))
		require.Equal(t, written.Done, e.State(i).Done)
		other := bytesSource(append([]byte(nil), src...))
		other[len(other)/64|1] = 0x7e // far larger than all others: its block's scale
		e.source = other
		require.ErrorContains(t, w.proveSpan(t.Context(), i), "but the source gives")
		e.source = src
	}
}

// TestFP8AfterCrash_every: a run that crashed goes on to the same bytes and the same manifest.
func TestFP8AfterCrash_every(t *testing.T) {
	t.Parallel()
	p, src := fp8Plan(t)
	run := func(dst string, n int64) (calls int64, err error) {
		d, count := crash(n, errors.New("boom"))
		_, err = Run(t.Context(), dst, p, src, Settings{Disk: d, IO: 2})
		return count.Load(), err
	}
	whole := targetPath(t, "beside")
	calls, err := run(whole, 1<<60)
	require.NoError(t, err)
	for n := int64(0); n < calls; n += crashStep(t, calls, 3) {
		dst := targetPath(t, "beside")
		if _, err := run(dst, n); err == nil || present(dst) { // finished
			break
		}
		_, err := run(dst, 1<<60)
		require.NoError(t, err, n)
		require.Equal(t, fixture.Sums(t, whole), fixture.Sums(t, dst), n)
	}
}
