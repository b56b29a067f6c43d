package main

import (
	"fmt"

	"github.com/mmcloughlin/avo/attr"
	. "github.com/mmcloughlin/avo/build"
	"github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

const (
	tileRows     = 4 // rows of weights in a tile
	mostTokens   = 4 // tokens in the widest tile
	scratchSlots = 256

	// passChunk is how many elements all passes over the lanes go over before they go on,
	// where the lanes do not fit the registers: the later passes find them in the
	// first-level cache.
	passChunk = 512
)

// tile is a tile's kernel and the registers that it uses.
type tile struct {
	f            format
	bits, tokens int

	sums  reg.GPPhysical   // the result, and scratch
	w     []reg.GPPhysical // the rows of weights
	x     []reg.GPPhysical // the tokens
	index reg.GPPhysical   // of an element of the rows
	limit reg.GPPhysical   // n, then where a loop ends
	start reg.GPPhysical   // where a chunk begins
	next  reg.GPPhysical   // element of the rows to come; also counts the tail

	acc     []reg.VecPhysical // sums of token i and row j at 4*i + j
	weight  []reg.VecPhysical
	token   []reg.VecPhysical
	scratch []reg.VecPhysical // of the final sum
}

// tileSignature is the type of a tile's kernel but for the word func.
func tileSignature(bits int) string {
	return fmt.Sprintf("(w *[%d]*byte, x *[%d]*float%d, n int, sum *[%d]float%[3]d)", tileRows, mostTokens, bits, scratchSlots)
}

// tileName is the name of a tile's kernel.
func tileName(isa string, f format, bits, tokens int) string {
	return fmt.Sprintf("%sTile%d%sx%d", isa, bits, f.name, tokens)
}

// begin starts a tile's kernel and loads its pointers.
func (s isa) begin(f format, bits, tokens int) *tile {
	name := tileName(s.name, f, bits, tokens)
	TEXT(name, attr.NOSPLIT, "func"+tileSignature(bits))
	Doc(tileDoc(name, s.name, f, bits, tokens)...)
	Pragma("noescape")
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

// tileDoc is the documentation of a tile: its reference loop.
func tileDoc(name, isa string, f format, bits, tokens int) []string {
	multiple := ""
	if isa != avx512.name {
		multiple = fmt.Sprintf(" n is a multiple of %d.", lanes)
	}
	return []string{
		fmt.Sprintf("%s multiplies %d rows of %s with %d row(s) of x, all n long.%s", name, tileRows, f.name, tokens, multiple),
		"The part of sum that holds no result is scratch.",
		"",
		fmt.Sprintf("\tfor i := range %d {", tokens),
		fmt.Sprintf("\t\tfor j := range %d {", tileRows),
		fmt.Sprintf("\t\t\tsum[%d*i+j] = Dot%d(x[i][:n], w[j][:n])", tileRows, bits),
		"\t\t}",
		"\t}",
	}
}

// at is the place of the sums or of scratch at a byte offset.
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

// ahead sets next to the distance, in elements, of the rows that come after these
// if a matrix has them at equal strides, so that they can be prefetched meanwhile.
func (t *tile) ahead() {
	MOVQ(t.w[1], t.next)
	SUBQ(t.w[0], t.next)
	if shift := map[int]uint64{1: 2, 2: 1}[t.f.size]; shift > 0 {
		SHLQ(operand.Imm(shift), t.next)
	}
}

// prefetch asks for the next 16 elements of the rows to come, for the second-level
// cache: in the first they would displace what is being used.
func (t *tile) prefetch() {
	for j := range tileRows {
		PREFETCHT1(operand.Mem{Base: t.w[j], Index: t.next, Scale: uint8(t.f.size)})
	}
	ADDQ(operand.Imm(lanes), t.next)
}
