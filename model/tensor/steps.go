package tensor

import (
	"encoding/binary"
	"fmt"
	"math"

	"dsmoe/model/internal/kernel"
)

// How far a block may be from the numbers that it was made of.

// HalfSteps appends to dst, for each element of a tensor, half the width of the interval of
// numbers that are rounded to that element. Of F16, BF16 and the codes of FP8, whose scale is
// left out, that is half a unit in the last place, of other dtypes without blocks nothing is
// known to be rounded: 0. Of a block type it is
// half a step between neighbouring codes, and what rounding scales and minimums adds, since
// steps are of scales as they are stored. The outermost codes of Q4_0, Q5_0 and of the types K
// also stand for numbers beyond them: a step, and as much as rounding a part's scale and minimum
// to a few bits moves the end of its range. Of Q2_K, half of whose codes are outermost, these stand for a
// step, and some numbers are farther away (see inPart). The error of a number that the reference encoder
// rounded is then about uniform within ± half a step, of a variance of a third of its square. Where a scale is larger
// than encoders take for the range of a block's numbers, the largest scale that they take for this range is used. For a part
// of Q4_K or Q5_K whose numbers form two narrow groups far from 0 (see ranges.go), that is up to a seventh too little.
func (t Tensor) HalfSteps(dst []float32) []float32 {
	n := len(dst)
	dst = append(dst, make([]float32, t.Len())...)
	if t.DType.Blocked() {
		elements, bytes := t.DType.Block()
		var y [256]float32
		for h, data := dst[n:], t.Data; len(data) > 0; h, data = h[elements:], data[bytes:] {
			kernel.Widen(y[:elements], data[:bytes], blockFormats[t.DType])
			halfSteps(h[:elements], data[:bytes], y[:elements], t.DType)
		}
		return dst
	}
	if p, ok := precisions[t.DType]; ok {
		dst, _ = t.Float32s(dst[:n]) // of these dtypes there is no error
		for i, v := range dst[n:] {
			exponent := max(int(math.Float32bits(v)>>23&0xff)-127, p.least)
			dst[n+i] = float32(math.Ldexp(1, exponent-p.bits))
		}
	}
	return dst
}

// precisions holds the significant bits of dtypes that numbers are rounded to, and the exponent of their least
// normal number.
var precisions = map[DType]struct{ bits, least int }{F16: {11, -14}, BF16: {8, -126}, F8E4M3: {4, -6}}

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
			if abs32(v) > f.LeastNormal() {
				dst[n+i] = 0
			}
		}
	}
	return dst
}

// halfSteps is HalfSteps of one block, which stands for y: the steps of the stored scales, reduced by excess.
func halfSteps(h []float32, data []byte, y []float32, d DType) {
	b := blockOf(data, d)
	switch d {
	case Q8_0:
		b.oneScale(h, func(i int) int { return int(int8(data[2+i])) }, math.MaxInt)
	case Q4_0:
		b.oneScale(h, func(i int) int { return low(data[2:], i) - 8 }, 7)
	case Q5_0:
		b.oneScale(h, func(i int) int { return low(data[6:], i) + fifth(data[2:], i) - 16 }, 15)
	case Q4_1:
		b.oneScale(h, func(i int) int { return low(data[4:], i) }, math.MaxInt)
	case Q5_1:
		b.oneScale(h, func(i int) int { return low(data[8:], i) + fifth(data[4:], i) }, math.MaxInt)
	case IQ4_NL, IQ4_XS:
		b.unevenCodes(h)
	case MXFP4:
		var unit [32]float32
		kernel.Widen(unit[:], append([]byte{data[0]},
			[]byte("\x11\x11\x11\x11\x11\x11\x11\x11\x11\x11\x11\x11\x11\x11\x11\x11")...), kernel.MXFP4)
		for i := range h { // in units of half the least magnitude; 12 stands for numbers to 16
			h[i] = unit[0] * [...]float32{0.5, 0.5, 0.5, 0.5, 1, 1, 2, 4}[low(data[1:], i)&7]
		}
	default:
		for p := 0; p < len(h); p += b.part {
			step, inner, end := b.step(p/b.part), b.partStep(p/b.part, false), b.partStep(p/b.part, true)
			if d == Q2_K && step != 0 {
				end = step
			}
			for i := p; i < p+b.part; i++ {
				if h[i] = inner; isEnd(b.code(i)) {
					h[i] = end
				}
			}
		}
	}
	var room [16]float64
	factors, _ := b.excess(room[:0], y)
	for i := range h {
		if f := factors[i*len(factors)/len(h)]; f < 1 {
			h[i] *= float32(f)
		}
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
	return fmt.Sprintf("element %d is %v, but its %s block has %v there, more than half a step away", e.Element, e.Source,
		e.DType, e.Block)
}

// beyond returns the index of the first number of x that is not within half a step (see
// HalfSteps) of y, which block stands for, or, of Q2_K and Q3_K, beyond the end of its part's range as
// inPart allows; -1 if all are. largest is max |y - x|, as bits.
// Encoding and decoding round about eight times, to 2^-24 of numbers that are at most twice the
// largest of x: 2^-20 of that is added to each half step. A block of numbers that are not
// finite is not checked.
func (m *measure) beyond(y, x []float32, block []byte, d DType, largest uint32) int {
	half := float32(0) // a step of a block of one scale; of Q8_0 the kernel knows it
	if d == Q4_0 || d == Q4_1 || d == Q5_0 || d == Q5_1 {
		half = 0.5 * abs32(getF16(block))
	}
	if largest >= infinityBits || math.Float32frombits(largest) <= half {
		return -1
	}
	switch d {
	case Q2_K, Q3_K:
		return m.beyondFewBits(y, x, block, d)
	case Q4_K, Q5_K, Q6_K:
		return m.beyondParts(y, x, block, d)
	}
	top := uint32(0)
	for _, v := range x {
		top = max(top, math.Float32bits(v)&^(1<<31))
	}
	slack := slackOf * math.Float32frombits(top)
	var steps [256]float32
	h := steps[:len(x)]
	halfSteps(h, block, y, d)
	b := blockOf(block, d)
	uneven := d == IQ4_NL || d == IQ4_XS
	for i, v := range x {
		if !(abs32(y[i]-v) <= h[i]+slack) && !(uneven && b.leftBeyond(i, y, x, slack)) {
			return i
		}
	}
	return -1
}

// slackOf is the slack of each number, in the largest of its block.
const slackOf = 0x1p-20

// spansOf returns the spans of the parts of a block of a type K, and the slack of its numbers.
func (m *measure) spansOf(y, x []float32, part int) (spans []kernel.Span, slack float32) {
	spans = m.spans[:256/part]
	kernel.Spans(spans, y, x)
	top := float32(0)
	for i := range spans {
		top = max(top, spans[i].Top)
	}
	return spans, slackOf * top
}

// beyondParts is beyond for the other types K, a part at a time: half a step is allowed at every code, so that few
// numbers need a look at their code.
func (m *measure) beyondParts(all, x []float32, data []byte, d DType) int {
	b := blockOf(data, d)
	spans, slack := m.spansOf(all, x, b.part)
	var room [16]float64
	var factors []float64 // of excess, if they are needed
	ofScales, _ := b.scaleExcess()
	for p := range spans {
		s, step := &spans[p], b.step(p)
		half, factor, most := 0.5*step, float32(1), float32(b.most)
		// filled: the numbers, and 0, are certain to fill half of the range
		filled := b.minimums && s.Above+s.Below >= most*half || max(s.Below, s.Above) >= most*half
		if step == 0 || ofScales < 1 || !filled {
			if factors == nil {
				factors, _ = b.excess(room[:0], all)
			}
			factor = float32(min(1, factors[p]))
		}
		if step != 0 && s.Farthest <= half*factor+slack {
			continue
		}
		for i := p * b.part; i < (p+1)*b.part; i++ {
			if off := abs32(all[i] - x[i]); !(step != 0 && off <= half*factor+slack) {
				least := b.partStep(p, isEnd(b.code(i)) || most*step <= slack) // all its codes are one number
				if !(off <= least*factor+slack) && !(b.minimums && off <= least*float32(ofScales)+slack &&
					fitted(all[p*b.part:][:b.part], x[p*b.part:][:b.part], float64(b.most), float64(b.moved(p)+slack))) {
					return i
				}
			}
		}
	}
	return -1
}

// fitted reports whether y is as near to the numbers x of a part of Q4_K or Q5_K as the encoder comes, whatever the step.
// The encoder tries lines one after another, each for the range of the one that it has taken. It takes a line only if the
// weighted squares of the errors have no larger sum. E is the extent of the numbers and 0. The first line has steps of
// E/most, and no number is farther than half a step from it. So two narrow groups of numbers far from 0 may get one code
// each, with a step of several times E/most. Rounding scale and minimum moves the line by moved.
func fitted(y, x []float32, most, moved float64) bool {
	low, high := extent(x)
	squares, weights, loss := 0.0, 0.0, 0.0
	for _, v := range x {
		squares += float64(v) * float64(v)
	}
	mean := math.Sqrt(squares / float64(len(x)))
	for i, v := range x {
		w, e := mean+math.Abs(float64(v)), float64(y[i])-float64(v)
		weights, loss = weights+w, loss+w*e*e
	}
	rms := (high-low)/(2*most) + moved
	return loss <= rms*rms*weights
}

// beyondFewBits is beyond for Q2_K and Q3_K, whose few codes often stand for numbers beyond them.
func (m *measure) beyondFewBits(y, x []float32, block []byte, d DType) int {
	spans, slack := m.spansOf(y, x, 16)
	b := blockOf(block, d)
	for p := range spans {
		step, _ := b.line(p)
		half := float32(0.5*abs32(step)) + slack
		if spans[p].Farthest <= half {
			continue
		}
		for i := 16 * p; i < 16*p+16; i++ {
			off := abs32(y[i] - x[i])
			if off <= half {
				continue
			}
			if !(b.pastEnd(i, x[i]-y[i], step, slack) &&
				(off <= b.partStep(p, true)+slack || inPart(i, y, x, d, b.moved(p)+slack))) {
				return i
			}
		}
	}
	return -1
}

// pastEnd reports whether number i of a Q2_K or Q3_K block, which is off from what the block has, lies
// past the end of its part's range: its code is an outermost one, and the next one is no nearer. A part
// without scale is all end.
func (b *storedBlock) pastEnd(i int, off, step, slack float32) bool {
	code, most := b.code(i)
	switch {
	case step == 0:
		return true
	case code == most:
		step = -step
	case code != 0:
		return false
	}
	return abs32(off) <= abs32(off-step)+slack
}

// inPart reports whether number i of a Q2_K or Q3_K block, past the end of its part's range, is where the
// encoder may have left it. The encoder fits a line x = scale·code + low to the part, weighted with |x|
// or x². Codes and numbers ascend together, so the line goes through the weighted means with no negative
// slope, and its end is within the extent E of the numbers and 0: the number is at most E away. Of all
// lines that it tries the encoder takes one with no more weighted error than the first, whose steps are E/3 (Q2_K)
// or at most E/4 (Q3_K, whose range ends at 3 on one side), from which no number is more than E/6 or E/4
// away: so far is the weighted mean error at most, in absolute values or in squares. Rounding scale and
// minimum adds moved.
func inPart(i int, y, x []float32, d DType, moved float32) bool {
	low, high, weights, loss := float32(0), float32(0), 0.0, 0.0
	for j := i &^ 15; j <= i|15; j++ {
		low, high = min(low, x[j]), max(high, x[j])
		w, e := math.Abs(float64(x[j])), math.Abs(float64(x[j])-float64(y[j]))
		if d == Q3_K {
			w, e = w*w, e*e
		}
		weights, loss = weights+w, loss+w*e
	}
	extent := float64(high) - float64(low)
	mean := extent/6 + float64(moved)
	if d == Q3_K {
		mean = (extent/4 + float64(moved)) * (extent/4 + float64(moved))
	}
	return math.Abs(float64(x[i])-float64(y[i])) <= extent+float64(moved) && loss <= mean*weights
}

// moved returns how far rounding the scale and minimum of part p, and the block's, moves the end of its range. Of Q3_K's
// scales 31 also stands for 32.
func (b *storedBlock) moved(p int) float32 {
	rounded := float32(0.5 * b.super)
	if b.dtype == Q3_K && kernel.ScaleQ3(p, (*[12]byte)(b.data[96:])) == 31 {
		rounded = b.super
	}
	moved := float32(float32(b.most) * (rounded + float32(b.levels*errorF16(b.super))))
	if b.minimums {
		moved = moved + float32(0.5*b.superMin) + float32(b.levels*errorF16(b.superMin))
	}
	return moved
}

// code returns the code of number i of a block of a type K, 0 … most.
func (b *storedBlock) code(i int) (code, most int) {
	half, quarter, place := i/128, i%128/32, i%32
	switch data := b.data; b.dtype {
	case Q2_K:
		return int(data[16+32*half+place] >> (2 * quarter) & 3), 3
	case Q3_K:
		return int(data[32+32*half+place]>>(2*quarter)&3) | int(data[place]>>(i/32)&1)<<2, 7
	case Q6_K:
		return int(data[64*half+32*(quarter%2)+place]>>(quarter/2*4)&15) | int(data[128+32*half+place]>>(2*quarter)&3)<<4, 63
	case Q5_K:
		return int(data[48+32*(i/64)+place]>>(quarter%2*4)&15) | int(data[16+place]>>(i/32)&1)<<4, 31
	default:
		return int(data[16+32*(i/64)+place] >> (quarter % 2 * 4) & 15), 15
	}
}

// isEnd reports whether a code is an outermost one.
func isEnd(code, most int) bool { return code == 0 || code == most }

// oneScale sets h for blocks of one scale and minimum: half a step, or a step at the largest code, where the code that it
// was chosen for may be the next; and the errors of scale and minimum as F16.
func (b *storedBlock) oneScale(h []float32, code func(i int) int, largest int) {
	ofScale, ofMinimum := errorF16(b.super), errorF16(b.superMin)
	for i := range h {
		q, step := code(i), float32(0.5)
		if q == largest {
			step = 1
		}
		h[i] = float32(b.super*step) + float32((abs32(float32(q))+1)*ofScale) + ofMinimum
	}
}

// unevenCodes sets h for the codes of IQ4_NL and IQ4_XS, whose values are not evenly spaced: half the wider gap to a
// neighbour. Encoders try scales under which the number of largest magnitude is up to endIQ4, and round the scales of
// parts: the outermost codes also stand for numbers as far beyond them. Added are the errors of the scale as F16.
func (b *storedBlock) unevenCodes(h []float32) {
	const endIQ4 = 134 // 127 + ntry of quantize_row_iq4_nl_impl
	values := &kernel.ValuesIQ4
	for i := range h {
		step, times, rounded, q := b.super, float32(1), float32(0), b.codeIQ4(i)
		if b.dtype == IQ4_XS {
			step, times = b.step(i/32), abs32(float32(kernel.ScaleIQ4(i/32, b.data)))
			rounded = float32(0.5*b.super) + float32(b.levels*errorF16(b.super))
		}
		half, beyond := float32(0), float32(0)
		if q > 0 {
			half = 0.5 * (values[q] - values[q-1])
		}
		if q < len(values)-1 {
			half = max(half, 0.5*(values[q+1]-values[q]))
		}
		if isEnd(q, len(values)-1) || step == 0 { // without a scale all codes are one number
			half, beyond = max(half, endIQ4-abs32(values[q])), float32(endIQ4*rounded)
		}
		h[i] = float32(step*half) + beyond + float32(float32((abs32(values[q])+half)*times)*errorF16(b.super))
	}
}

// partStep is half the interval of a code of part p, which has a rounded scale: half a
// step; at the ends of its range a step and half more, and as far as roundings of the part's
// scale and minimum, and of the block's, moved them. A part without scale is all one number.
func (b *storedBlock) partStep(p int, end bool) float32 {
	step := b.step(p)
	if !end && step > 0 {
		return 0.5 * step
	}
	return float32(1.5*max(step, 0.5*b.super, errorF16(b.super))) + b.moved(p)
}

// low returns the low four bits of code i of 32, which lie in 16 bytes; fifth its bit of a
// uint32, as the code's fifth.
func low(q []byte, i int) int { return int(q[i%16] >> (i / 16 * 4) & 15) }

func fifth(q []byte, i int) int { return int(binary.LittleEndian.Uint32(q)>>i&1) << 4 }
