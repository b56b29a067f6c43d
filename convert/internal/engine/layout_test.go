package engine

import (
	"math/rand/v2"
	"path/filepath"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"dsmoe/convert/operation"
	"dsmoe/convert/plan"
	"dsmoe/convert/safetensors"
	"dsmoe/model/digest"
	"dsmoe/model/tensor"
)

// noise returns n bytes.
func noise(n int) bytesSource {
	src := make(bytesSource, n)
	for i, r := 0, rand.NewChaCha8([32]byte{1}); i < n; i++ {
		src[i] = byte(r.Uint64())
	}
	return src
}

// copied is a tensor whose segments are copied one after the other from where spans say.
func copied(name string, d tensor.DType, spans ...operation.Span) plan.Tensor {
	x := plan.Tensor{Name: name, DType: d, Operations: []string{"copy"}}
	bytes := int64(0)
	for _, span := range spans {
		n := span.End - span.Begin
		x.Segments = append(x.Segments, plan.Segment{Tensor: name, DType: d, Offset: span.Begin, Begin: span.Begin, End: span.End,
			Bytes: n, Operation: operation.Copy{DType: d}})
		bytes += n
	}
	x.Shape = []int{int(d.Elements(bytes))}
	return x
}

// requireWritten carries a plan out and demands of every tensor the bytes that want gives.
func requireWritten(t *testing.T, p *plan.Plan, src bytesSource, want map[string][]byte) {
	t.Helper()
	dst := filepath.Join(t.TempDir(), "out")
	_, err := Run(t.Context(), dst, p, src, inMemory())
	require.NoError(t, err)
	f, err := safetensors.Open(filepath.Join(dst, "model.safetensors"))
	require.NoError(t, err)
	defer f.Close()
	for name, data := range want {
		x, err := f.Tensor(name)
		require.NoError(t, err)
		require.Equal(t, string(data), string(x.Data), name)
	}
}

// TestEveryDTypeIsCopied: elements of any size, also those of which several fill whole
// bytes, are written, and proven element by element, piece after piece.
func TestEveryDTypeIsCopied(t *testing.T) {
	t.Parallel()
	const size = 3 * maxPiece
	src := noise(size + 1000)
	var tensors []plan.Tensor
	want := map[string][]byte{}
	for d := tensor.Invalid + 1; d <= tensor.Bool; d++ {
		if d.Blocked() {
			continue // safetensors, which the test writes, does not have it
		}
		span := operation.Span{Begin: int64(d), End: int64(d) + d.Bytes(d.Elements(size))}
		tensors = append(tensors, copied(d.String(), d, span))
		want[d.String()] = src[span.Begin:span.End]
	}
	requireWritten(t, planOf(t, tensors...), src, want)
	requireProof(t, planOf(t, tensors...), src)
}

// TestSegmentsWithoutElements: a segment may be empty, at the begin, between others and at
// the end, and so may a tensor. Each has its hash in the manifest.
func TestSegmentsWithoutElements(t *testing.T) {
	t.Parallel()
	src := noise(1000)
	p := planOf(t, copied("x", tensor.BF16, operation.Span{}, operation.Span{Begin: 10, End: 110}, operation.Span{Begin: 7, End: 7},
		operation.Span{Begin: 500, End: 502}, operation.Span{Begin: 900, End: 900}), copied("empty", tensor.F32, operation.Span{}, operation.Span{}))
	requireWritten(t, p, src, map[string][]byte{"x": slices.Concat(src[10:110], src[500:502]), "empty": {}})
	e := begun(t, filepath.Join(t.TempDir(), "out"), p, src, inMemory())
	require.NoError(t, e.writeAndProve(t.Context()))
	for i, x := range p.Tensors {
		var hashes []string
		for _, s := range x.Segments {
			hashes = append(hashes, digest.Of(src[s.Begin:s.End]))
		}
		require.Equal(t, hashes, e.States[i].Proof.Segments, x.Name)
	}
}

// TestSpreadViews: a view of integers whose neighbours are further apart than one read may
// span, the last stored element among them, is what picking them one by one gives.
func TestSpreadViews(t *testing.T) {
	t.Parallel()
	const rows, apart, width = 3, 3 * maxPiece, 5
	src := noise(2 * (rows*apart + width))
	x := copied("x", tensor.U16, operation.Span{End: int64(len(src))})
	x.Segments[0].View = &tensor.View{Shape: []int64{width, rows + 1}, Stride: []int64{1, apart}} // transposed
	x.Shape, x.Segments[0].Bytes = []int{width, rows + 1}, 2*width*(rows+1)
	var want []byte
	for c := range width {
		for r := range rows + 1 {
			want = append(want, src[2*(r*apart+c):][:2]...)
		}
	}
	p := planOf(t, x)
	requireWritten(t, p, src, map[string][]byte{"x": want})
	requireProof(t, p, src)
}
