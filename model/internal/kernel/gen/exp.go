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

// exps writes the kernels of Exps: the steps of Exp, one by one.
func exps() {
	table := GLOBL("expTable", 8|16)
	for i, v := range expConstants {
		DATA(8*i, operand.U64(math.Float64bits(v)))
	}
	constant := func(i int) operand.Mem { return table.Offset(8 * i) }
	exp("avx512Exp", 8, func(i int) {
		c := func(i int) reg.VecPhysical { return z[16+i] }
		v := z[8*i:]
		power, result := expReduced(from(64*i), v, c, func(power operand.Op) { VRNDSCALEPD(operand.Imm(1), power, power) })
		VSCALEFPD(power, result, result)
		VCMPPD(operand.Imm(greater), c(upper), v[0], reg.K1)
		VMOVAPD(c(infinity), reg.K1, result)
		VCMPPD(operand.Imm(less), c(lower), v[0], reg.K1)
		VPXORQ(v[2], v[2], reg.K1, result)
		VCMPPD(operand.Imm(unordered), v[0], v[0], reg.K1)
		VMOVAPD(v[0], reg.K1, result)
		VMOVUPD(result, to(64*i))
	}, func() {
		for i := range expConstants {
			VBROADCASTSD(constant(i), z[16+i])
		}
	})
	exp("avx2Exp", 4, func(i int) {
		c := func(i int) reg.VecPhysical {
			VBROADCASTSD(constant(i), y[8])
			return y[8]
		}
		power, result := expReduced(from(32*i), y, c, func(power operand.Op) { VROUNDPD(operand.Imm(1), power, power) })
		// 2^k in two factors, so that a denormal result is rounded once.
		first, mask := y[2], y[3]
		VCVTPD2DQY(power, x(power))
		VPSRAD(operand.Imm(1), x(power), x(first))
		VPSUBD(x(first), x(power), x(power))
		for _, k := range []reg.VecPhysical{first, power} {
			VPMOVSXDQ(x(k), k)
			VPSLLQ(operand.Imm(52), k, k)
			VPADDQ(c(one), k, k) // to the exponent of 1
			VMULPD(k, result, result)
		}
		VCMPPD(operand.Imm(greater), c(upper), y[0], mask)
		VBLENDVPD(mask, c(infinity), result, result)
		VCMPPD(operand.Imm(less), c(lower), y[0], mask)
		VANDNPD(result, mask, result)
		VCMPPD(operand.Imm(unordered), y[0], y[0], mask)
		VBLENDVPD(mask, y[0], result, result)
		VMOVUPD(result, to(32*i))
	}, none)
}

// Predicates of comparisons.
const (
	unordered = 0x03 // is NaN
	less      = 0x11
	greater   = 0x1e
)

func exp(name string, lanes int, step func(i int), setup func()) {
	doc := loop(name, "raises e to powers", "dst[i] = Exp(src[i])")
	element(name, "func(dst, src *float64, n int)", 8, 8, doc, setup, func() {
		for i := range 16 / lanes {
			step(i)
		}
	})
}

// expReduced reads x into v[0] and returns k and exp(x - k·ln2), using v[0] … v[7].
func expReduced(m operand.Mem, v []reg.VecPhysical, c func(i int) reg.VecPhysical, floor func(operand.Op)) (power, result reg.VecPhysical) {
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
