package main

import (
	. "github.com/mmcloughlin/avo/build"
	"github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

// losses writes the kernels that count how rounded numbers differ from their sources.
func (s isa) losses() {
	for _, to := range []string{"F32", "F16", "BF16"} {
		function(s.name+"Losses"+to, "(sums *uint32, out *byte, x *float32, n int)", "a lossesKernel")
		g := general()
		e := &element{isa: s, dst: g.one(), src: g.one(), constant: g.one(), general: g, vector: s.vectors()}
		sums := g.one()
		Load(Param("sums"), sums)
		Load(Param("out"), e.dst)
		Load(Param("x"), e.src)
		Load(Param("n"), left)
		k := &lossesKernel{element: e, counts: e.vector.take(4), abs: e.constant32(1<<31 - 1),
			least: e.constant32(map[string]uint32{"F32": 1 << 23, "F16": 113 << 23, "BF16": 1 << 23}[to]),
			most:  e.constant32(0x7f7fffff), one: e.constant32(1), none: e.vector.one()}
		for _, r := range append(k.counts, k.none) {
			s.zero(r)
		}
		a, b, same, t := e.vector.one(), e.vector.one(), e.vector.one(), e.vector.one()
		size := map[string]int{"F32": 4, "F16": 2, "BF16": 2}[to]
		SHRQ(operand.Imm(4), left)
		JZ(operand.LabelRef("end"))
		Label("block")
		for at := 0; at < lanes; at += s.perVector(32) {
			decode(to, e.to(at*size), b)
			if s.bytes == 64 {
				VPANDD(e.from(4*at), k.abs, a)
				VPANDD(b, k.abs, b)
				k.countMasked(a, b)
			} else {
				VPAND(e.from(4*at), k.abs, a)
				VPAND(b, k.abs, b)
				k.count(a, b, same, t)
			}
		}
		ADDQ(operand.Imm(4*lanes), e.src)
		ADDQ(operand.Imm(uint64(size*lanes)), e.dst)
		DECQ(left)
		JNZ(operand.LabelRef("block"))
		Label("end")
		for i, r := range k.counts {
			s.reduce(r, t, addWords)
			VMOVD(x(r), e.constant.As32())
			MOVL(e.constant.As32(), operand.Mem{Base: sums, Disp: 4 * i})
		}
		end()
	}
}

// lossesKernel is a kernel that counts losses, and its registers.
type lossesKernel struct {
	*element
	counts                []reg.VecPhysical // the fields of Losses
	abs, least, most, one reg.VecPhysical   // all bits but the sign's, the least normal and the largest number, 1
	none                  reg.VecPhysical
}

// count counts magnitudes a that became b.
func (k *lossesKernel) count(a, b, same, t reg.VecPhysical) {
	VPCMPEQD(a, b, same)
	VPANDN(k.one, same, t)
	VPADDD(t, k.counts[0], k.counts[0])
	VPCMPGTD(a, k.least, t)
	VPANDN(t, same, t)
	VPSUBD(t, k.counts[1], k.counts[1])
	VPCMPEQD(k.none, b, t)
	VPANDN(t, same, t)
	VPSUBD(t, k.counts[2], k.counts[2])
	VPCMPGTD(k.most, b, t)
	VPSUBD(t, k.counts[3], k.counts[3])
}

// countMasked is count with AVX-512.
func (k *lossesKernel) countMasked(a, b reg.VecPhysical) {
	const lessThan, notEqual, greaterThan = 1, 4, 6
	VPCMPUD(operand.Imm(notEqual), a, b, reg.K1)
	VPCMPUD(operand.Imm(lessThan), k.least, a, reg.K1, reg.K2)
	VPTESTNMD(b, b, reg.K1, reg.K3)
	VPCMPUD(operand.Imm(greaterThan), k.most, b, reg.K4)
	for i, mask := range []reg.Register{reg.K1, reg.K2, reg.K3, reg.K4} {
		VPADDD(k.one, k.counts[i], mask, k.counts[i])
	}
}

// addWords is VPADDD of as many operands as AVX2 has.
func addWords(a, b, dst operand.Op) { VPADDD(a, b, dst) }

// words sets all words of a vector register to the word in a general one.
func (s isa) words(from reg.GPPhysical, to reg.VecPhysical) {
	VMOVD(from.As32(), x(to))
	VPBROADCASTD(x(to), to)
}
