package main

import (
	"fmt"

	. "github.com/mmcloughlin/avo/build"
	"github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

// The kernels that fit scales: a register holds one number, or sum, of 16 groups, or of 8 of these with AVX2.
// The sums of a group are chains of additions; with AVX2, a kernel has two of them side by side.

// The fields of kernel.Fit, in bytes.
const (
	fitNumber = 64 // one number of each group
	fitScale  = 32 * fitNumber
	fitLow    = fitScale + fitNumber
	fitPer    = fitLow + fitNumber
	fitFrom   = fitPer + fitNumber
	fitW      = fitFrom + fitNumber
	fitL      = fitW + 32*fitNumber
)

// Predicates of VCMPPS.
const (
	equal    = 0x00
	below    = 0x11 // false of NaN
	notBelow = 0x15 // true of NaN
	notZero  = 0x04 // not equal; true of NaN
	above    = 0x1e // false of NaN
)

// fitConstants holds the constants of the kernels, a register of each.
var fitConstants operand.Mem

// The constants, by their place in fitConstants.
const (
	fitMagic = 64 * iota // 1.5·2²³
	fitBits              // mask of the bits of a nearest integer
	fitShift             // subtracted from those bits
	fitAbs               // mask of a magnitude
	fitLimit             // 2²²
	fitOne
	fitLeast // LeastGroup
	fitFour  // -4
)

// fits writes the kernels that fit scales.
func (s isa) fits() {
	if s.bytes == 32 {
		fitConstants = GLOBL("fitConstants", 8|16)
		for i, bits := range []uint32{0x4b400000, 0x007fffff, 0x00400000, 0x7fffffff, 0x4a800000, 0x3f800000, 0x26901d7d,
			0xc0800000} {
			for k := range 16 {
				DATA(64*i+4*k, operand.U32(bits))
			}
		}
	}
	s.fitMinimums("FitMinimums", false)
	s.fitMinimums("FitAbsolute", true)
	s.fitSymmetric()
	s.fitStepwise()
}

// fitting is a kernel that fits and its registers.
type fitting struct {
	isa
	fit    reg.GPPhysical // the kernel.Fit
	at     reg.GPPhysical // byte offset of a number in an array of the Fit
	tries  reg.GPPhysical
	g      *bank[reg.GPPhysical]
	v      *bank[reg.VecPhysical]
	k      *bank[reg.OpmaskPhysical]
	number reg.VecPhysical
	t      reg.VecPhysical // scratch
	sets   int             // how many registers the groups take
	set    int             // the one at work
	locals operand.Mem     // room for variables on the stack
}

// variable is a variable of the groups on the stack, by its place.
type variable int

// The variables of the kernels.
const (
	sumOfW variable = iota
	sumOfX
	leastX // or 0
	mostX
	leastLoss
	better // masks
	flat
	tooSmall
	variables
)

// beginFit starts a kernel.
func (s isa) beginFit(name, signature, definition string) *fitting {
	function(s.name+name, signature, definition+" for all groups")
	g := general()
	f := &fitting{isa: s, fit: g.one(), at: g.one(), tries: g.one(), g: g, v: s.vectors(), sets: fitNumber / s.bytes}
	f.k = newBank([]reg.OpmaskPhysical{reg.K1, reg.K2, reg.K3, reg.K4})
	Load(Param("fit"), f.fit)
	f.number, f.t = f.v.one(), f.v.one()
	return f
}

// eachSet writes body for each register of the groups.
func (f *fitting) eachSet(body func()) {
	for f.set = range f.sets {
		body()
	}
	f.set = 0
}

// perSet hands out a register for each register of the groups.
func (f *fitting) perSet() []reg.VecPhysical { return f.v.take(f.sets) }

// mask hands out a register for a mask: AVX2 has them in vector registers.
func (f *fitting) mask() reg.Register {
	if f.bytes == 64 {
		return f.k.one()
	}
	return f.v.one()
}

// constant is a constant in memory.
func (f *fitting) constant(place int) operand.Mem { return fitConstants.Offset(place) }

// on is a variable of the present groups on the stack.
func (f *fitting) on(v variable) operand.Mem {
	return f.locals.Offset(int(v)*fitNumber + f.set*f.bytes)
}

// field is a field of the Fit.
func (f *fitting) field(offset int) operand.Mem {
	return operand.Mem{Base: f.fit, Disp: offset + f.set*f.bytes}
}

// now is the number at byte offset at of an array of the Fit.
func (f *fitting) now(offset int) operand.Mem {
	return operand.Mem{Base: f.fit, Index: f.at, Scale: 1, Disp: offset + f.set*f.bytes}
}

// each writes a loop over the numbers up to end, in bytes, of all groups.
func (f *fitting) each(label string, end operand.Op, body func()) {
	XORQ(f.at, f.at)
	Label(label)
	f.eachSet(body)
	ADDQ(operand.Imm(fitNumber), f.at)
	CMPQ(f.at, end)
	JB(operand.LabelRef(label))
}

// compare sets a mask to a predicate of b and a.
func (f *fitting) compare(predicate uint64, a operand.Op, b reg.VecPhysical, mask reg.Register) {
	VCMPPS(operand.Imm(predicate), a, b, mask)
}

// choose sets dst to src where mask is set.
func (f *fitting) choose(mask reg.Register, src, dst reg.VecPhysical) {
	if f.bytes == 64 {
		VMOVAPS(src, mask, dst)
	} else {
		VBLENDVPS(mask, src, dst, dst)
	}
}

// and is dst &= mask.
func (f *fitting) and(mask, dst reg.Register) {
	if f.bytes == 64 {
		KANDW(mask, dst, dst)
	} else {
		VANDPS(mask, dst, dst)
	}
}

// or is dst |= mask.
func (f *fitting) or(mask, dst reg.Register) {
	if f.bytes == 64 {
		KORW(mask, dst, dst)
	} else {
		VORPS(mask, dst, dst)
	}
}

// clear is dst = no group.
func (f *fitting) clear(dst reg.Register) {
	if f.bytes == 64 {
		KXORW(dst, dst, dst)
	} else {
		VXORPS(dst, dst, dst)
	}
}

// andOn is mask &= one on the stack.
func (f *fitting) andOn(v variable, mask reg.Register) {
	if f.bytes == 64 {
		KMOVW(f.on(v), reg.K7)
		f.and(reg.K7, mask)
	} else {
		VANDPS(f.on(v), mask, mask)
	}
}

// none jumps to a label if no bit of a mask is set.
func (f *fitting) none(mask reg.Register, label string) {
	if f.bytes == 64 {
		KTESTW(mask, mask)
	} else {
		VPTEST(mask, mask)
	}
	JZ(operand.LabelRef(label))
}

// bits is dst &= the bits m.
func (f *fitting) bits(m operand.Op, dst reg.VecPhysical) { VANDPS(m, dst, dst) }

// update sets a field of the groups that mask selects.
func (f *fitting) update(mask reg.Register, value reg.VecPhysical, field operand.Mem) {
	if f.bytes == 64 {
		VMOVUPS(value, mask, field)
		return
	}
	VMOVUPS(field, f.t)
	f.choose(mask, value, f.t)
	VMOVUPS(f.t, field)
}

// code turns number, multiplied by an inverse scale, into its code as a float32.
func (f *fitting) code(least, most reg.VecPhysical) {
	VADDPS(f.constant(fitMagic), f.number, f.number)
	f.bits(f.constant(fitBits), f.number)
	VPSUBD(f.constant(fitShift), f.number, f.number)
	VPMINSD(most, f.number, f.number)
	VPMAXSD(least, f.number, f.number)
	VCVTDQ2PS(f.number, f.number)
}

// smallCode is code of numbers below 2²², which are clamped before they are rounded: least and most are float32.
func (f *fitting) smallCode(least, most reg.VecPhysical) {
	VMAXPS(least, f.number, f.number)
	VMINPS(most, f.number, f.number)
	const nearestEven = 8
	if f.bytes == 64 {
		VRNDSCALEPS(operand.Imm(nearestEven), f.number, f.number)
	} else {
		VROUNDPS(operand.Imm(nearestEven), f.number, f.number)
	}
}

// addLoss adds weight·(scale·code + least - x)², or weight·|scale·code + least - x|, to sum; number
// holds the code.
func (f *fitting) addLoss(scale, least, sum reg.VecPhysical, absolute bool) {
	VMULPS(scale, f.number, f.number)
	VADDPS(least, f.number, f.number)
	VSUBPS(f.now(0), f.number, f.number)
	if absolute {
		f.bits(f.constant(fitAbs), f.number)
	} else {
		VMULPS(f.number, f.number, f.number)
	}
	VMULPS(f.now(fitW), f.number, f.number)
	VADDPS(f.number, sum, sum)
}

// numbers loads the count of numbers, in bytes of an array of the Fit.
func (f *fitting) numbers() reg.GPPhysical {
	n := f.g.one()
	Load(Param("numbers"), n)
	SHLQ(operand.Imm(6), n) // · fitNumber
	return n
}

// fitMinimums writes the kernel of the types with minimums.
func (s isa) fitMinimums(name string, absolute bool) {
	f := s.beginFit(name, "(fit *float32, numbers, most int, tries *float32, n int)", "minimumsPortable")
	f.locals = AllocLocal(int(variables) * fitNumber)
	zero, most, a, mask := f.v.one(), f.v.one(), f.v.one(), f.mask()
	low, per, sumL, sumL2, sumXL := f.perSet(), f.perSet(), f.perSet(), f.perSet(), f.perSet()
	Load(Param("most"), f.tries)
	f.words(f.tries, most)
	numbers := f.numbers()
	Load(Param("tries"), f.tries)
	Load(Param("n"), left)
	f.zero(zero)

	Comment("The sums that all tries share.")
	high, sumW, sumX := per, sumL2, sumXL
	f.eachSet(func() {
		VMOVUPS(f.field(0), low[f.set])
		VMOVAPS(low[f.set], high[f.set])
		f.zero(sumW[f.set])
		f.zero(sumX[f.set])
	})
	f.each("weights", numbers, func() {
		VMOVUPS(f.now(0), f.number)
		VMINPS(low[f.set], f.number, low[f.set])
		VMAXPS(high[f.set], f.number, high[f.set])
		VMOVUPS(f.now(fitW), f.t)
		VADDPS(f.t, sumW[f.set], sumW[f.set])
		VMULPS(f.number, f.t, f.t)
		VADDPS(f.t, sumX[f.set], sumX[f.set])
	})
	best := sumL
	f.eachSet(func() {
		low, high, per := low[f.set], high[f.set], per[f.set]
		VMOVUPS(sumW[f.set], f.on(sumOfW))
		VMOVUPS(sumX[f.set], f.on(sumOfX))
		VMINPS(low, zero, low)
		VMOVUPS(low, f.on(leastX))
		Comment("Groups of equal numbers go along with a span of 1.")
		f.compare(equal, low, high, mask)
		f.moveMask(mask, f.on(flat))
		VMOVUPS(f.constant(fitOne), f.t)
		VADDPS(f.t, low, f.number)
		f.choose(mask, f.number, high)
		VMOVUPS(high, f.on(mostX))
		VSUBPS(low, high, f.number)
		VCVTDQ2PS(most, per)
		VDIVPS(f.number, per, per)
		VDIVPS(per, f.t, sumL2[f.set])
		VMOVUPS(sumL2[f.set], f.field(fitScale))
		VMOVUPS(low, f.field(fitLow))
		VMOVUPS(low, f.field(fitFrom))
		VMOVUPS(per, f.field(fitPer))
		f.zero(best[f.set])
	})
	f.each("whole", numbers, func() {
		VMOVUPS(f.now(0), f.number)
		VSUBPS(low[f.set], f.number, f.number)
		VMULPS(per[f.set], f.number, f.number)
		f.code(zero, most)
		f.addLoss(sumL2[f.set], low[f.set], best[f.set], absolute)
	})
	f.eachSet(func() { VMOVUPS(best[f.set], f.on(leastLoss)) })
	VCVTDQ2PS(most, most)

	sums := func(label string, code func()) {
		f.each(label, numbers, func() {
			VMOVUPS(f.now(0), f.number)
			VSUBPS(low[f.set], f.number, f.number)
			VMULPS(per[f.set], f.number, f.number)
			code()
			VMOVUPS(f.number, f.now(fitL))
			VMULPS(f.now(fitW), f.number, f.t)
			VADDPS(f.t, sumL[f.set], sumL[f.set])
			VMULPS(f.number, f.t, f.number)
			VADDPS(f.number, sumL2[f.set], sumL2[f.set])
			VMULPS(f.now(0), f.t, f.t)
			VADDPS(f.t, sumXL[f.set], sumXL[f.set])
		})
	}
	Label("try")
	VBROADCASTSS(operand.Mem{Base: f.tries}, f.t)
	ADDQ(operand.Imm(4), f.tries)
	f.eachSet(func() {
		VMOVUPS(f.on(mostX), f.number)
		VSUBPS(low[f.set], f.number, f.number)
		VDIVPS(f.number, f.t, per[f.set])
		f.zero(sumL[f.set])
		f.zero(sumL2[f.set])
		f.zero(sumXL[f.set])
	})
	f.eachSet(func() {
		for _, end := range []variable{leastX, mostX} { // between which all numbers are
			VMOVUPS(f.on(end), f.number)
			VSUBPS(low[f.set], f.number, f.number)
			VMULPS(per[f.set], f.number, f.number)
			f.bits(f.constant(fitAbs), f.number)
			f.compare(notBelow, f.constant(fitLimit), f.number, mask)
			small := fmt.Sprintf("small%d", 2*f.set+int(end-leastX))
			f.none(mask, small)
			JMP(operand.LabelRef("any"))
			Label(small)
		}
	})
	sums("sums", func() { f.smallCode(zero, most) })

	Label("fitted")
	scale, minimum, sum := sumL, sumL2, sumXL
	f.eachSet(func() {
		det, least := f.number, f.t
		sumL, sumL2, sumXL := sumL[f.set], sumL2[f.set], sumXL[f.set]
		VMULPS(f.on(sumOfW), sumL2, det)
		VMULPS(sumL, sumL, a)
		VSUBPS(a, det, det)
		VMULPS(f.on(sumOfW), sumXL, a)
		VMULPS(f.on(sumOfX), sumL, least)
		VSUBPS(least, a, a)
		VDIVPS(det, a, a) // the scale
		VMULPS(sumXL, sumL, sumL)
		VMULPS(f.on(sumOfX), sumL2, least)
		VSUBPS(sumL, least, least)
		VDIVPS(det, least, least)
		VDIVPS(sumL2, sumXL, sumXL)
		f.compare(above, zero, det, mask)
		f.moveMask(mask, f.on(better))
		f.compare(above, zero, least, mask)
		f.choose(mask, sumXL, a)
		VMOVAPS(a, scale[f.set])
		VMOVAPS(least, minimum[f.set])
		f.choose(mask, zero, minimum[f.set])
		f.zero(sum[f.set])
	})
	f.each("error", numbers, func() {
		VMOVUPS(f.now(fitL), f.number)
		f.addLoss(scale[f.set], minimum[f.set], sum[f.set], absolute)
	})
	f.eachSet(func() {
		sum := sum[f.set]
		VMOVUPS(f.on(leastLoss), a)
		f.compare(below, a, sum, mask)
		f.andOn(better, mask)
		f.choose(mask, sum, a)
		VMOVUPS(a, f.on(leastLoss))
		f.update(mask, scale[f.set], f.field(fitScale))
		f.update(mask, minimum[f.set], f.field(fitLow))
		f.update(mask, per[f.set], f.field(fitPer))
		f.update(mask, low[f.set], f.field(fitFrom))
		f.choose(mask, minimum[f.set], low[f.set])
	})
	DECQ(left)
	JNZ(operand.LabelRef("try"))

	Comment("Groups of equal numbers.")
	f.eachSet(func() {
		VMOVUPS(f.on(leastX), a)
		f.moveMask(f.on(flat), mask)
		f.update(mask, zero, f.field(fitScale))
		f.update(mask, a, f.field(fitLow))
		f.update(mask, zero, f.field(fitPer))
		f.update(mask, a, f.field(fitFrom))
	})
	end()

	Comment("A try with any numbers.")
	Label("any")
	VCVTPS2DQ(most, most)
	sums("anySums", func() { f.code(zero, most) })
	VCVTDQ2PS(most, most)
	JMP(operand.LabelRef("fitted"))
}

// moveMask copies a mask from the stack or to it.
func (f *fitting) moveMask(from, to operand.Op) {
	if f.bytes == 64 {
		KMOVW(from, to)
	} else {
		VMOVUPS(from, to)
	}
}

// sixteen is the end of the first 16 numbers.
const sixteen = operand.U32(16 * fitNumber)

// largest sets top to the first number of the largest magnitude, and largest to that.
func (f *fitting) largest(end operand.Op, top, largest []reg.VecPhysical, mask reg.Register) {
	f.eachSet(func() {
		f.zero(top[f.set])
		f.zero(largest[f.set])
	})
	f.each("largest", end, func() {
		VMOVUPS(f.now(0), f.number)
		VMOVAPS(f.number, f.t)
		f.bits(f.constant(fitAbs), f.t)
		VPCMPGTD(largest[f.set], f.t, mask)
		f.choose(mask, f.number, top[f.set])
		f.choose(mask, f.t, largest[f.set])
	})
}

// fitSymmetric writes the kernel of the types without minimums.
func (s isa) fitSymmetric() {
	f := s.beginFit("FitSymmetric", "(fit *float32, numbers, most int, tries *float32, n int)", "symmetricPortable")
	f.locals = AllocLocal(int(variables) * fitNumber)
	least, most, a, mask := f.v.one(), f.v.one(), f.v.one(), f.mask()
	top, per, best, lx, l2 := f.perSet(), f.perSet(), f.perSet(), f.perSet(), f.perSet()
	Load(Param("most"), f.tries)
	DECQ(f.tries)
	f.words(f.tries, most)
	NOTQ(f.tries)
	f.words(f.tries, least)
	VCVTDQ2PS(most, most)
	VCVTDQ2PS(least, least)
	Load(Param("tries"), f.tries)
	Load(Param("n"), left)
	numbers := f.numbers()
	f.largest(numbers, top, lx, mask)
	Comment("Groups that are all zero: their numbers are divided by 1.")
	f.eachSet(func() {
		f.compare(below, f.constant(fitLeast), lx[f.set], mask)
		f.moveMask(mask, f.on(tooSmall))
		VMOVUPS(f.constant(fitOne), a)
		f.choose(mask, a, top[f.set])
	})
	f.each("products", numbers, func() {
		VMOVUPS(f.now(fitW), f.number)
		VMULPS(f.now(0), f.number, f.number)
		VMOVUPS(f.number, f.now(fitL))
	})
	sums := func(label string) {
		VBROADCASTSS(operand.Mem{Base: f.tries}, f.t)
		ADDQ(operand.Imm(4), f.tries)
		f.eachSet(func() {
			VDIVPS(top[f.set], f.t, per[f.set])
			f.zero(lx[f.set])
			f.zero(l2[f.set])
		})
		f.each(label, numbers, func() {
			VMULPS(f.now(0), per[f.set], f.number)
			f.smallCode(least, most)
			VMULPS(f.now(fitL), f.number, f.t)
			VADDPS(f.t, lx[f.set], lx[f.set])
			VMULPS(f.now(fitW), f.number, f.t)
			VMULPS(f.number, f.t, f.t)
			VADDPS(f.t, l2[f.set], l2[f.set])
		})
	}
	sums("first")
	f.zero(f.number)
	f.eachSet(func() {
		VDIVPS(l2[f.set], lx[f.set], a)
		f.compare(equal, f.number, l2[f.set], mask)
		f.choose(mask, f.number, a)
		VMOVUPS(a, f.field(fitScale))
		VMOVUPS(per[f.set], f.field(fitPer))
		VMULPS(lx[f.set], a, best[f.set])
	})
	DECQ(left)
	JZ(operand.LabelRef("end"))
	Label("try")
	sums("others")
	f.eachSet(func() {
		per, best, lx, l2 := per[f.set], best[f.set], lx[f.set], l2[f.set]
		f.zero(f.number)
		f.compare(above, f.number, l2, mask)
		f.moveMask(mask, f.on(better))
		VMULPS(lx, lx, f.t)
		VMULPS(best, l2, a)
		f.compare(above, a, f.t, mask)
		f.andOn(better, mask)
		VDIVPS(l2, lx, l2) // the scale
		f.update(mask, l2, f.field(fitScale))
		f.update(mask, per, f.field(fitPer))
		VMULPS(lx, l2, l2)
		f.choose(mask, l2, best)
	})
	DECQ(left)
	JNZ(operand.LabelRef("try"))
	Label("end")
	f.zero(f.number)
	f.eachSet(func() {
		f.moveMask(f.on(tooSmall), mask)
		f.update(mask, f.number, f.field(fitScale))
		f.update(mask, f.number, f.field(fitPer))
	})
	end()
}

// fitStepwise writes the kernel of Q3_K, which takes a register of groups at a time.
func (s isa) fitStepwise() {
	f := s.beginFit("FitStepwise", "(fit *float32)", "stepwisePortable")
	sets := f.sets
	f.sets = 1
	least, most := f.v.one(), f.v.one()
	lx, l2, w, wx := f.v.one(), f.v.one(), f.v.one(), f.v.one()
	x, sq := f.v.one(), f.v.one()
	mask, other, changed, small := f.mask(), f.mask(), f.mask(), f.mask()
	turns := f.g.one()
	MOVQ(operand.I32(-4), turns)
	f.words(turns, least)
	MOVQ(operand.U32(3), turns)
	f.words(turns, most)
	MOVQ(operand.U32(sets), f.tries)
	Label("set")
	top, largest := wx, x
	f.largest(sixteen, []reg.VecPhysical{top}, []reg.VecPhysical{largest}, mask)
	f.compare(below, f.constant(fitLeast), largest, small)

	Comment("The first codes.")
	per := sq
	VMOVUPS(f.constant(fitFour), per)
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

	MOVQ(operand.U32(5), turns)
	Label("turn")
	f.clear(changed)
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
		f.compare(notZero, f.t, f.number, mask)
		f.zero(f.t)
		f.compare(above, f.t, x, other)
		f.and(other, mask)
		f.none(mask, "kept") // of all groups: the next number does not wait
		Comment("The sums with the new code.")
		VMULPS(f.number, wx, f.t)
		VADDPS(f.t, x, x)
		VMULPS(f.number, w, f.t)
		VMULPS(f.number, f.t, f.t)
		VADDPS(f.t, sq, sq)
		f.zero(f.t)
		f.compare(above, f.t, sq, other)
		f.and(other, mask)
		VMULPS(x, x, w)
		VMULPS(l2, w, w)
		VMULPS(lx, lx, f.t)
		VMULPS(sq, f.t, f.t)
		f.compare(above, f.t, w, other)
		f.and(other, mask)
		f.choose(mask, x, lx)
		f.choose(mask, sq, l2)
		f.update(mask, f.number, f.now(fitL))
		f.or(mask, changed)
		Label("kept")
	})
	f.none(changed, "fitted")
	DECQ(turns)
	JNZ(operand.LabelRef("turn"))

	Label("fitted")
	f.zero(f.number)
	f.compare(above, f.number, l2, mask)
	VDIVPS(l2, lx, lx)
	VMOVUPS(f.number, f.field(fitScale))
	f.update(mask, lx, f.field(fitScale))
	f.update(small, f.number, f.field(fitScale))
	VMOVUPS(f.constant(fitFour), f.number)
	f.each("small", sixteen, func() { f.update(small, f.number, f.now(fitL)) })
	ADDQ(operand.Imm(uint64(f.bytes)), f.fit)
	DECQ(f.tries)
	JNZ(operand.LabelRef("set"))
	end()
}
