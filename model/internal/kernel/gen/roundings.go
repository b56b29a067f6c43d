package main

import (
	. "github.com/mmcloughlin/avo/build"
	"github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

// rounding is a kernel that tests roundings, and its registers.
type rounding struct {
	*element
	doubtful, t, u, zero, none reg.VecPhysical
	sign, bias                 reg.VecPhysical // of F16
	least, denormal            reg.VecPhysical // the least normal number of F16, and what is not normal less that, without the sign
	infinite                   reg.VecPhysical // of BF16 and F32, without the sign
}

// atLeast sets u to a mask of the numbers of v that are limit or more.
func (k *rounding) atLeast(v, limit reg.VecPhysical) {
	VPMAXUD(limit, v, k.u)
	VPCMPEQD(v, k.u, k.u)
}

// decode sets v to the bits of float32 of 8 numbers. It marks those that are infinite or NaN, if finite, and of F16 all that
// are infinite, NaN or denormal.
func (k *rounding) decode(name string, from operand.Mem, v reg.VecPhysical, finite bool) {
	if name == "F32" {
		VMOVDQU(from, v)
	} else {
		VPMOVZXWD(from, v)
		VPSLLD(operand.Imm(16), v, v)
	}
	if name == "F16" {
		VPADDD(v, v, k.t) // without the sign
		VPAND(k.sign, v, v)
		VPCMPEQD(k.none, k.t, k.zero)
		VPSRLD(operand.Imm(4), k.t, k.u)
		VPADDD(k.bias, k.u, k.u)
		VPANDN(k.u, k.zero, k.u)
		VPOR(k.u, v, v)
		VPSUBD(k.least, k.t, k.t)
		k.atLeast(k.t, k.denormal)
		VPANDN(k.u, k.zero, k.u)
		VPOR(k.u, k.doubtful, k.doubtful)
	} else if finite {
		VPADDD(v, v, k.t)
		k.atLeast(k.t, k.infinite)
		VPOR(k.u, k.doubtful, k.doubtful)
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
		k := &rounding{element: e, doubtful: e.vector.one(), t: e.vector.one(), u: e.vector.one(), zero: e.vector.one(),
			none: e.vector.one(), sign: e.constant32(0x80000000), bias: e.constant32(112 << 23), least: e.constant32(1 << 27),
			denormal: e.constant32(30 << 27), infinite: e.constant32(255 << 24)}
		s.zero(k.none)
		half := map[string]uint32{"F32": 0, "F16": 1 << 12, "BF16": 1 << 15}[to]
		less, limit := e.constant32(half), e.constant32(2*half+1)
		x, y := e.vector.one(), e.vector.one()
		size := map[string]int{"F32": 4, "F16": 2, "BF16": 2}
		CMPQ(done, left)
		JE(operand.LabelRef("end"))
		Label("block")
		s.zero(k.doubtful)
		for h := range 2 {
			k.decode(from, e.from(8*h*size[from]), x, to != "F32")
			k.decode(to, e.to(8*h*size[to]), y, to != "F32")
			VPSUBD(y, x, x)
			VPADDD(less, x, x)
			k.atLeast(x, limit)
			VPOR(k.u, k.doubtful, k.doubtful)
		}
		VPTEST(k.doubtful, k.doubtful)
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
