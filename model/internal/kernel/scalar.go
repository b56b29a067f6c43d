package kernel

import (
	"encoding/binary"
	"math"
)

// This file defines every format by the conversion of one number, and the element kernels by
// loops over these conversions.

// Decode returns the bits of the float32 that the pattern p of f stands for, which is
// exact. A NaN of F16 or BF16 keeps its sign and payload and stays quiet or signalling. The NaN
// of F8E4M3 becomes the quiet float32 NaN of its sign. f is not a block format.
func Decode(p uint32, f Format) uint32 {
	switch f {
	case F16:
		return decodeF16(uint16(p))
	case BF16:
		return p << 16
	case F8E4M3:
		return decodeE4M3(byte(p))
	case F8E8M0:
		return decodeE8M0(byte(p))
	}
	return p
}

// Encode returns the pattern of f (F32, F16 or BF16) nearest to the float32 of the
// given bits, ties to even; numbers beyond the range become infinite. A NaN keeps its
// sign and the top of its payload, and becomes quiet if the top is 0.
func Encode(bits uint32, f Format) uint32 {
	switch f {
	case F16:
		return uint32(encodeF16(bits))
	case BF16:
		return uint32(encodeBF16(bits))
	case F32:
		return bits
	}
	panic("kernel: Encode: " + f.String() + " is read only")
}

// Rounded returns v rounded to the nearest value of f (F32, F16 or BF16), ties to even.
// A NaN stays a (quiet) NaN.
func Rounded(v float32, f Format) float32 {
	switch f {
	case F16:
		return float32FromF16(f16FromFloat32(v))
	case BF16:
		return math.Float32frombits(uint32(bf16FromFloat32(v)) << 16)
	}
	return v
}

// Nearest is nearest_int of ggml: v rounded to the nearest integer, half to even, if |v| < 2²²;
// otherwise the low bits of a sum.
func Nearest(v float32) int32 {
	return int32(math.Float32bits(float32(v)+12582912)&0x007fffff) - 0x00400000
}

// Clamp is max(low, min(high, v)).
func Clamp(v, low, high int32) int32 { return max(low, min(high, v)) }

// decodeF16 reads s eeeee mmmmmmmmmm: the value is (-1)^s · 2^(e-15) · 1.m, or
// (-1)^s · 2^-14 · 0.m for e = 0; e = 31 is infinity if m = 0, else NaN.
func decodeF16(h uint16) uint32 {
	sign := uint32(h&0x8000) << 16
	exp, man := uint32(h>>10&0x1f), uint32(h&0x3ff)
	switch exp {
	case 0:
		return sign | math.Float32bits(float32(man)*0x1p-24)
	case 0x1f:
		return sign | 0x7f800000 | man<<13
	}
	return sign | (exp+112)<<23 | man<<13
}

// decodeE4M3 reads s eeee mmm: the value is (-1)^s · 2^(e-7) · 1.m, or
// (-1)^s · 2^-6 · 0.m for e = 0; all ones but the sign is NaN.
func decodeE4M3(b byte) uint32 {
	sign := uint32(b&0x80) << 24
	exp, man := uint32(b>>3&0xf), uint32(b&7)
	switch {
	case exp == 0:
		return sign | math.Float32bits(float32(man)*0x1p-9)
	case b&0x7f == 0x7f:
		return sign | 0x7fc00000
	}
	return sign | (exp+120)<<23 | man<<20
}

// encodeBF16 keeps the upper half of a float32, which is a BF16, and rounds it.
func encodeBF16(b uint32) uint16 {
	if b&0x7fffffff <= 0x7f800000 {
		return uint16((b + 0x7fff + b>>16&1) >> 16)
	}
	return payload(uint16(b>>16), 0x7f, 0x40)
}

// encodeF16 rounds to 11 significant bits, or to multiples of 2^-24.
func encodeF16(b uint32) uint16 {
	sign, abs := uint16(b>>16&0x8000), b&0x7fffffff
	switch {
	case abs < 0x38800000: // below 2^-14: the last place of a sum with 0.5 is 2^-24
		r := math.Float32frombits(abs) + 0.5
		return sign | uint16(math.Float32bits(r)-0x3f000000)
	case abs > 0x7f800000:
		return payload(sign|0x7c00|uint16(abs>>13&0x3ff), 0x3ff, 0x200)
	}
	abs = min(abs, 0x47800000) // 2^16, which is encoded as infinity
	return sign | uint16((abs-0x38000000+0xfff+abs>>13&1)>>13)
}

// payload sets the quiet bit of a NaN if its mantissa is 0, which would make it infinity.
func payload(nan, mantissa, quiet uint16) uint16 {
	if nan&mantissa == 0 {
		return nan | quiet
	}
	return nan
}

// The element kernels use the conversions below. They differ from Decode and Encode in NaNs:
// as processors do, the kernels make a NaN quiet when they narrow it. A NaN that they widen
// stays a NaN; its bits are undefined.

// float32FromF16 widens an F16.
func float32FromF16(h uint16) float32 { return math.Float32frombits(decodeF16(h)) }

// float32FromE4M3 widens an F8E4M3.
func float32FromE4M3(b byte) float32 { return math.Float32frombits(decodeE4M3(b)) }

// f16FromFloat32 narrows to F16.
func f16FromFloat32(v float32) uint16 {
	h := encodeF16(math.Float32bits(v))
	if v != v {
		h |= 0x200
	}
	return h
}

// bf16FromFloat32 narrows to BF16.
func bf16FromFloat32(v float32) uint16 {
	h := encodeBF16(math.Float32bits(v))
	if v != v {
		h |= 0x40
	}
	return h
}

// widenPortable is Widen in portable Go.
func widenPortable(dst []float32, src []byte, f Format) {
	switch f {
	case F32:
		for i := range dst {
			dst[i] = math.Float32frombits(binary.LittleEndian.Uint32(src[4*i:]))
		}
	case F16:
		for i := range dst {
			dst[i] = float32FromF16(binary.LittleEndian.Uint16(src[2*i:]))
		}
	case BF16:
		for i := range dst {
			dst[i] = math.Float32frombits(uint32(binary.LittleEndian.Uint16(src[2*i:])) << 16)
		}
	case F8E4M3:
		for i := range dst {
			dst[i] = float32FromE4M3(src[i])
		}
	case F8E8M0:
		for i := range dst {
			dst[i] = math.Float32frombits(decodeE8M0(src[i]))
		}
	}
}

// narrowPortable is Narrow in portable Go.
func narrowPortable(dst []byte, src []float32, f Format) {
	switch f {
	case F32:
		for i, v := range src {
			binary.LittleEndian.PutUint32(dst[4*i:], math.Float32bits(v))
		}
	case F16:
		for i, v := range src {
			binary.LittleEndian.PutUint16(dst[2*i:], f16FromFloat32(v))
		}
	case BF16:
		for i, v := range src {
			binary.LittleEndian.PutUint16(dst[2*i:], bf16FromFloat32(v))
		}
	}
}
