package tensor

// Casts between the float dtypes, byte slice to byte slice, for conversion. All of
// it is integer arithmetic on the bits, so NaN payloads and −0 survive where the
// target has room for them.

import (
	"encoding/binary"
	"fmt"
	"math"
)

// Loss counts the elements that a cast could not keep even approximately.
type Loss struct {
	Overflow int64 `json:"overflow"` // finite, but infinite in the target dtype
	Flushed  int64 `json:"flushed"`  // not zero, but zero in the target dtype
}

// Add adds the counts of o.
func (l *Loss) Add(o Loss) {
	l.Overflow += o.Overflow
	l.Flushed += o.Flushed
}

// Any says whether anything was lost.
func (l Loss) Any() bool { return l.Overflow+l.Flushed > 0 }

// Cast converts elements between F32, F16 and BF16, rounding to nearest, ties to
// even. It is safe for concurrent use.
type Cast struct {
	From, To DType
	table    []uint16 // 16-bit to 16-bit: the target's bits of every pattern
}

// NewCast prepares the cast, or says that there is none.
func NewCast(from, to DType) (*Cast, error) {
	if _, ok := infinity(from); !ok {
		return nil, fmt.Errorf("dtype %s cannot be cast", from)
	}
	if _, ok := infinity(to); !ok {
		return nil, fmt.Errorf("nothing can be cast to dtype %s", to)
	}
	c := &Cast{From: from, To: to}
	if from.Bits() == 16 && to.Bits() == 16 {
		c.table = make([]uint16, 1<<16)
		for i := range c.table {
			c.table[i] = narrow(widen(uint16(i), from), to)
		}
	}
	return c, nil
}

// Exact says whether every value of From is one of To.
func (c *Cast) Exact() bool { return c.From == c.To || c.To == F32 }

// Convert encodes the elements of src into dst, which has room for exactly them,
// and counts what is lost.
func (c *Cast) Convert(dst, src []byte) Loss {
	switch {
	case c.From == c.To:
		copy(dst, src)
		return Loss{}
	case c.To == F32:
		c.widenAll(dst, src)
		return Loss{}
	case c.From == F32 && c.To == BF16:
		return narrowAll(dst, src, BF16, 0x00008001, 0x7f7f8000, 0)
	case c.From == F32:
		return narrowAll(dst, src, F16, 0x38800000, 0x477ff000, 0x38000000)
	}
	return c.translate(dst, src)
}

// widenAll turns 16 bits into F32, two at a time.
func (c *Cast) widenAll(dst, src []byte) {
	for ; len(src) >= 4 && len(dst) >= 8; src, dst = src[4:], dst[8:] {
		x := binary.LittleEndian.Uint32(src)
		lo, hi := uint64(x&0xffff)<<16, uint64(x&0xffff0000)<<32
		if c.From == F16 {
			lo, hi = uint64(widen(uint16(x), F16)), uint64(widen(uint16(x>>16), F16))<<32
		}
		binary.LittleEndian.PutUint64(dst, lo|hi)
	}
	if len(src) >= 2 {
		binary.LittleEndian.PutUint32(dst, widen(binary.LittleEndian.Uint16(src), c.From))
	}
}

// narrowAll rounds F32 to 16 bits. Magnitudes from least up to most need nothing
// but a shift of the exponent, rebias, and the rounding of the mantissa.
func narrowAll(dst, src []byte, d DType, least, most, rebias uint32) (lost Loss) {
	shift := 13
	if d == BF16 {
		shift = 16
	}
	half := uint32(1)<<(shift-1) - 1
	for ; len(src) >= 4 && len(dst) >= 2; src, dst = src[4:], dst[2:] {
		b := binary.LittleEndian.Uint32(src)
		abs := b & 0x7fffffff
		h := uint16(b>>16&0x8000) | uint16((abs-rebias+half+abs>>shift&1)>>shift)
		if abs-least >= most-least {
			h = narrow(b, d)
			lost.count(abs, 0x7f800000, h, d)
		}
		binary.LittleEndian.PutUint16(dst, h)
	}
	return lost
}

// translate turns BF16 into F16 or back.
func (c *Cast) translate(dst, src []byte) (lost Loss) {
	const block = 32
	if c.From == BF16 {
		for ; len(src) >= block && len(dst) >= block; src, dst = src[block:], dst[block:] {
			if !shift16((*[block]byte)(dst), (*[block]byte)(src)) {
				c.look(dst[:block], src[:block], &lost)
			}
		}
	}
	c.look(dst, src, &lost)
	return lost
}

// shift16 turns sixteen BF16 into F16 if all are normal numbers there: BF16's
// exponent less 112 fits F16's, and the mantissa gets three zeros.
func shift16(dst, src *[32]byte) bool {
	a, b := binary.LittleEndian.Uint64(src[0:]), binary.LittleEndian.Uint64(src[8:])
	c, d := binary.LittleEndian.Uint64(src[16:]), binary.LittleEndian.Uint64(src[24:])
	if !(allNormalF16(a) && allNormalF16(b) && allNormalF16(c) && allNormalF16(d)) {
		return false
	}
	binary.LittleEndian.PutUint64(dst[0:], a&signs|((a&(0x1fff*lanes))<<3^0x4000*lanes)&^signs)
	binary.LittleEndian.PutUint64(dst[8:], b&signs|((b&(0x1fff*lanes))<<3^0x4000*lanes)&^signs)
	binary.LittleEndian.PutUint64(dst[16:], c&signs|((c&(0x1fff*lanes))<<3^0x4000*lanes)&^signs)
	binary.LittleEndian.PutUint64(dst[24:], d&signs|((d&(0x1fff*lanes))<<3^0x4000*lanes)&^signs)
	return true
}

// Four 16-bit numbers in 64 bits.
const (
	lanes = 0x0001_0001_0001_0001
	signs = 0x8000 * lanes
)

// allNormalF16 says whether four BF16 are normal numbers of F16, 2^-14 to below
// 2^16: adding to a magnitude carries into the sign's place from there on.
func allNormalF16(x uint64) bool {
	abs := x &^ signs
	return (abs+(0x8000-0x3880)*lanes)&signs == signs && (abs+(0x8000-0x4780)*lanes)&signs == 0
}

// look translates one element after the other.
func (c *Cast) look(dst, src []byte, lost *Loss) {
	inf, _ := infinity(c.From)
	table := (*[1 << 16]uint16)(c.table)
	for ; len(src) >= 2 && len(dst) >= 2; src, dst = src[2:], dst[2:] {
		b := binary.LittleEndian.Uint16(src)
		h := table[b]
		binary.LittleEndian.PutUint16(dst, h)
		lost.count(uint32(b&0x7fff), inf, h, c.To)
	}
}

// count takes note of an element that became h; abs are the source's bits without
// the sign, inf those of its infinity.
func (l *Loss) count(abs, inf uint32, h uint16, to DType) {
	limit, _ := infinity(to)
	switch {
	case h&0x7fff == 0 && abs != 0:
		l.Flushed++
	case uint32(h&0x7fff) == limit && abs < inf:
		l.Overflow++
	}
}

// Rounded returns v rounded to F32, F16 or BF16, to nearest, ties to even.
func Rounded(v float32, d DType) float32 {
	if d == F32 {
		return v
	}
	return math.Float32frombits(widen(narrow(math.Float32bits(v), d), d))
}

// Ordinal rounds v to F32, F16 or BF16 and numbers the dtype's values in ascending
// order: neighbours are one apart, both zeros are 0.
func Ordinal(v float32, d DType) int64 {
	bits := math.Float32bits(v)
	n := int64(bits & 0x7fffffff)
	if d != F32 {
		n = int64(narrow(bits, d) & 0x7fff)
	}
	if bits>>31 == 1 {
		return -n
	}
	return n
}

// infinity returns the bits of +Inf; ok is false for dtypes that are not cast.
func infinity(d DType) (bits uint32, ok bool) {
	switch d {
	case F32:
		return 0x7f800000, true
	case BF16:
		return 0x7f80, true
	case F16:
		return 0x7c00, true
	}
	return 0, false
}

// widen returns the F32 bits of an F16 or BF16.
func widen(h uint16, d DType) uint32 {
	if d == BF16 {
		return uint32(h) << 16
	}
	sign, exp, man := uint32(h&0x8000)<<16, uint32(h>>10&0x1f), uint32(h&0x3ff)
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

// narrow rounds F32 bits to F16 or BF16, to nearest, ties to even. A NaN keeps the
// top of its payload, and is quiet if nothing of that is left.
func narrow(b uint32, d DType) uint16 {
	sign, abs := uint16(b>>16&0x8000), b&0x7fffffff
	if d == BF16 {
		if abs > 0x7f800000 {
			return sign | quiet(uint16(abs>>16), 0x7f80, 0x40)
		}
		return sign | uint16((abs+0x7fff+abs>>16&1)>>16)
	}
	switch {
	case abs > 0x7f800000:
		return sign | quiet(0x7c00|uint16(abs>>13&0x3ff), 0x7c00, 0x200)
	case abs >= 0x477ff000: // 65520, half-way between the largest F16 and 2^16
		return sign | 0x7c00
	case abs >= 0x38800000: // 2^-14, the least normal F16
		return sign | uint16((abs-0x38000000+0xfff+abs>>13&1)>>13)
	case abs < 0x33000000: // 2^-25, half the least F16
		return sign
	}
	man, drop := abs&0x7fffff|0x800000, 126-abs>>23 // in units of 2^-24 once drop bits are gone
	kept := man >> drop
	rest, half := man-kept<<drop, uint32(1)<<(drop-1)
	if rest > half || rest == half && kept&1 == 1 {
		kept++
	}
	return sign | uint16(kept)
}

// quiet sets a NaN's quiet bit if it would otherwise read as infinity.
func quiet(h, inf, bit uint16) uint16 {
	if h == inf {
		return h | bit
	}
	return h
}
