package tensor

// How much of the range of its codes a block uses. An encoder chooses the scale for the numbers of the block, so that
// they fill the range. Under a scale that is too large they fill a part of the range, and are rounded more coarsely
// than the type needs.

import "math"

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
func (k weighing) leastUsed(d DType, coarse float64) (least, all float64) {
	switch all = float64(k.most); d {
	case Q8_0:
		return all, all
	case Q4_0, Q5_0:
		return all - 1, all
	case Q2_K:
		return 0, all
	}
	return all / 2 * (1 - coarse), all
}

// excess appends to factors, for each part of a block of d that stands for y, the largest step that an encoder takes
// for these numbers over the part's step, at most 1. The numbers may have taken half a step more before they were
// rounded. wasted reports whether less than half of a range is used: that of the codes of a part that is not all zero,
// or that of the scales of a type K, which are codes times the scale of the block.
func (d DType) excess(factors []float64, block []byte, y []float32) (all []float64, wasted bool) {
	k := weighings[d]
	super, superMin := blockScales(block, d)
	relative, ofScales := float64(errorF16(super)/super), 1.0
	if k.levels > 0 {
		ofScales, wasted = k.scaleExcess(block, d, super)
	}
	for p := 0; p < len(y); p += k.part {
		step, coarse, moved := float64(super), 0.0, 0.0
		if k.levels > 0 {
			signed, _ := partLine(block, d, p/k.part)
			step = math.Abs(signed)
			coarse = min(1, float64(super)/(2*step)+relative)
			moved = float64(k.most)*(0.5*float64(super)+step*relative) + 0.5*float64(superMin) +
				float64(k.levels)*float64(errorF16(superMin))
		}
		low, high := extent(y[p:][:k.part])
		used := max(-low, high) / step
		if k.minimums { // rounding the minimum, too, moves both ends
			used = (high - low + 2*moved) / step
		}
		factor := ofScales
		if least, most := k.leastUsed(d, coarse); step > 0 && used+0.5 < least {
			factor *= (used + 0.5) / least
			wasted = wasted || high > low && used+0.5 < most/2
		}
		factors = append(factors, factor)
	}
	return factors, wasted
}

// scaleExcess is excess for the scales of the parts, of which every encoder gives one at least half of the codes.
func (k weighing) scaleExcess(block []byte, d DType, super float32) (factor float64, wasted bool) {
	largest := 0.0
	for p := range 256 / k.part {
		step, _ := partLine(block, d, p)
		largest = max(largest, math.Abs(step)/float64(super))
	}
	if least := float64(k.levels) / 2; super > 0 && largest+0.5 < least {
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
			if _, wasted := d.excess(room[:0], data[:size], y[:elements]); wasted {
				wasteful++
			}
			blocks++
		}
	})
	return wasteful, blocks
}
