package matrix

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
)

// quantised makes random numbers pass through codes of groups of a row, and rounds them to BF16.
func quantised(seed uint64, group int, code func(v, most float64) float64) *Matrix {
	r := rand.New(rand.NewPCG(seed, 1))
	m := &Matrix{Rows: 40, Cols: 256}
	for range m.Rows * m.Cols / group {
		values, most := make([]float64, group), 0.0
		for i := range values {
			values[i] = r.NormFloat64()
			most = max(most, math.Abs(values[i]))
		}
		for _, v := range values {
			b := math.Float32bits(float32(code(v, most)))
			m.Values = append(m.Values, math.Float32frombits((b+0x7fff+b>>16&1)&^0xffff))
		}
	}
	return m
}

// steps rounds to so many steps on either side of 0.
func steps(n float64) func(v, most float64) float64 {
	return func(v, most float64) float64 { return math.Round(v/most*n) * (most / n) }
}

// e4m3 rounds to 4 significant bits, as FP8 E4M3 does with a scale.
func e4m3(v, _ float64) float64 {
	const scale = 0.0123
	fraction, exponent := math.Frexp(v / scale)
	return scale * math.Ldexp(math.Round(fraction*16)/16, exponent)
}

// TestCodeBits: numbers that went through codes show it after rounding to BF16, and others do not.
func TestCodeBits(t *testing.T) {
	for name, c := range map[string]struct {
		group, want int
		code        func(v, most float64) float64
	}{
		"4 bits by 32": {32, 4, steps(7)}, "4 bits by 128": {128, 4, steps(7)}, "8 bits by 32": {32, 8, steps(127)},
		"8 bits by 128": {128, 8, steps(127)}, "FP8": {128, 8, e4m3},
		"none": {32, 0, func(v, _ float64) float64 { return v }}, "10 bits": {32, 0, steps(511)},
		"zeros": {32, 0, func(_, _ float64) float64 { return 0 }},
		"most are zero": {32, 0, func(v, _ float64) float64 {
			if math.Abs(v) < 1 {
				return 0
			}
			return v
		}},
	} {
		for seed := range uint64(20) {
			m := quantised(seed, c.group, c.code)
			require.Equal(t, c.want, CodeBits(m.Rows, m.Row), name)
		}
	}
}
