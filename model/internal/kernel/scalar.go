package kernel

import (
	"encoding/binary"
	"math"
)

// The conversions of single numbers and their loops in portable Go: the definition
// of what the element kernels compute.

// Rounded returns v rounded to the nearest value of f (F32, F16 or BF16), ties to even.
func Rounded(v float32, f Format) float32 {
	switch f {
	case F16:
		return float32FromF16(f16FromFloat32(v))
	case BF16:
		return math.Float32frombits(uint32(bf16FromFloat32(v)) << 16)
	}
	return v
}

func bf16FromFloat32(v float32) uint16 {
	b := math.Float32bits(v)
	if v != v {
		return uint16(b>>16) | 0x40
	}
	return uint16((b + 0x7fff + b>>16&1) >> 16)
}

// float32FromF16 decodes the bits s eeeee mmmmmmmmmm: the value is
// (-1)^s · 2^(e-15) · 1.m, or (-1)^s · 2^-14 · 0.m for e = 0.
func float32FromF16(h uint16) float32 {
	sign := uint32(h&0x8000) << 16
	exp, man := uint32(h>>10&0x1f), uint32(h&0x3ff)
	switch exp {
	case 0:
		v := float32(man) * 0x1p-24
		return math.Float32frombits(math.Float32bits(v) | sign)
	case 0x1f:
		return math.Float32frombits(sign | 0x7f800000 | man<<13)
	}
	return math.Float32frombits(sign | (exp+112)<<23 | man<<13)
}

// float32FromE4M3 decodes the bits s eeee mmm: the value is (-1)^s · 2^(e-7) · 1.m,
// or (-1)^s · 2^-6 · 0.m for e = 0; all ones but the sign is NaN.
func float32FromE4M3(b byte) float32 {
	sign := uint32(b&0x80) << 24
	exp, man := uint32(b>>3&0xf), uint32(b&7)
	switch {
	case exp == 0:
		v := float32(man) * 0x1p-9
		return math.Float32frombits(math.Float32bits(v) | sign)
	case b&0x7f == 0x7f:
		return math.Float32frombits(sign | 0x7fc00000)
	}
	return math.Float32frombits(sign | (exp+120)<<23 | man<<20)
}

func f16FromFloat32(v float32) uint16 {
	b := math.Float32bits(v)
	sign, abs := uint16(b>>16&0x8000), b&0x7fffffff
	switch {
	case abs > 0x7f800000:
		return sign | 0x7e00 | uint16(abs>>13&0x1ff)
	case abs >= 0x477ff000: // 65520, half-way between the largest F16 and 2^16
		return sign | 0x7c00
	case abs < 0x38800000: // below 2^-14: a multiple of 2^-24, which adding 2^-1 rounds to
		r := math.Float32frombits(abs) + 0.5
		return sign | uint16(math.Float32bits(r)-0x3f000000)
	}
	return sign | uint16((abs-0x38000000+0xfff+abs>>13&1)>>13)
}

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
	}
}

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
