package main

import (
	"fmt"

	. "github.com/mmcloughlin/avo/build"
	"github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

// beginAVX512 starts a tile's kernel whose sums stay in registers.
func beginAVX512(f format, bits, tokens int) *tile {
	t, v := avx512.begin(f, bits, tokens), avx512.vectors()
	t.acc = v.take(tileRows * mostTokens)[:tileRows*tokens]
	t.weight, t.token, t.scratch = v.take(tileRows), v.take(mostTokens), v.take(2)
	return t
}

// whole runs step for index = 0, 16, … below n rounded down to a step of all lanes.
func (t *tile) whole(label string, step func()) {
	Load(Param("n"), t.limit)
	ANDQ(operand.I32(-lanes), t.limit)
	XORQ(t.index, t.index)
	CMPQ(t.index, t.limit)
	JGE(operand.LabelRef(label + "_end"))
	t.ahead()
	Label(label)
	t.prefetch()
	step()
	ADDQ(operand.Imm(lanes), t.index)
	CMPQ(t.index, t.limit)
	JLT(operand.LabelRef(label))
	Label(label + "_end")
}

// mask sets K1 to the elements of the tail in the lanes skip, skip+1, …, and jumps to done if
// the tail ends before.
func (t *tile) mask(skip int, done string) {
	Load(Param("n"), left)
	ANDQ(operand.Imm(lanes-1), left)
	SUBQ(operand.Imm(uint64(skip)), left)
	JLE(operand.LabelRef(done))
	MOVL(operand.U32(1), t.limit.As32())
	SHLL(reg.CL, t.limit.As32())
	DECL(t.limit.As32())
	KMOVW(t.limit.As32(), reg.K1)
}

// avx512Tile32 writes a tile with float32 sums: a register has all lanes of one sum.
func avx512Tile32(f format, tokens int) {
	t := beginAVX512(f, 32, tokens)
	for _, a := range t.acc {
		avx512.zero(a)
	}
	t.whole("block", func() {
		for j, w := range t.weight {
			widen32(f, t.wAt(j, 0), w)
		}
		for i := range tokens {
			VMOVUPS(t.xAt(i, 0), t.token[i])
			for j, w := range t.weight {
				VFMADD231PS(w, t.token[i], t.acc[tileRows*i+j])
			}
		}
	})
	t.mask(0, "sum")
	for j, w := range t.weight {
		if f == f32 {
			VMOVUPS_Z(t.wAt(j, 0), reg.K1, w)
			continue
		}
		VPMOVZXWD_Z(t.wAt(j, 0), reg.K1, w)
		VPSLLD(operand.Imm(16), w, w)
	}
	for i := range tokens {
		VMOVUPS_Z(t.xAt(i, 0), reg.K1, t.token[i])
		for j, w := range t.weight {
			VFMADD231PS(w, t.token[i], reg.K1, t.acc[tileRows*i+j])
		}
	}
	Label("sum")
	t.avx512Sum32()
	end()
}

// avx512Sum32 folds the 16 lanes of each accumulator, all at once: after each step
// a register holds twice as many sums of half as many lanes.
func (t *tile) avx512Sum32() {
	z, temp, tokens := t.acc, t.scratch[0], t.tokens
	fold := func(shuffle func(imm operand.U8, a, b, dst operand.Op), low, high operand.U8, a, b, dst int) {
		shuffle(low, z[b], z[a], temp)
		shuffle(high, z[b], z[a], z[dst])
		VADDPS(temp, z[dst], z[dst])
	}
	halves := func(imm operand.U8, a, b, dst operand.Op) { VSHUFF64X2(imm, a, b, dst) }
	quarters := func(imm operand.U8, a, b, dst operand.Op) { VSHUFF32X4(imm, a, b, dst) }
	within := func(imm operand.U8, a, b, dst operand.Op) { VSHUFPS(imm, a, b, dst) }
	for i := range tokens {
		fold(halves, 0x44, 0xEE, 4*i, 4*i+1, 4*i)
		fold(halves, 0x44, 0xEE, 4*i+2, 4*i+3, 4*i+2)
		fold(quarters, 0x88, 0xDD, 4*i, 4*i+2, 4*i)
	}
	last := func(i int) int { return 4 * min(i, tokens-1) }
	fold(within, 0x44, 0xEE, last(0), last(1), 0)
	second := 0
	if tokens > 2 {
		second = last(2)
		fold(within, 0x44, 0xEE, last(2), last(3), second)
	}
	fold(within, 0x88, 0xDD, 0, second, 0)
	VMOVUPS(permute32, temp)
	VPERMPS(z[0], temp, z[0])
	VMOVUPS(z[0], t.at(0))
}

// avx512Tile64 writes a tile with float64 sums: one pass for each half of the lanes.
func avx512Tile64(f format, tokens int) {
	t := beginAVX512(f, 64, tokens)
	for pass := range 2 {
		t.avx512Half64(pass)
		if pass == 0 {
			for i, a := range t.acc {
				VMOVUPD(a, t.at(64*i))
			}
		}
	}
	for i, a := range t.acc {
		VADDPD(t.at(64*i), a, a)
	}
	t.avx512Sum64()
	end()
}

// avx512Half64 sums the lanes 8*pass … 8*pass+7.
func (t *tile) avx512Half64(pass int) {
	label, first := fmt.Sprintf("half%d", pass), 8*pass
	for _, a := range t.acc {
		avx512.zero(a)
	}
	t.whole(label, func() {
		for j, w := range t.weight {
			widen64(t.f, t.wAt(j, first), w, y(w))
		}
		for i := range t.tokens {
			VMOVUPD(t.xAt(i, first), t.token[i])
			for j, w := range t.weight {
				VFMADD231PD(w, t.token[i], t.acc[tileRows*i+j])
			}
		}
	})
	t.mask(first, label+"_sum")
	for j, w := range t.weight {
		if t.f == f32 {
			VCVTPS2PD_Z(t.wAt(j, first), reg.K1, w)
			continue
		}
		VPMOVZXWD_Z(t.wAt(j, first), reg.K1, y(w))
		VPSLLD(operand.Imm(16), y(w), y(w))
		VCVTPS2PD(y(w), w)
	}
	for i := range t.tokens {
		VMOVUPD_Z(t.xAt(i, first), reg.K1, t.token[i])
		for j, w := range t.weight {
			VFMADD231PD(w, t.token[i], reg.K1, t.acc[tileRows*i+j])
		}
	}
	Label(label + "_sum")
}

// avx512Sum64 folds the 8 lanes left of each accumulator.
func (t *tile) avx512Sum64() {
	z, temp, order := t.acc, t.scratch[0], t.scratch[1]
	fold := func(low, high operand.U8, a, b, dst int) {
		VSHUFF64X2(low, z[b], z[a], temp)
		VSHUFF64X2(high, z[b], z[a], z[dst])
		VADDPD(temp, z[dst], z[dst])
	}
	for i := range t.tokens {
		fold(0x44, 0xEE, 4*i, 4*i+1, 4*i)
		fold(0x44, 0xEE, 4*i+2, 4*i+3, 4*i+2)
		fold(0x88, 0xDD, 4*i, 4*i+2, 4*i)
	}
	VMOVUPD(permute64, order)
	for i := 0; i < t.tokens; i += 2 {
		a, b := 4*i, 4*min(i+1, t.tokens-1)
		VUNPCKLPD(z[b], z[a], temp)
		VUNPCKHPD(z[b], z[a], z[a])
		VADDPD(temp, z[a], z[a])
		VPERMPD(z[a], order, z[a])
		VMOVUPD(z[a], t.at(32*i))
	}
}
