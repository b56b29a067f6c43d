package tensor

// How much of the range of its codes a block uses. An encoder chooses the scale for the numbers of the block, so that
// they fill the range. Under a scale that is too large they fill a part of the range, and are rounded more coarsely
// than the type needs.

import (
	"math"

	"dsmoe/model/internal/kernel"
)

// weighing is how an encoder of a type chooses scales.
type weighing struct {
	part     int     // numbers that share a scale
	most     int     // codes are 0 … most, or without minimums -most … most-1
	minimums bool    // parts have a minimum
	levels   float32 // largest code of a scale; 0 if the block's scale is the part's
}

var weighings = [...]weighing{
	Q8_0: {32, 127, false, 0}, Q4_0: {32, 8, false, 0}, Q4_1: {32, 15, true, 0}, Q5_0: {32, 16, false, 0},
	Q5_1: {32, 31, true, 0},
	Q2_K: {16, 3, true, 15}, Q3_K: {16, 4, false, 32}, Q4_K: {32, 15, true, 63}, Q5_K: {32, 31, true, 63},
	Q6_K: {16, 32, false, 128}, IQ4_NL: {32, 127, false, 0}, IQ4_XS: {32, 127, false, 32}, MXFP4: {32, 6, false, 0},
}

// storedBlock is a block and its scales.
type storedBlock struct {
	weighing
	data            []byte
	dtype           DType
	scale, minimum  float32 // of the block, of those that have it: most are an F16
	super, superMin float32 // the same without their signs
}

// blockOf returns the block that data has.
func blockOf(data []byte, d DType) storedBlock {
	b, at, least := storedBlock{weighing: weighings[d], data: data, dtype: d}, 0, -1
	switch d {
	case Q2_K:
		at, least = 80, 82
	case Q3_K:
		at = 108
	case Q6_K:
		at = 208
	case Q4_1, Q5_1, Q4_K, Q5_K:
		least = 2
	}
	if b.scale = getF16(data[at:]); d == MXFP4 {
		b.scale = float32(math.Ldexp(1, int(data[0])-127))
	}
	if least > 0 {
		b.minimum = getF16(data[least:])
	}
	b.super, b.superMin = abs32(b.scale), abs32(b.minimum)
	return b
}

// line returns the step from one code to the next of part p of a K block, and its minimum, which is subtracted. Both
// are exact.
func (b *storedBlock) line(p int) (step, least float32) {
	switch b.dtype {
	case Q2_K:
		return b.scale * float32(b.data[p]&15), b.minimum * float32(b.data[p]>>4)
	case Q3_K:
		return b.scale * float32(kernel.ScaleQ3(p, (*[12]byte)(b.data[96:]))), 0
	case Q6_K:
		return b.scale * float32(int8(b.data[192+p])), 0
	case IQ4_XS:
		return b.scale * float32(kernel.ScaleIQ4(p, b.data)), 0
	}
	scale, low := kernel.ScaleMin(p, (*[12]byte)(b.data[4:]))
	return b.scale * float32(scale), b.minimum * float32(low)
}

// step returns the step of part p without its sign.
func (b *storedBlock) step(p int) float32 {
	step, _ := b.line(p)
	return abs32(step)
}

// extent returns the least and the largest of the numbers and 0.
func extent(x []float32) (low, high float64) {
	for _, v := range x {
		low, high = min(low, float64(v)), max(high, float64(v))
	}
	return low, high
}

// leastUsed returns how many steps from code to code the numbers of a part of a block take under every encoder, at
// least, and how many the range has. coarse is the share of the step that rounding the scale may have added.
//
// Encoders without a search take the scale from the number of the largest magnitude, which gets the last code: 127 of
// Q8_0, -8 of Q4_0, -16 of Q5_0. With importance they try scales of up to 0.9 codes less, so that the last code may be
// -7 or -15. A scale of MXFP4 is a power of two, of which the largest number is 3 to 8 times. Other encoders fit the
// scale to all numbers, each of which is then half a code off at most: the scale is at most twice what the extent of
// the numbers needs. Parts of Q4_K and Q5_K nearly all of whose numbers have no importance are an exception, and those
// whose numbers lie in two narrow groups far from 0 (see fitted). Half of Q2_K's range is less than rounding takes from
// it: that type has no least.
func (b *storedBlock) leastUsed(coarse float64) (least, all float64) {
	switch all = float64(b.most); b.dtype {
	case Q8_0:
		return all, all
	case Q4_0, Q5_0:
		return all - 1, all
	case Q2_K:
		return 0, all
	}
	return all / 2 * (1 - coarse), all
}

// excess appends to factors, for each part of a block that stands for y, the largest step that an encoder takes
// for these numbers over the part's step, at most 1. The numbers may have taken half a step more before they were
// rounded. wasted reports whether less than half of a range is used: that of the codes of a part that is not all zero,
// or that of the scales of a type K, which are codes times the scale of the block.
func (b *storedBlock) excess(factors []float64, y []float32) (all []float64, wasted bool) {
	super, superMin := float64(b.super), float64(b.superMin)
	relative, ofScales := float64(errorF16(b.super)/b.super), 1.0
	if b.levels > 0 {
		ofScales, wasted = b.scaleExcess()
	}
	for p := 0; p < len(y); p += b.part {
		step, coarse, moved := super, 0.0, 0.0
		if b.levels > 0 {
			step = float64(b.step(p / b.part))
			coarse = min(1, super/(2*step)+relative)
			moved = float64(b.most)*(0.5*super+step*relative) + 0.5*superMin + float64(b.levels)*float64(errorF16(b.superMin))
		}
		low, high := extent(y[p:][:b.part])
		used := max(-low, high) / step
		if b.minimums { // rounding the minimum, too, moves both ends
			used = (high - low + 2*moved) / step
		}
		factor := ofScales
		if least, most := b.leastUsed(coarse); step > 0 && used+0.5 < least {
			factor *= (used + 0.5) / least
			wasted = wasted || high > low && used+0.5 < most/2
		}
		factors = append(factors, factor)
	}
	return factors, wasted
}

// scaleExcess is excess for the scales of the parts, of which every encoder gives one at least half of the codes.
func (b *storedBlock) scaleExcess() (factor float64, wasted bool) {
	top := float32(0)
	for p := range 256 / b.part {
		top = max(top, b.step(p))
	}
	largest := float64(top) / float64(b.super)
	if least := float64(b.levels) / 2; b.super > 0 && largest+0.5 < least {
		return (largest + 0.5) / least, largest > 0
	}
	return 1, false
}

// Wasteful counts the blocks of data, whole ones of block type d, that use less than half of a range, so that a scale of
// half the size would do, and all blocks.
func Wasteful(data []byte, d DType) (wasteful, blocks int64) {
	var room [16]float64
	elements, size := d.Block()
	d.eachDecoded(data, func(y []float32) {
		for ; len(y) > 0; y, data = y[elements:], data[size:] {
			b := blockOf(data[:size], d)
			if _, wasted := b.excess(room[:0], y[:elements]); wasted {
				wasteful++
			}
			blocks++
		}
	})
	return wasteful, blocks
}
