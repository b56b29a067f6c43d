package main

import (
	"fmt"
	"strings"

	"github.com/mmcloughlin/avo/attr"
	. "github.com/mmcloughlin/avo/build"
	"github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

// General registers of the element kernels.
var (
	dst  = reg.RDI
	src  = reg.RSI
	left = reg.RCX
)

// x is the low 128 bits of a vector register.
func x(r reg.VecPhysical) reg.VecPhysical { return r.(reg.Vec).AsX().(reg.VecPhysical) }

// element writes a kernel that runs step on 16 elements at a time. Step reads at
// src and writes at dst; the sizes say how far they move.
func element(name, signature string, dstSize, srcSize int, doc []string, setup, step func()) {
	TEXT(name, attr.NOSPLIT, signature)
	Doc(doc...)
	Pragma("noescape")
	Load(Param("dst"), dst)
	Load(Param("src"), src)
	Load(Param("n"), left)
	setup()
	SHRQ(operand.Imm(4), left)
	JZ(operand.LabelRef("end"))
	Label("block")
	step()
	ADDQ(operand.Imm(uint64(16*srcSize)), src)
	ADDQ(operand.U32(16*dstSize), dst)
	DECQ(left)
	JNZ(operand.LabelRef("block"))
	Label("end")
	if strings.HasSuffix(name, "Stream") {
		SFENCE()
	}
	end()
}

func from(offset int) operand.Mem { return operand.Mem{Base: src, Disp: offset} }
func to(offset int) operand.Mem   { return operand.Mem{Base: dst, Disp: offset} }
func none()                       {}

// loop is the documentation of an element kernel: its reference loop.
func loop(name, what, body string) []string {
	return []string{
		fmt.Sprintf("%s %s. n is a multiple of 16.", name, what),
		"",
		"\tfor i := range n {",
		"\t\t" + body,
		"\t}",
	}
}

const (
	widenType  = "func(dst *float32, src *byte, n int)"
	narrowType = "func(dst *byte, src *float32, n int)"
)

func constant32(r reg.VecPhysical, v uint32) {
	MOVL(operand.U32(v), reg.EAX)
	MOVQ(reg.RAX, x(r))
	VPBROADCASTD(x(r), r)
}

func constant16(r reg.VecPhysical, v uint32) {
	MOVL(operand.U32(v), reg.EAX)
	MOVQ(reg.RAX, x(r))
	VPBROADCASTW(x(r), r)
}

// codecs writes the conversions of one instruction set, each as it is and with
// stores that go around the caches, for outputs much larger than those.
func codecs(isa string, halves func(stream bool) []conversion) {
	for _, stream := range []bool{false, true} {
		for _, c := range halves(stream) {
			name := isa + c.name
			doc := loop(name, c.what, c.body)
			if stream {
				name += "Stream"
				doc = loop(name, c.what+" around the caches, dst being aligned to a register", c.body)
			}
			signature, dstSize, srcSize := widenType, 4, 2
			if c.narrow {
				signature, dstSize, srcSize = narrowType, 2, 4
			}
			element(name, signature, dstSize, srcSize, doc, c.setup, c.step)
		}
	}
}

// conversion is the step of one element kernel.
type conversion struct {
	name, what, body string
	narrow           bool
	setup, step      func()
}

// store writes r, which holds float32 or, if integer is set, anything else.
func store(stream, integer bool, r, m operand.Op) {
	switch {
	case stream && integer:
		VMOVNTDQ(r, m)
	case stream:
		VMOVNTPS(r, m)
	default:
		VMOVUPS(r, m)
	}
}

func widenBF16(setup, step func()) conversion {
	return conversion{"WidenBF16", "widens BF16", "dst[i] = math.Float32frombits(uint32(src[i]) << 16)", false, setup, step}
}

func widenF16(setup, step func()) conversion {
	return conversion{"WidenF16", "widens F16", "dst[i] = float32FromF16(src[i])", false, setup, step}
}

func narrowBF16(setup, step func()) conversion {
	return conversion{"NarrowBF16", "narrows to BF16", "dst[i] = bf16FromFloat32(src[i])", true, setup, step}
}

func narrowF16(setup, step func()) conversion {
	return conversion{"NarrowF16", "narrows to F16", "dst[i] = f16FromFloat32(src[i])", true, setup, step}
}

func avx512Conversions(stream bool) []conversion {
	return []conversion{
		widenBF16(none, func() {
			VPMOVZXWD(from(0), z[0])
			VPSLLD(operand.Imm(16), z[0], z[0])
			store(stream, false, z[0], to(0))
		}),
		widenF16(none, func() {
			VCVTPH2PS(from(0), z[0])
			store(stream, false, z[0], to(0))
		}),
		narrowBF16(func() {
			constant32(z[4], 1)
			constant32(z[5], 0x7fff)
			constant32(z[6], 0x40)
		}, func() {
			VMOVUPS(from(0), z[0])
			VPSRLD(operand.Imm(16), z[0], z[1])
			VPANDD(z[4], z[1], z[2])
			VPADDD(z[5], z[2], z[2])
			VPADDD(z[0], z[2], z[2])
			VPSRLD(operand.Imm(16), z[2], z[2])
			VCMPPS(operand.Imm(3), z[0], z[0], reg.K1) // unordered: NaN
			VPORD(z[6], z[1], reg.K1, z[2])
			VPMOVDW(z[2], y[2])
			store(stream, true, y[2], to(0))
		}),
		narrowF16(none, func() {
			VMOVUPS(from(0), z[0])
			VCVTPS2PH(operand.Imm(0), z[0], y[0])
			store(stream, true, y[0], to(0))
		}),
	}
}

func avx2Conversions(stream bool) []conversion {
	return []conversion{
		widenBF16(none, func() {
			for h := range 2 {
				VPMOVZXWD(from(16*h), y[h])
				VPSLLD(operand.Imm(16), y[h], y[h])
				store(stream, false, y[h], to(32*h))
			}
		}),
		widenF16(none, func() {
			for h := range 2 {
				VCVTPH2PS(from(16*h), y[h])
				store(stream, false, y[h], to(32*h))
			}
		}),
		narrowBF16(func() {
			constant32(y[8], 1)
			constant32(y[9], 0x7fff)
			constant32(y[10], 0x40)
		}, func() {
			for h := range 2 {
				v, top, sum, isNaN := y[h], y[2+h], y[4+h], y[6+h]
				VMOVUPS(from(32*h), v)
				VPSRLD(operand.Imm(16), v, top)
				VPAND(y[8], top, sum)
				VPADDD(y[9], sum, sum)
				VPADDD(v, sum, sum)
				VPSRLD(operand.Imm(16), sum, sum)
				VPOR(y[10], top, top)
				VCMPPS(operand.Imm(3), v, v, isNaN)
				VBLENDVPS(isNaN, top, sum, sum)
			}
			VPACKUSDW(y[5], y[4], y[4])
			VPERMQ(operand.Imm(0xD8), y[4], y[4])
			store(stream, true, y[4], to(0))
		}),
		narrowF16(none, func() {
			for h := range 2 {
				VMOVUPS(from(32*h), y[h])
				VCVTPS2PH(operand.Imm(0), y[h], x(y[h]))
				store(stream, true, x(y[h]), to(16*h))
			}
		}),
	}
}

func avx512Codecs() {
	codecs("avx512", avx512Conversions)
	name := "avx512Widen64"
	element(name, "func(dst *float64, src *float32, n int)", 8, 4, loop(name, "widens float32 to float64", "dst[i] = float64(src[i])"), none, func() {
		VCVTPS2PD(from(0), z[0])
		VCVTPS2PD(from(32), z[1])
		VMOVUPD(z[0], to(0))
		VMOVUPD(z[1], to(64))
	})
	widenE4M3("avx512WidenE4M3", z, func() {
		VPMOVZXBW(from(0), z[0])
		VPSLLW(operand.Imm(8), z[0], z[0])
		VPSRAW(operand.Imm(1), z[0], z[0])
		VPANDD(z[5], z[0], z[0])
		VPANDD(z[6], z[0], z[1])
		VPCMPEQW(z[6], z[1], reg.K1)
		VPADDW(z[7], z[0], reg.K1, z[0])
		VEXTRACTI64X4(operand.Imm(1), z[0], y[1])
		for h, half := range []reg.VecPhysical{y[0], y[1]} {
			VCVTPH2PS(half, z[h])
			VMULPS(z[9], z[h], z[h])
			VMULPS(z[10], z[h], z[h])
			VMOVUPS(z[h], to(64*h))
		}
	}, func() {
		VCVTPH2PS(y[0], z[0])
		VMULPS(z[9], z[0], z[0])
		VMULPS(z[10], z[0], z[0])
		VMOVUPS(z[0], to(0))
	})
}

func avx2Codecs() {
	codecs("avx2", avx2Conversions)
	name := "avx2Widen64"
	element(name, "func(dst *float64, src *float32, n int)", 8, 4, loop(name, "widens float32 to float64", "dst[i] = float64(src[i])"), none, func() {
		for q := range 4 {
			VCVTPS2PD(from(16*q), y[q])
			VMOVUPD(y[q], to(32*q))
		}
	})
	widenE4M3("avx2WidenE4M3", y, nil, func() {
		VEXTRACTI128(operand.Imm(1), y[0], x(y[1]))
		VCVTPH2PS(x(y[0]), y[0])
		VCVTPH2PS(x(y[1]), y[1])
		for h := range 2 {
			VMULPS(y[9], y[h], y[h])
			VMULPS(y[10], y[h], y[h])
			VMOVUPS(y[h], to(32*h))
		}
	})
}

// widenE4M3 moves the bits of e4m3 to where F16 has them, which makes each value
// 2^8 too small; denormals come out right. The one NaN would become finite: it gets
// the exponent of an F16 NaN. finish gets 16 F16 in y[0]; two, if there is one, converts
// 32 numbers. Registers 5 to 7 of r hold 16-bit constants, 9 holds 256 and 10 the scale.
func widenE4M3(name string, r []reg.VecPhysical, two, finish func()) {
	TEXT(name, attr.NOSPLIT, "func(dst *float32, src *byte, n int, scales *float32, block int)")
	Doc(
		fmt.Sprintf("%s widens F8E4M3, each block times its scale. n and block are multiples of 16.", name),
		"",
		"\tfor i := range n {",
		"\t\tdst[i] = float32FromE4M3(src[i]) * scales[i/block]",
		"\t}",
	)
	Pragma("noescape")
	scales, block, here := reg.R8, reg.R9, reg.R10
	Load(Param("dst"), dst)
	Load(Param("src"), src)
	Load(Param("n"), left)
	Load(Param("scales"), scales)
	Load(Param("block"), block)
	constant16(r[5], 0xbf80)
	constant16(r[6], 0x3f80)
	constant16(r[7], 0x4000)
	constant32(r[9], 0x43800000) // 256
	SHRQ(operand.Imm(4), left)
	JZ(operand.LabelRef("end"))
	SHRQ(operand.Imm(4), block)
	Label("block")
	VBROADCASTSS(operand.Mem{Base: scales}, r[10])
	ADDQ(operand.Imm(4), scales)
	MOVQ(block, here)
	CMPQ(here, left)
	CMOVQGT(left, here)
	SUBQ(here, left)
	if two != nil {
		SUBQ(operand.Imm(2), here)
		JL(operand.LabelRef("odd"))
		Label("two")
		two()
		ADDQ(operand.Imm(32), src)
		ADDQ(operand.U32(128), dst)
		SUBQ(operand.Imm(2), here)
		JGE(operand.LabelRef("two"))
		Label("odd")
		ADDQ(operand.Imm(2), here)
		JZ(operand.LabelRef("next"))
	}
	Label("some")
	VPMOVZXBW(from(0), y[0])
	VPSLLW(operand.Imm(8), y[0], y[0])
	VPSRAW(operand.Imm(1), y[0], y[0]) // the sign goes to bits 15 and 14
	VPAND(y[5], y[0], y[0])
	VPAND(y[6], y[0], y[1])
	VPCMPEQW(y[6], y[1], y[1])
	VPAND(y[7], y[1], y[1])
	VPOR(y[1], y[0], y[0])
	finish()
	ADDQ(operand.Imm(16), src)
	ADDQ(operand.Imm(64), dst)
	DECQ(here)
	JNZ(operand.LabelRef("some"))
	if two != nil {
		Label("next")
	}
	TESTQ(left, left)
	JNZ(operand.LabelRef("block"))
	Label("end")
	end()
}

// peaks writes loops of nothing but independent fused multiply-adds, 12 per round,
// which measure what the processor can do at most.
func peaks() {
	for _, bits := range []int{32, 64} {
		peak(fmt.Sprintf("avx512Peak%d", bits), bits, z)
		peak(fmt.Sprintf("avx2Peak%d", bits), bits, y)
	}
}

func peak(name string, bits int, r []reg.VecPhysical) {
	TEXT(name, attr.NOSPLIT, "func(n int)")
	Doc(fmt.Sprintf("%s runs n rounds of 12 independent fused multiply-adds of full registers of float%d.", name, bits))
	Load(Param("n"), left)
	for i := range 14 {
		VXORPS(y[i], y[i], y[i])
	}
	Label("round")
	for i := range 12 {
		fma(bits, r[12], r[13], r[i])
	}
	DECQ(left)
	JNZ(operand.LabelRef("round"))
	end()
}
