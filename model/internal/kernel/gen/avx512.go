package main

import (
	"fmt"

	"github.com/mmcloughlin/avo/attr"
	. "github.com/mmcloughlin/avo/build"
	"github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

var z = []reg.VecPhysical{
	reg.Z0, reg.Z1, reg.Z2, reg.Z3, reg.Z4, reg.Z5, reg.Z6, reg.Z7,
	reg.Z8, reg.Z9, reg.Z10, reg.Z11, reg.Z12, reg.Z13, reg.Z14, reg.Z15,
	reg.Z16, reg.Z17, reg.Z18, reg.Z19, reg.Z20, reg.Z21, reg.Z22, reg.Z23,
	reg.Z24, reg.Z25, reg.Z26, reg.Z27, reg.Z28, reg.Z29, reg.Z30, reg.Z31,
}

// Vector registers: accumulators z[4*token+row], then weights, then activations.
const (
	zW = 16
	zX = 20
	zT = 24 // temporaries of the final sum
)

// begin starts a tile function.
func begin(isa, f string, bits, tokens int) {
	name := fmt.Sprintf("%sTile%d%sx%d", isa, bits, f, tokens)
	TEXT(name, attr.NOSPLIT, fmt.Sprintf("func(w *[4]*byte, x *[4]*float%d, n int, sum *[256]float%d)", bits, bits))
	Doc(tileDoc(name, isa, f, bits, tokens)...)
	Pragma("noescape")
	header(tokens)
}

func end() {
	VZEROUPPER()
	RET()
}

// mask sets K1 to the elements of the tail that belong to lanes skip, skip+1, …
// and jumps to done if there are none.
func mask(skip int, done string) {
	Load(Param("n"), count)
	ANDQ(operand.Imm(15), count)
	SUBQ(operand.Imm(uint64(skip)), count)
	JLE(operand.LabelRef(done))
	MOVL(operand.U32(1), limit.As32())
	SHLL(reg.CL, limit.As32())
	DECL(limit.As32())
	KMOVW(limit.As32(), reg.K1)
}

func avx512Tile32(f format, tokens int) {
	begin("avx512", f.name, 32, tokens)
	for a := range 4 * tokens {
		VPXORD(z[a], z[a], z[a])
	}
	whole(f, "block", func() {
		for j := range rows {
			widen32(f, wAt(f, j, 0), z[zW+j])
		}
		for i := range tokens {
			VMOVUPS(xAt(4, i, 0), z[zX+i])
			for j := range rows {
				VFMADD231PS(z[zW+j], z[zX+i], z[4*i+j])
			}
		}
	})
	mask(0, "sum")
	for j := range rows {
		switch f.name {
		case "F32":
			VMOVUPS_Z(wAt(f, j, 0), reg.K1, z[zW+j])
		case "BF16":
			VPMOVZXWD_Z(wAt(f, j, 0), reg.K1, z[zW+j])
			VPSLLD(operand.Imm(16), z[zW+j], z[zW+j])
		case "F16":
			VCVTPH2PS_Z(wAt(f, j, 0), reg.K1, z[zW+j])
		}
	}
	for i := range tokens {
		VMOVUPS_Z(xAt(4, i, 0), reg.K1, z[zX+i])
		for j := range rows {
			VFMADD231PS(z[zW+j], z[zX+i], reg.K1, z[4*i+j])
		}
	}
	Label("sum")
	avx512Sum32(tokens)
	end()
}

// avx512Sum32 folds the 16 lanes of each accumulator, all at once: after each step
// a register holds twice as many sums of half as many lanes.
func avx512Sum32(tokens int) {
	t := z[zT]
	fold := func(shuffle func(imm operand.U8, a, b, dst operand.Op), low, high operand.U8, a, b, dst int) {
		shuffle(low, z[b], z[a], t)
		shuffle(high, z[b], z[a], z[dst])
		VADDPS(t, z[dst], z[dst])
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
	VMOVUPS(permute32, t)
	VPERMPS(z[0], t, z[0])
	VMOVUPS(z[0], at(0))
}

func avx512Tile64(f format, tokens int) {
	begin("avx512", f.name, 64, tokens)
	for pass := range 2 {
		avx512Half64(f, tokens, pass)
		if pass == 0 {
			for a := range 4 * tokens {
				VMOVUPD(z[a], at(64*a))
			}
		}
	}
	for a := range 4 * tokens {
		VADDPD(at(64*a), z[a], z[a])
	}
	avx512Sum64(tokens)
	end()
}

// avx512Half64 sums the lanes 8*pass … 8*pass+7.
func avx512Half64(f format, tokens, pass int) {
	label := fmt.Sprintf("half%d", pass)
	for a := range 4 * tokens {
		VPXORD(z[a], z[a], z[a])
	}
	whole(f, label, func() {
		for j := range rows {
			widen64(f, wAt(f, j, 8*pass), z[zW+j], z[zW+j].(reg.Vec).AsY())
		}
		for i := range tokens {
			VMOVUPD(xAt(8, i, 8*pass), z[zX+i])
			for j := range rows {
				VFMADD231PD(z[zW+j], z[zX+i], z[4*i+j])
			}
		}
	})
	mask(8*pass, label+"_sum")
	for j := range rows {
		w, half := wAt(f, j, 8*pass), z[zW+j].(reg.Vec).AsY()
		switch f.name {
		case "F32":
			VCVTPS2PD_Z(w, reg.K1, z[zW+j])
			continue
		case "BF16":
			VPMOVZXWD_Z(w, reg.K1, half)
			VPSLLD(operand.Imm(16), half, half)
		case "F16":
			VCVTPH2PS_Z(w, reg.K1, half)
		}
		VCVTPS2PD(half, z[zW+j])
	}
	for i := range tokens {
		VMOVUPD_Z(xAt(8, i, 8*pass), reg.K1, z[zX+i])
		for j := range rows {
			VFMADD231PD(z[zW+j], z[zX+i], reg.K1, z[4*i+j])
		}
	}
	Label(label + "_sum")
}

func avx512Sum64(tokens int) {
	t := z[zT]
	fold := func(low, high operand.U8, a, b, dst int) {
		VSHUFF64X2(low, z[b], z[a], t)
		VSHUFF64X2(high, z[b], z[a], z[dst])
		VADDPD(t, z[dst], z[dst])
	}
	for i := range tokens {
		fold(0x44, 0xEE, 4*i, 4*i+1, 4*i)
		fold(0x44, 0xEE, 4*i+2, 4*i+3, 4*i+2)
		fold(0x88, 0xDD, 4*i, 4*i+2, 4*i)
	}
	VMOVUPD(permute64, z[zT+1])
	for i := 0; i < tokens; i += 2 {
		a, b := 4*i, 4*min(i+1, tokens-1)
		VUNPCKLPD(z[b], z[a], t)
		VUNPCKHPD(z[b], z[a], z[a])
		VADDPD(t, z[a], z[a])
		VPERMPD(z[a], z[zT+1], z[a])
		VMOVUPD(z[a], at(32*i))
	}
}
