// Command gen writes the assembly of package lanes and its stubs; scripts/kernels.sh
// runs it.
//
// It is a module of its own so that nobody who uses dsmoe needs avo. All
// registers are chosen by hand: the kernels use every one there is.
package main

import (
	"fmt"

	"github.com/mmcloughlin/avo/attr"
	. "github.com/mmcloughlin/avo/build"
	"github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

func main() {
	ConstraintExpr("!purego")
	constants()
	blocks16()
	blocks8()
	hasSHA()
	Generate()
}

// General registers of the kernels.
var (
	state  = reg.RDI // h
	table  = reg.RSI // p
	count  = reg.RCX // blocks left
	offset = reg.RDX // of the block in each stream
	key    = reg.RAX // the constants of the next rounds
	last   = reg.RBX // the constants of the last 16 rounds
	words  = reg.R15 // the message schedule, where no registers hold it
)

const (
	// rowSize is the distance in bytes of two words of the state.
	rowSize = 64

	// ahead is how far each stream is fetched before it is read: the processor's own
	// prefetching loses track of so many.
	ahead = 256
)

// kernel writes a function that runs block on each block of its streams.
func kernel(name string, lanes, frame int, setup, block func()) {
	TEXT(name, attr.NOSPLIT, "func(h *[8][16]uint32, p *[16]*byte, n int)")
	Doc(
		fmt.Sprintf("%s compresses n blocks of each of the streams that p[:%d] point at.", name, lanes),
		"",
		fmt.Sprintf("\tfor lane := range %d {", lanes),
		"\t\tblock := unsafe.Slice((*[64]byte)(unsafe.Pointer(p[lane])), n)",
		"\t\tfor i := range block {",
		"\t\t\tcompress(column(h, lane), &block[i])",
		"\t\t}",
		"\t}",
	)
	Pragma("noescape")
	if frame > 0 {
		frame += 32
		LEAQ(AllocLocal(frame).Offset(31), words)
		ANDQ(operand.I8(-32), words)
	}
	Load(Param("h"), state)
	Load(Param("p"), table)
	Load(Param("n"), count)
	XORQ(offset, offset)
	setup()
	TESTQ(count, count)
	JLE(operand.LabelRef("end"))
	Label("block")
	block()
	ADDQ(operand.Imm(64), offset)
	DECQ(count)
	JNZ(operand.LabelRef("block"))
	Label("end")
	VZEROUPPER()
	RET()
}

// rounds runs round(t, true) for the first 48 rounds, 16 at a time, and
// round(t, false) for the last 16; t is the round modulo 16.
func rounds(round func(t int, schedule bool)) {
	LEAQ(constant(0), key)
	LEAQ(constant(4*48), last)
	Label("rounds")
	for t := range 16 {
		round(t, true)
	}
	ADDQ(operand.Imm(4*16), key)
	CMPQ(key, last)
	JNE(operand.LabelRef("rounds"))
	for t := range 16 {
		round(t, false)
	}
}

// stream sets r to the start of the stream in a lane.
func stream(lane int, r reg.Register) { MOVQ(operand.Mem{Base: table, Disp: 8 * lane}, r) }

// row is word i of the state of all lanes.
func row(i int) operand.Mem { return operand.Mem{Base: state, Disp: rowSize * i} }

// turn is the state as round t sees it: its words move one place on each round.
func turn(s []reg.VecPhysical, t int) (a, b, c, d, e, f, g, h reg.VecPhysical) {
	at := func(i int) reg.VecPhysical { return s[(i-t+16)%8] }
	return at(0), at(1), at(2), at(3), at(4), at(5), at(6), at(7)
}

// cross replaces a and b by what low and high make of them, with the help of a
// spare register, and returns where they are and which register is spare now.
func cross(low, high func(b, a, dst operand.Op), a, b, spare reg.VecPhysical) (lo, hi, free reg.VecPhysical) {
	low(b, a, spare)
	high(b, a, b)
	return spare, b, a
}

func doubles() (low, high func(b, a, dst operand.Op)) {
	return func(b, a, dst operand.Op) { VPUNPCKLDQ(b, a, dst) }, func(b, a, dst operand.Op) { VPUNPCKHDQ(b, a, dst) }
}

func quads() (low, high func(b, a, dst operand.Op)) {
	return func(b, a, dst operand.Op) { VPUNPCKLQDQ(b, a, dst) }, func(b, a, dst operand.Op) { VPUNPCKHQDQ(b, a, dst) }
}

// turn4 transposes the 4×4 words in each 128 bits of four registers: words 0 of
// all come to the first, words 1 to the second, …
func turn4(r []reg.VecPhysical, spare reg.VecPhysical) (free reg.VecPhysical) {
	low, high := doubles()
	r[0], r[1], spare = cross(low, high, r[0], r[1], spare)
	r[2], r[3], spare = cross(low, high, r[2], r[3], spare)
	low, high = quads()
	var words [4]reg.VecPhysical
	words[0], words[1], spare = cross(low, high, r[0], r[2], spare)
	words[2], words[3], spare = cross(low, high, r[1], r[3], spare)
	copy(r, words[:])
	return spare
}

var roundConstants, bigEndian operand.Mem

// constant is the address of a byte of the round constants.
func constant(at int) operand.Mem { return roundConstants.Offset(at) }

// constants declares the read-only data.
func constants() {
	roundConstants = GLOBL("roundConstants", 8|16) // RODATA|NOPTR
	for t, k := range k256 {
		DATA(4*t, operand.U32(k))
	}
	bigEndian = GLOBL("bigEndian", 8|16)
	for i := range 8 {
		DATA(8*i, operand.U64(0x0405060700010203+uint64(i%2)*0x0808080808080808))
	}
}

// k256 is the constants of FIPS 180-4, section 4.2.2.
var k256 = [64]uint32{
	0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
	0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
	0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
	0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
	0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
	0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
	0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
	0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2,
}

// hasSHA asks the processor for what golang.org/x/sys/cpu does not tell.
func hasSHA() {
	TEXT("hasSHA", attr.NOSPLIT, "func() bool")
	Doc("hasSHA reports whether the processor, one with AVX2, has instructions for SHA-256.")
	MOVL(operand.U32(7), reg.EAX)
	XORL(reg.ECX, reg.ECX)
	CPUID()
	SHRL(operand.Imm(29), reg.EBX)
	ANDL(operand.Imm(1), reg.EBX)
	Store(reg.BL, ReturnIndex(0))
	RET()
}
