package main

import (
	"fmt"

	. "github.com/mmcloughlin/avo/build"
	"github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

var y = []reg.VecPhysical{
	reg.Y0, reg.Y1, reg.Y2, reg.Y3, reg.Y4, reg.Y5, reg.Y6, reg.Y7,
	reg.Y8, reg.Y9, reg.Y10, reg.Y11, reg.Y12, reg.Y13, reg.Y14, reg.Y15,
}

// Vector registers: accumulators y[4*token+row], then activations, then one weight;
// the last four are the temporaries of the final sum.
const (
	yX = 12
	yW = 15
	yT = 12
)

// avx2Chunk is how many elements all passes go over before they go on: the later
// passes find them in the first-level cache.
const avx2Chunk = 512

// avx2Sum sums lane groups of one register each, one pass per group, into the slots
// of the scratch: slot(g, a) holds lanes g·16/groups … of accumulator a. n is a
// multiple of 16.
func avx2Sum(f format, tokens, bits int) {
	groups := 16 * bits / 256
	VXORPS(y[0], y[0], y[0])
	for g := range groups {
		for a := range 4 * tokens {
			VMOVUPS(y[0], avx2Slot(tokens, g, a))
		}
	}
	XORQ(start, start)
	Label("chunk")
	LEAQ(operand.Mem{Base: start, Disp: avx2Chunk}, limit)
	Load(Param("n"), index)
	CMPQ(limit, index)
	CMOVQGT(index, limit)
	CMPQ(start, limit)
	JGE(operand.LabelRef("fold"))
	for g := range groups {
		avx2Pass(f, tokens, bits, g)
	}
	MOVQ(limit, start)
	JMP(operand.LabelRef("chunk"))
	Label("fold")
}

func avx2Slot(tokens, group, a int) operand.Mem { return at(32 * (group*4*tokens + a)) }

// avx2Pass adds the elements start … limit to the lanes of one group.
func avx2Pass(f format, tokens, bits, group int) {
	from := group * 256 / bits
	label := fmt.Sprintf("group%d", group)
	for a := range 4 * tokens {
		VMOVUPS(avx2Slot(tokens, group, a), y[a])
	}
	MOVQ(start, index)
	if group == 0 {
		ahead(f)
		ADDQ(start, next)
	}
	Label(label)
	if group == 0 {
		prefetch(f)
	}
	for i := range tokens {
		VMOVUPS(xAt(bits/8, i, from), y[yX+i])
	}
	for j := range rows {
		avx2Widen(f, bits, wAt(f, j, from), y[yW])
		for i := range tokens {
			fma(bits, y[yW], y[yX+i], y[4*i+j])
		}
	}
	ADDQ(operand.Imm(16), index)
	CMPQ(index, limit)
	JLT(operand.LabelRef(label))
	for a := range 4 * tokens {
		VMOVUPS(y[a], avx2Slot(tokens, group, a))
	}
}

// avx2Widen reads one register of numbers.
func avx2Widen(f format, bits int, m operand.Mem, w reg.VecPhysical) {
	if bits == 32 {
		widen32(f, m, w)
	} else {
		widen64(f, m, w, x(w))
	}
}

func avx2Tile32(f format, tokens int) {
	begin("avx2", f.name, 32, tokens)
	avx2Sum(f, tokens, 32)
	for a := range 4 * tokens {
		VMOVUPS(avx2Slot(tokens, 0, a), y[a])
		VADDPS(avx2Slot(tokens, 1, a), y[a], y[a])
	}
	for i := range tokens {
		avx2Sum32(i)
	}
	end()
}

// avx2Sum32 folds the 8 lanes left of each of token i's four accumulators.
func avx2Sum32(i int) {
	a, t, u := y[4*i:], y[yT], y[yT+1]
	for j := 0; j < 4; j += 2 {
		VPERM2F128(operand.Imm(0x20), a[j+1], a[j], t)
		VPERM2F128(operand.Imm(0x31), a[j+1], a[j], u)
		VADDPS(t, u, a[j])
	}
	VSHUFPS(operand.Imm(0x44), a[2], a[0], t)
	VSHUFPS(operand.Imm(0xEE), a[2], a[0], u)
	VADDPS(t, u, a[0]) // rows 0 and 2 in the low half, 1 and 3 in the high one
	VSHUFPS(operand.Imm(0x88), a[0], a[0], t)
	VSHUFPS(operand.Imm(0xDD), a[0], a[0], u)
	VADDPS(t, u, t)
	VEXTRACTF128(operand.Imm(1), t, x(u))
	VUNPCKLPS(x(u), x(t), x(t))
	VMOVUPS(x(t), at(16*i))
}

func avx2Tile64(f format, tokens int) {
	begin("avx2", f.name, 64, tokens)
	avx2Sum(f, tokens, 64)
	for a := range 4 * tokens {
		VMOVUPD(avx2Slot(tokens, 0, a), y[a])
		VADDPD(avx2Slot(tokens, 2, a), y[a], y[a])
		VMOVUPD(avx2Slot(tokens, 1, a), y[yT])
		VADDPD(avx2Slot(tokens, 3, a), y[yT], y[yT])
		VADDPD(y[yT], y[a], y[a])
	}
	for i := range tokens {
		avx2Sum64(i)
	}
	end()
}

// avx2Sum64 folds the 4 lanes left of each of token i's four accumulators.
func avx2Sum64(i int) {
	a, t, u := y[4*i:], y[yT], y[yT+1]
	for j := 0; j < 4; j += 2 {
		VPERM2F128(operand.Imm(0x20), a[j+1], a[j], t)
		VPERM2F128(operand.Imm(0x31), a[j+1], a[j], u)
		VADDPD(t, u, a[j])
	}
	VUNPCKLPD(a[2], a[0], t)
	VUNPCKHPD(a[2], a[0], u)
	VADDPD(t, u, t)
	VPERMPD(operand.Imm(0xD8), t, t)
	VMOVUPD(t, at(32*i))
}
