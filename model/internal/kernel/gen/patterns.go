package main

import (
	. "github.com/mmcloughlin/avo/build"
	"github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

// patterns is a kernel that looks codes up, and its registers.
type patterns struct {
	table, codes, out reg.GPPhysical
	block             reg.GPPhysical // length of a block, in units of 32 codes
	here              reg.GPPhysical // length left of the present block, in units of 32 codes
	vector            *bank[reg.VecPhysical]
	sign              reg.VecPhysical // mask of the sign of a code, or of a pattern
	differ            reg.VecPhysical // bits of patterns that differ
}

// beginPatterns starts the kernel and sets its constants.
func (s isa) beginPatterns() *patterns {
	function(s.name+"Patterns", "(patterns *uint16, codes, out *byte, n, block int) uint32", "SamePatterns of n codes: 0 if all are the same")
	g := general()
	k := &patterns{table: g.one(), codes: g.one(), out: g.one(), block: g.one(), here: g.one(), vector: s.vectors()}
	Load(Param("patterns"), k.table)
	Load(Param("codes"), k.codes)
	Load(Param("out"), k.out)
	Load(Param("n"), left)
	Load(Param("block"), k.block)
	k.sign, k.differ = k.vector.one(), k.vector.one()
	s.zero(k.differ)
	SHRQ(operand.Imm(5), left)
	SHRQ(operand.Imm(5), k.block)
	return k
}

// words sets a register to a 16-bit word in all places.
func (k *patterns) words(word uint32, to reg.VecPhysical) {
	MOVL(operand.U32(word), k.here.As32())
	VMOVD(k.here.As32(), x(to))
	VPBROADCASTW(x(to), to)
}

// blocks writes the loop over blocks and over 32 codes.
func (k *patterns) blocks(begin, some func()) {
	Label("block")
	begin()
	MOVQ(k.block, k.here)
	CMPQ(k.here, left)
	CMOVQGT(left, k.here)
	SUBQ(k.here, left)
	Label("some")
	some()
	ADDQ(operand.Imm(32), k.codes)
	ADDQ(operand.Imm(64), k.out)
	DECQ(k.here)
	JNZ(operand.LabelRef("some"))
	ADDQ(operand.U32(768), k.table) // of a CodeTable
	TESTQ(left, left)
	JNZ(operand.LabelRef("block"))
}

// avx512Patterns looks words up among 64 at a time, in two registers.
func avx512Patterns() {
	k := avx512.beginPatterns()
	k.words(0x8000, k.sign)
	table, code, low, high, bit := k.vector.take(4), k.vector.one(), k.vector.one(), k.vector.one(), k.vector.one()
	k.words(0x40, bit)
	k.blocks(func() {
		for i, r := range table {
			VMOVDQU16(operand.Mem{Base: k.table, Disp: 64 * i}, r)
		}
	}, func() {
		VPMOVZXBW(operand.Mem{Base: k.codes}, code)
		VMOVDQA64(code, low)
		VMOVDQA64(code, high)
		VPERMI2W(table[1], table[0], low)
		VPERMI2W(table[3], table[2], high)
		VPTESTMW(bit, code, reg.K1)
		VMOVDQU16(high, reg.K1, low)
		VPSLLW(operand.Imm(8), code, code)
		VPTERNLOGD(operand.Imm(0x78), k.sign, code, low)                       // low ^ code&sign
		VPTERNLOGD(operand.Imm(0xf6), operand.Mem{Base: k.out}, low, k.differ) // differ | low^out
	})
	VPTESTMD(k.differ, k.differ, reg.K1)
	KMOVW(reg.K1, k.here.As32())
	Store(k.here.As32(), ReturnIndex(0))
	end()
}

// avx2Patterns looks bytes up among 16 at a time: an index that is none of the 16 has its upper bit set and gives 0.
func avx2Patterns() {
	k := avx2.beginPatterns()
	k.words(0x8080, k.sign)
	index, at, low, high, t, u := k.vector.one(), k.vector.one(), k.vector.one(), k.vector.one(), k.vector.one(), k.vector.one()
	beyond, sixteen := k.vector.one(), k.vector.one()
	k.words(0x7070, beyond)
	k.words(0x1010, sixteen)
	k.blocks(func() {}, func() {
		VMOVDQU(operand.Mem{Base: k.codes}, index)
		VPAND(k.sign, index, high)
		VPXOR(high, index, index)
		VXORPS(low, low, low)
		for i := range 8 {
			VPADDUSB(beyond, index, at)
			VBROADCASTI128(operand.Mem{Base: k.table, Disp: 512 + 16*i}, t)
			VBROADCASTI128(operand.Mem{Base: k.table, Disp: 640 + 16*i}, u)
			VPSHUFB(at, t, t)
			VPSHUFB(at, u, u)
			VPOR(t, low, low)
			VPXOR(u, high, high)
			VPSUBB(sixteen, index, index)
		}
		VPUNPCKLBW(high, low, t)
		VPUNPCKHBW(high, low, u)
		VPERM2I128(operand.Imm(0x20), u, t, low)
		VPERM2I128(operand.Imm(0x31), u, t, high)
		VPXOR(operand.Mem{Base: k.out}, low, low)
		VPXOR(operand.Mem{Base: k.out, Disp: 32}, high, high)
		VPOR(low, k.differ, k.differ)
		VPOR(high, k.differ, k.differ)
	})
	avx2.reduce(k.differ, t, VPOR)
	VMOVD(x(k.differ), k.here.As32())
	Store(k.here.As32(), ReturnIndex(0))
	end()
}
