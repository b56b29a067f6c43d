package tensor

import (
	"bytes"
	"encoding/binary"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"dsmoe/model/internal/kernel"

	"github.com/stretchr/testify/require"
)

// each runs f with every implementation of the kernels.
func each(t *testing.T, f func(t *testing.T)) {
	for _, name := range kernel.Implementations() {
		t.Run(name, func(t *testing.T) {
			defer kernel.Use(name)()
			f(t)
		})
	}
}

var floats = []DType{F32, F16, BF16}

// encode lays out the bits of elements.
func encode(d DType, elements ...uint32) []byte {
	f, _ := d.Format()
	b := make([]byte, len(elements)*f.Size())
	for i, p := range elements {
		store(b, i, f, p)
	}
	return b
}

func elements(d DType, b []byte) []uint32 {
	f, _ := d.Format()
	p := make([]uint32, len(b)/f.Size())
	for i := range p {
		p[i] = load(b, i, f)
	}
	return p
}

func cast(t testing.TB, from, to DType, p ...uint32) ([]uint32, Loss) {
	c, err := NewCast(from, to)
	require.NoError(t, err)
	dst := make([]byte, to.Bytes(int64(len(p))))
	lost := c.Convert(dst, encode(from, p...))
	return elements(to, dst), lost
}

// definedCast is what casting p gives by definition: each element, and the losses.
type definedCast struct {
	from, to DType
	p, want  []uint32
	lost     Loss
}

// definedCasts returns the definition of casting p to each dtype.
func definedCasts(from DType, p []uint32) (all []definedCast) {
	for _, to := range floats {
		c := definedCast{from: from, to: to, p: p}
		for i := range p {
			want, l := defined(p[i], from, to)
			c.want = append(c.want, want)
			c.lost.Add(l)
		}
		all = append(all, c)
	}
	return all
}

// requireDefined casts p to every dtype and compares each element and the losses with
// their definition.
func requireDefined(t testing.TB, from DType, p []uint32) {
	for _, c := range definedCasts(from, p) {
		c.require(t)
	}
}

// require casts and compares with the definition.
func (c *definedCast) require(t testing.TB) {
	got, lost := cast(t, c.from, c.to, c.p...)
	for i, want := range c.want {
		if got[i] != want {
			t.Fatalf("element %d, %s %x to %s: %x, want %x", i, c.from, c.p[i], c.to, got[i], want)
		}
	}
	require.Equal(t, c.lost, lost, "%s to %s", c.from, c.to)
}

// TestCastIsDefined takes every 16-bit pattern, in order and mixed, and F32 around
// every rounding boundary and at random.
func TestCastIsDefined(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 5))
	var all, wide []uint32
	for i := range uint32(1 << 16) {
		all = append(all, i)
		for _, low := range []uint32{0, 1, 0xfff, 0x1000, 0x1001, 0x2fff, 0x3000, 0x7fff, 0x8000, 0x8001, 0xffff} {
			wide = append(wide, i<<16|low)
		}
	}
	for range 1 << 16 {
		x := r.Uint32()
		wide = append(wide, x, x&^0x1fff, x&^0x1fff|0x1000, x&^0x1fff|0xfff)
	}
	mixed := append([]uint32{}, all...)
	r.Shuffle(len(mixed), func(i, j int) { mixed[i], mixed[j] = mixed[j], mixed[i] })
	r.Shuffle(len(wide), func(i, j int) { wide[i], wide[j] = wide[j], wide[i] })
	casts := definedCasts(F32, wide)
	for _, d := range []DType{F16, BF16} {
		casts = append(append(casts, definedCasts(d, all)...), definedCasts(d, mixed)...)
	}
	each(t, func(t *testing.T) {
		for i := range casts {
			casts[i].require(t)
		}
	})
}

// TestCastOfWeights takes what checkpoints hold: small numbers with something special
// among them now and then, at every length and alignment.
func TestCastOfWeights(t *testing.T) {
	r := rand.New(rand.NewPCG(8, 1))
	each(t, func(t *testing.T) {
		for n := range 150 {
			n += r.IntN(20) / 19 * piece
			for _, from := range floats {
				values := make([]uint32, n)
				for i := range values {
					values[i] = narrow(math.Float32bits(float32(r.NormFloat64()*0.01)), from)
					if r.IntN(100) == 0 {
						values[i] = r.Uint32() >> (32 - from.Bytes(8)) & -uint32(r.IntN(2))
					}
				}
				requireDefined(t, from, values)
				for _, to := range floats {
					c, err := NewCast(from, to)
					require.NoError(t, err)
					want, _ := cast(t, from, to, values...)
					size := int(to.Bytes(int64(n)))
					src, dst := append([]byte{9}, encode(from, values...)...), make([]byte, size+2)
					dst[0], dst[size+1] = 7, 8
					c.Convert(dst[1:size+1], src[1:])
					require.Equal(t, want, elements(to, dst[1:size+1]))
					require.Equal(t, []byte{7, 8}, []byte{dst[0], dst[size+1]})
				}
			}
		}
	})
}

func FuzzCast(f *testing.F) {
	f.Add(encode(F32, 0x3f800000, 0x7f800001, 0x33000001, 0x477fefff, 0x477ff000))
	f.Add(encode(BF16, 0x3f80, 0x7f81, 0x3300, 0x4780, 0x8000))
	f.Fuzz(func(t *testing.T, data []byte) {
		data = append(data, data...) // beyond one step of census
		for _, from := range floats {
			requireDefined(t, from, elements(from, data))
		}
	})
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
		require.Equal(t, Loss{NotFinite: lost.NotFinite}, lost)
	}
}

func TestCastCountsLosses(t *testing.T) {
	const big, inf, tiny, zero, one, nan = 0x4780, 0x7f80, 0x3300, 0, 0x3f80, 0x7fc0 // BF16: 65536, ∞, 2^-25
	_, lost := cast(t, BF16, F16, big, big|0x8000, inf, tiny, tiny|0x8000, zero, 0x8000, one, nan, 0x3301, big)
	require.Equal(t, Loss{Overflow: 3, Flushed: 2, Denormal: 1, NotFinite: 2}, lost)
	_, lost = cast(t, F32, BF16, 0x7f7fffff, 1, 0x7f800000, 0, 0x3f800000)
	require.Equal(t, Loss{Overflow: 1, Flushed: 1, NotFinite: 1}, lost)
	_, lost = cast(t, F16, F32, 0x7c00, 1, 0)
	require.Equal(t, Loss{NotFinite: 1}, lost)
	_, lost = cast(t, BF16, F32, big, nan, inf)
	require.Equal(t, Loss{NotFinite: 2}, lost)
	_, lost = cast(t, BF16, F32, big, tiny, zero)
	require.False(t, lost.Any())
	// Just what the dtype has, and just not: above the least normal number, about it, below it, and
	// half of the least number.
	for _, c := range []struct {
		from, to DType
		kept     []uint32
		lost     []uint32
		want     Loss
	}{
		{BF16, F16, []uint32{0x3700, 0xb77f, 0x3600, 0x477f}, []uint32{0x367f, 0xb67f}, Loss{Denormal: 2}}, // 2^-17, 2^-16·1.99, 2^-19, 65280
		{BF16, F16, []uint32{0x3380}, []uint32{0x3301}, Loss{Denormal: 1}},                                 // 2^-24, above 2^-25
		{F32, F16, []uint32{0x3f802000, 0x38800000, 0x33800000}, []uint32{0x3f801000, 0xbf802001, 0x3f801fff}, Loss{Rounded: 3}},
		{F32, F16, []uint32{0x387fc000}, []uint32{0x387fe000, 0x387fffff, 0x33800001, 0x33000001}, Loss{Denormal: 4}}, // two become 2^-14
		{F32, F16, []uint32{0x477fe000}, []uint32{0x477fefff, 0x477ff000}, Loss{Rounded: 1, Overflow: 1}},             // 65504, below 65520, 65520
		{F32, BF16, []uint32{0x3f810000, 0x00800000, 0x00010000}, []uint32{0x3f818000, 0x3f800001}, Loss{Rounded: 2}},
		{F32, BF16, []uint32{0x007f0000}, []uint32{0x007f8000, 0x00010001, 0x00008001, 0x00008000}, Loss{Denormal: 3, Flushed: 1}},
		{F16, BF16, []uint32{0x3c08, 0x0001, 0x00ff}, []uint32{0x3c04, 0x3c01, 0x0101}, Loss{Rounded: 3}}, // no F16 is denormal in BF16
	} {
		_, lost := cast(t, c.from, c.to, c.kept...)
		require.False(t, lost.Any(), "%s to %s: %x: %+v", c.from, c.to, c.kept, lost)
		_, lost = cast(t, c.from, c.to, slices.Concat(c.lost, c.kept)...)
		require.Equal(t, c.want, lost, "%s to %s: %x", c.from, c.to, c.lost)
	}
	for _, d := range []DType{F64, I32, F8E4M3, Bool} {
		_, err := NewCast(d, F32)
		require.Error(t, err)
		_, err = NewCast(F32, d)
		require.Error(t, err)
	}
}

// requireDequantised compares the elements at … of src with their definition.
func requireDequantised(t testing.TB, b Blocks, scales []float32, src []byte, at, n int) {
	_, width := b.Grid()
	for _, to := range floats {
		q, err := FP8.Dequantiser(to)
		require.NoError(t, err)
		dst := make([]byte, to.Bytes(int64(n)))
		lost := q.Convert(dst, src[at:at+n], at, b, Grid{Scales: scales[at/b.Cols/b.BlockRows*width:]})
		var total Loss
		for i, got := range elements(to, dst) {
			row, col := (at+i)/b.Cols, (at+i)%b.Cols
			scale := scales[row/b.BlockRows*width+col/b.BlockCols]
			want, l := definedProduct(src[at+i], scale, to)
			total.Add(l)
			if got != want && !(scale != scale || math.IsInf(float64(scale), 0) && src[at+i]&0x7f == 0) { // the processor's NaN
				t.Fatalf("%v element %d: %x · %x to %s: %x, want %x", b, at+i, src[at+i], scale, to, got, want)
			}
		}
		require.Equal(t, total, lost, "%v to %s from %d", b, to, at)
	}
}

// TestDequantise ranges over ragged blocks, places to begin at, and codes and scales
// of all kinds.
func TestDequantise(t *testing.T) {
	rows, cols := Blocks{Rows: 7, Cols: 11, BlockRows: 3, BlockCols: 4}.Grid()
	require.Equal(t, []int{3, 3}, []int{rows, cols})
	r := rand.New(rand.NewPCG(6, 6))
	each(t, func(t *testing.T) {
		for range 300 {
			b := Blocks{1 + r.IntN(10), 1 + r.IntN(400), 1 + r.IntN(9), 1 + r.IntN(200)}
			if r.IntN(10) == 0 {
				b.Cols += piece
			}
			rows, cols := b.Grid()
			scales, src := make([]float32, rows*cols), make([]byte, b.Rows*b.Cols)
			for i := range scales {
				scales[i] = r.Float32() * 1e-3
				if r.IntN(8) == 0 {
					scales[i] = math.Float32frombits(r.Uint32())
				}
			}
			for i := range src {
				src[i] = byte(r.Uint32())
			}
			at := r.IntN(len(src))
			requireDequantised(t, b, scales, src, at, 1+r.IntN(len(src)-at))
		}
	})
}

// TestDequantiseEveryProduct multiplies every code with scales at the edges.
func TestDequantiseEveryProduct(t *testing.T) {
	infinite, nan := float32(math.Inf(1)), float32(math.NaN())
	codes := make([]byte, 256)
	for i := range codes {
		codes[i] = byte(i)
	}
	each(t, func(t *testing.T) {
		for _, scale := range []float32{0, 1, -1, 0x1p-149, 0x1p-140, 0x1.8p-126, 0x1.2p-16, 0x1p-15, 146.2, 0x1p119, math.MaxFloat32, infinite, -infinite, nan} {
			requireDequantised(t, Blocks{1, 256, 1, 256}, []float32{scale}, codes, 0, 256)
		}
	})
}

func FuzzDequantise(f *testing.F) {
	f.Add([]byte("codes"), uint32(0x3f800000), uint32(0x7f800000), uint8(3))
	f.Fuzz(func(t *testing.T, src []byte, one, two uint32, width uint8) {
		scales := []float32{math.Float32frombits(one), math.Float32frombits(two)}
		if b := (Blocks{1, len(src), 1, (len(src) + 1) / 2}); len(src) > 1 {
			requireDequantised(t, b, scales, src, int(width)%len(src), len(src)-int(width)%len(src))
		}
	})
}

// TestNotFinite: infinities and NaNs of every dtype that has them, at all places.
func TestNotFinite(t *testing.T) {
	for d, patterns := range map[DType]struct{ finite, not []string }{
		F64:        {[]string{"\x00\x00\x00\x00\x00\x00\xef\x7f", "\xff\xff\xff\xff\xff\xff\xef\xff"}, []string{"\x00\x00\x00\x00\x00\x00\xf0\x7f", "\x01\x00\x00\x00\x00\x00\xf0\xff"}},
		F32:        {[]string{"\xff\xff\x7f\x7f", "\x00\x00\x00\x80"}, []string{"\x00\x00\x80\x7f", "\x01\x00\x80\xff"}},
		C64:        {[]string{"\xff\xff\x7f\x7f\x00\x00\x00\x00"}, []string{"\xff\xff\x7f\x7f\x00\x00\xc0\xff"}},
		F16:        {[]string{"\xff\x7b", "\x00\x80"}, []string{"\x00\x7c", "\x01\xfc"}},
		BF16:       {[]string{"\x7f\x7f", "\x00\x80"}, []string{"\x80\x7f", "\xc0\xff"}},
		F8E4M3:     {[]string{"\x7e", "\x80"}, []string{"\x7f", "\xff"}},
		F8E5M2:     {[]string{"\x7b", "\x80", "\xfb"}, []string{"\x7c", "\x7f", "\xfd"}},
		F8E4M3FNUZ: {[]string{"\x7f", "\xff"}, []string{"\x80"}},
		F8E5M2FNUZ: {[]string{"\x7f", "\xff"}, []string{"\x80"}},
		F8E8M0:     {[]string{"\x00", "\xfe", "\x7f", "\x80"}, []string{"\xff"}},
		I16:        {[]string{"\xff\xff", "\x80\x7f"}, nil},
		F4:         {[]string{"\xff"}, nil},
	} {
		for n := range 20 {
			data := strings.Repeat(strings.Join(patterns.finite, ""), n)
			require.Zero(t, NotFinite([]byte(data), d), d)
			for i, p := range patterns.not {
				require.EqualValues(t, n+1, NotFinite([]byte(strings.Repeat(p, n)+data+p), d), "%s %d", d, i)
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
	}{
		{F16, 1000, Loss{Overflow: 1, NotFinite: 1}}, {F16, 1e-6, Loss{Rounded: 1, Flushed: 1, NotFinite: 1}}, {F32, 1, Loss{NotFinite: 1}},
		{F32, 1e38, Loss{Overflow: 1, NotFinite: 1}}, {BF16, 1e-44, Loss{Flushed: 2, NotFinite: 1}}, {F16, 0, Loss{NotFinite: 1}},
		{BF16, float32(math.Inf(1)), Loss{NotFinite: 4}}, {F32, float32(math.NaN()), Loss{NotFinite: 4}},
	} {
		q, err := FP8.Dequantiser(c.to)
		require.NoError(t, err)
		lost := q.Convert(make([]byte, c.to.Bytes(4)), src, 0, b, Grid{Scales: []float32{c.scale, c.scale, c.scale, c.scale}})
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

// BenchmarkCast reports GB/s of source, beside copying as many bytes.
// BenchmarkNotFinite counts in weights that are all finite.
func BenchmarkNotFinite(b *testing.B) {
	data := make([]byte, 1<<20)
	for _, d := range []DType{BF16, F32, F8E4M3} {
		b.Run(d.String(), func(b *testing.B) {
			b.SetBytes(int64(len(data)))
			for b.Loop() {
				NotFinite(data, d)
			}
		})
	}
}

func BenchmarkCast(b *testing.B) {
	for _, name := range kernel.Implementations() {
		for _, c := range [][2]DType{{BF16, BF16}, {BF16, F32}, {BF16, F16}, {F16, BF16}, {F16, F32}, {F32, BF16}, {F32, F16}} {
			b.Run(name+"/"+c[0].String()+"→"+c[1].String(), func(b *testing.B) {
				defer kernel.Use(name)()
				cast, err := NewCast(c[0], c[1])
				require.NoError(b, err)
				src := weights(b, c[0])
				dst := make([]byte, c[1].Bytes(c[0].Elements(int64(len(src)))))
				against(b, src, func() { cast.Convert(dst, src) })
			})
		}
	}
}

// BenchmarkCastZeros counts all the time.
func BenchmarkCastZeros(b *testing.B) {
	c, err := NewCast(BF16, F16)
	require.NoError(b, err)
	src, dst := make([]byte, benchmarked), make([]byte, benchmarked)
	against(b, src, func() { c.Convert(dst, src) })
}

// BenchmarkDequantise reports GB/s of output.
func BenchmarkDequantise(b *testing.B) {
	blocks := Blocks{Rows: 512, Cols: 2048, BlockRows: 128, BlockCols: 128}
	src := make([]byte, blocks.Rows*blocks.Cols)
	for i := range src {
		src[i] = byte(i*7) | 0x20 // no zeros: FP8 weights hardly have any
		if src[i]&0x7f == 0x7f {
			src[i]--
		}
	}
	scales := make([]float32, 4*16)
	for i := range scales {
		scales[i] = 0.001 * float32(i+1)
	}
	for _, name := range kernel.Implementations() {
		for _, to := range floats {
			b.Run(name+"/"+to.String(), func(b *testing.B) {
				defer kernel.Use(name)()
				q, err := FP8.Dequantiser(to)
				require.NoError(b, err)
				dst := make([]byte, to.Bytes(int64(len(src))))
				against(b, dst, func() { q.Convert(dst, src, 0, blocks, Grid{Scales: scales}) })
			})
		}
	}
}

// benchmarked is more than the level-2 caches hold, as the tiles of a conversion are.
const benchmarked = 4 << 20

// weights are what checkpoints hold.
func weights(b *testing.B, d DType) []byte {
	r := rand.New(rand.NewPCG(1, 1))
	values := make([]float32, d.Elements(benchmarked))
	for i := range values {
		values[i] = float32(r.NormFloat64() * 0.02)
	}
	f, ok := d.Format()
	require.True(b, ok)
	data := make([]byte, len(values)*f.Size())
	kernel.Narrow(data, values, f)
	return data
}

// against reports how fast f goes through data, and a copy of data beside it.
func against(b *testing.B, data []byte, f func()) {
	to, copying := make([]byte, len(data)), time.Duration(0)
	for b.Loop() {
		f()
		start := time.Now()
		copy(to, data)
		copying += time.Since(start)
	}
	total := float64(len(data)) * float64(b.N) / 1e9
	b.ReportMetric(total/(b.Elapsed()-copying).Seconds(), "GB/s")
	b.ReportMetric(total/copying.Seconds(), "GB/s-copy")
}

// TestFinite: a NaN or an infinity at any place of rows of any length is found, and nothing
// else is.
func TestFinite(t *testing.T) {
	t.Parallel()
	for d, bad := range map[DType][]byte{F32: {0, 0, 0x80, 0xff}, F16: {1, 0x7c}, BF16: {0x80, 0x7f}, F8E4M3: {0xff}} {
		largest := map[DType][]byte{F32: {0xff, 0xff, 0x7f, 0xff}, F16: {0xff, 0x7b}, BF16: {0x7f, 0x7f}, F8E4M3: {0xfe}}[d]
		for n := range 70 {
			x := Tensor{DType: d, Shape: []int{n}, Data: bytes.Repeat(largest, n)}
			require.True(t, x.Finite(), "%s %d", d, n)
			for i := range n {
				y := Tensor{DType: d, Shape: x.Shape, Data: slices.Clone(x.Data)}
				copy(y.Data[i*len(bad):], bad)
				require.False(t, y.Finite(), "%s %d of %d", d, i, n)
			}
		}
	}
	require.True(t, Tensor{DType: I64, Shape: []int{1}, Data: make([]byte, 8)}.Finite())
}

// TestExact: products that F32 rounds are lost even where the output has the rounded one; of second scales, too.
func TestExact(t *testing.T) {
	of := func(f *Form, to DType, codes []byte, g Grid) Loss {
		q, err := f.Dequantiser(to)
		require.NoError(t, err)
		n := int(f.Codes.Elements(int64(len(codes))))
		return q.Convert(make([]byte, to.Bytes(int64(n))), codes, 0, Blocks{1, n, 1, n}, g)
	}
	const nearly = float32(1) / 448 // 448 times it is 1 in F32, and not exactly 1
	for _, c := range []struct {
		f     *Form
		to    DType
		codes []byte
		grid  Grid
		want  Loss
	}{
		{FP8, BF16, []byte{0x7e, 0xfe, 0}, Grid{Scales: []float32{nearly}}, Loss{Rounded: 2}},
		{FP8, F32, []byte{0x7e, 0xfe, 0, 8}, Grid{Scales: []float32{nearly}}, Loss{Rounded: 2}}, // 8 is a power of two
		{FP8, F32, []byte{0x7e, 0x7d, 0, 8}, Grid{Scales: []float32{0x1.00001p-9}}, Loss{}},     // 21 bits, codes of 3
		{FP8, F32, []byte{0x7e, 0x01}, Grid{Scales: []float32{0x1p-142}}, Loss{Flushed: 1}},     // times 2^-9
		{FP4, BF16, []byte{0x21, 0xf7}, Grid{Scales: []float32{0x1p-127}}, Loss{}},
		{FP4, F16, []byte{0x21, 0xf7}, Grid{Scales: []float32{0x1p-25}}, Loss{Flushed: 2}}, // 2^-26, 2^-25
		{FP4, BF16, []byte{0x21, 0xf7}, Grid{Scales: []float32{0x1p126}}, Loss{Overflow: 2}},
		{packedINT4, BF16, []byte{0x7f}, Grid{Scales: []float32{0x1.02p-3}}, Loss{Rounded: 1}}, // 7 times 8 bits, -1
		{nvfp4, F32, []byte{0x20, 0xf1}, Grid{Scales: []float32{0.5}, Rounded: []bool{true}}, Loss{Rounded: 3}},
		{nvfp4, BF16, []byte{0x20, 0xf1}, Grid{Scales: []float32{0.5}, Rounded: []bool{true}}, Loss{Rounded: 3}},
		{nvfp4, F32, []byte{0x20, 0xf1}, Grid{Scales: []float32{0.5}, Rounded: []bool{false}}, Loss{}},
	} {
		require.Equal(t, c.want, of(c.f, c.to, c.codes, c.grid), "%s %s %v", c.f.Name, c.to, c.grid)
	}
	side := func(v float32) []byte { return binary.LittleEndian.AppendUint32(nil, math.Float32bits(v)) }
	for _, c := range []struct {
		second secondScale
		by     float32
		want   []bool
	}{
		{multiplied, 0x1p-9, []bool{false, false}}, {multiplied, nearly, []bool{false, true}}, {multiplied, 0x1p-149, []bool{true, true}},
		{divided, 448, []bool{true, true}}, {divided, 0.25, []bool{false, false}}, {divided, 0, []bool{true, true}},
	} {
		s := Scaling{Scales: F8E4M3, Second: c.second, Blocks: Blocks{1, 32, 1, 16}}
		g, err := s.Grid([][]byte{{0x30, 0x3f}, side(c.by)}, 0) // 0.5, 1.875
		require.NoError(t, err)
		require.Equal(t, c.want, g.Rounded, "%s %v", c.second, c.by)
	}
}

// TestExactOfForms: what is counted of the codes of every form, with scales of few bits and of many, is what the
// exact products lose.
func TestExactOfForms(t *testing.T) {
	r := rand.New(rand.NewPCG(8, 8))
	for range 400 {
		f := scaled[r.IntN(len(scaled))]
		b := Blocks{1, 64, 1, []int{2, 16, 64}[r.IntN(3)]}
		g := Grid{}
		for range 64 / b.BlockCols {
			bits := r.Uint32()>>r.IntN(24)<<r.IntN(24)&(1<<23-1) | uint32(20+r.IntN(200))<<23
			g.Scales, g.Rounded = append(g.Scales, math.Float32frombits(bits)), append(g.Rounded, r.IntN(4) == 0)
			g.Zeros = append(g.Zeros, float32(r.IntN(16)-8))
		}
		if f.Codes != INT4 || r.IntN(2) == 0 {
			g.Zeros = nil
		}
		codes := make([]byte, f.Codes.Bytes(64))
		for i := range codes {
			codes[i] = byte(r.Uint32()) & 0xee // no NaN of E4M3
		}
		var values [64]float64
		f.Values(values[:], codes, 0)
		for _, to := range floats {
			q, err := f.Dequantiser(to)
			require.NoError(t, err)
			out := make([]byte, to.Bytes(64))
			lost, want := q.Convert(out, codes, 0, b, g), Loss{}
			for i, y := range elements(to, out) {
				block := i / b.BlockCols
				exact := (values[i] - float64(g.zero(block))) * float64(g.Scales[block])
				got := float64(math.Float32frombits(widen(y, to)))
				switch {
				case math.IsInf(got, 0):
					want.Overflow++
				case exact == got && (exact == 0 || !g.rounded(block)):
				case got == 0:
					want.Flushed++
				case math.Abs(exact) < float64(smallest[to]) && math.Abs(float64(float32(exact))) < float64(smallest[to]):
					want.Denormal++
				default:
					want.Rounded++
				}
			}
			require.Equal(t, want, lost, "%s to %s: %v", f.Name, to, g)
		}
	}
}
