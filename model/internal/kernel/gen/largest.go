package main

import (
	"math/bits"

	. "github.com/mmcloughlin/avo/build"
	"github.com/mmcloughlin/avo/operand"
)

// largest writes the kernel that finds the largest magnitude of 16-bit numbers.
func (s isa) largest() {
	function(s.name+"Largest16", "(src *byte, n int) uint16", "the largest src[i]&0x7fff of n 16-bit patterns")
	g, v := general(), s.vectors()
	src, scratch := g.one(), g.one()
	most, read, magnitude := v.take(4), v.take(4), v.one()
	Load(Param("src"), src)
	Load(Param("n"), left)
	MOVL(operand.U32(0x7fff), scratch.As32())
	VMOVD(scratch.As32(), x(magnitude))
	VPBROADCASTW(x(magnitude), magnitude)
	for _, m := range most {
		s.zero(m)
	}
	step := len(most) * s.bytes
	SHRQ(operand.Imm(uint64(bits.Len(uint(step/2))-1)), left)
	Label("block")
	for i, r := range read {
		from := operand.Mem{Base: src, Disp: i * s.bytes}
		if s.bytes == 64 {
			VPANDD(from, magnitude, r)
		} else {
			VPAND(from, magnitude, r)
		}
		VPMAXUW(r, most[i], most[i])
	}
	ADDQ(operand.U32(step), src)
	DECQ(left)
	JNZ(operand.LabelRef("block"))
	VPMAXUW(most[1], most[0], most[0])
	VPMAXUW(most[3], most[2], most[2])
	VPMAXUW(most[2], most[0], most[0])
	one, half := most[0], most[1]
	if s.bytes == 64 {
		VEXTRACTI64X4(operand.Imm(1), one, y(half))
		VPMAXUW(y(half), y(one), y(one))
	}
	VEXTRACTI128(operand.Imm(1), y(one), x(half))
	VPMAXUW(x(half), x(one), x(one))
	VPXOR(x(magnitude), x(one), x(one)) // the instruction finds the smallest
	VPHMINPOSUW(x(one), x(one))
	VPXOR(x(magnitude), x(one), x(one))
	VMOVD(x(one), scratch.As32())
	Store(scratch.As16(), ReturnIndex(0))
	end()
}
