package main

import (
	"fmt"

	. "github.com/mmcloughlin/avo/build"
	"github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

// beginAVX2 starts a tile's kernel and sums the lanes into slots of scratch, in each pass a
// group of lanes that fits one register: slot(g, a) holds the lanes g·16/groups … of
// accumulator a. n is a multiple of 16.
func beginAVX2(f format, bits, tokens int) *tile {
	t, v := avx2.begin(f, bits, tokens), avx2.vectors()
	t.acc = v.take(12)[:tileRows*tokens]
	t.token, t.weight = v.take(3), v.take(1)
	t.scratch = t.token // free when the final sum is made
	groups := lanes * bits / (8 * avx2.bytes)
	avx2.zero(t.acc[0])
	for g := range groups {
		for a := range t.acc {
			VMOVUPS(t.acc[0], t.slot(g, a))
		}
	}
	XORQ(t.start, t.start)
	Label("chunk")
	LEAQ(operand.Mem{Base: t.start, Disp: passChunk}, t.limit)
	Load(Param("n"), t.index)
	CMPQ(t.limit, t.index)
	CMOVQGT(t.index, t.limit)
	CMPQ(t.start, t.limit)
	JGE(operand.LabelRef("fold"))
	for g := range groups {
		t.avx2Pass(g)
	}
	MOVQ(t.limit, t.start)
	JMP(operand.LabelRef("chunk"))
	Label("fold")
	return t
}

// slot is the memory of one register of accumulator a.
func (t *tile) slot(group, a int) operand.Mem {
	return t.at(avx2.bytes * (group*len(t.acc) + a))
}

// avx2Pass adds the elements start … limit to the lanes of one group.
func (t *tile) avx2Pass(group int) {
	from := group * avx2.perVector(t.bits)
	label := fmt.Sprintf("group%d", group)
	for i, a := range t.acc {
		VMOVUPS(t.slot(group, i), a)
	}
	MOVQ(t.start, t.index)
	if group == 0 {
		t.ahead()
		ADDQ(t.start, t.next)
	}
	Label(label)
	if group == 0 {
		t.prefetch()
	}
	for i := range t.tokens {
		VMOVUPS(t.xAt(i, from), t.token[i])
	}
	for j := range tileRows {
		t.avx2Widen(t.wAt(j, from), t.weight[0])
		for i := range t.tokens {
			fma(t.bits, t.weight[0], t.token[i], t.acc[tileRows*i+j])
		}
	}
	ADDQ(operand.Imm(lanes), t.index)
	CMPQ(t.index, t.limit)
	JLT(operand.LabelRef(label))
	for i, a := range t.acc {
		VMOVUPS(a, t.slot(group, i))
	}
}

// avx2Widen reads one register of weights.
func (t *tile) avx2Widen(m operand.Mem, w reg.VecPhysical) {
	if t.bits == 32 {
		widen32(t.f, m, w)
	} else {
		widen64(t.f, m, w, x(w))
	}
}

// avx2Tile32 writes a tile with float32 sums.
func avx2Tile32(f format, tokens int) {
	t := beginAVX2(f, 32, tokens)
	for i, a := range t.acc {
		VMOVUPS(t.slot(0, i), a)
		VADDPS(t.slot(1, i), a, a)
	}
	for i := range tokens {
		t.avx2Sum32(i)
	}
	end()
}

// avx2Sum32 folds the 8 lanes left of each of token i's four accumulators.
func (t *tile) avx2Sum32(i int) {
	a, low, high := t.acc[tileRows*i:], t.scratch[0], t.scratch[1]
	for j := 0; j < 4; j += 2 {
		VPERM2F128(operand.Imm(0x20), a[j+1], a[j], low)
		VPERM2F128(operand.Imm(0x31), a[j+1], a[j], high)
		VADDPS(low, high, a[j])
	}
	VSHUFPS(operand.Imm(0x44), a[2], a[0], low)
	VSHUFPS(operand.Imm(0xEE), a[2], a[0], high)
	VADDPS(low, high, a[0]) // rows 0 and 2 in the low half, 1 and 3 in the high one
	VSHUFPS(operand.Imm(0x88), a[0], a[0], low)
	VSHUFPS(operand.Imm(0xDD), a[0], a[0], high)
	VADDPS(low, high, low)
	VEXTRACTF128(operand.Imm(1), low, x(high))
	VUNPCKLPS(x(high), x(low), x(low))
	VMOVUPS(x(low), t.at(16*i))
}

// avx2Tile64 writes a tile with float64 sums.
func avx2Tile64(f format, tokens int) {
	t := beginAVX2(f, 64, tokens)
	for i, a := range t.acc {
		VMOVUPD(t.slot(0, i), a)
		VADDPD(t.slot(2, i), a, a)
		VMOVUPD(t.slot(1, i), t.scratch[0])
		VADDPD(t.slot(3, i), t.scratch[0], t.scratch[0])
		VADDPD(t.scratch[0], a, a)
	}
	for i := range tokens {
		t.avx2Sum64(i)
	}
	end()
}

// avx2Sum64 folds the 4 lanes left of each of token i's four accumulators.
func (t *tile) avx2Sum64(i int) {
	a, low, high := t.acc[tileRows*i:], t.scratch[0], t.scratch[1]
	for j := 0; j < 4; j += 2 {
		VPERM2F128(operand.Imm(0x20), a[j+1], a[j], low)
		VPERM2F128(operand.Imm(0x31), a[j+1], a[j], high)
		VADDPD(low, high, a[j])
	}
	VUNPCKLPD(a[2], a[0], low)
	VUNPCKHPD(a[2], a[0], high)
	VADDPD(low, high, low)
	VPERMPD(operand.Imm(0xD8), low, low)
	VMOVUPD(low, t.at(32*i))
}
