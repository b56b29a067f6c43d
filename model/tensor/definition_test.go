package tensor

import "math"

// What casts and dequantisation are: element by element, in integer arithmetic on the
// fields of the formats, by hands that know nothing of the kernels.

// defined casts the bits of one element.
func defined(p uint32, from, to DType) (uint32, Loss) {
	bits := widen(p, from)
	out := narrow(bits, to)
	before, after := magnitude(bits), magnitude(widen(out, to))
	var lost Loss
	switch {
	case before >= inf:
		lost.NotFinite++
	case after == inf:
		lost.Overflow++
	case before > 0 && after == 0:
		lost.Flushed++
	case before != after && math.Float32frombits(before) < smallest[to]:
		lost.Denormal++
	case before != after:
		lost.Rounded++
	}
	return out, lost
}

// smallest holds the least normal number of each dtype.
var smallest = [...]float32{F32: 0x1p-126, F16: 0x1p-14, BF16: 0x1p-126}

const inf = 0x7f800000

// magnitude returns F32 bits without the sign.
func magnitude(bits uint32) uint32 { return bits & 0x7fffffff }

// definedProduct dequantises one element.
func definedProduct(code byte, scale float32, to DType) (uint32, Loss) {
	v := float32(math.Ldexp(float64(code&7)/8, -6))
	if exp := int(code >> 3 & 0xf); exp > 0 {
		v = float32(math.Ldexp(1+float64(code&7)/8, exp-7))
	}
	if code&0x7f == 0x7f {
		v = math.Float32frombits(0x7fc00000)
	}
	if code&0x80 != 0 {
		v = -v
	}
	product := v
	if v == v {
		product = v * scale
	}
	out, lost := defined(math.Float32bits(product), F32, to)
	switch {
	case product == 0 && v != 0 && scale != 0:
		lost.Flushed++ // before the cast
	case lost == Loss{} && product != 0 && float64(v)*float64(scale) != float64(product): // the same
		if lost.Rounded++; magnitude(math.Float32bits(product)) < math.Float32bits(smallest[to]) {
			lost = Loss{Denormal: 1}
		}
	case math.IsInf(float64(product), 0) && !math.IsInf(float64(scale), 0):
		lost = Loss{Overflow: 1}
	}
	return out, lost
}

// widen returns the F32 bits of an element.
func widen(p uint32, d DType) uint32 {
	switch d {
	case F32:
		return p
	case BF16:
		return p << 16
	}
	sign, exp, man := p&0x8000<<16, p>>10&0x1f, p&0x3ff
	switch {
	case exp == 0x1f:
		return sign | 0x7f800000 | man<<13
	case exp > 0:
		return sign | (exp+112)<<23 | man<<13
	case man == 0:
		return sign
	}
	exp = 113
	for ; man&0x400 == 0; man <<= 1 {
		exp--
	}
	return sign | exp<<23 | man&0x3ff<<13
}

// narrow rounds F32 bits to nearest, ties to even. A NaN keeps the top of its payload,
// and is quiet if nothing of that is left.
func narrow(b uint32, d DType) uint32 {
	sign, abs := b>>16&0x8000, b&0x7fffffff
	switch {
	case d == F32:
		return b
	case d == BF16 && abs > 0x7f800000 && abs>>16 == 0x7f80:
		return sign | 0x7fc0
	case d == BF16 && abs > 0x7f800000:
		return sign | abs>>16
	case d == BF16:
		return sign | (abs+0x7fff+abs>>16&1)>>16
	case abs > 0x7f800000 && abs>>13&0x3ff == 0:
		return sign | 0x7e00
	case abs > 0x7f800000:
		return sign | 0x7c00 | abs>>13&0x3ff
	case abs >= 0x477ff000: // 65520, half-way between the largest F16 and 2^16
		return sign | 0x7c00
	case abs >= 0x38800000: // 2^-14, the least normal F16
		return sign | (abs-0x38000000+0xfff+abs>>13&1)>>13
	case abs < 0x33000000: // 2^-25, half the least F16
		return sign
	}
	man, drop := abs&0x7fffff|0x800000, 126-abs>>23 // in units of 2^-24 once drop bits are gone
	kept := man >> drop
	rest, half := man-kept<<drop, uint32(1)<<(drop-1)
	if rest > half || rest == half && kept&1 == 1 {
		kept++
	}
	return sign | kept
}
