package main

import (
	. "github.com/mmcloughlin/avo/build"
	"github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

// The kernels that fit scales: a register holds one number, or sum, of each of eight groups.

// The fields of kernel.Fit, in bytes.
const (
	fitNumber = 32 // one number of each group
	fitScale  = 32 * fitNumber
	fitLow    = fitScale + fitNumber
	fitPer    = fitLow + fitNumber
	fitFrom   = fitPer + fitNumber
	fitW      = fitFrom + fitNumber
	fitL      = fitW + 32*fitNumber
)

// Predicates of VCMPPS.
const (
	equal   = 0x00
	below   = 0x11 // false of NaN
	notZero = 0x04 // not equal; true of NaN
	above   = 0x1e // false of NaN
)

// fitting is a kernel that fits and its registers.
type fitting struct {
	isa
	fit    reg.GPPhysical // the kernel.Fit
	at     reg.GPPhysical // byte offset of a number in an array of the Fit
	tries  reg.GPPhysical
	g      *bank[reg.GPPhysical]
	v      *bank[reg.VecPhysical]
	magic  reg.VecPhysical // 1.5·2²³
	low    reg.VecPhysical // mask of the bits of a nearest integer
	shift  reg.VecPhysical // subtracted from those bits
	number reg.VecPhysical
	t      reg.VecPhysical // scratch
}

// beginFit starts a kernel.
func (s isa) beginFit(name, signature, definition string) *fitting {
	function(s.name+name, signature, definition+" for all groups")
	g := general()
	f := &fitting{isa: s, fit: g.one(), at: g.one(), tries: g.one(), g: g, v: s.vectors()}
	Load(Param("fit"), f.fit)
	f.number, f.t = f.v.one(), f.v.one()
	f.magic, f.low, f.shift = f.constant(0x4b400000), f.constant(0x007fffff), f.constant(0x00400000)
	return f
}

// constant hands out a register whose words are all bits.
func (f *fitting) constant(bits uint32) reg.VecPhysical {
	r := f.v.one()
	f.set(r, bits)
	return r
}

// set sets all words of a register.
func (f *fitting) set(r reg.VecPhysical, bits uint32) {
	MOVL(operand.U32(bits), f.at.As32())
	f.words(f.at, r)
}

// field is a field of the Fit.
func (f *fitting) field(offset int) operand.Mem { return operand.Mem{Base: f.fit, Disp: offset} }

// now is the number at byte offset at of an array of the Fit.
func (f *fitting) now(offset int) operand.Mem {
	return operand.Mem{Base: f.fit, Index: f.at, Scale: 1, Disp: offset}
}

// each writes a loop over the numbers up to end, in bytes.
func (f *fitting) each(label string, end operand.Op, body func()) {
	XORQ(f.at, f.at)
	Label(label)
	body()
	ADDQ(operand.Imm(fitNumber), f.at)
	CMPQ(f.at, end)
	JB(operand.LabelRef(label))
}

// code turns number, multiplied by an inverse scale, into its code as a float32.
func (f *fitting) code(least, most operand.Op) {
	VADDPS(f.magic, f.number, f.number)
	VPAND(f.low, f.number, f.number)
	VPSUBD(f.shift, f.number, f.number)
	VPMINSD(most, f.number, f.number)
	VPMAXSD(least, f.number, f.number)
	VCVTDQ2PS(f.number, f.number)
}

// choose sets dst to src where mask is set.
func choose(mask, src, dst reg.VecPhysical) { VBLENDVPS(mask, src, dst, dst) }

// addLoss adds weight·(scale·code + least - x)², or weight·|scale·code + least - x|, to sum; number
// holds the code. t is changed.
func (f *fitting) addLoss(scale, least, sum reg.VecPhysical, absolute bool) {
	VMULPS(scale, f.number, f.number)
	VADDPS(least, f.number, f.number)
	VSUBPS(f.now(0), f.number, f.number)
	if absolute {
		VPCMPEQD(f.t, f.t, f.t)
		VPSRLD(operand.Imm(1), f.t, f.t)
		VPAND(f.t, f.number, f.number)
	} else {
		VMULPS(f.number, f.number, f.number)
	}
	VMULPS(f.now(fitW), f.number, f.number)
	VADDPS(f.number, sum, sum)
}

// update sets a field of the groups that mask selects.
func (f *fitting) update(mask, value reg.VecPhysical, field int) {
	VMOVUPS(f.field(field), f.t)
	choose(mask, value, f.t)
	VMOVUPS(f.t, f.field(field))
}

// fitMinimums writes the kernel of the types with minimums.
func (s isa) fitMinimums(name string, absolute bool) {
	f := s.beginFit(name, "(fit *float32, numbers, most int, tries *float32, n int)", "minimumsPortable")
	v, local := f.v, AllocLocal(4*fitNumber)
	memW, memX, memFlat, memLow := local, local.Offset(fitNumber), local.Offset(2*fitNumber), local.Offset(3*fitNumber)
	zero, most, low, high := v.one(), v.one(), v.one(), v.one()
	per, best, a := v.one(), v.one(), v.one()
	sumL, sumL2, sumXL := v.one(), v.one(), v.one()
	Load(Param("most"), f.tries)
	f.words(f.tries, most)
	numbers := f.g.one()
	Load(Param("numbers"), numbers)
	SHLQ(operand.Imm(5), numbers) // · fitNumber
	Load(Param("tries"), f.tries)
	Load(Param("n"), left)
	f.zero(zero)

	Comment("The sums that all tries share.")
	sumW, sumX := sumL2, sumXL
	VMOVUPS(f.field(0), low)
	VMOVUPS(low, high)
	f.zero(sumW)
	f.zero(sumX)
	f.each("weights", numbers, func() {
		VMOVUPS(f.now(0), f.number)
		VMINPS(low, f.number, low)
		VMAXPS(high, f.number, high)
		VMOVUPS(f.now(fitW), f.t)
		VADDPS(f.t, sumW, sumW)
		VMULPS(f.number, f.t, f.t)
		VADDPS(f.t, sumX, sumX)
	})
	VMOVUPS(sumW, memW)
	VMOVUPS(sumX, memX)
	VMINPS(low, zero, low)
	VMOVUPS(low, memLow)
	VCMPPS(operand.Imm(equal), low, high, f.t)
	VMOVUPS(f.t, memFlat)

	Comment("The scale of the whole span.")
	VSUBPS(low, high, f.t)
	VCVTDQ2PS(most, per)
	VDIVPS(f.t, per, per)
	f.set(a, 0x3f800000)
	VDIVPS(per, a, a)
	VMOVUPS(a, f.field(fitScale))
	VMOVUPS(low, f.field(fitLow))
	VMOVUPS(low, f.field(fitFrom))
	VMOVUPS(per, f.field(fitPer))
	f.zero(best)
	f.each("whole", numbers, func() {
		VMOVUPS(f.now(0), f.number)
		VSUBPS(low, f.number, f.number)
		VMULPS(per, f.number, f.number)
		f.code(zero, most)
		f.addLoss(a, low, best, absolute)
	})

	Label("try")
	VBROADCASTSS(operand.Mem{Base: f.tries}, per)
	ADDQ(operand.Imm(4), f.tries)
	VSUBPS(low, high, f.t)
	VDIVPS(f.t, per, per)
	f.zero(sumL)
	f.zero(sumL2)
	f.zero(sumXL)
	f.each("sums", numbers, func() {
		VMOVUPS(f.now(0), f.number)
		VSUBPS(low, f.number, f.number)
		VMULPS(per, f.number, f.number)
		f.code(zero, most)
		VMOVUPS(f.number, f.now(fitL))
		VMULPS(f.now(fitW), f.number, f.t)
		VADDPS(f.t, sumL, sumL)
		VMULPS(f.number, f.t, f.number)
		VADDPS(f.number, sumL2, sumL2)
		VMULPS(f.now(0), f.t, f.t)
		VADDPS(f.t, sumXL, sumXL)
	})
	det, scale, least := f.number, a, f.t
	VMULPS(memW, sumL2, det)
	VMULPS(sumL, sumL, scale)
	VSUBPS(scale, det, det)
	VMULPS(memW, sumXL, scale)
	VMULPS(memX, sumL, least)
	VSUBPS(least, scale, scale)
	VDIVPS(det, scale, scale)
	VMULPS(sumXL, sumL, sumL)
	VMULPS(memX, sumL2, least)
	VSUBPS(sumL, least, least)
	VDIVPS(det, least, least)
	VDIVPS(sumL2, sumXL, sumXL)
	better, minimum, sum := sumL, sumL2, sumXL
	VCMPPS(operand.Imm(above), zero, least, better)
	choose(better, sumXL, scale)
	VMOVAPS(least, minimum)
	choose(better, zero, minimum)
	VCMPPS(operand.Imm(above), zero, det, better)
	f.zero(sum)
	f.each("error", numbers, func() {
		VMOVUPS(f.now(fitL), f.number)
		f.addLoss(scale, minimum, sum, absolute)
	})
	VCMPPS(operand.Imm(below), best, sum, f.t)
	VANDPS(f.t, better, better)
	choose(better, sum, best)
	f.update(better, scale, fitScale)
	f.update(better, minimum, fitLow)
	f.update(better, per, fitPer)
	f.update(better, low, fitFrom)
	choose(better, minimum, low)
	DECQ(left)
	JNZ(operand.LabelRef("try"))

	Comment("Groups of equal numbers.")
	flat := better
	VMOVUPS(memFlat, flat)
	VMOVUPS(memLow, low)
	f.update(flat, zero, fitScale)
	f.update(flat, low, fitLow)
	f.update(flat, zero, fitPer)
	f.update(flat, low, fitFrom)
	end()
}

// sixteen is the end of the first 16 numbers.
const sixteen = operand.U32(16 * fitNumber)

// largest sets top to the first number of the largest magnitude, and largest to that.
func (f *fitting) largest(end operand.Op, top, largest, a, scratch reg.VecPhysical) {
	f.zero(top)
	f.zero(largest)
	f.set(a, 0x7fffffff)
	f.each("largest", end, func() {
		VMOVUPS(f.now(0), f.number)
		VANDPS(a, f.number, f.t)
		VPCMPGTD(largest, f.t, scratch)
		choose(scratch, f.number, top)
		choose(scratch, f.t, largest)
	})
}

// fitSymmetric writes the kernel of the types without minimums.
func (s isa) fitSymmetric() {
	f := s.beginFit("FitSymmetric", "(fit *float32, numbers, most int, tries *float32, n int)", "symmetricPortable")
	v := f.v
	least, most := v.one(), v.one()
	top, largest, per := v.one(), v.one(), v.one()
	best, lx, l2, a := v.one(), v.one(), v.one(), v.one()
	Load(Param("most"), f.tries)
	DECQ(f.tries)
	f.words(f.tries, most)
	NOTQ(f.tries)
	f.words(f.tries, least)
	Load(Param("tries"), f.tries)
	Load(Param("n"), left)
	numbers := f.g.one()
	Load(Param("numbers"), numbers)
	SHLQ(operand.Imm(5), numbers) // · fitNumber
	f.largest(numbers, top, largest, a, l2)
	sums := func(label string) {
		VBROADCASTSS(operand.Mem{Base: f.tries}, per)
		ADDQ(operand.Imm(4), f.tries)
		VDIVPS(top, per, per)
		f.zero(lx)
		f.zero(l2)
		f.each(label, numbers, func() {
			VMOVUPS(f.now(0), f.number)
			VMOVUPS(f.now(fitW), f.t)
			VMULPS(f.number, f.t, a)
			VMULPS(per, f.number, f.number)
			f.code(least, most)
			VMULPS(f.number, a, a)
			VADDPS(a, lx, lx)
			VMULPS(f.number, f.t, f.t)
			VMULPS(f.number, f.t, f.t)
			VADDPS(f.t, l2, l2)
		})
	}
	sums("first")
	f.zero(f.number)
	VDIVPS(l2, lx, a)
	VCMPPS(operand.Imm(notZero), f.number, l2, f.t)
	VANDPS(f.t, a, a)
	VMOVUPS(a, f.field(fitScale))
	VMOVUPS(per, f.field(fitPer))
	VMULPS(lx, a, best)
	DECQ(left)
	JZ(operand.LabelRef("end"))
	Label("try")
	sums("others")
	f.zero(f.number)
	better := a
	VMULPS(lx, lx, f.t)
	VMULPS(best, l2, a)
	VCMPPS(operand.Imm(above), a, f.t, better)
	VCMPPS(operand.Imm(above), f.number, l2, f.t)
	VANDPS(f.t, better, better)
	VDIVPS(l2, lx, l2) // the scale
	f.update(better, l2, fitScale)
	f.update(better, per, fitPer)
	VMULPS(lx, l2, l2)
	choose(better, l2, best)
	DECQ(left)
	JNZ(operand.LabelRef("try"))
	Label("end")
	f.set(f.t, 0x26901d7d) // 1e-15
	VCMPPS(operand.Imm(below), f.t, largest, a)
	f.zero(f.number)
	f.update(a, f.number, fitScale)
	f.update(a, f.number, fitPer)
	end()
}

// fitStepwise writes the kernel of Q3_K.
func (s isa) fitStepwise() {
	f := s.beginFit("FitStepwise", "(fit *float32)", "stepwisePortable")
	v := f.v
	least, most := f.constant(0xfffffffc), f.constant(3)
	lx, l2, w, wx := v.one(), v.one(), v.one(), v.one()
	x, sq, mask, changed, small := v.one(), v.one(), v.one(), v.one(), v.one()
	top, largest := wx, x
	f.largest(sixteen, top, largest, lx, l2)
	f.set(f.t, 0x26901d7d) // 1e-15
	VCMPPS(operand.Imm(below), f.t, largest, small)

	Comment("The first codes.")
	per := sq
	f.set(per, 0xc0800000) // -4
	VDIVPS(top, per, per)
	f.zero(lx)
	f.zero(l2)
	f.each("first", sixteen, func() {
		VMOVUPS(f.now(0), f.number)
		VMULPS(f.number, f.number, w)
		VMULPS(f.number, w, f.t)
		VMULPS(per, f.number, f.number)
		f.code(least, most)
		VMOVUPS(f.number, f.now(fitL))
		VMULPS(f.number, f.t, f.t)
		VADDPS(f.t, lx, lx)
		VMULPS(f.number, w, f.t)
		VMULPS(f.number, f.t, f.t)
		VADDPS(f.t, l2, l2)
	})

	MOVQ(operand.U32(5), left)
	Label("turn")
	f.zero(changed)
	f.each("number", sixteen, func() {
		VMOVUPS(f.now(0), f.number)
		VMULPS(f.number, f.number, w)
		VMULPS(f.number, w, wx)
		Comment("The sums of the others.")
		VMOVUPS(f.now(fitL), f.t)
		VMULPS(f.t, wx, x)
		VSUBPS(x, lx, x)
		VMULPS(f.t, w, sq)
		VMULPS(f.t, sq, sq)
		VSUBPS(sq, l2, sq)
		VMULPS(sq, f.number, f.number)
		VDIVPS(x, f.number, f.number)
		f.code(least, most)
		f.zero(mask)
		VCMPPS(operand.Imm(above), mask, x, mask)
		VCMPPS(operand.Imm(notZero), f.t, f.number, f.t)
		VANDPS(f.t, mask, mask)
		VPTEST(mask, mask)
		JZ(operand.LabelRef("kept")) // of all groups: the next number does not wait
		Comment("The sums with the new code.")
		VMULPS(f.number, wx, f.t)
		VADDPS(f.t, x, x)
		VMULPS(f.number, w, f.t)
		VMULPS(f.number, f.t, f.t)
		VADDPS(f.t, sq, sq)
		f.zero(f.t)
		VCMPPS(operand.Imm(above), f.t, sq, f.t)
		VANDPS(f.t, mask, mask)
		VMULPS(x, x, w)
		VMULPS(l2, w, w)
		VMULPS(lx, lx, f.t)
		VMULPS(sq, f.t, f.t)
		VCMPPS(operand.Imm(above), f.t, w, f.t)
		VANDPS(f.t, mask, mask)
		choose(mask, x, lx)
		choose(mask, sq, l2)
		VMOVUPS(f.now(fitL), f.t)
		choose(mask, f.number, f.t)
		VMOVUPS(f.t, f.now(fitL))
		VORPS(mask, changed, changed)
		Label("kept")
	})
	VPTEST(changed, changed)
	JZ(operand.LabelRef("end"))
	DECQ(left)
	JNZ(operand.LabelRef("turn"))

	Label("end")
	f.zero(f.t)
	VCMPPS(operand.Imm(above), f.t, l2, mask)
	VDIVPS(l2, lx, lx)
	VANDPS(mask, lx, lx)
	VANDNPS(lx, small, lx)
	VMOVUPS(lx, f.field(fitScale))
	f.set(w, 0xc0800000)
	f.each("small", sixteen, func() {
		VMOVUPS(f.now(fitL), f.t)
		choose(small, w, f.t)
		VMOVUPS(f.t, f.now(fitL))
	})
	end()
}
