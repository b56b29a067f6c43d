package main

import (
	"fmt"

	"github.com/mmcloughlin/avo/attr"
	. "github.com/mmcloughlin/avo/build"
	"github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

// element is a kernel that converts numbers one by one, 16 at a time, and its registers.
type element struct {
	isa
	dst, src reg.GPPhysical // where it writes and reads at present
	constant reg.GPPhysical // on its way to a vector register
	general  *bank[reg.GPPhysical]
	vector   *bank[reg.VecPhysical]
	stream   bool // stores go around the caches
}

// beginElement starts an element kernel and loads its first parameters.
func (s isa) beginElement(name, signature string, doc []string) *element {
	TEXT(name, attr.NOSPLIT, signature)
	Doc(doc...)
	Pragma("noescape")
	g := general()
	e := &element{isa: s, dst: g.one(), src: g.one(), constant: g.one(), general: g, vector: s.vectors()}
	Load(Param("dst"), e.dst)
	Load(Param("src"), e.src)
	Load(Param("n"), left)
	return e
}

// loop runs step, which converts the 16 numbers at src to dst, until none are left. The
// sizes of a number say how far dst and src move.
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

// from and to are a byte of what is read and written.
func (e *element) from(offset int) operand.Mem { return operand.Mem{Base: e.src, Disp: offset} }
func (e *element) to(offset int) operand.Mem   { return operand.Mem{Base: e.dst, Disp: offset} }

// constant32 and constant16 return a register that holds v in all places.
func (e *element) constant32(v uint32) reg.VecPhysical { return e.broadcast(v, VPBROADCASTD) }
func (e *element) constant16(v uint32) reg.VecPhysical { return e.broadcast(v, VPBROADCASTW) }

func (e *element) broadcast(v uint32, broadcast func(...operand.Op)) reg.VecPhysical {
	r := e.vector.one()
	MOVL(operand.U32(v), e.constant.As32())
	MOVQ(e.constant, x(r))
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

// loopDoc is the documentation of an element kernel: its reference loop.
func loopDoc(name, what, body string) []string {
	return []string{
		fmt.Sprintf("%s %s. n is a multiple of %d.", name, what, lanes),
		"",
		"\tfor i := range n {",
		"\t\t" + body,
		"\t}",
	}
}

// conversion is what differs between the kernels that widen and narrow 16-bit formats.
// prepare makes the constants that the step needs.
type conversion struct {
	name, what, body string
	narrow           bool
	prepare          func(e *element) (step func())
}

func widenBF16(prepare func(e *element) func()) conversion {
	return conversion{"WidenBF16", "widens BF16", "dst[i] = math.Float32frombits(uint32(src[i]) << 16)", false, prepare}
}

func widenF16(prepare func(e *element) func()) conversion {
	return conversion{"WidenF16", "widens F16", "dst[i] = float32FromF16(src[i])", false, prepare}
}

func narrowBF16(prepare func(e *element) func()) conversion {
	return conversion{"NarrowBF16", "narrows to BF16", "dst[i] = bf16FromFloat32(src[i])", true, prepare}
}

func narrowF16(prepare func(e *element) func()) conversion {
	return conversion{"NarrowF16", "narrows to F16", "dst[i] = f16FromFloat32(src[i])", true, prepare}
}

// convert writes a conversion, as it is or with stores that go around the caches.
func (s isa) convert(c conversion, stream bool) {
	name := s.name + c.name
	doc := loopDoc(name, c.what, c.body)
	if stream {
		name += "Stream"
		doc = loopDoc(name, c.what+" around the caches, dst being aligned to a register", c.body)
	}
	signature, dstSize, srcSize := "func(dst *float32, src *byte, n int)", 4, 2
	if c.narrow {
		signature, dstSize, srcSize = "func(dst *byte, src *float32, n int)", 2, 4
	}
	e := s.beginElement(name, signature, doc)
	e.stream = stream
	e.loop(dstSize, srcSize, c.prepare(e))
}

// codecs writes the kernels of one instruction set that convert numbers.
func (s isa) codecs(conversions []conversion, wide int) {
	for _, stream := range []bool{false, true} {
		for _, c := range conversions {
			s.convert(c, stream)
		}
	}
	name := s.name + "Widen64"
	e := s.beginElement(name, "func(dst *float64, src *float32, n int)", loopDoc(name, "widens float32 to float64", "dst[i] = float64(src[i])"))
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
		widenBF16(func(e *element) func() {
			v := e.vector.one()
			return func() {
				VPMOVZXWD(e.from(0), v)
				VPSLLD(operand.Imm(16), v, v)
				e.storeFloats(v, 0)
			}
		}),
		widenF16(func(e *element) func() {
			v := e.vector.one()
			return func() {
				VCVTPH2PS(e.from(0), v)
				e.storeFloats(v, 0)
			}
		}),
		narrowBF16(func(e *element) func() {
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
		}),
		narrowF16(func(e *element) func() {
			v := e.vector.one()
			return func() {
				VMOVUPS(e.from(0), v)
				VCVTPS2PH(operand.Imm(toNearestEven), v, y(v))
				e.storeIntegers(y(v), 0)
			}
		}),
	}, 2)
	avx512E4M3()
}

func avx2Codecs() {
	avx2.codecs([]conversion{
		widenBF16(func(e *element) func() {
			v := e.vector.take(2)
			return func() {
				for h, r := range v {
					VPMOVZXWD(e.from(16*h), r)
					VPSLLD(operand.Imm(16), r, r)
					e.storeFloats(r, 32*h)
				}
			}
		}),
		widenF16(func(e *element) func() {
			v := e.vector.take(2)
			return func() {
				for h, r := range v {
					VCVTPH2PS(e.from(16*h), r)
					e.storeFloats(r, 32*h)
				}
			}
		}),
		narrowBF16(func(e *element) func() {
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
		}),
		narrowF16(func(e *element) func() {
			v := e.vector.take(2)
			return func() {
				for h, r := range v {
					VMOVUPS(e.from(32*h), r)
					VCVTPS2PH(operand.Imm(toNearestEven), r, x(r))
					e.storeIntegers(x(r), 16*h)
				}
			}
		}),
	}, 4)
	avx2E4M3()
}

// toNearestEven is the rounding of VCVTPS2PH.
const toNearestEven = 0

// Predicates of comparisons. Unordered is true for NaN.
const (
	unordered = 0x03
	less      = 0x11
	greater   = 0x1e
)
