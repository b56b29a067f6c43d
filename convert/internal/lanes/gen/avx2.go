package main

import (
	. "github.com/mmcloughlin/avo/build"
	"github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

var y = []reg.VecPhysical{
	reg.Y0, reg.Y1, reg.Y2, reg.Y3, reg.Y4, reg.Y5, reg.Y6, reg.Y7,
	reg.Y8, reg.Y9, reg.Y10, reg.Y11, reg.Y12, reg.Y13, reg.Y14, reg.Y15,
}

// blocks8 holds the state in y[0:8] and the message schedule on the stack.
func blocks8() {
	s := y[:8]
	kernel("blocks8", 8, 16*32, func() {}, func() {
		gather8(y)
		for i, r := range s {
			VMOVDQU(row(i), r)
		}
		VPXOR(s[1], s[2], y[8])
		rounds(func(t int, schedule bool) {
			// The exclusive or of a and b is that of b and c in the next round.
			round8(s, y[8+t%2], y[9-t%2], y[10:], t, schedule)
		})
		for i, r := range s {
			VPADDD(row(i), r, r)
			VMOVDQU(r, row(i))
		}
	})
}

// word is word t modulo 16 of the schedule of all streams.
func word(t int) operand.Mem { return operand.Mem{Base: words, Disp: 32 * (t % 16)} }

// gather8 reads a block of every stream, transposes them and puts them in words.
func gather8(free []reg.VecPhysical) {
	pointers := []reg.GPPhysical{reg.R8, reg.R9, reg.R10, reg.R11}
	swap, spare := free[0], free[1]
	VMOVDQU(bigEndian, swap)
	for half := range 2 {
		w := append([]reg.VecPhysical{}, free[2:10]...)
		for lane, r := range w {
			p := pointers[lane%4]
			stream(lane, p)
			VMOVDQU(operand.Mem{Base: p, Index: offset, Scale: 1, Disp: 32 * half}, r)
			if half == 0 {
				PREFETCHT0(operand.Mem{Base: p, Index: offset, Scale: 1, Disp: ahead})
			}
		}
		spare = turn4(w[:4], spare)
		spare = turn4(w[4:], spare)
		// w[4*q+e] holds words e, 4+e of streams 4*q to 4*q+3.
		for e := range 4 {
			for k, imm := range []operand.U8{0x20, 0x31} {
				VPERM2I128(imm, w[4+e], w[e], free[10+k])
				VPSHUFB(swap, free[10+k], free[10+k])
				VMOVDQA(free[10+k], word(8*half+4*k+e))
			}
		}
		spare = free[1]
	}
}

// round8 is round t and, if there is more to come, word t+16 of the schedule. It
// takes the exclusive or of b and c and leaves that of a and b.
func round8(s []reg.VecPhysical, bc, ab reg.VecPhysical, free []reg.VecPhysical, t int, schedule bool) {
	a, b, _, d, e, f, g, h := turn(s, t)
	VPBROADCASTD(operand.Mem{Base: key, Disp: 4 * t}, free[0])
	VPADDD(word(t), free[0], free[0])
	VPADDD(free[0], h, h)
	VPXOR(f, g, free[1])
	VPAND(e, free[1], free[1])
	VPXOR(g, free[1], free[1])
	VPADDD(free[1], h, h)
	rotations8(e, free[2:5], 6, 11, 25)
	VPADDD(free[2], h, h)
	VPADDD(h, d, d)
	VPXOR(a, b, ab)
	VPAND(ab, bc, bc)
	VPXOR(b, bc, bc)
	VPADDD(bc, h, h)
	rotations8(a, free[2:5], 2, 13, 22)
	VPADDD(free[2], h, h)
	if schedule {
		sum := free[5]
		VMOVDQA(word(t+9), sum)
		VPADDD(word(t), sum, sum)
		VMOVDQA(word(t+1), free[0])
		shifts8(free[0], free[2:5], 7, 18, 3)
		VPADDD(free[2], sum, sum)
		VMOVDQA(word(t+14), free[0])
		shifts8(free[0], free[2:5], 17, 19, 10)
		VPADDD(free[2], sum, sum)
		VMOVDQA(sum, word(t))
	}
}

// rotations8 sets r[0] to x rotated to the right by i, j and k, exclusive or.
func rotations8(x reg.VecPhysical, r []reg.VecPhysical, i, j, k uint64) {
	shifts8(x, r, i, j, k)
	VPSLLD(operand.Imm(32-k), x, r[1])
	VPXOR(r[1], r[0], r[0])
}

// shifts8 is rotations8 but for the last, which is a shift.
func shifts8(x reg.VecPhysical, r []reg.VecPhysical, i, j, k uint64) {
	VPSRLD(operand.Imm(i), x, r[0])
	VPSLLD(operand.Imm(32-i), x, r[1])
	VPSRLD(operand.Imm(j), x, r[2])
	VPXOR(r[1], r[0], r[0])
	VPSLLD(operand.Imm(32-j), x, r[1])
	VPXOR(r[2], r[0], r[0])
	VPSRLD(operand.Imm(k), x, r[2])
	VPXOR(r[1], r[0], r[0])
	VPXOR(r[2], r[0], r[0])
}
