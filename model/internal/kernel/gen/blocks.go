package main

import (
	. "github.com/mmcloughlin/avo/build"
	"github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

// The kernels of block types use AVX2; machines with AVX-512 run them too.

// packedOrder is the order in which packing 32 numbers to bytes leaves them, four at a time.
var packedOrder operand.Mem

// stepsQ8 holds the constants of halfStepQ8.
var stepsQ8 operand.Mem

// blocks writes the encoder and the decoder of Q8_0 and the kernel that measures quantising errors.
func (s isa) blocks() {
	packedOrder = GLOBL("packedOrder", 8|16)
	for k, from := range []int{0, 4, 1, 5, 2, 6, 3, 7} {
		DATA(4*k, operand.U32(from))
	}
	stepsQ8 = GLOBL("stepsQ8", 8|16)
	for k, bits := range []uint32{0x3a000000, 0x33000000, 0x42fe0000, 0x3f000000} { // 2^-11, 2^-25, 127, 0.5
		DATA(4*k, operand.U32(bits))
	}
	s.encodeQ8()
	s.widenQ8()
	s.blockErrors(false)
	s.blockErrors(true)
}

// encodeQ8 writes the encoder of Q8_0, a block at a time.
func (s isa) encodeQ8() {
	e := s.beginElement("EncodeQ8", "(dst *byte, src *float32, n int)", "encodeQ8Portable")
	v := e.vector
	abs, sign, half := e.constant32(0x7fffffff), e.constant32(0x80000000), e.constant32(0x3effffff)
	infinite, one, most := e.constant32(0x7f800000), e.constant32(0x3f800000), e.constant32(0x42fe0000) // 127
	order, a, b := v.one(), v.take(4), v.take(4)
	VMOVDQU(packedOrder, order)
	SHRQ(operand.Imm(5), left)
	JZ(operand.LabelRef("end"))
	Label("block")
	for i := range a {
		VMOVUPS(e.from(32*i), a[i])
		VPAND(abs, a[i], b[i])
	}
	VPMAXUD(b[1], b[0], b[0])
	VPMAXUD(b[3], b[2], b[2])
	VPMAXUD(b[2], b[0], b[0])
	s.reduce(b[0], b[1], maxWords)
	VDIVSS(x(most), x(b[0]), x(b[0])) // d
	VCVTPS2PH(operand.Imm(0), x(b[0]), x(b[1]))
	VPEXTRW(operand.Imm(0), x(b[1]), e.to(0))
	VDIVSS(x(b[0]), x(one), x(b[0]))                      // its inverse, 0 where
	VCMPSS(operand.Imm(1), x(infinite), x(b[0]), x(b[1])) // that is infinite
	VANDPS(x(b[1]), x(b[0]), x(b[0]))
	VBROADCASTSS(x(b[0]), b[0])
	for i := range a {
		VMULPS(b[0], a[i], a[i])
		VPAND(sign, a[i], b[1])
		VPOR(half, b[1], b[1])
		VADDPS(b[1], a[i], a[i])
		VCVTTPS2DQ(a[i], a[i])
	}
	VPACKSSDW(a[1], a[0], a[0])
	VPACKSSDW(a[3], a[2], a[2])
	VPACKSSWB(a[2], a[0], a[0])
	VPERMD(a[0], order, a[0])
	VMOVDQU(a[0], e.to(2))
	ADDQ(operand.U32(128), e.src)
	ADDQ(operand.Imm(34), e.dst)
	DECQ(left)
	JNZ(operand.LabelRef("block"))
	Label("end")
	end()
}

// reduce sets all words of the lower 16 bytes of r to f of all words of r.
func (s isa) reduce(r, scratch reg.VecPhysical, f func(a, b, dst operand.Op)) {
	if s.bytes == 64 {
		VEXTRACTI64X4(operand.Imm(1), r, y(scratch))
		f(y(scratch), y(r), y(r))
	}
	VEXTRACTI128(operand.Imm(1), y(r), x(scratch))
	f(x(scratch), x(r), x(r))
	VPSHUFD(operand.Imm(0x4e), x(r), x(scratch))
	f(x(scratch), x(r), x(r))
	VPSHUFD(operand.Imm(0xb1), x(r), x(scratch))
	f(x(scratch), x(r), x(r))
}

// maxWords is VPMAXUD of as many operands as AVX2 has.
func maxWords(a, b, dst operand.Op) { VPMAXUD(a, b, dst) }

// widenQ8 writes the decoder of Q8_0, a block at a time.
func (s isa) widenQ8() {
	e := s.beginElement("WidenQ8", "(dst *float32, src *byte, n int)", "widenQ8_0")
	scale, v := e.vector.one(), e.vector.take(4)
	SHRQ(operand.Imm(5), left)
	JZ(operand.LabelRef("end"))
	Label("block")
	VPBROADCASTW(e.from(0), x(scale))
	VCVTPH2PS(x(scale), scale)
	for i, r := range v {
		VPMOVSXBD(e.from(2+8*i), r)
		VCVTDQ2PS(r, r)
		VMULPS(scale, r, r)
		VMOVUPS(r, e.to(32*i))
	}
	ADDQ(operand.Imm(34), e.src)
	ADDQ(operand.U32(128), e.dst)
	DECQ(left)
	JNZ(operand.LabelRef("block"))
	Label("end")
	end()
}

// blockErrors writes the kernel that compares decoded blocks with their source or, of Q8_0, blocks that it decodes.
// A square of a float32 is exact in float64, so that it may be fused with the sum.
func (s isa) blockErrors(q8 bool) {
	if q8 {
		function(s.name+"CompareQ8", "(sums *float64, y *byte, x *float32, blocks int)", "compareQ8Portable of each of blocks blocks")
	} else {
		function(s.name+"BlockErrors", "(sums *float64, y, x *float32, blocks, n int)", "blockErrorsPortable of each of blocks blocks")
	}
	g, v := general(), s.vectors()
	sums, py, px, blocks := g.one(), g.one(), g.one(), g.one()
	Load(Param("sums"), sums)
	Load(Param("y"), py)
	Load(Param("x"), px)
	Load(Param("blocks"), blocks)
	squares, errors, largest, any, changed := v.one(), v.one(), v.one(), v.one(), v.one()
	a, d, t, u, abs, one, scale := v.one(), v.one(), v.one(), v.one(), v.one(), v.one(), v.one()
	VPCMPEQD(abs, abs, abs)
	VPSRLD(operand.Imm(1), abs, abs)
	VPSRLD(operand.Imm(30), abs, one)
	eight := func(at int, y func()) {
		from := operand.Mem{Base: px, Disp: 4 * at}
		VMOVUPS(from, a)
		y()
		VPOR(d, any, any)
		VPAND(abs, a, t)
		VPAND(abs, d, u)
		VPCMPEQD(t, u, t)
		VPADDD(one, t, t)
		VPADDD(t, changed, changed)
		VSUBPS(a, d, d)
		VPAND(abs, d, t)
		VPMAXUD(t, largest, largest)
		VEXTRACTF128(operand.Imm(1), d, x(u))
		for _, square := range []struct {
			from operand.Op
			sum  reg.VecPhysical
		}{{from, squares}, {x(d), errors}, {from.Offset(16), squares}, {x(u), errors}} {
			VCVTPS2PD(square.from, t)
			VFMADD231PD(t, t, square.sum)
		}
	}
	Label("block")
	for _, r := range []reg.VecPhysical{squares, errors, largest, any, changed} {
		s.zero(r)
	}
	if q8 {
		VPBROADCASTW(operand.Mem{Base: py}, x(scale))
		VCVTPH2PS(x(scale), scale)
		for at := 0; at < 32; at += 8 {
			eight(at, func() {
				VPMOVSXBD(operand.Mem{Base: py, Disp: 2 + at}, d)
				VCVTDQ2PS(d, d)
				VMULPS(scale, d, d)
			})
		}
		ADDQ(operand.Imm(34), py)
		ADDQ(operand.U32(128), px)
	} else {
		Load(Param("n"), left)
		Label("eight")
		eight(0, func() { VMOVUPS(operand.Mem{Base: py}, d) })
		ADDQ(operand.Imm(32), px)
		ADDQ(operand.Imm(32), py)
		SUBQ(operand.Imm(8), left)
		JNZ(operand.LabelRef("eight"))
	}
	for i, sum := range []reg.VecPhysical{squares, errors} {
		VEXTRACTF128(operand.Imm(1), sum, x(t))
		VHADDPD(x(t), x(sum), x(sum))
		VHADDPD(x(sum), x(sum), x(sum))
		VMOVSD(x(sum), operand.Mem{Base: sums, Disp: 8 * i})
	}
	s.reduce(largest, t, maxWords)
	s.reduce(any, t, VPOR)
	s.reduce(changed, t, addWords)
	for i, r := range []reg.VecPhysical{largest, any, changed} {
		VMOVD(x(r), operand.Mem{Base: sums, Disp: 16 + 4*i})
	}
	if q8 {
		halfStepQ8(x(abs), x(scale), x(t))
		VMOVD(x(t), operand.Mem{Base: sums, Disp: 28})
	}
	ADDQ(operand.Imm(32), sums) // of a BlockSums
	DECQ(blocks)
	JNZ(operand.LabelRef("block"))
	end()
}

// halfStepQ8 sets t to Half of compareQ8Portable, of a scale.
func halfStepQ8(abs, scale, t reg.VecPhysical) {
	VANDPS(abs, scale, scale)
	VMULSS(stepsQ8, scale, t)
	VMAXSS(stepsQ8.Offset(4), t, t)
	VMULSS(stepsQ8.Offset(8), t, t)
	VMULSS(stepsQ8.Offset(12), scale, scale)
	VADDSS(t, scale, t)
}
