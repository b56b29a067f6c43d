package main

import (
	. "github.com/mmcloughlin/avo/build"
	"github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

// losses writes the kernel that counts how rounded numbers differ from their sources.
func (s isa) losses() {
	function(s.name+"Losses", "(sums *uint32, y, x *float32, n int, least uint32)", "lossesPortable")
	g, v := general(), s.vectors()
	sums, py, px, word := g.one(), g.one(), g.one(), g.one()
	Load(Param("sums"), sums)
	Load(Param("y"), py)
	Load(Param("x"), px)
	Load(Param("n"), left)
	counts := v.take(4) // the fields of Losses
	a, b, same, t := v.one(), v.one(), v.one(), v.one()
	abs, least, finite, none := v.one(), v.one(), v.one(), v.one()
	for _, r := range append(counts, none) {
		s.zero(r)
	}
	VPCMPEQD(abs, abs, abs)
	VPSRLD(operand.Imm(1), abs, abs)
	Load(Param("least"), word.As32())
	s.words(word, least)
	MOVL(operand.U32(0x7f7fffff), word.As32())
	s.words(word, finite)
	SHRQ(operand.Imm(3), left)
	JZ(operand.LabelRef("end"))
	Label("eight")
	VPAND(operand.Mem{Base: px}, abs, a)
	VPAND(operand.Mem{Base: py}, abs, b)
	VPCMPEQD(a, b, same)
	VPCMPEQD(none, none, t)
	VPANDN(t, same, t)
	VPSUBD(t, counts[0], counts[0])
	VPCMPGTD(a, least, t)
	VPANDN(t, same, t)
	VPSUBD(t, counts[1], counts[1])
	VPCMPEQD(none, b, t)
	VPANDN(t, same, t)
	VPSUBD(t, counts[2], counts[2])
	VPCMPGTD(finite, b, t)
	VPSUBD(t, counts[3], counts[3])
	ADDQ(operand.Imm(32), px)
	ADDQ(operand.Imm(32), py)
	DECQ(left)
	JNZ(operand.LabelRef("eight"))
	Label("end")
	for i, r := range counts {
		s.reduce(r, t, addWords)
		VMOVD(x(r), word.As32())
		MOVL(word.As32(), operand.Mem{Base: sums, Disp: 4 * i})
	}
	end()
}

// words sets all words of a vector register to the word in a general one.
func (s isa) words(from reg.GPPhysical, to reg.VecPhysical) {
	VMOVD(from.As32(), x(to))
	VPBROADCASTD(x(to), to)
}

// addWords is VPADDD of as many operands as AVX2 has.
func addWords(a, b, dst operand.Op) { VPADDD(a, b, dst) }
