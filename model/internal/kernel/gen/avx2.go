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

// avx2Pass sums the lanes from .. from+16/passes-1 of n elements, n a multiple of 16.
func avx2Pass(f format, tokens, bits, from int) {
	for a := range 4 * tokens {
		VXORPS(y[a], y[a], y[a])
	}
	w, wHalf := y[yW], x(y[yW])
	whole(fmt.Sprintf("lanes%d", from), func() {
		for i := range tokens {
			VMOVUPS(xAt(bits/8, i, from), y[yX+i])
		}
		for j := range rows {
			m := wAt(f, j, from)
			switch {
			case f.name == "F32" && bits == 32:
				VMOVUPS(m, w)
			case f.name == "F32":
				VCVTPS2PD(m, w)
			case f.name == "BF16" && bits == 32:
				VPMOVZXWD(m, w)
				VPSLLD(operand.Imm(16), w, w)
			case f.name == "BF16":
				VPMOVZXWD(m, wHalf)
				VPSLLD(operand.Imm(16), wHalf, wHalf)
				VCVTPS2PD(wHalf, w)
			case f.name == "F16" && bits == 32:
				VCVTPH2PS(m, w)
			case f.name == "F16":
				VCVTPH2PS(m, wHalf)
				VCVTPS2PD(wHalf, w)
			}
			for i := range tokens {
				if bits == 32 {
					VFMADD231PS(w, y[yX+i], y[4*i+j])
				} else {
					VFMADD231PD(w, y[yX+i], y[4*i+j])
				}
			}
		}
	})
}

func avx2Tile32(f format, tokens int) {
	begin("avx2", f.name, 32, tokens)
	avx2Pass(f, tokens, 32, 0)
	for a := range 4 * tokens {
		VMOVUPS(y[a], at(32*a))
	}
	avx2Pass(f, tokens, 32, 8)
	for a := range 4 * tokens {
		VADDPS(at(32*a), y[a], y[a])
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
	slot := func(s, a int) operand.Mem { return at(32 * (s*4*tokens + a)) }
	add := func(s int) {
		for a := range 4 * tokens {
			VADDPD(slot(s, a), y[a], y[a])
		}
	}
	store := func(s int) {
		for a := range 4 * tokens {
			VMOVUPD(y[a], slot(s, a))
		}
	}
	avx2Pass(f, tokens, 64, 0)
	store(0)
	avx2Pass(f, tokens, 64, 8)
	add(0)
	store(0)
	avx2Pass(f, tokens, 64, 4)
	store(1)
	avx2Pass(f, tokens, 64, 12)
	add(1)
	add(0)
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
