package tensor

import (
	"encoding/binary"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
)

// encode lays out patterns of 2 or 4 bytes.
func encode(d DType, patterns ...uint32) []byte {
	var b []byte
	for _, p := range patterns {
		if d.Bits() == 16 {
			b = binary.LittleEndian.AppendUint16(b, uint16(p))
		} else {
			b = binary.LittleEndian.AppendUint32(b, p)
		}
	}
	return b
}

func patterns(d DType, b []byte) (p []uint32) {
	for len(b) > 0 {
		if d.Bits() == 16 {
			p = append(p, uint32(binary.LittleEndian.Uint16(b)))
			b = b[2:]
		} else {
			p = append(p, binary.LittleEndian.Uint32(b))
			b = b[4:]
		}
	}
	return p
}

func cast(t *testing.T, from, to DType, p ...uint32) ([]uint32, Loss) {
	t.Helper()
	c, err := NewCast(from, to)
	require.NoError(t, err)
	src := encode(from, p...)
	dst := make([]byte, len(src)*to.Bits()/from.Bits())
	lost := c.Convert(dst, src)
	return patterns(to, dst), lost
}

// TestCastAgainstKernel: every 16-bit pattern, and F32 patterns around every
// rounding boundary, against the kernels' own conversion.
func TestCastAgainstKernel(t *testing.T) {
	var all, wide []uint32
	for i := range uint32(1 << 16) {
		all = append(all, i)
		for _, d := range []uint32{0, 1, 0x7fff, 0x8000, 0x8001, 0xffff} {
			wide = append(wide, i<<16|d)
		}
	}
	for range 1 << 16 {
		x := rand.Uint32()
		wide = append(wide, x, x&^0x1fff, x&^0x1fff|0x1000, x&^0x1fff|0xfff)
	}
	for _, from := range []DType{F32, F16, BF16} {
		for _, to := range []DType{F32, F16, BF16} {
			in := all
			if from == F32 {
				in = wide
			}
			got, _ := cast(t, from, to, in...)
			values, err := Tensor{DType: from, Shape: []int{len(in)}, Data: encode(from, in...)}.Float32s(nil)
			require.NoError(t, err)
			encoded, err := FromFloat32s(to, []int{len(in)}, values)
			require.NoError(t, err)
			want := patterns(to, encoded.Data)
			for i := range in {
				if values[i] == values[i] && got[i] != want[i] {
					t.Fatalf("%s %x to %s: %x, want %x", from, in[i], to, got[i], want[i])
				}
			}
		}
	}
}

func TestCastKeepsNaN(t *testing.T) {
	for _, c := range []struct {
		from, to DType
		in, want uint32
	}{
		{BF16, F32, 0x7f81, 0x7f810000}, {BF16, F32, 0xffc1, 0xffc10000}, {F16, F32, 0x7c01, 0x7f802000},
		{F32, BF16, 0x7fc12345, 0x7fc1}, {F32, BF16, 0x7f800001, 0x7fc0}, {F32, F16, 0xff800001, 0xfe00},
		{F32, F16, 0x7fc02000, 0x7e01}, {BF16, F16, 0x7fc1, 0x7e08}, {F16, BF16, 0x7e08, 0x7fc1},
		{BF16, BF16, 0x7f81, 0x7f81}, {BF16, F32, 0x8000, 0x80000000}, {F32, F16, 0x80000000, 0x8000},
	} {
		got, lost := cast(t, c.from, c.to, c.in)
		require.Equal(t, c.want, got[0], "%s %x to %s", c.from, c.in, c.to)
		require.False(t, lost.Any())
	}
}

func TestCastCountsLosses(t *testing.T) {
	const big, inf, tiny, zero, one, nan = 0x4780, 0x7f80, 0x3300, 0, 0x3f80, 0x7fc0 // BF16: 65536, ∞, 2^-25
	_, lost := cast(t, BF16, F16, big, big|0x8000, inf, tiny, tiny|0x8000, zero, 0x8000, one, nan, 0x3301, big)
	require.Equal(t, Loss{Overflow: 3, Flushed: 2}, lost)
	_, lost = cast(t, F32, BF16, 0x7f7fffff, 1, 0x7f800000, 0, 0x3f800000)
	require.Equal(t, Loss{Overflow: 1, Flushed: 1}, lost)
	_, lost = cast(t, F16, F32, 0x7c00, 1, 0)
	require.False(t, lost.Any())
	for _, d := range []DType{F64, I32, F8E4M3, Bool} {
		_, err := NewCast(d, F32)
		require.Error(t, err)
		_, err = NewCast(F32, d)
		require.Error(t, err)
	}
}

// TestDequantise against the formula, from any element on, with ragged blocks.
func TestDequantise(t *testing.T) {
	b := Blocks{Rows: 7, Cols: 11, BlockRows: 3, BlockCols: 4}
	rows, cols := b.Grid()
	require.Equal(t, []int{3, 3}, []int{rows, cols})
	scales := make([]float32, rows*cols)
	for i := range scales {
		scales[i] = rand.Float32()
	}
	src := make([]byte, b.Rows*b.Cols)
	for i := range src {
		src[i] = byte(rand.Uint32()) &^ 1 // no NaN
	}
	for _, d := range []DType{F32, BF16, F16} {
		q, err := NewDequantiser(d)
		require.NoError(t, err)
		values := make([]float32, len(src))
		for i, code := range src {
			values[i] = E4M3(code) * scales[i/b.Cols/3*cols+i%b.Cols/4]
		}
		want, err := FromFloat32s(d, []int{len(src)}, values)
		require.NoError(t, err)
		size := d.Bits() / 8
		for at := range src {
			for _, n := range []int{1, 5, len(src) - at} {
				n = min(n, len(src)-at)
				dst := make([]byte, n*size)
				q.Convert(dst, src[at:at+n], at, b, scales[at/b.Cols/3*cols:])
				require.Equal(t, want.Data[at*size:(at+n)*size], dst, "%s from %d", d, at)
			}
		}
	}
}

func TestDequantiseCountsLosses(t *testing.T) {
	b := Blocks{Rows: 1, Cols: 4, BlockRows: 1, BlockCols: 1}
	src := []byte{0x7e, 0x01, 0x7f, 0x00} // 448, 2^-9, NaN, 0
	for _, c := range []struct {
		to    DType
		scale float32
		want  Loss
	}{{F16, 1000, Loss{Overflow: 1}}, {F16, 1e-6, Loss{Flushed: 1}}, {F32, 1, Loss{}}, {F32, 1e38, Loss{Overflow: 1}}, {BF16, 1e-44, Loss{Flushed: 2}}} {
		q, err := NewDequantiser(c.to)
		require.NoError(t, err)
		lost := q.Convert(make([]byte, 4*c.to.Bits()/8), src, 0, b, []float32{c.scale, c.scale, c.scale, c.scale})
		require.Equal(t, c.want, lost, "%s × %g", c.to, c.scale)
	}
}

func TestE4M3(t *testing.T) {
	require.EqualValues(t, 448, E4M3(0x7e))
	require.EqualValues(t, 0x1p-9, E4M3(1))
	require.EqualValues(t, -1, E4M3(0xb8))
	require.True(t, math.IsNaN(float64(E4M3(0xff))))
	require.True(t, math.Signbit(float64(E4M3(0x80))))
}

func TestOrdinal(t *testing.T) {
	require.EqualValues(t, 0, Ordinal(float32(math.Copysign(0, -1)), BF16))
	require.EqualValues(t, 1, Ordinal(1.0078125, BF16)-Ordinal(1, BF16))
	require.EqualValues(t, 8, Ordinal(1.0078125, F16)-Ordinal(1, F16))
	require.EqualValues(t, 2, Ordinal(1e-45, F32)-Ordinal(-1e-45, F32))
	require.EqualValues(t, float32(1), Rounded(1.001, BF16))
}

func BenchmarkCast(b *testing.B) {
	for _, c := range [][2]DType{{BF16, F16}, {BF16, F32}, {F32, BF16}, {F32, F16}} {
		b.Run(c[0].String()+"-"+c[1].String(), func(b *testing.B) {
			cast, err := NewCast(c[0], c[1])
			require.NoError(b, err)
			n := 1 << 18
			values := make([]float32, n)
			for i := range values {
				values[i] = rand.Float32()*2 - 1
			}
			src, err := FromFloat32s(c[0], []int{n}, values)
			require.NoError(b, err)
			dst := make([]byte, n*c[1].Bits()/8)
			b.SetBytes(int64(len(src.Data)))
			for b.Loop() {
				cast.Convert(dst, src.Data)
			}
		})
	}
}

func BenchmarkDequantise(b *testing.B) {
	blocks := Blocks{Rows: 512, Cols: 2048, BlockRows: 128, BlockCols: 128}
	q, err := NewDequantiser(BF16)
	require.NoError(b, err)
	src, dst := make([]byte, blocks.Rows*blocks.Cols), make([]byte, 2*blocks.Rows*blocks.Cols)
	scales := make([]float32, 4*16)
	for i := range src {
		src[i] = byte(i*7) &^ 1
	}
	for i := range scales {
		scales[i] = 0.001 * float32(i+1)
	}
	b.SetBytes(int64(len(dst)))
	for b.Loop() {
		q.Convert(dst, src, 0, blocks, scales)
	}
}
