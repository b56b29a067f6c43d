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
	for i := 0; i < n; {
		v := values[:min(len(values), n-i)]
		rounded(v, i)
		for end := i + len(v); ; i++ {
			if i += b.plain(v[len(v)-(end-i):], out[size*i:]); i == end {
				break
			}
			if !b.check(exact(i), out, i, slack) {
				return &Mismatch{i, hexOf(out[size*i : size*(i+1)]), fmt.Sprint(exact(i))}
			}
		}
	}
	return nil
}

// plain returns how many of the first elements of out need no look at the bounds: v is
// the very F32 that was written, or lies less than half a step from a normal number of
// the other dtypes.
func (b *bounds) plain(v []float32, out []byte) int {
	switch b.dtype {
	case tensor.F32:
		for i, x := range v {
			if math.Float32bits(x) != binary.LittleEndian.Uint32(out[4*i:]) {
				return i
			}
		}
	case tensor.BF16:
		for i, x := range v {
			h := uint32(binary.LittleEndian.Uint16(out[2*i:]))
			exponent := h & 0x7f80
			if math.Float32bits(x)-h<<16+0x7fff >= 0xffff || exponent == 0 || exponent == 0x7f80 {
				return i
			}
		}
	default:
		for i, x := range v {
			h := uint32(binary.LittleEndian.Uint16(out[2*i:]))
			exponent, bits := h&0x7c00, h&0x8000<<16|h&0x7fff<<13+112<<23
			if math.Float32bits(x)-bits+0xfff >= 0x1fff || exponent == 0 || exponent == 0x7c00 {
				return i
			}
		}
	}
	return len(v)
}

// The tables of values, made when they are first needed.
var (
	boundsF32  = sync.OnceValue(func() *bounds { return newBounds(tensor.F32) })
	boundsF16  = sync.OnceValue(func() *bounds { return newBounds(tensor.F16) })
	boundsBF16 = sync.OnceValue(func() *bounds { return newBounds(tensor.BF16) })

	// valuesF16 lists the values of all F16 bit patterns.
	valuesF16 = sync.OnceValue(func() []float64 { return valuesOf(tensor.F16) })
)

// valuesOf lists the values of all bit patterns of F16 or BF16, by the definition of the dtype.
func valuesOf(d tensor.DType) []float64 {
	mantissa, bias := mantissaAndBias(d)
	infinity := (2*bias + 1) << mantissa
	values := make([]float64, 1<<16)
	for i := range values {
		abs := i & 0x7fff
		values[i] = math.NaN()
		switch {
		case abs < infinity:
			values[i] = magnitude(abs, d)
		case abs == infinity:
			values[i] = math.Inf(1)
		}
		if i&0x8000 != 0 {
			values[i] = -values[i]
		}
	}
	return values
}

// roundings list, by two dtypes, for every bit pattern of F16 or BF16 the pattern that its value rounds to in the other
// dtype. A NaN has its payload in F32, and none in the others.
var roundings = func() map[[2]tensor.DType]func() *[1 << 16]uint32 {
	made := map[[2]tensor.DType]func() *[1 << 16]uint32{}
	for _, from := range []tensor.DType{tensor.F16, tensor.BF16} {
		for _, to := range []tensor.DType{tensor.F32, tensor.F16, tensor.BF16} {
			if to == from {
				continue
			}
			made[[2]tensor.DType{from, to}] = sync.OnceValue(func() *[1 << 16]uint32 {
				list, b := new([1 << 16]uint32), boundsOf(to)
				mantissa, _ := mantissaAndBias(from)
				for i, v := range valuesOf(from) {
					list[i] = b.pattern(v)
					if v != v && to == tensor.F32 {
						list[i] = uint32(i&0x8000)<<16 | 0xff<<23 | uint32(i&(1<<mantissa-1))<<(23-mantissa)
					}
				}
				return list
			})
		}
	}
	return made
}()

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
