package operation

// The proof of operations that round. It decodes the written number and checks that the
// exact value could have been rounded to it; it does not repeat the operation.

import (
	"encoding/binary"
	"fmt"
	"math"
	"sync"

	"dsmoe/model/tensor"
)

// bounds holds, for every pattern of a 16-bit dtype, the values that round to it.
type bounds struct {
	dtype     tensor.DType
	low, high []float64 // by the pattern without its sign; exact half-way points

	mantissa, bias int // of a 16-bit dtype
}

func newBounds(d tensor.DType) *bounds {
	b := &bounds{dtype: d}
	if d == tensor.F32 {
		return b
	}
	b.mantissa, b.bias = mantissaAndBias(d)
	inf := (2*b.bias + 1) << b.mantissa // the pattern of infinity
	b.low, b.high = make([]float64, inf+1), make([]float64, inf+1)
	for i := range inf {
		half := (magnitude(i+1, d) - magnitude(i, d)) / 2
		b.high[i] = magnitude(i, d) + half
		b.low[i+1] = b.high[i]
	}
	b.high[inf] = math.Inf(1)
	return b
}

// magnitude is the value of a pattern by the definition of the dtype; infinity's is
// what would follow the largest number.
func magnitude(pattern int, d tensor.DType) float64 {
	mantissa, bias := mantissaAndBias(d)
	exponent, fraction := pattern>>mantissa, pattern&(1<<mantissa-1)
	if exponent == 0 {
		return math.Ldexp(float64(fraction), 1-bias-mantissa)
	}
	return math.Ldexp(float64(fraction+1<<mantissa), exponent-bias-mantissa)
}

// mantissaAndBias returns the bits of the mantissa of F16 or BF16, and the bias of its exponent.
func mantissaAndBias(d tensor.DType) (mantissa, bias int) {
	if d == tensor.BF16 {
		return 7, 127
	}
	return 10, 15
}

// check reports whether exact may be written as the element at i of out. slack widens the
// bounds by that share, for operations that round more than once.
func (b *bounds) check(exact float64, out []byte, i int, slack float64) bool {
	if b.dtype == tensor.F32 { // the one value that a product, exact in float64, rounds to
		got := math.Float32frombits(binary.LittleEndian.Uint32(out[4*i:]))
		return math.Float32bits(float32(exact)) == math.Float32bits(got) || exact != exact && got != got
	}
	h := binary.LittleEndian.Uint16(out[2*i:])
	pattern := int(h & 0x7fff)
	if exact != exact || pattern >= len(b.low) {
		return exact != exact && pattern >= len(b.low)
	}
	abs := math.Abs(exact)
	return math.Signbit(exact) == (h&0x8000 != 0) && b.low[pattern]*(1-slack) <= abs && abs <= b.high[pattern]*(1+slack)
}

// checkAll checks n elements of out. rounded sets v to the values from element i on, rounded
// to F32; exact, called only where that does not decide, gives the exact value of element i.
func (b *bounds) checkAll(out []byte, n int, slack float64, exact func(i int) float64,
	rounded func(v []float32, i int)) error {
	var values [512]float32
	size := int(b.dtype.Bytes(1))
	for i := 0; i < n; i += len(values) {
		v := values[:min(len(values), n-i)]
		rounded(v, i)
		for k := range tensor.DoubtfulRoundings(out[size*i:size*(i+len(v))], b.dtype, tensor.Float32Bytes(v), tensor.F32) {
			if value := exact(i + k); !b.check(value, out, i+k, slack) {
				return &Mismatch{i + k, hexOf(out[size*(i+k):][:size]), fmt.Sprint(value)}
			}
		}
	}
	return nil
}

// The tables of values, made when they are first needed.
var (
	boundsF32  = sync.OnceValue(func() *bounds { return newBounds(tensor.F32) })
	boundsF16  = sync.OnceValue(func() *bounds { return newBounds(tensor.F16) })
	boundsBF16 = sync.OnceValue(func() *bounds { return newBounds(tensor.BF16) })

	// valuesF16 lists the values of all F16 bit patterns, by the definition of the dtype.
	valuesF16 = sync.OnceValue(func() []float64 {
		values := make([]float64, 1<<16)
		for i := range values {
			abs := i & 0x7fff
			values[i] = math.NaN()
			switch {
			case abs < 0x7c00:
				values[i] = magnitude(abs, tensor.F16)
			case abs == 0x7c00:
				values[i] = math.Inf(1)
			}
			if i&0x8000 != 0 {
				values[i] = -values[i]
			}
		}
		return values
	})
)

// boundsOf returns the bounds of F32, F16 or BF16.
func boundsOf(d tensor.DType) *bounds {
	switch d {
	case tensor.F32:
		return boundsF32()
	case tensor.F16:
		return boundsF16()
	}
	return boundsBF16()
}
