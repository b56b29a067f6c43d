package tensor

// Casts between the float dtypes, byte slice to byte slice, for conversion. All of
// it is integer arithmetic on the bits, so NaN payloads and −0 survive where the
// target has room for them.

import (
	"encoding/binary"
	"fmt"
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
		for i := range len(src) / 2 {
			binary.LittleEndian.PutUint32(dst[4*i:], widen(binary.LittleEndian.Uint16(src[2*i:]), c.From))
		}
		return Loss{}
	case c.From == F32:
		return c.narrowAll(dst, src)
	}
	return c.translate(dst, src)
}

// narrowAll rounds F32 to 16 bits.
func (c *Cast) narrowAll(dst, src []byte) (lost Loss) {
	inf, _ := infinity(c.To)
	for len(src) >= 4 && len(dst) >= 2 {
		b := binary.LittleEndian.Uint32(src)
		h := narrow(b, c.To)
		binary.LittleEndian.PutUint16(dst, h)
		if h&0x7fff == 0 || h&0x7fff == uint16(inf) {
			lost.count(b&0x7fffffff, 0x7f800000, h)
		}
		src, dst = src[4:], dst[2:]
	}
	return lost
}

// translate looks 16-bit patterns up.
func (c *Cast) translate(dst, src []byte) (lost Loss) {
	from, _ := infinity(c.From)
	to, _ := infinity(c.To)
	table := (*[1 << 16]uint16)(c.table)
	for len(src) >= 2 && len(dst) >= 2 {
		b := binary.LittleEndian.Uint16(src)
		h := table[b]
		binary.LittleEndian.PutUint16(dst, h)
		if h&0x7fff == 0 || h&0x7fff == uint16(to) {
			lost.count(uint32(b&0x7fff), from, h)
		}
		src, dst = src[2:], dst[2:]
	}
	return lost
}

// count takes note of one element whose target bits h are zero or infinite; abs
// are the source's bits without the sign.
func (l *Loss) count(abs, inf uint32, h uint16) {
	switch {
	case h&0x7fff == 0 && abs != 0:
		l.Flushed++
	case h&0x7fff != 0 && abs < inf:
		l.Overflow++
	}
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
