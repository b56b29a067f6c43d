package operation

import (
	"encoding/binary"
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"dsmoe/model/tensor"
)

// TestBoundsAcceptOnlyTheRounding: around every boundary between two neighbours the
// proof accepts what the cast gives, and none of its neighbours.
func TestBoundsAcceptOnlyTheRounding(t *testing.T) {
	for _, d := range []tensor.DType{tensor.BF16, tensor.F16} {
		b := newBounds(d)
		c, err := tensor.NewCast(tensor.F32, d)
		require.NoError(t, err)
		for pattern := 0; pattern < len(boundsOf(d).high)-1; pattern++ {
			edge := float32(b.high[pattern])
			for _, v := range []float32{math.Nextafter32(edge, 0), math.Nextafter32(edge, math.MaxFloat32), -math.Nextafter32(edge, 0)} {
				requireOneRounding(t, b, c, v)
			}
		}
	}
}

func requireOneRounding(t *testing.T, b *bounds, c *tensor.Cast, v float32) {
	src := binary.LittleEndian.AppendUint32(nil, math.Float32bits(v))
	var out [2]byte
	c.Convert(out[:], src)
	right := binary.LittleEndian.Uint16(out[:])
	for _, h := range []uint16{right, right - 1, right + 1, right ^ 0x8000} {
		binary.LittleEndian.PutUint16(out[:], h)
		if b.check(float64(v), out[:], 0, 0) != (h == right) {
			t.Fatalf("%s: %g as %04x: accepted %v, right is %04x", b.dtype, v, h, h != right, right)
		}
	}
}

// TestPlainIsAccepted: what needs no look at the bounds is what check accepts, around the
// edges of every pattern, and most of it is.
func TestPlainIsAccepted(t *testing.T) {
	for _, d := range []tensor.DType{tensor.BF16, tensor.F16} {
		b := newBounds(d)
		plain, out, in := 0, make([]byte, 2), make([]byte, 4)
		for pattern := range 1 << 16 {
			binary.LittleEndian.PutUint16(out, uint16(pattern))
			middle, half := uint32(pattern)<<16, uint32(1)<<15
			if d == tensor.F16 {
				middle, half = math.Float32bits(float32(valuesF16()[pattern])), 1<<12
			}
			for _, bits := range []uint32{middle, middle + half - 1, middle + half, middle + half + 1, middle - half + 1, middle - half, middle - half - 1, middle ^ 1<<31, ^middle, 0x7fc00000, 0x7f800000} {
				v := math.Float32frombits(bits)
				binary.LittleEndian.PutUint32(in, math.Float32bits(v))
				doubtful := false
				for range tensor.DoubtfulRoundings(out, d, in, tensor.F32) {
					doubtful = true
				}
				if !doubtful {
					plain++
					if !b.check(float64(v), out, 0, 0) {
						require.Fail(t, "a plain rounding is refused", "%s %04x: %x", d, pattern, in)
					}
				}
			}
		}
		require.Greater(t, plain, 3*60_000)
	}
}

// TestEveryElementIsChecked: in pieces of all lengths around those that are looked at
// together, no element can change, whether those before it need a look at the bounds or not.
func TestEveryElementIsChecked(t *testing.T) {
	for _, d := range []tensor.DType{tensor.F16, tensor.BF16, tensor.F32} {
		from := tensor.F32
		if d == tensor.F32 {
			from = tensor.F16
		}
		for _, step := range []int{1, 511, 512, 513} {
			values := make([]float32, 1600)
			for i := range values {
				values[i] = 1
				if i%step == step-1 && step > 1 {
					values[i] = 0 // is never plain
				}
			}
			o, err := NewCast(from, d)
			require.NoError(t, err)
			in := Input{Data: encoded(t, values, from)}
			out, _ := apply(t, o, in)
			size := int(d.Bytes(1))
			for i := size - 1; i < len(out); i += size {
				out[i] ^= 0x40
				var m *Mismatch
				require.ErrorAs(t, o.Prove(out, in), &m, "%s element %d", d, i/size)
				require.Equal(t, i/size, m.Element)
				out[i] ^= 0x40
			}
		}
	}
}

// TestBoundsSpecial: infinities, NaN and zeros only as themselves.
func TestBoundsSpecial(t *testing.T) {
	b := newBounds(tensor.F16)
	for _, c := range []struct {
		v    float64
		h    uint16
		want bool
	}{
		{math.Inf(1), 0x7c00, true}, {math.Inf(-1), 0x7c00, false}, {math.Inf(1), 0x7bff, false}, {65520, 0x7c00, true}, {65504, 0x7c00, false},
		{math.NaN(), 0x7e00, true}, {math.NaN(), 0xfe01, true}, {math.NaN(), 0x7c00, false}, {1, 0x7e00, false},
		{0, 0, true}, {0, 0x8000, false}, {math.Copysign(0, -1), 0x8000, true}, {0x1p-26, 0, true}, {0x1p-24, 0, false},
	} {
		require.Equal(t, c.want, b.check(c.v, binary.LittleEndian.AppendUint16(nil, c.h), 0, 0), "%g as %04x", c.v, c.h)
	}
	f := newBounds(tensor.F32)
	require.True(t, f.check(1e300, binary.LittleEndian.AppendUint32(nil, 0x7f800000), 0, 0))
	require.False(t, f.check(1, binary.LittleEndian.AppendUint32(nil, 0x3f800001), 0, 0))
}

// TestWideningProof: every F16, and one bit off.
func TestWideningProof(t *testing.T) {
	for _, d := range []tensor.DType{tensor.F16, tensor.BF16} {
		c, err := tensor.NewCast(d, tensor.F32)
		require.NoError(t, err)
		src, out := make([]byte, 2<<16), make([]byte, 4<<16)
		for i := range 1 << 16 {
			binary.LittleEndian.PutUint16(src[2*i:], uint16(i))
		}
		c.Convert(out, src)
		require.NoError(t, proveWidening(d, out, src))
		for i := 0; i < len(out); i += 257 {
			out[i] ^= 4
			require.Error(t, proveWidening(d, out, src), "%s byte %d", d, i)
			out[i] ^= 4
		}
	}
}

// TestCastsOf16Bits: every pattern of F16 and BF16 as the other, and two patterns off.
func TestCastsOf16Bits(t *testing.T) {
	for from, to := range map[tensor.DType]tensor.DType{tensor.F16: tensor.BF16, tensor.BF16: tensor.F16} {
		c, err := NewCast(from, to)
		require.NoError(t, err)
		src, out, lost := make([]byte, 2<<16), make([]byte, 2<<16), tensor.Loss{}
		for i := range 1 << 16 {
			binary.LittleEndian.PutUint16(src[2*i:], uint16(i))
		}
		require.NoError(t, c.Apply(out, Input{Data: src}, &lost))
		require.NoError(t, c.Prove(out, Input{Data: src}))
		for i := 0; i < len(out); i += 254 {
			if in := binary.LittleEndian.Uint16(src[i:]) & 0x7fff; to == tensor.BF16 && in > 0x7c00 || in > 0x7f80 {
				continue // NaN has many patterns
			}
			out[i] ^= 2
			require.ErrorAs(t, c.Prove(out[i:][:2], Input{Data: src[i:][:2]}), new(*Mismatch), "%s %04x", from, i/2)
		}
	}
}

// BenchmarkProveCasts proves casts of numbers like weights, in nanoseconds an element.
func BenchmarkProveCasts(b *testing.B) {
	const n = 1 << 17
	r := rand.New(rand.NewPCG(1, 2))
	x := make([]float32, n)
	for i := range x {
		x[i] = float32(.02 * r.NormFloat64())
	}
	dtypes := []tensor.DType{tensor.F32, tensor.BF16, tensor.F16}
	for _, from := range dtypes {
		src, lost := make([]byte, from.Bytes(n)), tensor.Loss{}
		if copy(src, tensor.Float32Bytes(x)); from != tensor.F32 {
			(&tensor.Cast{From: tensor.F32, To: from}).Convert(src, tensor.Float32Bytes(x))
		}
		for _, to := range dtypes {
			if to == from {
				continue
			}
			c, err := NewCast(from, to)
			require.NoError(b, err)
			out := make([]byte, to.Bytes(n))
			require.NoError(b, c.Apply(out, Input{Data: src}, &lost))
			b.Run(fmt.Sprintf("%s to %s", from, to), func(b *testing.B) {
				for b.Loop() {
					require.NoError(b, c.Prove(out, Input{Data: src}))
				}
				b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/n, "ns/element")
			})
		}
	}
}
