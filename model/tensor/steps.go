package tensor

import (
	"encoding/binary"
	"fmt"
	"math"

	"dsmoe/model/internal/kernel"
)

// How far a block may be from the numbers that it was made of.

// errorF16 is how far a number may be from the F16 that it was rounded to: half a unit.
func errorF16(d float32) float32 { return max(0x1p-11*d, 0x1p-25) }

// HalfSteps appends to dst, for each element of a tensor, half the width of the interval of
// numbers that are rounded to that element. Of F16 and BF16 that is half a unit in the last
// place, of other dtypes without blocks nothing is known to be rounded: 0. Of a block type it is
// half a step between neighbouring codes, and what rounding scales and minimums adds, since
// steps are of scales as they are stored. The outermost codes of Q4_0, Q5_0 and of the types K
// also stand for numbers beyond them: a step, and as much as rounding a part's scale and minimum
// to a few bits moves the end of its range. The error of a number that the reference encoder
// rounded is then about uniform within ± half a step, of a variance of a third of its square.
func (t Tensor) HalfSteps(dst []float32) []float32 {
	n := len(dst)
	dst = append(dst, make([]float32, t.Len())...)
	if half := t.DType.Form().half; half != nil {
		half(dst[n:], t)
	}
	return dst
}

// Rounding says how elements of a tensor were rounded to its dtype.
type Rounding struct {
	By        string // the operation, such as "cast F16"; empty if none was rounded
	Denormals bool   // only numbers below the least normal number of the dtype were
}

// And joins what is said of two parts of a tensor.
func (r Rounding) And(o Rounding) Rounding {
	switch {
	case r.By == "":
		return o
	case o.By == "":
		return r
	}
	r.Denormals = r.Denormals && o.Denormals
	return r
}

// HalfSteps is that of the tensor, with 0 for elements that were not rounded. A number below
// the least normal one may have been rounded to that.
func (r Rounding) HalfSteps(dst []float32, t Tensor) []float32 {
	n := len(dst)
	dst = t.HalfSteps(dst)
	if f, _ := t.DType.Format(); r.Denormals {
		values, _ := t.Float32s(nil) // of F16 or BF16
		for i, v := range values {
			if abs32(v) > leastNormal[f] {
				dst[n+i] = 0
			}
		}
	}
	return dst
}

// halfUnits is HalfSteps of F16 and BF16, which have 11 and 8 significant bits and smallest
// normal numbers of 2^-14 and 2^-126; other plain dtypes keep 0.
func halfUnits(dst []float32, t Tensor) {
	bits, least := 11, -14
	switch t.DType {
	case BF16:
		bits, least = 8, -126
	case F16:
	default:
		return
	}
	dst, _ = t.Float32s(dst[:0]) // of F16 and BF16 there is no error
	for i, v := range dst {
		exponent := max(int(math.Float32bits(v)>>23&0xff)-127, least)
		dst[i] = float32(math.Ldexp(1, exponent-bits))
	}
}

// blockSteps is HalfSteps of the block types.
func blockSteps(dst []float32, t Tensor) {
	elements, bytes := t.DType.Block()
	for data := t.Data; len(data) > 0; data = data[bytes:] {
		halfSteps(dst[:elements], data[:bytes], t.DType)
		dst = dst[elements:]
	}
}

// halfSteps is HalfSteps of one block.
func halfSteps(h []float32, b []byte, d DType) {
	switch d {
	case Q8_0:
		oneScale(h, getF16(b), 0, func(i int) int { return int(int8(b[2+i])) }, math.MaxInt)
	case Q4_0:
		oneScale(h, getF16(b), 0, func(i int) int { return low(b[2:], i) - 8 }, 7)
	case Q5_0:
		oneScale(h, getF16(b), 0, func(i int) int { return low(b[6:], i) + fifth(b[2:], i) - 16 }, 15)
	case Q5_1:
		oneScale(h, getF16(b), getF16(b[2:]), func(i int) int { return low(b[8:], i) + fifth(b[4:], i) }, math.MaxInt)
	case MXFP4:
		var unit [32]float32
		kernel.Widen(unit[:], append([]byte{b[0]}, []byte("\x11\x11\x11\x11\x11\x11\x11\x11\x11\x11\x11\x11\x11\x11\x11\x11")...), kernel.MXFP4)
		for i := range h { // in units of half the least magnitude; 12 stands for numbers to 16
			h[i] = unit[0] * [...]float32{0.5, 0.5, 0.5, 0.5, 1, 1, 2, 4}[low(b[1:], i)&7]
		}
	case Q6_K:
		super := abs32(getF16(b[208:]))
		moved := float32(32 * (float32(0.5*super) + float32(128*errorF16(super))))
		for i := range h {
			half, quarter, place := i/128, i%128/32, i%32
			code := int(b[64*half+32*(quarter%2)+place]>>(quarter/2*4)&15) | int(b[128+32*half+place]>>(2*quarter)&3)<<4
			h[i] = partStep(super, abs32(float32(int8(b[192+i/16]))), moved, code == 0 || code == 63)
		}
	default:
		minimumSteps(h, b, d)
	}
}

// BeyondError is a number that its block does not stand for.
type BeyondError struct {
	DType   DType   // of the block
	Element int     // index of the number
	Source  float32 // the number
	Block   float32 // what the block has in its place
}

// Error gives both numbers.
func (e *BeyondError) Error() string {
	return fmt.Sprintf("element %d is %v, but its %s block has %v there, more than half a step away", e.Element, e.Source, e.DType, e.Block)
}

// beyond returns the index of the first number of x that is not within half a step (see
// HalfSteps) of y, which block stands for; -1 if all are. largest is max |y - x|, as bits.
// Encoding and decoding round about eight times, to 2^-24 of numbers that are at most twice the
// largest of x: 2^-20 of that is added to each half step. A block of numbers that are not
// finite is not checked.
func beyond(y, x []float32, block []byte, d DType, largest uint32) int {
	const infinite = 0x7f800000
	if largest >= infinite || math.Float32frombits(largest) <= quickStep(block, d) {
		return -1
	}
	var steps [256]float32
	h, slack := steps[:len(x)], float32(0)
	halfSteps(h, block, d)
	for _, v := range x {
		slack = max(slack, 0x1p-20*abs32(v))
	}
	for i, v := range x {
		if !(abs32(y[i]-v) <= h[i]+slack) {
			return i
		}
	}
	return -1
}

// quickStep is half a step of a block of one scale; of Q8_0 with what rounding the scale adds at
// the largest code, because its blocks are encoded so fast. It is 0 for blocks of several scales.
func quickStep(block []byte, d DType) float32 {
	switch d {
	case Q8_0:
		scale := abs32(getF16(block))
		return 0.5*scale + 127*errorF16(scale)
	case Q4_0, Q5_0, Q5_1:
		return 0.5 * abs32(getF16(block))
	}
	return 0
}

// oneScale sets h for blocks of one scale d and minimum m: half a step, or a step at the
// largest code, where the code that it was chosen for may be the next; and the errors of d
// and m as F16.
func oneScale(h []float32, d, m float32, code func(i int) int, largest int) {
	d = abs32(d)
	ofD, ofM := errorF16(d), errorF16(abs32(m))
	for i := range h {
		q, step := code(i), float32(0.5)
		if q == largest {
			step = 1
		}
		h[i] = float32(d*step) + float32((abs32(float32(q))+1)*ofD) + ofM
	}
}

// minimumSteps sets h for a Q4_K or Q5_K block.
func minimumSteps(h []float32, b []byte, d DType) {
	super, superMin, packed := abs32(getF16(b)), abs32(getF16(b[2:])), (*[12]byte)(b[4:])
	codes, most := b[16:], 15
	if d == Q5_K {
		codes, most = b[48:], 31
	}
	moved := float32(float32(most)*(float32(0.5*super)+float32(63*errorF16(super)))) + float32(0.5*superMin) + float32(63*errorF16(superMin))
	for p := range 8 {
		scale, _ := kernel.ScaleMin(p, packed)
		for i := range 32 {
			code := int(codes[32*(p/2)+i] >> (p % 2 * 4) & 15)
			if d == Q5_K {
				code |= int(b[16+i]>>p&1) << 4
			}
			h[32*p+i] = partStep(super, float32(scale), moved, code == 0 || code == most)
		}
	}
}

// partStep is half the interval of a code of a part with a rounded scale, times super: half a
// step; at the ends of its range a step and half more, and as far as roundings of the part's
// scale and minimum, and of the block's, moved them. A part without scale is all one number.
func partStep(super, scale, moved float32, end bool) float32 {
	step := super * scale
	if !end && step > 0 {
		return 0.5 * step
	}
	return float32(1.5*max(step, 0.5*super, errorF16(super))) + moved
}

// low returns the low four bits of code i of 32, which lie in 16 bytes; fifth its bit of a
// uint32, as the code's fifth.
func low(q []byte, i int) int { return int(q[i%16] >> (i / 16 * 4) & 15) }

func fifth(q []byte, i int) int { return int(binary.LittleEndian.Uint32(q)>>i&1) << 4 }
