package engine

import (
	"context"
	"errors"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"dsmoe/convert/internal/fixture"
	"dsmoe/convert/internal/progress"
	"dsmoe/convert/operation"
	"dsmoe/convert/plan"
	"dsmoe/convert/safetensors"
	"dsmoe/model/tensor"
)

// The source of quantisedPlan: numbers in BF16, and a matrix of FP8.
const many, rows, cols = 5 << 19, 256, 1280 // many numbers have blocks of more than two tiles

// quantisedPlan plans blocks of BF16, and of a transposed matrix of FP8, whose elements are gathered
// one by one, as bytes of a safetensors file. Beside it are the source and the first operation.
func quantisedPlan(t *testing.T) (*plan.Plan, bytesSource, *operation.Quantise) {
	r := rand.NewChaCha8([32]byte{1, 2})
	src := make([]byte, 2*many+rows*cols)
	r.Read(src)
	for i := range src {
		if i < 2*many {
			if i%2 == 1 {
				src[i] = src[i]&0x81 | 0x3c
			}
		} else if src[i]&0x7f == 0x7f {
			src[i] = 0 // NaN of FP8
		}
	}
	blocks := tensor.Blocks{Rows: rows, Cols: cols, BlockRows: 96, BlockCols: 128}
	gridRows, gridCols := blocks.Grid()
	scales := int64(len(src))
	for range gridRows * gridCols {
		src = append(src, byte(r.Uint64()), 0x3c) // BF16
	}
	plain, err := operation.NewQuantise(tensor.BF16, tensor.Q8_0, tensor.Scaling{})
	require.NoError(t, err)
	scaled, err := operation.NewQuantise(tensor.F8E4M3, tensor.Q4_K, tensor.Scaling{Scales: tensor.BF16, Blocks: blocks})
	require.NoError(t, err)
	view := &tensor.View{Shape: []int64{cols, rows}, Stride: []int64{1, cols}}
	tensorOf := func(name string, d tensor.DType, n int64, s plan.Segment) plan.Tensor {
		s.Bytes = d.Bytes(n)
		return plan.Tensor{Name: name, DType: tensor.U8, Shape: []int{int(s.Bytes)}, Segments: []plan.Segment{s}, Operations: []string{s.Operation.Name()}}
	}
	return planOf(t,
		tensorOf("plain", tensor.Q8_0, many, plan.Segment{Tensor: "x", DType: tensor.BF16, End: 2 * many, Operation: plain}),
		tensorOf("turned", tensor.Q4_K, rows*cols, plan.Segment{Tensor: "y", DType: tensor.F8E4M3, Offset: 2 * many, End: rows * cols,
			View: view, Sides: []plan.Side{{Tensor: "scales", Offset: scales}}, Operation: scaled})), src, plain
}

// TestQuantisedTensors: blocks do not depend on memory and goroutines, and neither do the sums
// of their errors; the proof accepts them.
func TestQuantisedTensors(t *testing.T) {
	t.Parallel()
	planned, src, plain := quantisedPlan(t)
	want, lost := make([]byte, tensor.Q8_0.Bytes(many)), tensor.Loss{}
	require.NoError(t, plain.Apply(want, operation.Input{Data: src[:2*many]}, &lost))
	var first []LostTensor
	for _, s := range []Settings{{IO: 1, Compute: 1, Memory: minMemory}, {IO: 3, Compute: 2}} {
		s.Disk = inMemory().Disk
		dst := filepath.Join(t.TempDir(), "out")
		done, err := Run(t.Context(), dst, planned, src, s)
		require.NoError(t, err)
		require.Len(t, done.Lost, 2)
		if first == nil {
			first = done.Lost
			require.Equal(t, LostTensor{"plain", lost}, first[0])
			require.InDelta(t, 0.07, first[1].RelRMS(), 0.03)
		}
		require.Equal(t, first, done.Lost)
		f, err := safetensors.Open(filepath.Join(dst, planned.Files[0].Name))
		require.NoError(t, err)
		x, err := f.Tensor("plain")
		require.NoError(t, err)
		require.Equal(t, string(want), string(x.Data))
		require.NoError(t, f.Close())
	}
}

// TestBlocksAreReadAgain: blocks that a run with verification encoded are proven by reading them
// again, without their source; others by encoding the source once more.
func TestBlocksAreReadAgain(t *testing.T) {
	t.Parallel()
	p, src, _ := quantisedPlan(t)
	e := begun(t, filepath.Join(t.TempDir(), "out"), p, src, inMemory())
	for i := range p.Tensors {
		w, path, at := onlyWorker(e), e.out.PathOf(0), p.Tensors[i].Offset+p.Tensors[i].Bytes()/2
		e.source = src
		require.NoError(t, w.writeSpan(t.Context(), i))
		e.source = bytesSource(nil)
		written := e.State(i)
		require.False(t, written.Proof.Compared)
		fixture.Flip(t, path, at)
		err := w.proveSpan(t.Context(), i)
		require.ErrorIs(t, err, errReadBack)
		require.ErrorContains(t, err, path)
		require.Zero(t, e.State(i).Done)
		fixture.Flip(t, path, at)
		e.Mark(i, written)
		require.NoError(t, w.proveSpan(t.Context(), i))
		proven := e.State(i).Proof
		require.Equal(t, &progress.Proof{Hash: written.Proof.Hash, Segments: written.Proof.Segments, Compared: true}, proven)

		e.source = src
		e.Mark(i, progress.State{Done: written.Done, Proof: &progress.Proof{Hash: written.Proof.Hash}}) // of a run without verification
		require.NoError(t, w.proveSpan(t.Context(), i))
		require.Equal(t, proven, e.State(i).Proof)
		e.Mark(i, progress.State{Done: written.Done})
		fixture.Flip(t, path, at)
		require.ErrorContains(t, w.proveSpan(t.Context(), i), "block, but the source gives ")
		require.Zero(t, e.State(i).Done)
	}
}

// TestResumeTrustsWhatWasCompared: of a tensor of blocks that a run without verification began, a run with verification
// takes over no byte: what that run read may not be the source.
func TestResumeTrustsWhatWasCompared(t *testing.T) {
	t.Parallel()
	p, src, _ := quantisedPlan(t)
	misread := slices.Clone(src)
	misread[1000] ^= 0x40
	ctx, cancel := context.WithCancel(t.Context())
	s := inMemory()
	s.Unverified, s.Progress = true, func(string, int64, int64) { cancel() } // after the first tile
	e := begun(t, filepath.Join(t.TempDir(), "out"), p, misread, s)
	require.ErrorIs(t, onlyWorker(e).writeSpan(ctx, 0), context.Canceled)
	require.False(t, e.State(0).Partial.Compared)
	e.source, e.Unverified = src, false
	require.NoError(t, onlyWorker(e).writeSpan(t.Context(), 0))

	right := begun(t, filepath.Join(t.TempDir(), "out"), p, src, inMemory())
	require.NoError(t, onlyWorker(right).writeSpan(t.Context(), 0))
	require.Equal(t, right.State(0).Proof, e.State(0).Proof)
}

// TestResumeInALaterSegment: a run goes on behind the segments that an earlier one hashed, and hashes the begun one
// anew.
func TestResumeInALaterSegment(t *testing.T) {
	t.Parallel()
	const segments, each = 4, many / 4
	_, src, op := quantisedPlan(t)
	joined := plan.Tensor{Name: "joined", DType: tensor.U8, Operations: []string{op.Name()}}
	for i := range int64(segments) {
		joined.Segments = append(joined.Segments, plan.Segment{Tensor: "x", DType: tensor.BF16, Offset: 2 * each * i,
			End: 2 * each, Bytes: tensor.Q8_0.Bytes(each), Operation: op})
	}
	joined.Shape = []int{int(segments * tensor.Q8_0.Bytes(each))}
	p := planOf(t, joined)
	ctx, cancel := context.WithCancel(t.Context())
	s := inMemory()
	s.Progress = func(string, int64, int64) { cancel() } // after the first tile
	e := begun(t, filepath.Join(t.TempDir(), "out"), p, src, s)
	require.ErrorIs(t, onlyWorker(e).writeSpan(ctx, 0), context.Canceled)
	require.Len(t, e.State(0).Partial.Segments, 1)
	require.NoError(t, onlyWorker(e).writeSpan(t.Context(), 0))

	right := begun(t, filepath.Join(t.TempDir(), "out"), p, src, inMemory())
	require.NoError(t, onlyWorker(right).writeSpan(t.Context(), 0))
	require.Len(t, right.State(0).Proof.Segments, segments)
	require.Equal(t, right.State(0).Proof, e.State(0).Proof)
}

// TestBlocksAfterCrash_every: a run that crashed while it encoded blocks goes on to the same bytes and
// the same manifest.
func TestBlocksAfterCrash_every(t *testing.T) {
	t.Parallel()
	p, src, _ := quantisedPlan(t)
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
		require.Equal(t, fixture.Read(t, whole, plan.ManifestName), fixture.Read(t, dst, plan.ManifestName), n)
	}
}
