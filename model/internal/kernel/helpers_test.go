package kernel

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
)

// each runs f once per implementation that this machine has.
func each(t *testing.T, f func(t *testing.T)) {
	for _, name := range Implementations() {
		t.Run(name, func(t *testing.T) {
			defer Use(name)()
			f(t)
		})
	}
}

// random returns n numbers of many sizes.
func random(r *rand.Rand, n int) []float32 {
	x := make([]float32, n)
	for i := range x {
		x[i] = float32(r.NormFloat64()) * float32(math.Ldexp(1, r.IntN(20)-10))
	}
	return x
}

// awkward returns n numbers that rounding, underflow and sign of zero show on.
func awkward(r *rand.Rand, n int) []float32 {
	special := []float32{0, float32(math.Copysign(0, -1)), 0x1p-149, -0x1p-149, 0x1p-126, 0x1p-100, -0x1p-80, 0x1.fep60, -1, 1}
	x := random(r, n)
	for i := range x {
		switch r.IntN(12) {
		case 0, 1:
			x[i] = special[r.IntN(len(special))]
		case 2:
			x[i] *= 0x1p-75 // the product of two is below the float32 denormals
		}
	}
	return x
}

// stored returns rows × cols numbers of a format at a byte offset, NaN around them.
func stored(r *rand.Rand, rows, cols int, f Format, offset int) Matrix {
	const guard = 64
	n := rows * cols * f.Size()
	data := make([]byte, offset+n+guard)
	fill(data, 0xff)
	if f == F8E4M3 {
		for i := range n {
			data[offset+i] = byte(r.UintN(0x7f)) | byte(r.UintN(2)<<7)
		}
	} else {
		narrowPortable(data[offset:offset+n], awkward(r, rows*cols), f)
	}
	return Matrix{Format: f, Rows: rows, Cols: cols, Data: data[offset : offset+n]}
}

// same reports whether a and b have the same bits or are both NaN.
func same[F float32 | float64](a, b F) bool {
	return a == b && math.Signbit(float64(a)) == math.Signbit(float64(b)) || a != a && b != b
}

func requireSame[F float32 | float64](t *testing.T, want, got []F) {
	t.Helper()
	require.Len(t, got, len(want))
	for i := range want {
		if (want[i] != got[i] || want[i] == 0) && !same(want[i], got[i]) {
			t.Fatalf("%d: got %x, want %x", i, got[i], want[i])
		}
	}
}
