package main

import (
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

// blocks16 holds the state in z[0:8] and the message schedule in 16 of the others.
func blocks16() {
	s := z[:8]
	kernel("blocks16", 16, 0, func() {
		for i, r := range s {
			VMOVDQU32(row(i), r)
		}
	}, func() {
		w, free := gather16(z[8:24], z[24:])
		rounds(func(t int, schedule bool) { round16(s, w, free, t, schedule) })
		for i, r := range s {
			VPADDD(row(i), r, r)
			VMOVDQU32(r, row(i))
		}
	})
}

// gather16 reads a block of every stream into w and transposes them: register i
// of the result is word i of all streams. It returns the registers left too.
func gather16(w, free []reg.VecPhysical) (words, rest []reg.VecPhysical) {
	pointers := []reg.GPPhysical{reg.R8, reg.R9, reg.R10, reg.R11}
	for lane, r := range w {
		p := pointers[lane%4]
		stream(lane, p)
		VMOVDQU32(operand.Mem{Base: p, Index: offset, Scale: 1}, r)
		PREFETCHT0(operand.Mem{Base: p, Index: offset, Scale: 1, Disp: ahead})
	}
	w, spare := append([]reg.VecPhysical{}, w...), free[0]
	for q := 0; q < 16; q += 4 {
		spare = turn4(w[q:q+4], spare)
	}
	// w[4*q+e] holds words e, 4+e, 8+e, 12+e of streams 4*q to 4*q+3.
	words = make([]reg.VecPhysical, 16)
	low, high := halves(0x44, 0xEE)
	even, odd := halves(0x88, 0xDD)
	for e := range 4 {
		var a, b, c, d reg.VecPhysical
		a, b, spare = cross(low, high, w[e], w[4+e], spare)
		c, d, spare = cross(low, high, w[8+e], w[12+e], spare)
		words[e], words[4+e], spare = cross(even, odd, a, c, spare)
		words[8+e], words[12+e], spare = cross(even, odd, b, d, spare)
	}
	rest = append([]reg.VecPhysical{spare}, free[1:]...)
	VMOVDQU32(bigEndian, rest[0])
	for _, r := range words {
		VPSHUFB(rest[0], r, r)
	}
	return words, rest
}

// halves shuffles 128-bit parts of two registers.
func halves(first, second operand.U8) (low, high func(b, a, dst operand.Op)) {
	return func(b, a, dst operand.Op) { VSHUFI32X4(first, b, a, dst) },
		func(b, a, dst operand.Op) { VSHUFI32X4(second, b, a, dst) }
}

// Truth tables of VPTERNLOGD.
const (
	xor3     = operand.U8(0x96)
	choose   = operand.U8(0xCA)
	majority = operand.U8(0xE8)
)

// round16 is round t and, if there is more to come, word t+16 of the schedule.
func round16(s, w, free []reg.VecPhysical, t int, schedule bool) {
	a, b, c, d, e, f, g, h := turn(s, t)
	VPADDD_BCST(operand.Mem{Base: key, Disp: 4 * t}, w[t], free[0])
	VPADDD(free[0], h, h)
	VMOVDQA64(e, free[1])
	VPTERNLOGD(choose, g, f, free[1])
	rotations16(e, free[2:5], 6, 11, 25)
	VPADDD(free[1], h, h)
	VPADDD(free[2], h, h)
	VPADDD(h, d, d)
	VMOVDQA64(a, free[1])
	VPTERNLOGD(majority, c, b, free[1])
	rotations16(a, free[5:8], 2, 13, 22)
	VPADDD(free[1], h, h)
	VPADDD(free[5], h, h)
	if schedule {
		shifts16(w[(t+1)%16], free[2:5], 7, 18, 3)
		VPADDD(w[(t+9)%16], w[t], w[t])
		VPADDD(free[2], w[t], w[t])
		shifts16(w[(t+14)%16], free[5:8], 17, 19, 10)
		VPADDD(free[5], w[t], w[t])
	}
}

// rotations16 sets r[0] to x rotated to the right by i, j and k, exclusive or.
func rotations16(x reg.VecPhysical, r []reg.VecPhysical, i, j, k uint64) {
	VPRORD(operand.Imm(i), x, r[0])
	VPRORD(operand.Imm(j), x, r[1])
	VPRORD(operand.Imm(k), x, r[2])
	VPTERNLOGD(xor3, r[2], r[1], r[0])
}

// shifts16 is rotations16 but for the last, which is a shift.
func shifts16(x reg.VecPhysical, r []reg.VecPhysical, i, j, k uint64) {
	VPRORD(operand.Imm(i), x, r[0])
	VPRORD(operand.Imm(j), x, r[1])
	VPSRLD(operand.Imm(k), x, r[2])
	VPTERNLOGD(xor3, r[2], r[1], r[0])
}
