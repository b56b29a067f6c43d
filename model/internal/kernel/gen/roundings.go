package main

import (
	. "github.com/mmcloughlin/avo/build"
	"github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

// rounding is a kernel that tests roundings, and its registers.
type rounding struct {
	*element
	doubtful, t reg.VecPhysical // of AVX2; AVX-512 has masks
}

// doubt marks the numbers of v that are limit or more; first marks no others before.
func (k *rounding) doubt(v, limit reg.VecPhysical, first bool) {
	if k.bytes == 64 {
		const notLess = 5
		if first {
			VPCMPUD(operand.Imm(notLess), limit, v, reg.K1)
		} else {
			VPCMPUD(operand.Imm(notLess), limit, v, reg.K2)
			KORW(reg.K2, reg.K1, reg.K1)
		}
		return
	}
	VPMAXUD(limit, v, k.t)
	if first {
		VPCMPEQD(v, k.t, k.doubtful)
	} else {
		VPCMPEQD(v, k.t, k.t)
		VPOR(k.t, k.doubtful, k.doubtful)
	}
}

// decode sets v to the bits of float32 of the numbers of a format that fill it.
func decode(format string, from operand.Mem, v reg.VecPhysical) {
	switch format {
	case "F32":
		VMOVUPS(from, v)
	case "F16":
		VCVTPH2PS(from, v)
	case "BF16":
		VPMOVZXWD(from, v)
		VPSLLD(operand.Imm(16), v, v)
	}
}

// roundings writes the kernels of plain roundings.
func (s isa) roundings() {
	for _, pair := range [][2]string{{"F32", "F32"}, {"F32", "F16"}, {"F32", "BF16"}, {"F16", "BF16"}, {"F16", "F32"}, {"BF16", "F16"}, {"BF16", "F32"}} {
		from, to := pair[0], pair[1]
		function(s.name+"Plain"+from+to, "(out, src *byte, n int) int", "a plainKernel")
		g := general()
		e := &element{isa: s, dst: g.one(), src: g.one(), constant: g.one(), general: g, vector: s.vectors()}
		Load(Param("out"), e.dst)
		Load(Param("src"), e.src)
		Load(Param("n"), left)
		done := g.one()
		XORQ(done, done)
		k := &rounding{e, e.vector.one(), e.vector.one()}
		half := map[string]uint32{"F32": 0, "F16": 1 << 12, "BF16": 1 << 15}[to]
		less, limit, infinite := e.constant32(half), e.constant32(2*half+1), e.constant32(255<<24)
		x, y := e.vector.one(), e.vector.one()
		size := map[string]int{"F32": 4, "F16": 2, "BF16": 2}
		CMPQ(done, left)
		JE(operand.LabelRef("end"))
		Label("block")
		for at := 0; at < lanes; at += s.perVector(32) {
			decode(from, e.from(at*size[from]), x)
			decode(to, e.to(at*size[to]), y)
			VPSUBD(y, x, x)
			if half > 0 {
				VPADDD(less, x, x)
			}
			k.doubt(x, limit, at == 0)
			if to != "F32" || from == "F16" { // whatever is infinite or NaN is more than a step from any other number
				VPADDD(y, y, y) // without the sign
				k.doubt(y, infinite, false)
			}
		}
		if s.bytes == 64 {
			KORTESTW(reg.K1, reg.K1)
		} else {
			VPTEST(k.doubtful, k.doubtful)
		}
		JNZ(operand.LabelRef("end"))
		ADDQ(operand.Imm(uint64(lanes*size[from])), e.src)
		ADDQ(operand.Imm(uint64(lanes*size[to])), e.dst)
		ADDQ(operand.Imm(lanes), done)
		CMPQ(done, left)
		JNE(operand.LabelRef("block"))
		Label("end")
		Store(done, ReturnIndex(0))
		end()
	}
}
