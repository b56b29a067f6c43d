package main

import (
	. "github.com/mmcloughlin/avo/build"
	"github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

// The kernels that multiply four rows of F8E4M3 with a vector, again and again, leave out what WidenE4M3 does for NaN:
// the bits of a number, moved to where float32 has them, are 2^120 too small, which goes into the scale. Denormals come
// out right.

// rows is such a kernel and its registers.
type rows struct {
	isa
	dst, src, stride reg.GPPhysical // of the rows, stride bytes apart
	stride3, ahead   reg.GPPhysical // 3 strides; 4 strides behind src, where the next rows are
	scales           []reg.GPPhysical
	block, here      reg.GPPhysical // in units of 16 numbers: the length of a block, and of what is left of the present one
	general          *bank[reg.GPPhysical]
	vector           *bank[reg.VecPhysical]
	v                []reg.VecPhysical // numbers of a row
	scale            []reg.VecPhysical // of the present block of each row
	bits, unbias     reg.VecPhysical   // mask of a number's bits; 2^120
}

// beginRows starts a kernel; signature has the parameters between dst and src, and behind block.
func (s isa) beginRows(name, before, behind, definition string) *rows {
	function(s.name+name, "(dst *float32, "+before+"src *byte, stride, n int, scales **float32, block int"+behind+")", definition)
	g, v := general(), s.vectors()
	k := &rows{isa: s, dst: g.one(), src: g.one(), stride: g.one(), stride3: g.one(), ahead: g.one(), scales: g.take(4),
		block: g.one(), here: g.one(), general: g, vector: v, v: v.take(2), scale: v.take(4)}
	Load(Param("dst"), k.dst)
	Load(Param("src"), k.src)
	Load(Param("stride"), k.stride)
	Load(Param("n"), left)
	Load(Param("scales"), k.here)
	for i, r := range k.scales {
		MOVQ(operand.Mem{Base: k.here, Disp: 8 * i}, r)
	}
	Load(Param("block"), k.block)
	LEAQ(operand.Mem{Base: k.stride, Index: k.stride, Scale: 2}, k.stride3)
	LEAQ(operand.Mem{Base: k.src, Index: k.stride, Scale: 4}, k.ahead)
	k.bits, k.unbias = v.one(), v.one()
	MOVL(operand.U32(0x87f00000), k.here.As32())
	s.words(k.here, k.bits)
	MOVL(operand.U32(0x7b800000), k.here.As32())
	s.words(k.here, k.unbias)
	return k
}

// row is the memory of row i at an offset from base, which is src or ahead.
func (k *rows) row(base reg.GPPhysical, i, offset int) operand.Mem {
	m := operand.Mem{Base: base, Disp: offset}
	switch i {
	case 1, 2:
		m.Index, m.Scale = k.stride, uint8(i)
	case 3:
		m.Index, m.Scale = k.stride3, 1
	}
	return m
}

// loop calls use for numbers of each row, in v, that belong to the register of dst at a byte offset; before and after
// enclose the rows of an offset.
func (k *rows) loop(before func(offset int), use func(row, offset int, v operand.Op), after func(offset int)) {
	SHRQ(operand.Imm(4), left)
	SHRQ(operand.Imm(4), k.block)
	Label("block")
	for i, r := range k.scale {
		VBROADCASTSS(operand.Mem{Base: k.scales[i]}, r)
		ADDQ(operand.Imm(4), k.scales[i])
		VMULPS(k.unbias, r, r)
		PREFETCHT0(k.row(k.ahead, i, 0))
		PREFETCHT0(k.row(k.ahead, i, 64))
	}
	MOVQ(k.block, k.here)
	CMPQ(k.here, left)
	CMOVQGT(left, k.here)
	SUBQ(k.here, left)
	Label("some")
	per := k.perVector(32)
	for i := range lanes / per {
		before(i * k.bytes)
		for row, scale := range k.scale {
			v := k.v[row%2]
			VPMOVSXBD(k.row(k.src, row, i*per), v)
			VPSLLD(operand.Imm(20), v, v)
			if k.bytes == 64 {
				VPANDD(k.bits, v, v)
			} else {
				VPAND(k.bits, v, v)
			}
			VMULPS(scale, v, v)
			use(row, i*k.bytes, v)
		}
		after(i * k.bytes)
	}
	ADDQ(operand.Imm(16), k.src)
	ADDQ(operand.Imm(16), k.ahead)
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
	nothing := func(int) {}
	k := s.beginRows("DotE4M3", "sums *float32, ", "",
		"the lanes of Dot32 of dst, which is only read, and each of four rows; n is a positive multiple of 16")
	registers := lanes / s.perVector(32)
	sums := k.vector.take(4 * registers)
	for _, r := range sums {
		s.zero(r)
	}
	k.loop(nothing, func(row, offset int, v operand.Op) {
		VFMADD231PS(k.to(offset), v, sums[row*registers+offset/s.bytes])
	}, nothing)
	Load(Param("sums"), k.here)
	for i, r := range sums {
		VMOVUPS(r, operand.Mem{Base: k.here, Disp: i * s.bytes})
	}
	end()

	k = s.beginRows("AddE4M3", "", ", factors *float32",
		"dst[i] = fma32(factors[3], row 3[i], … fma32(factors[0], row 0[i], dst[i])); n is a positive multiple of 16")
	factors, sum := k.vector.take(4), k.vector.one()
	Load(Param("factors"), k.here)
	for i, r := range factors {
		VBROADCASTSS(operand.Mem{Base: k.here, Disp: 4 * i}, r)
	}
	k.loop(func(offset int) { VMOVUPS(k.to(offset), sum) },
		func(row, _ int, v operand.Op) { VFMADD231PS(factors[row], v, sum) },
		func(offset int) { VMOVUPS(sum, k.to(offset)) })
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
