package kernel

import (
	"encoding/binary"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestLargest16 finds the largest at every place of every length around the lengths of kernels,
// at any alignment, with patterns from limit on that do not count, and larger ones around.
func TestLargest16(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	const guard, limit = 32, 0x7c00
	each(t, func(t *testing.T) {
		for _, n := range []int{0, 1, 31, 32, 127, 128, 129, 255, 256, 384, 1000, chunk - 1, chunk + 128 + 3, 2 * chunk} {
			all := make([]byte, 2*(n+guard)+3)
			for i := range all {
				all[i] = 0xff
			}
			data := all[1 : 1+2*n] // patterns at odd addresses
			for i := range n {
				binary.LittleEndian.PutUint16(data[2*i:], uint16(r.UintN(2)<<15|r.UintN(100)))
			}
			require.Equal(t, largestAfter(data, 0, limit), Largest16(data, limit), n)
			for range min(n, 200) {
				at, sign := r.IntN(n), uint16(r.UintN(2)<<15)
				before := binary.LittleEndian.Uint16(data[2*at:])
				binary.LittleEndian.PutUint16(data[2*at:], sign|(limit-1))
				require.EqualValues(t, limit-1, Largest16(data, limit), "%d of %d", at, n)
				binary.LittleEndian.PutUint16(data[2*at:], sign|limit)
				require.Less(t, Largest16(data, limit), uint16(100), "%d of %d is infinite", at, n)
				binary.LittleEndian.PutUint16(data[2*at:], before)
			}
		}
	})
}

// BenchmarkLargest16 looks through rows of 2048 weights in the cache.
func BenchmarkLargest16(b *testing.B) {
	data := make([]byte, 64*4096)
	narrowPortable(data, random(rand.New(rand.NewPCG(1, 1)), len(data)/2), BF16)
	for _, name := range Implementations() {
		b.Run(name, func(b *testing.B) {
			defer Use(name)()
			b.SetBytes(int64(len(data)))
			for b.Loop() {
				for at := 0; at < len(data); at += 4096 {
					Largest16(data[at:at+4096], 0x7f80)
				}
			}
		})
	}
}
