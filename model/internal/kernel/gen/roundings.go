package main

import (
	. "github.com/mmcloughlin/avo/build"
	"github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

// rounding is a kernel that tests roundings, and its registers.
type rounding struct {
	*element
	doubtful, t reg.VecPhysical
	infinite    reg.VecPhysical // the bits of infinity without the sign
}

// doubt marks the numbers of v that are limit or more. It uses t.
func (k *rounding) doubt(v, limit reg.VecPhysical) {
	VPMAXUD(limit, v, k.t)
	VPCMPEQD(v, k.t, k.t)
	VPOR(k.t, k.doubtful, k.doubtful)
}

// decode sets v to the bits of float32 of 8 numbers. It marks those that are infinite or NaN, in F16 or if finite; it uses u.
func (k *rounding) decode(name string, from operand.Mem, v, u reg.VecPhysical, finite bool) {
	switch name {
	case "F32":
		VMOVDQU(from, v)
	case "F16":
		VCVTPH2PS(from, v)
	case "BF16":
		VPMOVZXWD(from, v)
		VPSLLD(operand.Imm(16), v, v)
	}
	if finite || name == "F16" {
		VPADDD(v, v, u) // without the sign
		k.doubt(u, k.infinite)
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
		k := &rounding{e, e.vector.one(), e.vector.one(), e.constant32(255 << 24)}
		half := map[string]uint32{"F32": 0, "F16": 1 << 12, "BF16": 1 << 15}[to]
		less, limit := e.constant32(half), e.constant32(2*half+1)
		x, y, u := e.vector.one(), e.vector.one(), e.vector.one()
		size := map[string]int{"F32": 4, "F16": 2, "BF16": 2}
		CMPQ(done, left)
		JE(operand.LabelRef("end"))
		Label("block")
		s.zero(k.doubtful)
		for h := range 2 {
			k.decode(from, e.from(8*h*size[from]), x, u, to != "F32")
			k.decode(to, e.to(8*h*size[to]), y, u, to != "F32")
			VPSUBD(y, x, x)
			VPADDD(less, x, x)
			k.doubt(x, limit)
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
