package digest

import (
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestRuns: however a message is cut at chunks, its runs join to its name, written in pieces of any size.
func TestRuns(t *testing.T) {
	t.Parallel()
	r := rand.New(rand.NewPCG(1, 2))
	for range 300 {
		data := make([]byte, Chunk+1+r.IntN(1<<(11+r.IntN(8))))
		for i := range data {
			data[i] = byte(r.Uint32())
		}
		cuts := []int64{0}
		for range 1 + r.IntN(6) {
			cuts = append(cuts, Chunk*int64(1+r.IntN((len(data)-1)/Chunk)))
		}
		slices.Sort(cuts)
		cuts = append(slices.Compact(cuts), int64(len(data)))
		var names []string
		for i := range len(cuts) - 1 {
			names = append(names, runName(r, data[cuts[i]:cuts[i+1]], cuts[i]))
		}
		name, err := Join(names...)
		require.NoError(t, err)
		require.Equal(t, Of(data), name, "%v", cuts)
	}
}

// runName is the name of a run, which is asked for meanwhile, too.
func runName(r *rand.Rand, data []byte, offset int64) string {
	h := From(offset)
	h.Write(data[:len(data)/2])
	h.Reset()
	for len(data) > 0 {
		n := min(1+r.IntN(40_000), len(data))
		h.Write(data[:n])
		if data = data[n:]; r.IntN(4) == 0 {
			h.Name()
		}
	}
	return h.Name()
}

// TestJoinRefuses: names that are not of neighbours, or of no runs.
func TestJoinRefuses(t *testing.T) {
	t.Parallel()
	a, b := From(0), From(4*Chunk)
	a.Write(make([]byte, 4*Chunk))
	b.Write(make([]byte, Chunk))
	_, err := Join(a.Name(), b.Name())
	require.NoError(t, err)
	name, err := Join(Of(nil))
	require.NoError(t, err)
	require.Equal(t, Of(nil), name)
	for _, names := range [][]string{{}, {a.Name()}, {b.Name()}, {b.Name(), a.Name()}, {a.Name(), a.Name()}, {a.Name(), Of(nil)},
		{a.Name(), From(5 * Chunk).Name()}, {a.Name(), "blake3-run:4:0"}, {a.Name(), "blake3-run:4:99:" + b.Name()[len("blake3-run:4:0:"):]},
		{a.Name(), "blake3-run:4:0:AAAA"}, {"blake3-run:x"}} {
		_, err := Join(names...)
		require.ErrorIs(t, err, errJoin, "%q", names)
	}
}

func BenchmarkHash(b *testing.B) {
	data := make([]byte, 4<<20)
	for name, h := range map[string]Hash{"whole": New(), "run": From(7 * Chunk)} {
		b.Run(name, func(b *testing.B) {
			b.SetBytes(int64(len(data)))
			for b.Loop() {
				h.Reset()
				h.Write(data)
			}
		})
	}
}
