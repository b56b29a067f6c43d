//go:build linux && (amd64 || arm64)

package main

import (
	"io/fs"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"dsmoe/convert/remote/remotetest"
	"dsmoe/model/tensor"
)

// random returns n random bytes.
func random(n int, seed uint64) []byte {
	b, r := make([]byte, n), rand.New(rand.NewPCG(seed, 1))
	for i := range b {
		b[i] = byte(r.Uint32())
	}
	return b
}

// TestEqualBytesAreKeptOnce: bytes that were written before, at other places of other parts, take hardly any room, and all
// are read as they were written, from any place on.
func TestEqualBytesAreKeptOnce(t *testing.T) {
	c, err := newChunks(t.TempDir())
	require.NoError(t, err)
	o := &objects{chunks: c, files: map[string]remotetest.Blob{}, dirs: map[string]bool{"out": true}}
	run := random(2<<20, 1)
	data := append(append(random(1000, 2), run...), append(random(333, 3), run...)...)
	var parts []remotetest.Blob
	for from := 0; from < len(data); from += 700_001 {
		p, err := o.Keep(data[from:min(from+700_001, len(data))])
		require.NoError(t, err)
		parts = append(parts, p)
	}
	require.NoError(t, o.Write("out/a/b", parts...))
	require.Less(t, c.used, int64(len(run)*5/4))
	got, err := fs.ReadFile(o, "out/a/b")
	require.NoError(t, err)
	require.Equal(t, data, got)
	for _, r := range [][2]int64{{0, 1}, {699_999, 700_003}, {1_234_567, 3_000_000}, {int64(len(data)) - 1, int64(len(data))}} {
		b, err := o.Range("out/a/b", r[0], r[1])
		require.NoError(t, err)
		some := make([]byte, b.Size())
		_, err = b.ReadAt(some, 0)
		require.NoError(t, err)
		require.Equal(t, data[r[0]:r[1]], some)
	}
	require.NoError(t, o.Remove("out/a/b"))
	_, err = o.Open("out/a/b")
	require.ErrorIs(t, err, fs.ErrNotExist)
}

// TestTensorsOfRings: a tensor has the same bytes wherever a read begins, and two of one shape begin at other rows.
func TestTensorsOfRings(t *testing.T) {
	var r rings
	info := tensor.Info{Name: "a.weight", DType: tensor.F8E4M3, Shape: []int{3000, 7168}}
	a, b := r.window(info), r.window(info)
	whole, other := make([]byte, a.Size()), make([]byte, b.Size())
	_, err := a.ReadAt(whole, 0)
	require.NoError(t, err)
	_, err = b.ReadAt(other, 0)
	require.NoError(t, err)
	require.NotEqual(t, whole[:7168], other[:7168])
	require.Equal(t, whole[7*7168:8*7168], other[:7168])
	some := make([]byte, 100_000)
	for _, at := range []int64{1, ringBytes - 5, a.Size() - 100_000} {
		_, err := a.ReadAt(some, at)
		require.NoError(t, err)
		require.Equal(t, whole[at:at+100_000], some)
	}
}
