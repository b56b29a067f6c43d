package main

import (
	. "github.com/mmcloughlin/avo/build"
	"github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

// lines writes the kernels of the lines of types K, and of what their blocks stand for.
func (s isa) lines() {
	s.fitGroups()
	s.fitWeights()
	s.encodeLines()
	s.decodeLines()
	s.spans()
}

// fitGroups writes the kernel that gives each group a lane: it transposes 8 numbers of 8 groups at a time.
func (s isa) fitGroups() {
	function(s.name+"FitGroups", "(dst, src *float32, numbers int)", "the loops of setGroups")
	g, v := general(), s.vectors()
	dst, src, numbers, stride, stride3 := g.one(), g.one(), g.one(), g.one(), g.one()
	four, to, half := g.one(), g.one(), g.one()
	a, b := v.take(8), v.take(8)
	Load(Param("dst"), dst)
	Load(Param("src"), src)
	Load(Param("numbers"), numbers)
	MOVQ(numbers, stride)
	toBytes(32, stride)
	LEAQ(operand.Mem{Base: stride, Index: stride, Scale: 2}, stride3)
	SHRQ(operand.Imm(3), numbers)
	MOVQ(operand.U32(2), half)
	Label("half")
	MOVQ(dst, to)
	MOVQ(numbers, left)
	Label("eight")
	LEAQ(operand.Mem{Base: src, Index: stride, Scale: 4}, four)
	for i := range 4 {
		for upper, base := range []reg.GPPhysical{src, four} {
			for h := range 2 {
				m := operand.Mem{Base: base, Disp: 16 * h}
				switch i {
				case 1, 2:
					m.Index, m.Scale = stride, uint8(i)
				case 3:
					m.Index, m.Scale = stride3, 1
				}
				loadHalf(m, 16, upper, a[4*h+i])
			}
		}
	}
	transpose4(a, b)
	for i, column := range a {
		VMOVUPS(column, operand.Mem{Base: to, Disp: fitNumber * i})
	}
	ADDQ(operand.Imm(32), src)
	ADDQ(operand.U32(8*fitNumber), to)
	DECQ(left)
	JNZ(operand.LabelRef("eight"))
	SUBQ(stride, src)
	LEAQ(operand.Mem{Base: src, Index: stride, Scale: 8}, src)
	ADDQ(operand.Imm(32), dst)
	DECQ(half)
	JNZ(operand.LabelRef("half"))
	end()
}

// fitWeights writes the kernel that weighs numbers by their magnitude.
func (s isa) fitWeights() {
	f := s.beginFit("FitWeights", "(fit *float32, numbers int, share float32)", "weighPortable")
	numbers, share := f.numbers(), f.v.one()
	root := f.perSet()
	Load(Param("share"), share.AsX().(reg.Register))
	VBROADCASTSS(share.AsX(), share)
	f.eachSet(func() { f.zero(root[f.set]) })
	VUCOMISS(x(root[0]), x(share))
	JE(operand.LabelRef("magnitudes"))
	f.each("squares", numbers, func() {
		VMOVUPS(f.now(0), f.t)
		VMULPS(f.t, f.t, f.t)
		VADDPS(f.t, root[f.set], root[f.set])
	})
	f.eachSet(func() {
		VMULPS(share, root[f.set], root[f.set])
		VSQRTPS(root[f.set], root[f.set])
	})
	Label("magnitudes")
	f.each("weights", numbers, func() {
		VMOVUPS(f.now(0), f.t)
		f.bits(f.constant(fitAbs), f.t)
		VADDPS(f.t, root[f.set], f.t)
		VMOVUPS(f.t, f.now(fitW))
	})
	end()
}

// The fields of kernel.Lines, in bytes.
const (
	blockLines = 16 // parts that have a line each
	linesLow   = 4 * blockLines
	linesCodes = 2 * linesLow
)

// line broadcasts the scale and the minimum of a part, which lie from lines and a byte offset on.
func line(lines reg.GPPhysical, disp int, scale, low reg.VecPhysical) {
	VBROADCASTSS(operand.Mem{Base: lines, Disp: disp}, scale)
	VBROADCASTSS(operand.Mem{Base: lines, Disp: disp + linesLow}, low)
}

// encodeLines writes the kernel that encodes a block, 32 numbers at a time.
func (s isa) encodeLines() {
	function(s.name+"EncodeLines", "(lines, x *float32, least, most int)", "encodePortable")
	g, v := general(), s.vectors()
	codes, px, lines, word := g.one(), g.one(), g.one(), g.one()
	least, most, order, scale, low, a := v.one(), v.one(), v.one(), v.one(), v.one(), v.take(4)
	Load(Param("lines"), lines)
	LEAQ(operand.Mem{Base: lines, Disp: linesCodes}, codes)
	Load(Param("x"), px)
	Load(Param("least"), word)
	s.words(word, least)
	Load(Param("most"), word)
	s.words(word, most)
	VMOVDQU(packedOrder, order)
	MOVQ(operand.U32(blockLines/2), left)
	Label("block")
	for i, r := range a {
		if i%2 == 0 {
			line(lines, 4*(i/2), scale, low)
		}
		VADDPS(operand.Mem{Base: px, Disp: 32 * i}, low, r)
		VDIVPS(scale, r, r)
		VADDPS(fitConstants.Offset(fitMagic), r, r)
		VPAND(fitConstants.Offset(fitBits), r, r)
		VPSUBD(fitConstants.Offset(fitShift), r, r)
		VPMINSD(most, r, r)
		VPMAXSD(least, r, r)
		VPSUBD(least, r, r)
	}
	VPACKSSDW(a[1], a[0], a[0])
	VPACKSSDW(a[3], a[2], a[2])
	VPACKSSWB(a[2], a[0], a[0])
	VPERMD(a[0], order, a[0])
	VMOVDQU(a[0], operand.Mem{Base: codes})
	ADDQ(operand.Imm(32), codes)
	ADDQ(operand.U32(128), px)
	ADDQ(operand.Imm(8), lines)
	DECQ(left)
	JNZ(operand.LabelRef("block"))
	end()
}

// decodeLines writes the kernel that decodes a block, 16 numbers at a time.
func (s isa) decodeLines() {
	function(s.name+"DecodeLines", "(y, lines *float32, zero int)", "decodePortable")
	g, v := general(), s.vectors()
	py, codes, lines, word := g.one(), g.one(), g.one(), g.one()
	zero, scale, low, a := v.one(), v.one(), v.one(), v.take(2)
	Load(Param("y"), py)
	Load(Param("lines"), lines)
	LEAQ(operand.Mem{Base: lines, Disp: linesCodes}, codes)
	Load(Param("zero"), word)
	s.words(word, zero)
	MOVQ(operand.U32(blockLines), left)
	Label("part")
	line(lines, 0, scale, low)
	for i, r := range a {
		VPMOVZXBD(operand.Mem{Base: codes, Disp: 8 * i}, r)
		VPSUBD(zero, r, r)
		VCVTDQ2PS(r, r)
		VMULPS(scale, r, r)
		VSUBPS(low, r, r)
		VMOVUPS(r, operand.Mem{Base: py, Disp: 32 * i})
	}
	ADDQ(operand.Imm(16), codes)
	ADDQ(operand.Imm(64), py)
	ADDQ(operand.Imm(4), lines)
	DECQ(left)
	JNZ(operand.LabelRef("part"))
	end()
}

// spans writes the kernel that finds how far numbers and their errors reach.
func (s isa) spans() {
	function(s.name+"Spans", "(spans, y, x *float32, parts, n int)", "spanPortable of each of parts parts")
	g, v := general(), s.vectors()
	spans, py, px, parts, n := g.one(), g.one(), g.one(), g.one(), g.one()
	Load(Param("spans"), spans)
	Load(Param("y"), py)
	Load(Param("x"), px)
	Load(Param("parts"), parts)
	Load(Param("n"), n)
	reach, pairs := v.take(4), v.take(4) // the fields of Span, but Below with its sign
	a, b, abs, sign := v.one(), v.one(), v.one(), v.one()
	VPCMPEQD(abs, abs, abs)
	VPSLLD(operand.Imm(31), abs, sign)
	VPSRLD(operand.Imm(1), abs, abs)
	Label("part")
	for _, r := range reach {
		s.zero(r)
	}
	MOVQ(n, left)
	Label("eight")
	VMOVUPS(operand.Mem{Base: px}, a)
	VMOVUPS(operand.Mem{Base: py}, b)
	VMAXPS(b, reach[2], reach[2])
	VMINPS(b, reach[3], reach[3])
	VSUBPS(a, b, b)
	VANDPS(abs, b, b)
	VANDPS(abs, a, a)
	VMAXPS(b, reach[0], reach[0])
	VMAXPS(a, reach[1], reach[1])
	ADDQ(operand.Imm(32), px)
	ADDQ(operand.Imm(32), py)
	SUBQ(operand.Imm(8), left)
	JNZ(operand.LabelRef("eight"))
	VXORPS(sign, reach[3], reach[3])
	for i := range 2 {
		VUNPCKLPS(reach[2*i+1], reach[2*i], pairs[2*i])
		VUNPCKHPS(reach[2*i+1], reach[2*i], pairs[2*i+1])
		VMAXPS(pairs[2*i+1], pairs[2*i], pairs[i])
	}
	VUNPCKLPD(pairs[1], pairs[0], a)
	VUNPCKHPD(pairs[1], pairs[0], b)
	VMAXPS(b, a, a)
	VEXTRACTF128(operand.Imm(1), a, x(b))
	VMAXPS(x(b), x(a), x(a))
	VMOVUPS(x(a), operand.Mem{Base: spans})
	ADDQ(operand.Imm(16), spans)
	DECQ(parts)
	JNZ(operand.LabelRef("part"))
	end()
}
