package kernel

import (
	"encoding/binary"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

// roundingsFormats are the formats of DoubtfulRoundings.
var roundingsFormats = []Format{F32, F16, BF16}

// put encodes the bits of numbers of f.
func put(f Format, numbers []uint32) []byte {
	var b []byte
	for _, n := range numbers {
		if f == F32 {
			b = binary.LittleEndian.AppendUint32(b, n)
		} else {
			b = binary.LittleEndian.AppendUint16(b, uint16(n))
		}
	}
	return b
}

// plainly is the definition of a plain rounding.
func plainly(x, y uint32, from, to Format) bool {
	if to == F32 && from != F16 {
		return Decode(x, from) == y || from == BF16 && x<<16 == y
	}
	half := int64(0) // of the distance between two numbers of to
	switch to {
	case F16:
		half = 1 << 12
	case BF16:
		half = 1 << 15
	}
	strange := func(p uint32, f Format) bool {
		v := math.Abs(float64(math.Float32frombits(Decode(p, f))))
		return v != v || v > math.MaxFloat32
	}
	if strange(x, from) || strange(y, to) {
		return false
	}
	distance := int64(Decode(x, from)) - int64(Decode(y, to))
	return max(distance, -distance) <= half
}

// TestDoubtfulRoundings takes every pattern of 16 bits, rounded and beside that, float32 around every edge between two
// patterns, all lengths and places in a block, and strange numbers.
func TestDoubtfulRoundings(t *testing.T) {
	r := rand.New(rand.NewPCG(2, 9))
	type roundings struct {
		from, to Format
		src, out []byte
		want     []int
	}
	var all []roundings
	for _, from := range roundingsFormats {
		for _, to := range roundingsFormats {
			if from == to && from != F32 {
				continue
			}
			half := map[Format]uint32{F16: 1 << 12, BF16: 1 << 15}[to]
			var x, y []uint32
			for p := range uint32(1 << 16) {
				if from == F32 {
					edge := Decode(p, to) + half
					p = []uint32{edge - 1, edge, edge + 1, r.Uint32()}[r.IntN(4)]
				}
				right := Encode(Decode(p, from), to)
				x = append(x, p, p)
				y = append(y, right, []uint32{right - 1, right + 1, right ^ 1<<(r.IntN(8*to.Size()))}[r.IntN(3)])
			}
			for _, mixed := range []bool{false, true} {
				if mixed {
					r.Shuffle(len(x), func(i, j int) { x[i], x[j], y[i], y[j] = x[j], x[i], y[j], y[i] })
				}
				var want []int
				for i := range x {
					if !plainly(x[i], y[i]&(1<<(8*to.Size())-1), from, to) {
						want = append(want, i)
					}
				}
				require.Less(t, len(want), len(x))
				all = append(all, roundings{from, to, put(from, x), put(to, y), want})
			}
		}
	}
	each(t, func(t *testing.T) {
		for _, c := range all {
			got := slices.Collect(DoubtfulRoundings(c.out, c.to, c.src, c.from))
			require.True(t, slices.Equal(c.want, got), "%s to %s", c.from, c.to)
		}
		for _, from := range roundingsFormats {
			for _, to := range roundingsFormats {
				if from == to && from != F32 {
					continue
				}
				one := uint32(0x3f800000)
				for n := range 70 {
					src := put(from, slices.Repeat([]uint32{Encode(one, from)}, n))
					out := append([]byte{1}, put(to, slices.Repeat([]uint32{Encode(one, to)}, n))...)[1:]
					require.Empty(t, slices.Collect(DoubtfulRoundings(out, to, src, from)))
					for i := range n {
						out[i*to.Size()+to.Size()-1] ^= 0x80
						require.Equal(t, []int{i}, slices.Collect(DoubtfulRoundings(out, to, src, from)))
						for range DoubtfulRoundings(out, to, src, from) {
							break
						}
						out[i*to.Size()+to.Size()-1] ^= 0x80
					}
				}
			}
		}
		require.Panics(t, func() { DoubtfulRoundings(make([]byte, 33), F16, make([]byte, 64), F32) })
	})
}

// BenchmarkDoubtfulRoundings takes numbers like weights.
func BenchmarkDoubtfulRoundings(b *testing.B) {
	r := rand.New(rand.NewPCG(2, 9))
	x := make([]float32, 1<<14)
	for i := range x {
		x[i] = float32(.02 * r.NormFloat64())
	}
	for _, name := range Implementations() {
		b.Run(name, func(b *testing.B) {
			defer Use(name)()
			for _, from := range roundingsFormats {
				for _, to := range roundingsFormats {
					if from == to && from != F32 {
						continue
					}
					src, out, wide := make([]byte, from.Size()*len(x)), make([]byte, to.Size()*len(x)), make([]float32, len(x))
					Narrow(src, x, from)
					Widen(wide, src, from)
					Narrow(out, wide, to)
					b.Run(from.String()+" to "+to.String(), func(b *testing.B) {
						b.SetBytes(int64(len(x)))
						for b.Loop() {
							for range DoubtfulRoundings(out, to, src, from) {
							}
						}
					})
				}
			}
		})
	}
}
