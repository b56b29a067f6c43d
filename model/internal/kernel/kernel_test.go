package kernel

import (
	"encoding/binary"
	"math"
	"math/big"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

func random(r *rand.Rand, n int) []float32 {
	x := make([]float32, n)
	for i := range x {
		x[i] = float32(r.NormFloat64()) * float32(math.Ldexp(1, r.IntN(20)-10))
	}
	return x
}

// TestFMA32 compares with arbitrary precision, near ties and denormals above all.
func TestFMA32(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	values := []float32{0, 1, -1, 1 + 0x1p-23, 1 - 0x1p-24, 0x1p-126, 0x1p-149, 3 * 0x1p-149, 0x1p-75, math.MaxFloat32, 0x1p-24, -0x1p-48, 0x1p-60}
	check := func(a, b, c float32) {
		exact := new(big.Float).SetPrec(2000).SetFloat64(float64(a) * float64(b))
		exact.Add(exact, big.NewFloat(float64(c)))
		want, _ := exact.Float32()
		got := FMA32(a, b, c)
		require.Equal(t, want, got, "%x * %x + %x", a, b, c)
	}
	for _, a := range values {
		for _, b := range values {
			for _, c := range values {
				check(a, b, c)
			}
		}
	}
	for range 300_000 {
		a, b := float32(r.NormFloat64()), float32(r.NormFloat64())
		check(a, b, float32(r.NormFloat64()*math.Ldexp(1, r.IntN(60)-30)))
		check(a, b, -float32(float64(a)*float64(b)))
		check(a*0x1p-70, b*0x1p-70, float32(r.NormFloat64()*0x1p-130))
	}
	// A product whose lost part decides a tie of the sum.
	check(1+0x1p-23, 0x1p-25, 1)
	check(1+0x1p-12, 1+0x1p-12, 0x1p30)
}

// TestCodecsExhaustively compares every 16-bit pattern with its formula and brings
// each value back unchanged.
func TestCodecsExhaustively(t *testing.T) {
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

// TestScales compares each number of a block-scaled matrix with its definition.
func TestScales(t *testing.T) {
	r := rand.New(rand.NewPCG(11, 12))
	for _, shape := range [][4]int{{5, 7, 2, 3}, {4, 6, 2, 3}, {3, 3, 128, 128}, {130, 257, 128, 128}} {
		rows, cols, blockRows, blockCols := shape[0], shape[1], shape[2], shape[3]
		blocks := (cols + blockCols - 1) / blockCols
		m := Matrix{
			Format: F8E4M3, Rows: rows, Cols: cols, Data: make([]byte, rows*cols),
			Scales:    random(r, (rows+blockRows-1)/blockRows*blocks),
			BlockRows: blockRows, BlockCols: blockCols,
		}
		for i := range m.Data {
			m.Data[i] = byte(r.UintN(0x7f)) | byte(r.UintN(2)<<7)
		}
		row := make([]float32, cols)
		for i := range rows {
			m.Row(row, i)
			for c, v := range row {
				exact := float64(float32FromE4M3(m.Data[i*cols+c])) * float64(m.Scales[i/blockRows*blocks+c/blockCols])
				require.Equal(t, float32(exact), v, "%v: row %d column %d", shape, i, c)
			}
		}
	}
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
	r := rand.New(rand.NewPCG(5, 6))
	for _, f := range []Format{F16, BF16} {
		for range 200_000 {
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

// TestExpsIsExp compares with Exp to the bit: ordinary numbers, the ends of the range,
// denormal results, and what is no number.
func TestExpsIsExp(t *testing.T) {
	each(t, func(t *testing.T) {
		r := rand.New(rand.NewPCG(11, 2))
		special := []float64{
			0, math.Copysign(0, -1), math.Inf(1), math.Inf(-1), math.NaN(), math.MaxFloat64, -math.MaxFloat64,
			709.782712893384, math.Nextafter(709.782712893384, 710), 709.9, -708.4, -708.39, -745.1332191019411,
			math.Nextafter(-745.1332191019411, -746), -744.44, 0x1p-1074, -0x1p-30, 1, -1, math.Ln2 / 2, -math.Ln2 / 2,
		}
		for n := range 70 {
			x := make([]float64, n)
			for range 200 {
				for i := range x {
					switch r.IntN(4) {
					case 0:
						x[i] = special[r.IntN(len(special))]
					case 1:
						x[i] = -700 - 50*r.Float64()
					default:
						x[i] = r.NormFloat64() * math.Ldexp(1, r.IntN(20)-9)
					}
				}
				got := slices.Clone(x)
				Exps(got)
				for i, v := range x {
					if want := Exp(v); math.Float64bits(want) != math.Float64bits(got[i]) && !(v != v && got[i] != got[i]) {
						t.Fatalf("exp(%x) = %x, want %x", v, got[i], want)
					}
				}
			}
		}
	})
}

// TestExp holds the error against arbitrary precision below one unit in the last place.
func TestExp(t *testing.T) {
	r := rand.New(rand.NewPCG(7, 8))
	worst := 0.0
	for i := range 20_000 {
		x := -r.ExpFloat64() * 20
		if i%4 == 0 {
			x = r.NormFloat64() * 200
		}
		got := Exp(x)
		if got < 0x1p-1022 || math.IsInf(got, 0) {
			continue
		}
		ulp := math.Nextafter(got, math.Inf(1)) - got
		diff, _ := new(big.Float).Sub(big.NewFloat(got).SetPrec(200), bigExp(x)).Float64()
		worst = max(worst, math.Abs(diff)/ulp)
	}
	require.Less(t, worst, 1.0, "error in units in the last place")
	require.Equal(t, 1.0, Exp(0))
	require.Equal(t, 0.0, Exp(math.Inf(-1)))
	require.Equal(t, 0.0, Exp(-3.4e38))
	require.Equal(t, math.Inf(1), Exp(710))
	require.True(t, math.IsNaN(Exp(math.NaN())))
}

// bigExp sums the Taylor series of x/2^32 and squares the result 32 times.
func bigExp(x float64) *big.Float {
	small := new(big.Float).SetPrec(300).SetMantExp(big.NewFloat(x), -32)
	sum, term := big.NewFloat(1).SetPrec(300), big.NewFloat(1).SetPrec(300)
	for n := 1; n < 40; n++ {
		term.Mul(term, small).Quo(term, new(big.Float).SetInt64(int64(n)))
		sum.Add(sum, term)
	}
	for range 32 {
		sum.Mul(sum, sum)
	}
	return sum
}
