package main

import (
	"strings"

	. "github.com/mmcloughlin/avo/build"
	"github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

// element is a kernel that converts numbers, 16 at a time, and its registers.
type element struct {
	isa
	dst, src reg.GPPhysical // the present addresses
	constant reg.GPPhysical // a constant on its way to a vector register
	general  *bank[reg.GPPhysical]
	vector   *bank[reg.VecPhysical]
	stream   bool // stores go around the caches
}

// beginElement starts an element kernel and loads its first parameters.
func (s isa) beginElement(name, signature, definition string) *element {
	function(s.name+name, signature, definition)
	g := general()
	e := &element{isa: s, dst: g.one(), src: g.one(), constant: g.one(), general: g, vector: s.vectors()}
	Load(Param("dst"), e.dst)
	Load(Param("src"), e.src)
	Load(Param("n"), left)
	return e
}

// loop runs step, which converts the 16 numbers at src to dst, for each 16 of left numbers.
// dstSize and srcSize are the sizes of a number in bytes.
func (e *element) loop(dstSize, srcSize int, step func()) {
	SHRQ(operand.Imm(4), left)
	JZ(operand.LabelRef("end"))
	Label("block")
	step()
	ADDQ(operand.Imm(uint64(lanes*srcSize)), e.src)
	ADDQ(operand.U32(lanes*dstSize), e.dst)
	DECQ(left)
	JNZ(operand.LabelRef("block"))
	Label("end")
	if e.stream {
		SFENCE()
	}
	end()
}

// from and to are the memory at a byte offset from src and dst.
func (e *element) from(offset int) operand.Mem { return operand.Mem{Base: e.src, Disp: offset} }
func (e *element) to(offset int) operand.Mem   { return operand.Mem{Base: e.dst, Disp: offset} }

// constant32 and constant16 return a register that holds v in all places.
func (e *element) constant32(v uint32) reg.VecPhysical { return e.broadcast(v, VPBROADCASTD) }
func (e *element) constant16(v uint32) reg.VecPhysical { return e.broadcast(v, VPBROADCASTW) }

func (e *element) broadcast(v uint32, broadcast func(...operand.Op)) reg.VecPhysical {
	r := e.vector.one()
	MOVL(operand.U32(v), e.constant.As32())
	VMOVD(e.constant.As32(), x(r)) // MOVQ of SSE would wait for the upper halves of registers that AVX has used
	broadcast(x(r), r)
	return r
}

// storeFloats and storeIntegers write r, around the caches if e does.
func (e *element) storeFloats(r reg.VecPhysical, offset int)   { e.store(r, offset, VMOVNTPS) }
func (e *element) storeIntegers(r reg.VecPhysical, offset int) { e.store(r, offset, VMOVNTDQ) }

func (e *element) store(r reg.VecPhysical, offset int, around func(src, dst operand.Op)) {
	if e.stream {
		around(r, e.to(offset))
	} else {
		VMOVUPS(r, e.to(offset))
	}
}

// conversion is a kernel that widens or narrows a 16-bit format, or rounds float32 to it: prepare makes the
// constants that its step needs.
type conversion struct {
	name    string
	prepare func(e *element) (step func())
}

// rounds reports whether the kernel rounds float32, which stays float32.
func (c conversion) rounds() bool { return strings.HasPrefix(c.name, "Round") }

// convert writes a conversion, as it is or with stores that go around the caches.
func (s isa) convert(c conversion, stream bool) {
	name, definition := c.name, "widenPortable"
	signature, dstSize, srcSize := "(dst *float32, src *byte, n int)", 4, 2
	switch {
	case strings.HasPrefix(name, "Narrow"):
		definition = "narrowPortable"
		signature, dstSize, srcSize = "(dst *byte, src *float32, n int)", 2, 4
	case c.rounds():
		definition = "Rounded; dst may be src"
		signature, dstSize, srcSize = "(dst, src *float32, n int)", 4, 4
	}
	if stream {
		name += "Stream"
		definition += " with stores around the caches; dst is aligned to a register"
	}
	e := s.beginElement(name, signature, definition)
	e.stream = stream
	e.loop(dstSize, srcSize, c.prepare(e))
}

// codecs writes the kernels of one instruction set that convert numbers.
func (s isa) codecs(conversions []conversion, wide int) {
	for _, stream := range []bool{false, true} {
		for _, c := range conversions {
			if !stream || !c.rounds() {
				s.convert(c, stream)
			}
		}
	}
	e := s.beginElement("Widen64", "(dst *float64, src *float32, n int)", "widen64")
	v := e.vector.take(wide)
	e.loop(8, 4, func() {
		for i, r := range v {
			VCVTPS2PD(e.from(i*s.bytes/2), r)
			VMOVUPD(r, e.to(i*s.bytes))
		}
	})
}

func avx512Codecs() {
	avx512.codecs([]conversion{
		{"WidenBF16", func(e *element) func() {
			v := e.vector.one()
			return func() {
				VPMOVZXWD(e.from(0), v)
				VPSLLD(operand.Imm(16), v, v)
				e.storeFloats(v, 0)
			}
		}},
		{"WidenF16", func(e *element) func() {
			v := e.vector.one()
			return func() {
				VCVTPH2PS(e.from(0), v)
				e.storeFloats(v, 0)
			}
		}},
		{"NarrowBF16", func(e *element) func() {
			v, top, sum := e.vector.one(), e.vector.one(), e.vector.one()
			one, half, quiet := e.constant32(1), e.constant32(0x7fff), e.constant32(0x40)
			return func() {
				VMOVUPS(e.from(0), v)
				VPSRLD(operand.Imm(16), v, top)
				VPANDD(one, top, sum)
				VPADDD(half, sum, sum)
				VPADDD(v, sum, sum)
				VPSRLD(operand.Imm(16), sum, sum)
				VCMPPS(operand.Imm(unordered), v, v, reg.K1)
				VPORD(quiet, top, reg.K1, sum)
				VPMOVDW(sum, y(sum))
				e.storeIntegers(y(sum), 0)
			}
		}},
		{"NarrowF16", func(e *element) func() {
			v := e.vector.one()
			return func() {
				VMOVUPS(e.from(0), v)
				VCVTPS2PH(operand.Imm(toNearestEven), v, y(v))
				e.storeIntegers(y(v), 0)
			}
		}},
		{"RoundBF16", func(e *element) func() {
			v, sum := e.vector.one(), e.vector.one()
			one, half, quiet, kept := e.constant32(1), e.constant32(0x7fff), e.constant32(0x400000), e.constant32(0xffff0000)
			return func() {
				VMOVUPS(e.from(0), v)
				VPSRLD(operand.Imm(16), v, sum)
				VPANDD(one, sum, sum)
				VPADDD(half, sum, sum)
				VPADDD(v, sum, sum)
				VCMPPS(operand.Imm(unordered), v, v, reg.K1)
				VPORD(quiet, v, reg.K1, sum)
				VPANDD(kept, sum, sum)
				VMOVUPS(sum, e.to(0))
			}
		}},
		{"RoundF16", func(e *element) func() {
			v := e.vector.one()
			return func() {
				VMOVUPS(e.from(0), v)
				VCVTPS2PH(operand.Imm(toNearestEven), v, y(v))
				VCVTPH2PS(y(v), v)
				VMOVUPS(v, e.to(0))
			}
		}},
	}, 2)
	avx512E4M3()
	avx512.narrowE4M3()
	avx512.rows()
}

func avx2Codecs() {
	avx2.codecs([]conversion{
		{"WidenBF16", func(e *element) func() {
			v := e.vector.take(2)
			return func() {
				for h, r := range v {
					VPMOVZXWD(e.from(16*h), r)
					VPSLLD(operand.Imm(16), r, r)
					e.storeFloats(r, 32*h)
				}
			}
		}},
		{"WidenF16", func(e *element) func() {
			v := e.vector.take(2)
			return func() {
				for h, r := range v {
					VCVTPH2PS(e.from(16*h), r)
					e.storeFloats(r, 32*h)
				}
			}
		}},
		{"NarrowBF16", func(e *element) func() {
			v, top, sum, isNaN := e.vector.take(2), e.vector.take(2), e.vector.take(2), e.vector.one()
			one, half, quiet := e.constant32(1), e.constant32(0x7fff), e.constant32(0x40)
			return func() {
				for h := range 2 {
					VMOVUPS(e.from(32*h), v[h])
					VPSRLD(operand.Imm(16), v[h], top[h])
					VPAND(one, top[h], sum[h])
					VPADDD(half, sum[h], sum[h])
					VPADDD(v[h], sum[h], sum[h])
					VPSRLD(operand.Imm(16), sum[h], sum[h])
					VPOR(quiet, top[h], top[h])
					VCMPPS(operand.Imm(unordered), v[h], v[h], isNaN)
					VBLENDVPS(isNaN, top[h], sum[h], sum[h])
				}
				VPACKUSDW(sum[1], sum[0], sum[0])
				VPERMQ(operand.Imm(0xD8), sum[0], sum[0])
				e.storeIntegers(sum[0], 0)
			}
		}},
		{"NarrowF16", func(e *element) func() {
			v := e.vector.take(2)
			return func() {
				for h, r := range v {
					VMOVUPS(e.from(32*h), r)
					VCVTPS2PH(operand.Imm(toNearestEven), r, x(r))
					e.storeIntegers(x(r), 16*h)
				}
			}
		}},
		{"RoundBF16", func(e *element) func() {
			v, sum, isNaN := e.vector.take(2), e.vector.take(2), e.vector.take(2)
			one, half, quiet, kept := e.constant32(1), e.constant32(0x7fff), e.constant32(0x400000), e.constant32(0xffff0000)
			return func() {
				for h := range 2 {
					VMOVUPS(e.from(32*h), v[h])
					VPSRLD(operand.Imm(16), v[h], sum[h])
					VPAND(one, sum[h], sum[h])
					VPADDD(half, sum[h], sum[h])
					VPADDD(v[h], sum[h], sum[h])
					VCMPPS(operand.Imm(unordered), v[h], v[h], isNaN[h])
					VPOR(quiet, v[h], v[h])
					VBLENDVPS(isNaN[h], v[h], sum[h], sum[h])
					VPAND(kept, sum[h], sum[h])
					VMOVUPS(sum[h], e.to(32*h))
				}
			}
		}},
		{"RoundF16", func(e *element) func() {
			v := e.vector.take(2)
			return func() {
				for h, r := range v {
					VMOVUPS(e.from(32*h), r)
					VCVTPS2PH(operand.Imm(toNearestEven), r, x(r))
					VCVTPH2PS(x(r), r)
					VMOVUPS(r, e.to(32*h))
				}
			}
		}},
	}, 4)
	avx2E4M3()
	avx2.narrowE4M3()
	avx2.rows()
}

// toNearestEven is the rounding of VCVTPS2PH.
const toNearestEven = 0

// Predicates of comparisons. Unordered is true for NaN.
const (
	unordered = 0x03
	less      = 0x11
	greater   = 0x1e
)
