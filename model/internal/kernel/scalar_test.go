package kernel

import (
	"encoding/binary"
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestCodecsExhaustively compares every 16-bit pattern with its formula and brings
// each value back unchanged.
func TestCodecsExhaustively(t *testing.T) {
	t.Parallel()
	for _, f := range []Format{F16, BF16} {
		for p := range 1 << 16 {
			src := binary.LittleEndian.AppendUint16(nil, uint16(p))
			got := make([]float32, 1)
			Widen(got, src, f)
			want := formula(uint16(p), f)
			if math.IsNaN(want) {
				require.True(t, math.IsNaN(float64(got[0])), "%v %#x", f, p)
				continue
			}
			require.Equal(t, math.Float32bits(float32(want)), math.Float32bits(got[0]), "%v %#x", f, p)
			back := make([]byte, 2)
			Narrow(back, got, f)
			require.Equal(t, src, back, "%v %#x", f, p)
		}
	}
}

// TestE4M3Exhaustively compares all patterns with the formula of their fields.
func TestE4M3Exhaustively(t *testing.T) {
	for p := range 256 {
		got := make([]float32, 1)
		Widen(got, []byte{byte(p)}, F8E4M3)
		exp, man := p>>3&0xf, float64(p&7)
		want := math.Ldexp(1+man/8, exp-7)
		if exp == 0 {
			want = math.Ldexp(man, -9)
		}
		if p&0x7f == 0x7f {
			require.True(t, got[0] != got[0], "%#x", p)
			continue
		}
		if p >= 0x80 {
			want = math.Copysign(want, -1)
		}
		require.Equal(t, math.Float32bits(float32(want)), math.Float32bits(got[0]), "%#x", p)
	}
	require.Panics(t, func() { Narrow(make([]byte, 1), make([]float32, 1), F8E4M3) })
}

// formula is the value of a 16-bit float by the definition of its fields.
func formula(p uint16, f Format) float64 {
	expBits, bias := 5, 15
	if f == BF16 {
		expBits, bias = 8, 127
	}
	manBits := 15 - expBits
	exp, man := int(p>>manBits)&(1<<expBits-1), float64(p&(1<<manBits-1))
	sign := 1.0
	if p>>15 == 1 {
		sign = -1
	}
	switch {
	case exp == 0:
		return math.Copysign(math.Ldexp(man, 1-bias-manBits), sign)
	case exp == 1<<expBits-1 && man == 0:
		return math.Inf(int(sign))
	case exp == 1<<expBits-1:
		return math.NaN()
	}
	return sign * math.Ldexp(1+man/float64(int(1)<<manBits), exp-bias)
}

// TestNarrowRoundsToNearestEven compares with the two neighbours of the format.
func TestNarrowRoundsToNearestEven(t *testing.T) {
	t.Parallel()
	r := rand.New(rand.NewPCG(5, 6))
	for _, f := range []Format{F16, BF16} {
		for range 20_000 {
			p := uint16(r.UintN(0x7bff))
			low, high := formula(p, f), formula(p+1, f)
			if math.IsInf(high, 0) {
				continue
			}
			mid := (low + high) / 2
			even := low
			if p&1 == 1 {
				even = high
			}
			require.Equal(t, float32(even), Rounded(float32(mid), f), "%v tie above %#x", f, p)
			require.Equal(t, float32(low), Rounded(math.Nextafter32(float32(mid), 0), f), "%v below the tie above %#x", f, p)
			require.Equal(t, float32(high), Rounded(math.Nextafter32(float32(mid), math.MaxFloat32), f), "%v above the tie above %#x", f, p)
			require.Equal(t, -float32(even), Rounded(-float32(mid), f))
		}
		inf := float32(math.Inf(1))
		require.Equal(t, inf, Rounded(math.MaxFloat32, f))
		require.Equal(t, -inf, Rounded(-inf, f))
		nan := Rounded(math.Float32frombits(0x7f800001), f)
		require.True(t, nan != nan)
	}
	require.Equal(t, float32(65504), Rounded(65519.996, F16))
	require.Equal(t, float32(math.Inf(1)), Rounded(65520, F16))
}

// TestEncodeDecode brings every pattern of every format that is written back through
// float32, NaNs with their payloads among them.
func TestEncodeDecode(t *testing.T) {
	t.Parallel()
	for _, f := range []Format{F16, BF16} {
		for p := range uint32(1 << 16) {
			if got := Encode(Decode(p, f), f); got != p {
				t.Fatalf("%v: %#x comes back as %#x", f, p, got)
			}
		}
	}
	for _, p := range []uint32{0, 0x80000000, 0x7f800001, 0xffc12345, 0x3f800000} {
		require.Equal(t, p, Decode(p, F32))
		require.Equal(t, p, Encode(p, F32))
	}
	require.Panics(t, func() { Encode(0, F8E4M3) })
}

// TestEncodeNaN keeps what fits of a payload, and makes quiet what would be infinity.
func TestEncodeNaN(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		bits uint32
		f    Format
		want uint32
	}{
		{0x7f800001, BF16, 0x7fc0},
		{0xff800001, BF16, 0xffc0},
		{0x7fa0ffff, BF16, 0x7fa0},
		{0x7f800001, F16, 0x7e00},
		{0xff801fff, F16, 0xfe00},
		{0x7f802000, F16, 0x7c01},
		{0x7fffffff, F16, 0x7fff},
	} {
		require.Equal(t, c.want, Encode(c.bits, c.f), "%v %#x", c.f, c.bits)
		require.True(t, math.IsNaN(float64(math.Float32frombits(Decode(c.want, c.f)))))
	}
}

// TestFormat has the size and the name of every format.
func TestFormat(t *testing.T) {
	t.Parallel()
	for f, want := range map[Format]string{F32: "F32 4", F16: "F16 2", BF16: "BF16 2", F8E4M3: "F8E4M3 1"} {
		require.Equal(t, want, fmt.Sprint(f, f.Size()))
	}
}
