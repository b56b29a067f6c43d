package main

import (
	. "github.com/mmcloughlin/avo/build"
	"github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

// The kernels that multiply two rows of F8E4M3 with a vector, again and again, leave out what WidenE4M3 does for NaN:
// the bits of a number, moved to where float32 has them, are 2^120 too small, which goes into the scale. Denormals come
// out right.

// rows is such a kernel and its registers.
type rows struct {
	isa
	dst, src, stride reg.GPPhysical    // of the second row, stride bytes behind the first
	scales           [2]reg.GPPhysical // scale of the next block of each row
	block, here      reg.GPPhysical    // in units of 16 numbers: the length of a block, and of what is left of the present one
	general          *bank[reg.GPPhysical]
	vector           *bank[reg.VecPhysical]
	v                []reg.VecPhysical // a number of each row
	scale            []reg.VecPhysical
	bits, unbias     reg.VecPhysical // mask of a number's bits; 2^120
}

// beginRows starts a kernel; signature has the parameters between dst and src, and behind block.
func (s isa) beginRows(name, before, behind, definition string) *rows {
	function(s.name+name, "(dst *float32, "+before+"src *byte, stride, n int, scales, scales2 *float32, block int"+behind+")", definition)
	g, v := general(), s.vectors()
	k := &rows{isa: s, dst: g.one(), src: g.one(), stride: g.one(), scales: [2]reg.GPPhysical{g.one(), g.one()},
		block: g.one(), here: g.one(), general: g, vector: v, v: v.take(2), scale: v.take(2)}
	Load(Param("dst"), k.dst)
	Load(Param("src"), k.src)
	Load(Param("stride"), k.stride)
	Load(Param("n"), left)
	Load(Param("scales"), k.scales[0])
	Load(Param("scales2"), k.scales[1])
	Load(Param("block"), k.block)
	k.bits, k.unbias = v.one(), v.one()
	MOVL(operand.U32(0x87f00000), k.here.As32())
	s.words(k.here, k.bits)
	MOVL(operand.U32(0x7b800000), k.here.As32())
	s.words(k.here, k.unbias)
	return k
}

// loop calls use for the numbers of both rows that belong to the register of dst at a byte offset.
func (k *rows) loop(use func(offset int)) {
	SHRQ(operand.Imm(4), left)
	SHRQ(operand.Imm(4), k.block)
	Label("block")
	for i, r := range k.scale {
		VBROADCASTSS(operand.Mem{Base: k.scales[i]}, r)
		ADDQ(operand.Imm(4), k.scales[i])
		VMULPS(k.unbias, r, r)
	}
	MOVQ(k.block, k.here)
	CMPQ(k.here, left)
	CMOVQGT(left, k.here)
	SUBQ(k.here, left)
	Label("some")
	per := k.perVector(32)
	for i := range lanes / per {
		VPMOVSXBD(operand.Mem{Base: k.src, Disp: i * per}, k.v[0])
		VPMOVSXBD(operand.Mem{Base: k.src, Index: k.stride, Scale: 1, Disp: i * per}, k.v[1])
		for row, r := range k.v {
			VPSLLD(operand.Imm(20), r, r)
			if k.bytes == 64 {
				VPANDD(k.bits, r, r)
			} else {
				VPAND(k.bits, r, r)
			}
			VMULPS(k.scale[row], r, r)
		}
		use(i * k.bytes)
	}
	ADDQ(operand.Imm(16), k.src)
	ADDQ(operand.Imm(64), k.dst)
	DECQ(k.here)
	JNZ(operand.LabelRef("some"))
	TESTQ(left, left)
	JNZ(operand.LabelRef("block"))
}

// to is the memory at a byte offset from dst.
func (k *rows) to(offset int) operand.Mem { return operand.Mem{Base: k.dst, Disp: offset} }

// rows writes the kernels.
func (s isa) rows() {
	k := s.beginRows("DotE4M3", "sums *float32, ", "",
		"the lanes of Dot32 of dst, which is only read, and each of two rows; n is a positive multiple of 16")
	out, registers := k.general.one(), lanes/s.perVector(32)
	sums, x := k.vector.take(2*registers), k.vector.one()
	Load(Param("sums"), out)
	for _, r := range sums {
		s.zero(r)
	}
	k.loop(func(offset int) {
		VMOVUPS(k.to(offset), x)
		for row, r := range k.v {
			VFMADD231PS(x, r, sums[row*registers+offset/s.bytes])
		}
	})
	for i, r := range sums {
		VMOVUPS(r, operand.Mem{Base: out, Disp: i * s.bytes})
	}
	end()

	k = s.beginRows("AddE4M3", "", ", factor, factor2 float32",
		"dst[i] = fma32(factor2, second row[i], fma32(factor, first row[i], dst[i])); n is a positive multiple of 16")
	factors, sum := k.vector.take(2), k.vector.one()
	for i, name := range []string{"factor", "factor2"} {
		Load(Param(name), factors[i].AsX().(reg.Register))
		VBROADCASTSS(factors[i].AsX(), factors[i])
	}
	k.loop(func(offset int) {
		VMOVUPS(k.to(offset), sum)
		for row, r := range k.v {
			VFMADD231PS(factors[row], r, sum)
		}
		VMOVUPS(sum, k.to(offset))
	})
	end()
	s.addProducts()
}

// addProducts writes the kernel that adds multiples of float32 numbers.
func (s isa) addProducts() {
	e := s.beginElement("AddProducts", "(dst, src *float32, n int, factor float32)", "dst[i] = fma32(factor, src[i], dst[i])")
	factor, v := e.vector.one(), e.vector.take(lanes/s.perVector(32))
	Load(Param("factor"), factor.AsX().(reg.Register))
	VBROADCASTSS(factor.AsX(), factor)
	e.loop(4, 4, func() {
		for i, r := range v {
			VMOVUPS(e.to(i*s.bytes), r)
			VFMADD231PS(e.from(i*s.bytes), factor, r)
			VMOVUPS(r, e.to(i*s.bytes))
		}
	})
}
