package kernel

import (
	"encoding/binary"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"dsmoe/config/configtest"
)

// TestSamePatterns_every looks up all codes in blocks of many lengths, and finds the first pattern that differs, in any bit, at
// every place. Without -every more than a chunk of codes is in blocks of two lengths.
func TestSamePatterns_every(t *testing.T) {
	r := rand.New(rand.NewPCG(6, 7))
	each(t, func(t *testing.T) {
		for _, block := range []int{1, 31, 32, 64, 100, 128, 2 * chunk} {
			for _, n := range []int{0, 1, 31, 32, 33, 127, 128, 300, 1000, chunk + 130} {
				if n > 1000 && (block < 31 || block != 31 && block != 128 && !configtest.Every(t)) {
					continue
				}
				tables := make([]CodeTable, (n+block-1)/block)
				for i := range tables {
					for magnitude := range 128 {
						tables[i].Set(magnitude, uint16(r.Uint32()))
					}
				}
				all := make([]byte, n+1)
				out := make([]byte, 2*n+3)
				codes, got := all[1:], out[1:]
				for i := range codes {
					codes[i] = byte(r.Uint32())
					if n >= 1000 {
						codes[i] = byte(i)
					}
					p := tables[i/block]
					want := p.words[codes[i]&127]
					if codes[i] >= 128 {
						want ^= 1 << 15
					}
					binary.LittleEndian.PutUint16(got[2*i:], want)
				}
				require.Equal(t, n, SamePatterns(tables, codes, got, block), "%d, %d", block, n)
				flip := func(at, bit int) {
					binary.LittleEndian.PutUint16(got[2*at:], binary.LittleEndian.Uint16(got[2*at:])^1<<bit)
				}
				for range min(n, 60) {
					first, bit := r.IntN(n), r.IntN(16)
					second := first + r.IntN(n-first)
					flip(first, bit)
					flip(second, (bit+1)%16)
					require.Equal(t, first, SamePatterns(tables, codes, got, block), "%d, %d", block, n)
					flip(first, bit)
					flip(second, (bit+1)%16)
				}
			}
		}
		require.Panics(t, func() { SamePatterns(make([]CodeTable, 2), make([]byte, 65), make([]byte, 130), 32) })
		require.Panics(t, func() { SamePatterns(make([]CodeTable, 2), make([]byte, 64), make([]byte, 127), 32) })
	})
}

// BenchmarkSamePatterns takes rows of blocks of 128 codes.
func BenchmarkSamePatterns(b *testing.B) {
	tables, codes, out := make([]CodeTable, 56), make([]byte, 56*128), make([]byte, 2*56*128)
	for _, name := range Implementations() {
		b.Run(name, func(b *testing.B) {
			defer Use(name)()
			b.SetBytes(int64(len(codes)))
			for b.Loop() {
				SamePatterns(tables, codes, out, 128)
			}
		})
	}
}
