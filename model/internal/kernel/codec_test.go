package kernel

import (
	"bytes"
	"encoding/binary"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestWidenIsPortable compares every pattern of every format with portable Go.
func TestWidenIsPortable(t *testing.T) {
	var patterns []byte
	for p := range 1 << 16 {
		patterns = binary.LittleEndian.AppendUint16(patterns, uint16(p))
	}
	each(t, func(t *testing.T) {
		for _, f := range []Format{F32, F16, BF16, F8E4M3} {
			got, want := make([]float32, len(patterns)/f.Size()), make([]float32, len(patterns)/f.Size())
			Widen(got, patterns, f)
			widenPortable(want, patterns, f)
			requireSame(t, want, got)
		}
	})
}

// TestWidenBlocksIsTheProduct takes all FP8 patterns times scales from denormal to
// overflow.
func TestWidenBlocksIsTheProduct(t *testing.T) {
	patterns := make([]byte, 256)
	for i := range patterns {
		patterns[i] = byte(i)
	}
	scales := []float32{1, 0, -3, 0x1.234567p-3, 0x1.fffffep127, 0x1p120, 0x1p-149, 0x1.8p-140, 0x1.3p-126, float32(math.Inf(-1)), float32(math.NaN())}
	each(t, func(t *testing.T) {
		for _, scale := range scales {
			got, want := make([]float32, 256), make([]float32, 256)
			WidenBlocks(got, patterns, F8E4M3, []float32{scale}, nil, len(got))
			for i := range want {
				want[i] = float32(float64(float32FromE4M3(byte(i))) * float64(scale))
			}
			requireSame(t, want, got)
		}
	})
}

// TestWidenBlocksTakesTheScaleOfTheBlock has blocks that end anywhere, and some that are
// longer than what is converted at once.
func TestWidenBlocksTakesTheScaleOfTheBlock(t *testing.T) {
	data := make([]byte, 2*chunk+5)
	for i := range data {
		data[i] = byte(i % 127)
	}
	each(t, func(t *testing.T) {
		for _, block := range []int{1, 16, 31, 48, 100, 128, chunk, chunk + 16} {
			for _, n := range []int{0, 1, 15, 16, 17, 127, 128, 200, 2*chunk + 3} {
				var scales []float32
				for i := range (n + block - 1) / block {
					scales = append(scales, float32(i+1))
				}
				for _, f := range []Format{F8E4M3, BF16} {
					n := n / f.Size()
					want, got := make([]float32, n), make([]float32, n)
					widenPortable(want, data, f)
					for i := range want {
						want[i] *= scales[i/block]
					}
					WidenBlocks(got, data[:n*f.Size()], f, scales, nil, block)
					requireSame(t, want, got)
				}
			}
		}
	})
}

// TestNarrowIsPortable takes every upper half of a float32 with the lower halves
// that decide roundings.
func TestNarrowIsPortable(t *testing.T) {
	var values []float32
	for top := range uint32(1 << 16) {
		for _, low := range []uint32{0, 1, 0xfff, 0x1000, 0x1001, 0x2fff, 0x3000, 0x7fff, 0x8000, 0x8001, 0xffff} {
			values = append(values, math.Float32frombits(top<<16|low))
		}
	}
	each(t, func(t *testing.T) {
		for _, f := range []Format{F32, F16, BF16} {
			got, want := make([]byte, len(values)*f.Size()), make([]byte, len(values)*f.Size())
			Narrow(got, values, f)
			narrowPortable(want, values, f)
			require.Equal(t, want, got)
			rounded := append([]float32{}, values...)
			RoundTo(rounded, f)
			back := make([]float32, len(values))
			widenPortable(back, want, f)
			requireSame(t, back, rounded)
		}
	})
}

// TestCodecLengths ranges over lengths and offsets and looks beside the output.
func TestCodecLengths(t *testing.T) {
	each(t, func(t *testing.T) {
		r := rand.New(rand.NewPCG(1, 9))
		for n := range 100 {
			for _, f := range []Format{F32, F16, BF16, F8E4M3} {
				w := stored(r, 1, n, f, n%3)
				got, want := make([]float32, n+2), make([]float32, n+2)
				got[0], got[n+1], want[0], want[n+1] = 7, 8, 7, 8
				Widen(got[1:n+1], w.Data, f)
				widenPortable(want[1:n+1], w.Data, f)
				requireSame(t, want, got)
				if f == F8E4M3 {
					continue
				}
				back := make([]byte, n*f.Size()+2)
				Narrow(back[1:], got[1:n+1], f)
				require.Equal(t, w.Data, back[1:1+n*f.Size()])
				require.Equal(t, []byte{0, 0}, []byte{back[0], back[len(back)-1]})
			}
			wide := make([]float64, n)
			x := awkward(r, n)
			widenTo64(current(), wide, x)
			for i, v := range x {
				require.Equal(t, math.Float64bits(float64(v)), math.Float64bits(wide[i]))
			}
		}
	})
}

// TestStreams converts more than the caches hold, from and to places that begin a cache
// line differently, and one from which no number of the format begins a cache line.
func TestStreams(t *testing.T) {
	const most = streamFrom/2 + 100
	r := rand.New(rand.NewPCG(4, 4))
	values, narrow, wide := make([]float32, most), map[Format][]byte{}, map[Format][]float32{}
	for i := range values {
		values[i] = math.Float32frombits(r.Uint32())
	}
	for _, f := range []Format{F16, BF16} {
		narrow[f], wide[f] = make([]byte, 2*most), make([]float32, most)
		narrowPortable(narrow[f], values, f)
		widenPortable(wide[f], narrow[f], f)
	}
	gotWide, gotNarrow := make([]float32, most+2), make([]byte, 2*most+5)
	each(t, func(t *testing.T) {
		n := most
		if current().stream.narrow[F16] == nil {
			n = 1000 // goes the way of all lengths
		}
		for offset, f := range []Format{F16, BF16, F16, BF16} {
			fill(gotNarrow, 0xa5)
			Narrow(gotNarrow[offset:][:2*n], values[:n], f)
			require.True(t, bytes.Equal(narrow[f][:2*n], gotNarrow[offset:][:2*n]), "%v at offset %d", f, offset)
			require.Equal(t, byte(0xa5), gotNarrow[offset+2*n], "behind the end")
			Widen(gotWide[offset%2:][:n], narrow[f], f)
			requireSame(t, wide[f][:n], gotWide[offset%2:][:n])
		}
	})
}

// TestNarrowBlocksIsWidenBlocksAndNarrow: the same bytes and the same count as in two steps, at lengths with and without
// a kernel; and no result where a product is denormal, infinite or NaN, or BF16 makes it infinite.
func TestNarrowBlocksIsWidenBlocksAndNarrow(t *testing.T) {
	src := make([]byte, 3000)
	for i := range src {
		if src[i] = byte(i * 7); src[i]&0x7f == 0x7f {
			src[i] = 0
		}
	}
	check := func(n, block int, scales []float32, want bool) {
		t.Helper()
		wide, narrow := make([]float32, n), make([]byte, 2*n)
		WidenBlocks(wide, src[:n], F8E4M3, scales, nil, block)
		Narrow(narrow, wide, BF16)
		var lost Losses
		lost.Count(narrow, BF16, wide)
		got := make([]byte, 2*n+2)
		fill(got, 0xa5)
		rounded, ok := NarrowBlocks(got, src[:n], scales, block)
		require.Equal(t, want, ok, "%d numbers, scales %v", n, scales)
		require.Equal(t, []byte{0xa5, 0xa5}, got[2*n:])
		if ok {
			require.Equal(t, Losses{Changed: uint32(rounded)}, lost, "%d numbers", n)
			require.Equal(t, narrow, got[:2*n], "%d numbers", n)
		}
	}
	each(t, func(t *testing.T) {
		scales := []float32{0.0123, 1, -1.2345e-5, 3e5, 1 + 0x1p-7, 0, 7, 8}
		for _, n := range []int{0, 1, 15, 16, 17, 256, 512, 1000, 1024} {
			for _, block := range []int{128, 144, 1024, 250} {
				check(n, block, scales, true)
			}
		}
		for _, scale := range []float32{0x1p-120, 0x1p126, 0x1.fep119, float32(math.Inf(1)), float32(math.NaN()), 0x1p-149} {
			check(512, 128, []float32{1, 1, scale, 1}, false)
		}
		check(512, 128, []float32{1, 0x1p-117, 0x1p119, 1}, true)
		was := src[300]
		for _, nan := range []byte{0x7f, 0xff} {
			src[300] = nan
			check(512, 128, []float32{1, 1, 1, 1}, false)
		}
		src[300] = was
	})
}
