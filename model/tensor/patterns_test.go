package tensor

import (
	"encoding/binary"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"dsmoe/model/internal/kernel"
)

// elements16 returns random patterns of 16 bits, and what is worst: infinities and NaN at the
// ends, the largest magnitude last.
func elements16(n int, d DType) []byte {
	r := rand.New(rand.NewPCG(uint64(n), 1))
	data := make([]byte, 2*n)
	for i := range n {
		binary.LittleEndian.PutUint16(data[2*i:], uint16(r.Uint32()))
	}
	hostile := []uint16{0x7fff, 0xffff, 0x8000, 0, uint16(top[mustFormat(d)]), 0x8000 | uint16(top[mustFormat(d)]), 0x8000 | uint16(top[mustFormat(d)]-1)}
	for i, p := range hostile {
		if 2*i < len(data) {
			binary.LittleEndian.PutUint16(data[len(data)-2*i-2:], p)
		}
	}
	return data
}

// mustFormat is the format of a dtype that has one.
func mustFormat(d DType) kernel.Format {
	f, _ := d.Format()
	return f
}

// TestPatterns: counts and the largest finite magnitude are those of a plain loop, for every
// length around those of the blocks.
func TestPatterns(t *testing.T) {
	for _, d := range []DType{F16, BF16} {
		values := PatternValues(d)
		for _, n := range []int{0, 1, 2, 3, 15, 16, 17, 31, 33, 1000, 100_003} {
			data := elements16(n, d)
			want, largest := new([patternCount]int64), float32(0)
			decoded, err := Tensor{DType: d, Shape: []int{n}, Data: data}.Float32s(nil)
			require.NoError(t, err)
			for i := range n {
				p := binary.LittleEndian.Uint16(data[2*i:])
				want[p]++
				if v := decoded[i]; v == v {
					require.Equal(t, math.Float32bits(v), math.Float32bits(values[p]))
					if a := max(v, -v); a <= math.MaxFloat32 {
						largest = max(largest, a)
					}
				}
			}
			var p Patterns
			got := new([patternCount]int64)
			cut := n / 3 * 2
			p.Add(data[:cut])
			p.Add(data[cut:])
			p.Take(got)
			p.Take(got) // is empty
			assert.Equal(t, largest, LargestFinite(data, d), "%s %d", d, n)
			assert.True(t, *want == *got, "%s %d", d, n)
		}
	}
}
