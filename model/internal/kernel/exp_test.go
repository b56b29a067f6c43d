package kernel

import (
	"math"
	"math/big"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestExpsIsExp compares with Exp to the bit: ordinary numbers, the ends of the range,
// denormal results, and NaN.
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
				exps(got)
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
	t.Parallel()
	r := rand.New(rand.NewPCG(7, 8))
	worst := 0.0
	for i := range 4_000 {
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

// TestSoftmax compares with the formula, NaN included.
func TestSoftmax(t *testing.T) {
	r := rand.New(rand.NewPCG(14, 2))
	inf := float32(math.Inf(1))
	each(t, func(t *testing.T) {
		for n := range 40 {
			x := random(r, n)
			want, sum := make([]float32, n), 0.0
			for _, v := range x {
				sum += Exp(float64(v) - float64(slices.Max(x)))
			}
			for i, v := range x {
				want[i] = float32(Exp(float64(v)-float64(slices.Max(x))) / sum)
			}
			Softmax(x)
			requireSame(t, want, x)
		}
		masked := []float32{-inf, 1, -inf, 1}
		Softmax(masked)
		require.Equal(t, []float32{0, 0.5, 0, 0.5}, masked)
		for _, x := range [][]float32{{-inf, -inf}, {inf, 0}, {float32(math.NaN()), 1}} {
			Softmax(x)
			require.True(t, x[0] != x[0], "%v", x)
		}
	})
}

// TestSiLU compares with the formula, into other memory and in place.
func TestSiLU(t *testing.T) {
	r := rand.New(rand.NewPCG(15, 2))
	each(t, func(t *testing.T) {
		for n := range 40 {
			x := random(r, n)
			want, got := make([]float32, n), make([]float32, n)
			for i, v := range x {
				want[i] = float32(float64(v) / (1 + Exp(-float64(v))))
			}
			SiLU(got, x)
			requireSame(t, want, got)
			SiLU(x, x)
			requireSame(t, want, x)
		}
	})
}

// TestSoftplus compares with the library's logarithm and exponential.
func TestSoftplus(t *testing.T) {
	for x := -60.0; x < 25; x += 0.0137 {
		want := math.Log1p(math.Exp(x))
		if x > 20 {
			want = x
		}
		require.InEpsilon(t, want, Softplus(x), 1e-15, "%g", x)
	}
	require.Zero(t, Softplus(math.Inf(-1)))
	require.True(t, math.IsNaN(Softplus(math.NaN())))
	require.Equal(t, math.Inf(1), Softplus(math.Inf(1)))
}
