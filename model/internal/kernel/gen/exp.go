package main

import (
	"math"

	. "github.com/mmcloughlin/avo/build"
	"github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

// The constants of Exp, in the order of the table that the kernels broadcast from.
var expConstants = []float64{
	6.93147180369123816490e-01,  // ln2Hi
	1.90821492927058770002e-10,  // ln2Lo
	1.44269504088896338700e+00,  // log2e
	1.66666666666666657415e-01,  // p1
	-2.77777777770155933842e-03, // p2
	6.61375632143793436117e-05,  // p3
	-1.65339022054652515390e-06, // p4
	4.13813679705723846039e-08,  // p5
	0.5, 1, 2,
	709.782712893384,   // above it, +Inf
	-745.1332191019411, // below it, 0
	math.Inf(1),
}

const (
	ln2Hi = iota
	ln2Lo
	log2e
	p1
	p2
	p3
	p4
	p5
	half
	one
	two
	upper
	lower
	infinity
)

// exponential is a kernel of exps.
type exponential struct {
	*element
	table operand.Mem // of expConstants
}

// exps writes the kernels of package kernel's exps: the steps of Exp.
func exps() {
	table := GLOBL("expTable", 8|16)
	for i, v := range expConstants {
		DATA(8*i, operand.U64(math.Float64bits(v)))
	}
	avx512Exp(table)
	avx2Exp(table)
}

// beginExp starts the kernel of one instruction set.
func (s isa) beginExp(table operand.Mem) *exponential {
	return &exponential{s.beginElement("Exp", "(dst, src *float64, n int)", "Exp of each number"), table}
}

// broadcast sets r to a constant.
func (e *exponential) broadcast(i int, r reg.VecPhysical) reg.VecPhysical {
	VBROADCASTSD(e.table.Offset(8*i), r)
	return r
}

// avx512Exp keeps all constants in registers.
func avx512Exp(table operand.Mem) {
	e := avx512.beginExp(table)
	halves := [][]reg.VecPhysical{e.vector.take(expRegisters), e.vector.take(expRegisters)}
	constants := e.vector.take(len(expConstants))
	for i, r := range constants {
		e.broadcast(i, r)
	}
	c := func(i int) reg.VecPhysical { return constants[i] }
	e.loop(8, 8, func() {
		for i, v := range halves {
			floor := func(power operand.Op) { VRNDSCALEPD(operand.Imm(down), power, power) }
			power, result := expReduced(e.from(64*i), v, c, floor)
			VSCALEFPD(power, result, result)
			VCMPPD(operand.Imm(greater), c(upper), v[0], reg.K1)
			VMOVAPD(c(infinity), reg.K1, result)
			VCMPPD(operand.Imm(less), c(lower), v[0], reg.K1)
			VPXORQ(v[2], v[2], reg.K1, result)
			VCMPPD(operand.Imm(unordered), v[0], v[0], reg.K1)
			VMOVAPD(v[0], reg.K1, result)
			VMOVUPD(result, e.to(64*i))
		}
	})
}

// avx2Exp reads the constants from memory.
func avx2Exp(table operand.Mem) {
	e := avx2.beginExp(table)
	v, constant := e.vector.take(expRegisters), e.vector.one()
	c := func(i int) reg.VecPhysical { return e.broadcast(i, constant) }
	e.loop(8, 8, func() {
		for i := range 4 {
			floor := func(power operand.Op) { VROUNDPD(operand.Imm(down), power, power) }
			power, result := expReduced(e.from(32*i), v, c, floor)
			avx2Scale(result, power, v[2], c)
			mask := v[3]
			VCMPPD(operand.Imm(greater), c(upper), v[0], mask)
			VBLENDVPD(mask, c(infinity), result, result)
			VCMPPD(operand.Imm(less), c(lower), v[0], mask)
			VANDNPD(result, mask, result)
			VCMPPD(operand.Imm(unordered), v[0], v[0], mask)
			VBLENDVPD(mask, v[0], result, result)
			VMOVUPD(result, e.to(32*i))
		}
	})
}

// avx2Scale multiplies result by 2^power in two factors, so that a denormal result is
// rounded once: the first product is exact.
func avx2Scale(result, power, first reg.VecPhysical, c func(i int) reg.VecPhysical) {
	VCVTPD2DQY(power, x(power))
	VPSRAD(operand.Imm(1), x(power), x(first))
	VPSUBD(x(first), x(power), x(power))
	for _, k := range []reg.VecPhysical{first, power} {
		VPMOVSXDQ(x(k), k)
		VPSLLQ(operand.Imm(52), k, k)
		VPADDQ(c(one), k, k) // to the exponent of 1
		VMULPD(k, result, result)
	}
}

// down is the rounding of VROUNDPD and VRNDSCALEPD towards -∞, to integers.
const down = 1

// expRegisters is the number of registers that expReduced uses.
const expRegisters = 7

// expReduced reads x into v[0] and returns k and exp(x - k·ln2) in two other registers of v.
func expReduced(
	m operand.Mem, v []reg.VecPhysical, c func(i int) reg.VecPhysical, floor func(operand.Op),
) (power, result reg.VecPhysical) {
	x, k, hi, lo, r, t, p := v[0], v[1], v[2], v[3], v[4], v[5], v[6]
	VMOVUPD(m, x)
	VMULPD(c(log2e), x, k)
	VADDPD(c(half), k, k)
	floor(k)
	VMULPD(c(ln2Hi), k, hi)
	VSUBPD(hi, x, hi)
	VMULPD(c(ln2Lo), k, lo)
	VSUBPD(lo, hi, r)
	VMULPD(r, r, t)
	VMULPD(c(p5), t, p)
	for _, i := range []int{p4, p3, p2, p1} {
		VADDPD(c(i), p, p)
		VMULPD(p, t, p)
	}
	VSUBPD(p, r, p) // c
	VMULPD(p, r, r)
	VMOVUPD(c(two), t)
	VSUBPD(p, t, t)
	VDIVPD(t, r, r)
	VSUBPD(r, lo, lo)
	VSUBPD(hi, lo, lo)
	VMOVUPD(c(one), t)
	VSUBPD(lo, t, r)
	return k, r
}
