package kernel

import (
	"encoding/binary"
	"fmt"
	"math"
	"math/big"
	"math/rand/v2"
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

// TestMatMulIsTheDotProduct ranges over lengths, formats, bytes offsets and worker
// counts and demands the bits of the dot product's definition, and that nothing
// outside dst is written.
func TestMatMulIsTheDotProduct(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for cols := 1; cols <= 70; cols++ {
		for _, format := range []Format{F32, F16, BF16} {
			rows, tokens, offset := 1+r.IntN(40), 1+r.IntN(36), r.IntN(3)
			data := make([]byte, offset+rows*cols*format.Size())
			Narrow(data[offset:], random(r, rows*cols), format)
			w := Matrix{Format: format, Rows: rows, Cols: cols, Data: data[offset:]}
			x, bias := random(r, tokens*cols), random(r, rows)
			for _, workers := range []int{1, 2, 5} {
				checkMatMul(t, x, w, bias, workers)
				checkMatMul(t, x, w, nil, workers)
			}
		}
	}
}

func checkMatMul(t *testing.T, x []float32, w Matrix, bias []float32, workers int) {
	t.Helper()
	tokens := len(x) / w.Cols
	const guard = 1234.5
	for _, acc := range []Accumulator{Float64, Float32} {
		buf := make([]float32, tokens*w.Rows+2)
		buf[0], buf[len(buf)-1] = guard, guard
		MatMul(buf[1:len(buf)-1], x, w, bias, acc, workers)
		require.Equal(t, []float32{guard, guard}, []float32{buf[0], buf[len(buf)-1]})
		row := make([]float32, w.Cols)
		for r := range w.Rows {
			w.row(row, r)
			for i := range tokens {
				want := product(x[i*w.Cols:(i+1)*w.Cols], row, bias, r, acc)
				got := buf[1+i*w.Rows+r]
				require.Equal(t, math.Float32bits(want), math.Float32bits(got), "acc %v token %d row %d of %d×%d", acc, i, r, w.Rows, w.Cols)
			}
		}
	}
}

func product(x, row, bias []float32, r int, acc Accumulator) float32 {
	if acc == Float32 {
		sum := Dot32(x, row)
		if bias != nil {
			sum += bias[r]
		}
		return sum
	}
	sum := Dot64(x, row)
	if bias != nil {
		sum += float64(bias[r])
	}
	return float32(sum)
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

func BenchmarkMatMul(b *testing.B) {
	r := rand.New(rand.NewPCG(9, 9))
	for _, acc := range []Accumulator{Float64, Float32} {
		for _, tokens := range []int{1, 16, 64} {
			const rows, cols = 1408, 2048
			data := make([]byte, rows*cols*2)
			Narrow(data, random(r, rows*cols), BF16)
			w := Matrix{Format: BF16, Rows: rows, Cols: cols, Data: data}
			x, dst := random(r, tokens*cols), make([]float32, tokens*rows)
			b.Run(fmt.Sprintf("float%d/tokens=%d", 64-32*int(acc), tokens), func(b *testing.B) {
				for b.Loop() {
					MatMul(dst, x, w, nil, acc, 1)
				}
				flops := 2 * float64(tokens) * rows * cols * float64(b.N)
				b.ReportMetric(flops/b.Elapsed().Seconds()/1e9, "GFLOP/s")
			})
		}
	}
}
