package kernel

import (
	"math"
	"math/big"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestFMA32 compares with arbitrary precision, near ties and denormals above all.
func TestFMA32(t *testing.T) {
	t.Parallel()
	r := rand.New(rand.NewPCG(3, 4))
	values := []float32{0, 1, -1, 1 + 0x1p-23, 1 - 0x1p-24, 0x1p-126, 0x1p-149, 3 * 0x1p-149, 0x1p-75, math.MaxFloat32, 0x1p-24, -0x1p-48, 0x1p-60}
	check := func(a, b, c float32) {
		exact := new(big.Float).SetPrec(2000).SetFloat64(float64(a) * float64(b))
		exact.Add(exact, big.NewFloat(float64(c)))
		want, _ := exact.Float32()
		got := fma32(a, b, c)
		if !same(want, got) {
			t.Fatalf("%x * %x + %x = %x, want %x", a, b, c, got, want)
		}
	}
	for _, a := range values {
		for _, b := range values {
			for _, c := range values {
				check(a, b, c)
			}
		}
	}
	for range 100_000 {
		a, b := float32(r.NormFloat64()), float32(r.NormFloat64())
		check(a, b, float32(r.NormFloat64()*math.Ldexp(1, r.IntN(60)-30)))
		check(a, b, -float32(float64(a)*float64(b)))
		check(a*0x1p-70, b*0x1p-70, float32(r.NormFloat64()*0x1p-130))
	}
	// A product whose lost part decides a tie of the sum.
	check(1+0x1p-23, 0x1p-25, 1)
	check(1+0x1p-12, 1+0x1p-12, 0x1p30)
}

// TestDotIsTheDefinition sums a few products by hand: 17 of them share lanes 0 and 16,
// and the tree adds lanes 8 apart first.
func TestDotIsTheDefinition(t *testing.T) {
	t.Parallel()
	r := rand.New(rand.NewPCG(12, 2))
	x, w := random(r, 17), random(r, 17)
	var l [16]float32
	for k := range 16 {
		l[k] = x[k] * w[k]
	}
	l[0] = fma32(x[16], w[16], l[0])
	want := (((l[0] + l[8]) + (l[4] + l[12])) + ((l[2] + l[10]) + (l[6] + l[14]))) +
		(((l[1] + l[9]) + (l[5] + l[13])) + ((l[3] + l[11]) + (l[7] + l[15])))
	require.Equal(t, want, Dot32(x, w))

	var d [16]float64
	for k := range 17 {
		d[k%16] += float64(x[k]) * float64(w[k])
	}
	wide := (((d[0] + d[8]) + (d[4] + d[12])) + ((d[2] + d[10]) + (d[6] + d[14]))) +
		(((d[1] + d[9]) + (d[5] + d[13])) + ((d[3] + d[11]) + (d[7] + d[15])))
	require.Equal(t, wide, Dot64(x, w))
}

// TestDotEdges has no products, a -0, and an operand that is longer.
func TestDotEdges(t *testing.T) {
	t.Parallel()
	require.Equal(t, uint32(0), math.Float32bits(Dot32(nil, nil)))
	require.Equal(t, uint64(0), math.Float64bits(Dot64(nil, nil)))
	negative := []float32{float32(math.Copysign(0, -1))}
	require.Equal(t, uint32(0), math.Float32bits(Dot32(negative, []float32{1})), "lanes begin at +0")
	require.Equal(t, uint64(0), math.Float64bits(Dot64(negative, []float32{1})))
	require.Equal(t, float32(2), Dot32([]float32{1}, []float32{2, 3}))
	require.Panics(t, func() { Dot64([]float32{1, 2}, []float32{3}) })
}

// TestDotWide is Dot64 at all lengths around whole steps of lanes.
func TestDotWide(t *testing.T) {
	t.Parallel()
	r := rand.New(rand.NewPCG(13, 2))
	for n := range 100 {
		x, w := awkward(r, n), awkward(r, n)
		wideX, wideW := make([]float64, n), make([]float64, n)
		widenTo64(&portable, wideX, x)
		widenTo64(&portable, wideW, w)
		require.Equal(t, Dot64(x, w), dotWide(wideX, wideW), "length %d", n)
	}
}
