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
	f := &fitting{isa: s, fit: g.one(), at: g.one(), tries: g.one(), v: s.vectors()}
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

// each writes a loop over n numbers.
func (f *fitting) each(label string, n int, body func()) {
	XORQ(f.at, f.at)
	Label(label)
	body()
	ADDQ(operand.Imm(fitNumber), f.at)
	CMPQ(f.at, operand.U32(uint32(n*fitNumber)))
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

// squareError adds weight·(scale·code + least - x)² to sum; number holds the code.
func (f *fitting) squareError(scale, least, sum reg.VecPhysical) {
	VMULPS(scale, f.number, f.number)
	VADDPS(least, f.number, f.number)
	VSUBPS(f.now(0), f.number, f.number)
	VMULPS(f.number, f.number, f.number)
	VMULPS(f.now(fitW), f.number, f.number)
	VADDPS(f.number, sum, sum)
}

// update sets a field of the groups that mask selects.
func (f *fitting) update(mask, value reg.VecPhysical, field int) {
	VMOVUPS(f.field(field), f.t)
	choose(mask, value, f.t)
	VMOVUPS(f.t, f.field(field))
}

// fitMinimums writes the kernel of Q4_K and Q5_K.
func (s isa) fitMinimums() {
	f := s.beginFit("FitMinimums", "(fit *float32, most int, tries *float32, n int)", "minimumsPortable")
	v, local := f.v, AllocLocal(4*fitNumber)
	memW, memX, memFlat, memLow := local, local.Offset(fitNumber), local.Offset(2*fitNumber), local.Offset(3*fitNumber)
	zero, most, low, high := v.one(), v.one(), v.one(), v.one()
	per, best, a := v.one(), v.one(), v.one()
	sumL, sumL2, sumXL := v.one(), v.one(), v.one()
	Load(Param("most"), f.tries)
	f.words(f.tries, most)
	Load(Param("tries"), f.tries)
	Load(Param("n"), left)
	f.zero(zero)

	Comment("Weights, and the sums that all tries share.")
	rms, sumW, sumX := sumL, sumL2, sumXL
	f.zero(rms)
	f.each("squares", 32, func() {
		VMOVUPS(f.now(0), f.number)
		VMULPS(f.number, f.number, f.number)
		VADDPS(f.number, rms, rms)
	})
	f.set(f.t, 0x3d000000) // 1/32
	VMULPS(f.t, rms, rms)
	VSQRTPS(rms, rms)
	f.set(a, 0x7fffffff)
	VMOVUPS(f.field(0), low)
	VMOVUPS(low, high)
	f.zero(sumW)
	f.zero(sumX)
	f.each("weights", 32, func() {
		VMOVUPS(f.now(0), f.number)
		VMINPS(low, f.number, low)
		VMAXPS(high, f.number, high)
		VANDPS(a, f.number, f.t)
		VADDPS(f.t, rms, f.t)
		VMOVUPS(f.t, f.now(fitW))
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
	f.each("whole", 32, func() {
		VMOVUPS(f.now(0), f.number)
		VSUBPS(low, f.number, f.number)
		VMULPS(per, f.number, f.number)
		f.code(zero, most)
		f.squareError(a, low, best)
	})

	Label("try")
	VBROADCASTSS(operand.Mem{Base: f.tries}, per)
	ADDQ(operand.Imm(4), f.tries)
	VSUBPS(low, high, f.t)
	VDIVPS(f.t, per, per)
	f.zero(sumL)
	f.zero(sumL2)
	f.zero(sumXL)
	f.each("sums", 32, func() {
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
	f.each("error", 32, func() {
		VMOVUPS(f.now(fitL), f.number)
		f.squareError(scale, minimum, sum)
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

// fitSymmetric writes the kernel of Q6_K.
func (s isa) fitSymmetric() {
	f := s.beginFit("FitSymmetric", "(fit, tries *float32, n int)", "symmetricPortable")
	v := f.v
	least, most := f.constant(0xffffffe0), f.constant(31)
	top, largest, per := v.one(), v.one(), v.one()
	best, lx, l2, a := v.one(), v.one(), v.one(), v.one()
	Load(Param("tries"), f.tries)
	Load(Param("n"), left)
	f.zero(top)
	f.zero(largest)
	f.set(a, 0x7fffffff)
	f.each("largest", 16, func() {
		VMOVUPS(f.now(0), f.number)
		VANDPS(a, f.number, f.t)
		VPCMPGTD(largest, f.t, l2)
		choose(l2, f.number, top)
		choose(l2, f.t, largest)
	})
	sums := func(label string) {
		VBROADCASTSS(operand.Mem{Base: f.tries}, per)
		ADDQ(operand.Imm(4), f.tries)
		VDIVPS(top, per, per)
		f.zero(lx)
		f.zero(l2)
		f.each(label, 16, func() {
			VMOVUPS(f.now(0), f.number)
			VMULPS(f.number, f.number, f.t) // the weight
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
