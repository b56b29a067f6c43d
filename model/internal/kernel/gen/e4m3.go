package main

import (
	. "github.com/mmcloughlin/avo/build"
	"github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

// The kernels that widen F8E4M3 move the bits of a number to where F16 has them. The
// value of the F16 is 2^8 too small, as the formats' exponents are biased differently;
// denormals come out right. The one NaN, whose exponent would be an ordinary one, gets that
// of an F16 NaN. F16 is then converted, and multiplied by 256 and by the block's scale.

// e4m3 is such a kernel and its registers.
type e4m3 struct {
	*element
	size   int            // bytes of a number in dst
	scales reg.GPPhysical // scale of the next block
	block  reg.GPPhysical // length of a block, in units of 16 numbers
	here   reg.GPPhysical // length left of the present block, in units of 16 numbers

	v        []reg.VecPhysical // two registers of numbers
	bits     reg.VecPhysical   // 16-bit mask of the sign and the 7 other bits
	isNaN    reg.VecPhysical   // the 7 bits of a NaN
	exponent reg.VecPhysical   // the exponent bit that an F16 NaN has besides
	unbias   reg.VecPhysical   // 256
	scale    reg.VecPhysical   // scale of the present block
}

// beginE4M3 starts a kernel and sets its constants. size is the bytes of a number in dst.
func (s isa) beginE4M3(name, signature, definition string, size int) *e4m3 {
	k := &e4m3{element: s.beginElement(name, signature, definition), size: size}
	k.scales, k.block, k.here = k.general.one(), k.general.one(), k.general.one()
	Load(Param("scales"), k.scales)
	Load(Param("block"), k.block)
	k.v = k.vector.take(2)
	k.bits, k.isNaN, k.exponent = k.constant16(0xbf80), k.constant16(0x3f80), k.constant16(0x4000)
	k.unbias, k.scale = k.constant32(0x43800000), k.vector.one()
	return k
}

// widenE4M3 starts the kernel that widens to float32.
func (s isa) widenE4M3() *e4m3 {
	return s.beginE4M3("WidenE4M3", "(dst *float32, src *byte, n int, scales *float32, block int)", "WidenBlocks of F8E4M3", 4)
}

// blocks writes the loop over blocks; piece converts the here·16 numbers left of one, and after ends the kernel.
func (k *e4m3) blocks(piece, after func()) {
	SHRQ(operand.Imm(4), left)
	JZ(operand.LabelRef("end"))
	SHRQ(operand.Imm(4), k.block)
	Label("block")
	VBROADCASTSS(operand.Mem{Base: k.scales}, k.scale)
	ADDQ(operand.Imm(4), k.scales)
	MOVQ(k.block, k.here)
	CMPQ(k.here, left)
	CMOVQGT(left, k.here)
	SUBQ(k.here, left)
	piece()
	TESTQ(left, left)
	JNZ(operand.LabelRef("block"))
	Label("end")
	after()
	end()
}

// sixteen writes the loop that converts 16 numbers at a time, widened to F16 in the first
// 32 bytes of v[0]; finish takes them from there.
func (k *e4m3) sixteen(finish func()) {
	v, isNaN := y(k.v[0]), y(k.v[1])
	Label("some")
	VPMOVZXBW(k.from(0), v)
	VPSLLW(operand.Imm(8), v, v)
	VPSRAW(operand.Imm(1), v, v) // the sign goes to bits 15 and 14
	VPAND(y(k.bits), v, v)
	VPAND(y(k.isNaN), v, isNaN)
	VPCMPEQW(y(k.isNaN), isNaN, isNaN)
	VPAND(y(k.exponent), isNaN, isNaN)
	VPOR(isNaN, v, v)
	finish()
	ADDQ(operand.Imm(16), k.src)
	ADDQ(operand.Imm(uint64(lanes*k.size)), k.dst)
	DECQ(k.here)
	JNZ(operand.LabelRef("some"))
}

// scaled converts a register of F16, half as wide as dst, and multiplies it.
func (k *e4m3) scaled(half, dst reg.VecPhysical) {
	VCVTPH2PS(half, dst)
	VMULPS(k.unbias, dst, dst)
	VMULPS(k.scale, dst, dst)
}

// avx2E4M3 converts 16 numbers in two registers.
func avx2E4M3() {
	k := avx2.widenE4M3()
	k.blocks(func() {
		k.sixteen(func() {
			VEXTRACTI128(operand.Imm(1), k.v[0], x(k.v[1]))
			for h, r := range k.v {
				k.scaled(x(r), r)
				VMOVUPS(r, k.to(32*h))
			}
		})
	}, func() {})
}

// narrowE4M3 writes the kernel that makes BF16. A product whose lower half is not zero is rounded.
func (s isa) narrowE4M3() {
	k := s.beginE4M3("NarrowE4M3", "(dst, src *byte, n int, scales *float32, block int, sums *uint32)", "narrowE4M3", 2)
	one, half, zero := k.constant32(1), k.constant32(0x7fff), k.vector.one()
	kept, least, most, t := k.vector.one(), k.vector.one(), k.vector.one(), k.vector.one()
	for _, r := range []reg.VecPhysical{zero, kept, most} {
		s.zero(r)
	}
	if s.bytes == 64 {
		VPTERNLOGD(operand.Imm(0xff), least, least, least)
	} else {
		VPCMPEQD(least, least, least)
	}
	round := func(r reg.VecPhysical) {
		VPADDD(r, r, t)
		VPMAXUD(t, most, most)
		VPSUBD(one, t, t)
		VPMINUD(t, least, least)
		VPSLLD(operand.Imm(16), r, t)
		if s.bytes == 64 {
			VPCMPEQD(zero, t, reg.K1)
			VPADDD(one, kept, reg.K1, kept)
		} else {
			VPCMPEQD(zero, t, t)
			VPSUBD(t, kept, kept)
		}
		VPSRLD(operand.Imm(16), r, t)
		if s.bytes == 64 {
			VPANDD(one, t, t)
		} else {
			VPAND(one, t, t)
		}
		VPADDD(half, r, r)
		VPADDD(t, r, r)
		VPSRLD(operand.Imm(16), r, r)
	}
	k.blocks(func() {
		if s.bytes == 64 {
			k.thirtyTwo(func(h int, r reg.VecPhysical) {
				round(r)
				VPMOVDW(r, k.to(32*h))
			})
			return
		}
		k.sixteen(func() {
			VEXTRACTI128(operand.Imm(1), k.v[0], x(k.v[1]))
			for _, r := range k.v {
				k.scaled(x(r), r)
				round(r)
			}
			VPACKUSDW(k.v[1], k.v[0], k.v[0])
			VPERMQ(operand.Imm(0xD8), k.v[0], k.v[0])
			VMOVDQU(k.v[0], k.to(0))
		})
	}, func() {
		minWords := func(a, b, dst operand.Op) { VPMINUD(a, b, dst) }
		sums := []struct {
			r reg.VecPhysical
			f func(a, b, dst operand.Op)
		}{{kept, addWords}, {least, minWords}, {most, maxWords}}
		Load(Param("sums"), k.src)
		for i, sum := range sums {
			s.reduce(sum.r, t, sum.f)
			VMOVD(x(sum.r), k.constant.As32())
			MOVL(k.constant.As32(), k.from(4*i))
		}
	})
}

// avx512E4M3 converts 32 numbers at once, and the last 16 of an odd block.
func avx512E4M3() {
	k := avx512.widenE4M3()
	k.blocks(func() {
		k.thirtyTwo(func(h int, r reg.VecPhysical) { VMOVUPS(r, k.to(64*h)) })
	}, func() {})
}

// thirtyTwo writes the loop of AVX-512 that converts 32 numbers at a time, and the last 16 of an odd block; finish takes 16
// products, the first ones or the second.
func (k *e4m3) thirtyTwo(finish func(h int, r reg.VecPhysical)) {
	SUBQ(operand.Imm(2), k.here)
	JL(operand.LabelRef("odd"))
	Label("two")
	VPMOVZXBW(k.from(0), k.v[0])
	VPSLLW(operand.Imm(8), k.v[0], k.v[0])
	VPSRAW(operand.Imm(1), k.v[0], k.v[0])
	VPANDD(k.bits, k.v[0], k.v[0])
	VPANDD(k.isNaN, k.v[0], k.v[1])
	VPCMPEQW(k.isNaN, k.v[1], reg.K1)
	VPADDW(k.exponent, k.v[0], reg.K1, k.v[0])
	VEXTRACTI64X4(operand.Imm(1), k.v[0], y(k.v[1]))
	for h, r := range k.v {
		k.scaled(y(r), r)
		finish(h, r)
	}
	ADDQ(operand.Imm(32), k.src)
	ADDQ(operand.U32(uint64(2*lanes*k.size)), k.dst)
	SUBQ(operand.Imm(2), k.here)
	JGE(operand.LabelRef("two"))
	Label("odd")
	ADDQ(operand.Imm(2), k.here)
	JZ(operand.LabelRef("next"))
	k.sixteen(func() {
		k.scaled(y(k.v[0]), k.v[0])
		finish(0, k.v[0])
	})
	Label("next")
}
