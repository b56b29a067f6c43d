package main

import (
	"fmt"

	. "github.com/mmcloughlin/avo/build"
	"github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

const (
	tileRows     = 4 // rows of weights in a tile
	mostTokens   = 4 // tokens in the widest tile
	scratchSlots = 256

	// passChunk is the number of elements that each pass over the lanes reads before the
	// next pass, where the lanes do not fit the registers: the later passes find them in
	// the first-level cache.
	passChunk = 512
)

// tile is a tile's kernel and the registers that it uses.
type tile struct {
	f            format
	bits, tokens int

	sums  reg.GPPhysical   // the result, and scratch
	w     []reg.GPPhysical // the rows of weights
	x     []reg.GPPhysical // the tokens
	index reg.GPPhysical   // the present element of the rows
	limit reg.GPPhysical   // n, then the end of a loop
	start reg.GPPhysical   // the first element of a chunk
	next  reg.GPPhysical   // the element of the next rows to prefetch; also counts the tail

	acc     []reg.VecPhysical // sums of token i and row j at 4*i + j
	weight  []reg.VecPhysical
	token   []reg.VecPhysical
	scratch []reg.VecPhysical // for the final sum
}

// tileSignature returns the parameters of a tile's kernel.
func tileSignature(bits int) string {
	const format = "(w *[%d]*byte, x *[%d]*float%d, n int, sum *[%d]float%[3]d)"
	return fmt.Sprintf(format, tileRows, mostTokens, bits, scratchSlots)
}

// tileName returns the name of a tile's kernel.
func tileName(isa string, f format, bits, tokens int) string {
	return fmt.Sprintf("%sTile%d%sx%d", isa, bits, f.name, tokens)
}

// begin starts a tile's kernel and loads its pointers.
func (s isa) begin(f format, bits, tokens int) *tile {
	function(tileName(s.name, f, bits, tokens), tileSignature(bits), tileDefinition(f, tokens))
	g := general()
	t := &tile{f: f, bits: bits, tokens: tokens, next: left}
	t.sums, t.w, t.x = g.one(), g.take(tileRows), g.take(mostTokens)
	t.index, t.limit, t.start = g.one(), g.one(), g.one()
	Load(Param("w"), t.sums)
	for j, r := range t.w {
		MOVQ(t.at(8*j), r)
	}
	Load(Param("x"), t.sums)
	for i, r := range t.x[:tokens] {
		MOVQ(t.at(8*i), r)
	}
	Load(Param("sum"), t.sums)
	return t
}

// tileDefinition describes a tile's kernel.
func tileDefinition(f format, tokens int) string {
	return fmt.Sprintf("the tileKernel of %s for width %d", f.name, tokens)
}

// at is the memory of the sums or of scratch at a byte offset.
func (t *tile) at(offset int) operand.Mem { return operand.Mem{Base: t.sums, Disp: offset} }

// wAt is element index+k of row j.
func (t *tile) wAt(j, k int) operand.Mem {
	return operand.Mem{Base: t.w[j], Index: t.index, Scale: uint8(t.f.size), Disp: k * t.f.size}
}

// xAt is element index+k of token i.
func (t *tile) xAt(i, k int) operand.Mem {
	size := t.bits / 8
	return operand.Mem{Base: t.x[i], Index: t.index, Scale: uint8(size), Disp: k * size}
}

// ahead sets next to the distance, in elements, from these rows to the next ones, if the
// rows of the matrix are equally spaced. The kernel prefetches the next ones meanwhile.
func (t *tile) ahead() {
	MOVQ(t.w[1], t.next)
	SUBQ(t.w[0], t.next)
	if shift := map[int]uint64{1: 2, 2: 1}[t.f.size]; shift > 0 {
		SHLQ(operand.Imm(shift), t.next)
	}
}

// prefetch asks for the next 16 elements of the next rows, for the second-level cache: in
// the first level they would displace numbers in use.
func (t *tile) prefetch() {
	for j := range tileRows {
		PREFETCHT1(operand.Mem{Base: t.w[j], Index: t.next, Scale: uint8(t.f.size)})
	}
	ADDQ(operand.Imm(lanes), t.next)
}
