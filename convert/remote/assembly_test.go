package remote_test

import (
	"bytes"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"dsmoe/convert/remote"
	"dsmoe/convert/remote/remotetest"
)

// TestAssembly: bytes that are written at once, in any order, are those of the object; what no span has is zero. A
// second upload sends the parts alone that the first one has not sent.
func TestAssembly(t *testing.T) {
	dir := t.TempDir()
	hub := remotetest.StartStore(t, map[string]string{"models": dir})
	hub.Client.Part = 50_000
	s, err := hub.Client.OpenStore("s3://models/below")
	require.NoError(t, err)
	want := make([]byte, 1_234_567)
	rand.NewChaCha8([32]byte{1}).Read(want)
	spans := [][2]int64{{0, 10}, {10, 333_333}, {600_000, 1_234_560}} // parts 7 to 11 are zeros
	clear(want[333_333:600_000])
	clear(want[1_234_560:])
	each := func(yield func(begin, end int64) bool) {
		for _, span := range spans {
			if !yield(span[0], span[1]) {
				return
			}
		}
	}
	for _, all := range []bool{false, true} {
		ids, err := s.Uploads("x")
		require.NoError(t, err)
		id := append(ids["x"], "")[0]
		u, err := s.Upload("x", int64(len(want)), hub.Client.PartSize(int64(len(want))), id)
		require.NoError(t, err)
		a := remote.Assemble(u, each)
		var g errgroup.Group
		for i, span := range spans {
			g.Go(func() error {
				for at := span[1]; at > span[0] && (all || i > 0); { // from its end
					begin := max(at-7_777, span[0])
					if err := a.WriteAt(want[begin:at], begin); err != nil {
						return err
					}
					at = begin
				}
				return nil
			})
		}
		require.NoError(t, g.Wait())
		require.Equal(t, all, a.HasBytes(0, 10))
		require.True(t, a.HasBytes(600_000, 1_234_560))
		hub.Forget()
		if err := a.Finish(); all {
			require.NoError(t, err)
			require.Len(t, hub.Requests(), 1)
		} else {
			require.ErrorContains(t, err, "s3://models/below/x: part 1 is missing")
		}
	}
	got, err := os.ReadFile(filepath.Join(dir, "below/x"))
	require.NoError(t, err)
	require.True(t, bytes.Equal(want, got))
}

// TestPartSize: an object has at most 10,000 parts.
func TestPartSize(t *testing.T) {
	for _, size := range []int64{0, 1, 5 << 20, 50_000 << 20, 50_000<<20 + 1, 1 << 40, 5 << 40} {
		part := remote.NewClient().PartSize(size)
		require.LessOrEqual(t, (size+part-1)/part, int64(10_000), size)
		require.GreaterOrEqual(t, part, int64(5<<20))
	}
}
