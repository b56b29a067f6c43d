package main

import (
	"fmt"

	. "github.com/mmcloughlin/avo/build"
	"github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

// maxGroup is the length of the array of rows that pack kernels take.
const maxGroup = 16

// packing is a pack kernel and the general registers that it uses.
type packing struct {
	isa
	f     format // F32 or, in pairs, BF16
	bits  int    // width of a number of the panel
	size  int    // bytes of a word of a row, the unit that is transposed: a number or a pair
	lanes int    // number of lanes of words
	group int    // rows

	table  reg.GPPhysical   // pointers to rows
	rows   []reg.GPPhysical // pointers to rows, in turn
	offset reg.GPPhysical   // byte offset in each of the rows
	lane   reg.GPPhysical   // bytes between two lanes
	lane3  reg.GPPhysical   // bytes between three lanes
	stride reg.GPPhysical   // bytes between two steps
	quads  []reg.GPPhysical // addresses of lanes 0, 4, 8 and 12

	a, b  []reg.VecPhysical // the words of the rows, and room to transpose them
	spare reg.VecPhysical   // upper half of a register widened to float64
}

// pack writes the kernel that rearranges rows of f into the lanes of a panel. It widens F32 to
// the given bits; BF16 stays as pairs.
func (s isa) pack(f format, bits int) {
	p := &packing{isa: s, f: f, bits: bits, size: f.size, lanes: lanes, group: s.bytes / 4}
	name, number := fmt.Sprintf("%sPack%d%s", s.name, bits, f.name), fmt.Sprintf("float%d", bits)
	if f == bf16 {
		name, number, p.size, p.lanes = s.name+"PackPairs", "uint32", 2*f.size, lanes/2
	}
	function(name, fmt.Sprintf("(dst *%s, src *[%d]*byte, steps, stride, lane int)", number, maxGroup),
		fmt.Sprintf("the packKernel of %d rows of %s", p.group, f.name))
	p.load()
	SHRQ(operand.Imm(1), left)
	JZ(operand.LabelRef("end"))
	XORQ(p.offset, p.offset)
	Label("steps")
	p.twoSteps()
	ADDQ(operand.Imm(uint64(2*p.lanes*p.size)), p.offset)
	DECQ(left)
	JNZ(operand.LabelRef("steps"))
	Label("end")
	end()
}

// load hands out the registers and loads the parameters.
func (p *packing) load() {
	g, v := general(), p.vectors()
	p.table, p.offset, p.lane, p.lane3, p.stride = g.one(), g.one(), g.one(), g.one(), g.one()
	p.quads, p.rows = g.take(4), g.take(3)
	p.a, p.b = v.take(p.group), v.take(p.group)
	p.spare = p.b[0]
	if p.bytes == 64 {
		p.spare = p.a[0] // the columns are in b
	}
	Load(Param("lane"), p.lane)
	Load(Param("dst"), p.quads[0])
	toBytes(p.bits, p.lane)
	LEAQ(operand.Mem{Base: p.lane, Index: p.lane, Scale: 2}, p.lane3)
	for q := range 3 {
		LEAQ(operand.Mem{Base: p.quads[q], Index: p.lane, Scale: 4}, p.quads[q+1])
	}
	Load(Param("src"), p.table)
	Load(Param("steps"), left)
	Load(Param("stride"), p.stride)
	toBytes(p.bits, p.stride)
}

// laneAt is byte disp of lane l.
func (p *packing) laneAt(l, disp int) operand.Mem {
	m := operand.Mem{Base: p.quads[l/4], Disp: disp}
	switch l % 4 {
	case 1, 2:
		m.Index, m.Scale = p.lane, uint8(l%4)
	case 3:
		m.Index, m.Scale = p.lane3, 1
	}
	return m
}

// twoSteps packs the words of two steps: a register of each row at a time.
func (p *packing) twoSteps() {
	for word := 0; word < 2*p.lanes; word += p.group {
		for i, column := range p.columns(word * p.size) {
			lane := (word + i) % p.lanes
			p.store(column, lane)
			if lane == p.lanes-1 {
				for _, q := range p.quads {
					ADDQ(p.stride, q)
				}
			}
		}
	}
}

// columns reads the words of each row that fill a register, disp bytes on, and returns
// the registers that hold their columns.
func (p *packing) columns(disp int) []reg.VecPhysical {
	// Halves of registers are loaded to where the transposition wants them: register
	// n/2*h+i gets half h of one row in its lower half, and of the row four further on in
	// its upper half.
	n, half := p.group, p.group*p.size/2
	for row := range n {
		r := p.rows[row%len(p.rows)]
		MOVQ(operand.Mem{Base: p.table, Disp: 8 * row}, r)
		for h := range 2 {
			m := operand.Mem{Base: r, Index: p.offset, Scale: 1, Disp: disp + h*half}
			loadHalf(m, half, row/4%2, p.a[n/2*h+row/8*4+row%4])
		}
	}
	transpose4(p.a, p.b)
	if n == 8 {
		return p.a
	}
	for h := range 2 {
		for e := range 4 {
			one, other := p.a[8*h+e], p.a[8*h+4+e]
			VSHUFF32X4(operand.U8(0x88), other, one, p.b[8*h+e])
			VSHUFF32X4(operand.U8(0xDD), other, one, p.b[8*h+4+e])
		}
	}
	return p.b
}

// loadHalf reads size bytes into the lower or upper part of the first 2·size of r.
func loadHalf(m operand.Mem, size, upper int, r reg.VecPhysical) {
	switch {
	case upper == 0:
		VMOVUPS(m, part(r, size))
	case size == 16:
		VINSERTF128(operand.Imm(1), m, y(r), y(r))
	default:
		VINSERTF64X4(operand.Imm(1), m, r, r)
	}
}

// transpose4 transposes 4×4 words in each 16 bytes of each four registers of a, in place; b is
// scratch.
func transpose4(a, b []reg.VecPhysical) {
	for i := 0; i < len(a); i += 2 {
		VUNPCKLPS(a[i+1], a[i], b[i])
		VUNPCKHPS(a[i+1], a[i], b[i+1])
	}
	for i := 0; i < len(a); i += 4 {
		for k := range 2 {
			VUNPCKLPD(b[i+2+k], b[i+k], a[i+2*k])
			VUNPCKHPD(b[i+2+k], b[i+k], a[i+2*k+1])
		}
	}
}

// store writes a register of float32, or of pairs, to a lane.
func (p *packing) store(r reg.VecPhysical, l int) {
	if p.bits == 32 {
		VMOVUPS(r, p.laneAt(l, 0))
		return
	}
	p.split(r, p.spare)
	VMOVUPD(r, p.laneAt(l, 0))
	VMOVUPD(p.spare, p.laneAt(l, p.bytes))
}

// split widens the float32 of r to float64 in r and high.
func (s isa) split(r, high reg.VecPhysical) {
	half := part(high, s.bytes/2)
	if s.bytes == 64 {
		VEXTRACTF64X4(operand.Imm(1), r, half)
	} else {
		VEXTRACTF128(operand.Imm(1), r, half)
	}
	VCVTPS2PD(part(r, s.bytes/2), r)
	VCVTPS2PD(half, high)
}
