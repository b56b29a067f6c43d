package main

import (
	"math/bits"

	. "github.com/mmcloughlin/avo/build"
	"github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

// spread writes the kernels of the statistics of numbers.
func (s isa) spread() {
	s.runs("RunSums", "(sums *float64, x *float32, n int)", "the sums of momentsPortable", false)
	s.runs("RunSquares", "(squares, means *float64, x *float32, n int)", "the squares of momentsPortable", true)
}

// extremes writes the kernel that finds the least, the most and the largest of numbers and counts zeros.
func (s isa) extremes() {
	function(s.name+"Extremes", "(least, x *float32, n int)", "extremesPortable")
	g, v := general(), s.vectors()
	out, px, word := g.one(), g.one(), g.one()
	Load(Param("least"), out)
	Load(Param("x"), px)
	Load(Param("n"), left)
	least, most, largest, zeros := v.one(), v.one(), v.one(), v.one()
	a, t, abs, none := v.one(), v.one(), v.one(), v.one()
	VMOVUPS(operand.Mem{Base: px}, least)
	VMOVAPS(least, most)
	for _, r := range []reg.VecPhysical{largest, zeros, none} {
		s.zero(r)
	}
	MOVL(operand.U32(1<<31-1), word.As32())
	s.words(word, abs)
	var one reg.VecPhysical
	if s.bytes == 64 {
		one = v.one()
		MOVL(operand.U32(1), word.As32())
		s.words(word, one)
	}
	SHRQ(operand.Imm(uint64(bits.Len(uint(s.perVector(32)))-1)), left)
	Label("vector")
	VMOVUPS(operand.Mem{Base: px}, a)
	VMINPS(a, least, least)
	VMAXPS(a, most, most)
	if s.bytes == 64 {
		VPANDD(a, abs, a)
		VPTESTNMD(a, a, reg.K1)
		VPADDD(one, zeros, reg.K1, zeros)
	} else {
		VPAND(a, abs, a)
		VPCMPEQD(a, none, t)
		VPSUBD(t, zeros, zeros)
	}
	VPMAXUD(a, largest, largest)
	ADDQ(operand.Imm(uint64(s.bytes)), px)
	DECQ(left)
	JNZ(operand.LabelRef("vector"))
	s.reduce(least, t, func(a, b, dst operand.Op) { VMINPS(a, b, dst) })
	s.reduce(most, t, func(a, b, dst operand.Op) { VMAXPS(a, b, dst) })
	s.reduce(largest, t, maxWords)
	s.reduce(zeros, t, addWords)
	for i, r := range []reg.VecPhysical{least, most, largest, zeros} {
		VMOVD(x(r), word.As32())
		MOVL(word.As32(), operand.Mem{Base: out, Disp: 4 * i})
	}
	end()
}

// runs writes a kernel that adds up 8 runs of numbers, each in its order: a run in a word of two registers. Four numbers
// of four runs are widened and transposed at a time. Of squares, the runs' means are subtracted before.
func (s isa) runs(name, signature, definition string, squares bool) {
	function(s.name+name, signature, definition)
	g, v := general(), s.vectors()
	out, stride, means := g.one(), g.one(), g.one()
	run := g.take(4) // runs 0, 3, 4 and 7
	sums, mean, rows, pairs := v.take(2), v.take(2), v.take(4), v.take(4)
	if squares {
		Load(Param("squares"), out)
		Load(Param("means"), means)
		for i, m := range mean {
			VMOVUPD(operand.Mem{Base: means, Disp: 32 * i}, m)
		}
	} else {
		Load(Param("sums"), out)
	}
	Load(Param("x"), run[0])
	Load(Param("n"), left)
	LEAQ(operand.Mem{Base: run[0], Index: left, Scale: 8}, run[1])
	LEAQ(operand.Mem{Base: run[1], Index: left, Scale: 4}, run[1])
	LEAQ(operand.Mem{Base: run[1], Index: left, Scale: 4}, run[2])
	LEAQ(operand.Mem{Base: run[2], Index: left, Scale: 8}, run[3])
	LEAQ(operand.Mem{Base: run[3], Index: left, Scale: 4}, run[3])
	MOVQ(left, stride)
	toBytes(32, stride)
	for _, r := range sums {
		s.zero(r)
	}
	SHRQ(operand.Imm(2), left)
	Label("four")
	for half, sum := range sums {
		first, last := run[2*half], run[2*half+1]
		VCVTPS2PD(operand.Mem{Base: first}, rows[0])
		VCVTPS2PD(operand.Mem{Base: first, Index: stride, Scale: 1}, rows[1])
		VCVTPS2PD(operand.Mem{Base: first, Index: stride, Scale: 2}, rows[2])
		VCVTPS2PD(operand.Mem{Base: last}, rows[3])
		for i := range 2 {
			VUNPCKLPD(rows[2*i+1], rows[2*i], pairs[2*i])
			VUNPCKHPD(rows[2*i+1], rows[2*i], pairs[2*i+1])
		}
		for i, r := range rows {
			VPERM2F128(operand.Imm([]uint64{0x20, 0x31}[i/2]), pairs[2+i%2], pairs[i%2], r)
		}
		for _, r := range rows {
			if squares {
				VSUBPD(mean[half], r, r)
				VMULPD(r, r, r)
			}
			VADDPD(r, sum, sum)
		}
	}
	for _, r := range run {
		ADDQ(operand.Imm(16), r)
	}
	DECQ(left)
	JNZ(operand.LabelRef("four"))
	for i, sum := range sums {
		VMOVUPD(sum, operand.Mem{Base: out, Disp: 32 * i})
	}
	end()
}
