package main

import (
	"fmt"

	. "github.com/mmcloughlin/avo/build"
	"github.com/mmcloughlin/avo/ir"
	"github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

const (
	panelTerms   = 512 // numbers of a row in a panel
	partialTerms = 4   // terms in a turn of the inner loop

	// Bits of a float32.
	leastWeight = 0x20000000 // 2^-63
	halfBit     = 0x8000     // half of the last of 8 bits
	upperHalf   = 0xffff0000 // all 8 bits, with exponent and sign
	magnitude   = 0x7fffffff
	exponent    = 0x7f800000
	aboveOne    = 0x3f810000 // 1 + 2^-7
)

// partialSums is a kernel of PartialSums and its registers.
type partialSums struct {
	isa
	tokens int
	pairs  bool // numbers lie in pairs of BF16, which an instruction multiplies

	state, w, x, steps, turn reg.GPPhysical
	plan, plans              reg.GPPhysical // the present plan's part of the state, plans left

	sum, squares     []reg.VecPhysical // one per token and register of rows, token by token
	weights, squared []reg.VecPhysical
	number, term     reg.VecPhysical // a token's number and term, broadcast
	half, short      operand.Op      // constants of round, in registers where some are free
	n                reg.VecPhysical
	exponent         reg.VecPhysical // mask of the bits of an exponent
	scratch          []reg.VecPhysical
}

// The constants of PartialSums, in all places of a register.
var halfShort, shortMask, aboveShort operand.Mem

// partialConstants declares them.
func partialConstants() {
	all := func(name string, v uint32) operand.Mem {
		m := GLOBL(name, 8|16) // RODATA|NOPTR
		for i := range 16 {
			DATA(4*i, operand.U32(v))
		}
		return m
	}
	halfShort, shortMask, aboveShort = all("halfShort", halfBit), all("shortMask", upperHalf), all("aboveShort", aboveOne)
}

// partials writes the kernels of PartialSums.
func (s isa) partials(pairs bool) {
	if pairs {
		s.shortPairs(false)
		s.shortPairs(true)
	} else {
		s.shorten()
	}
	for _, tokens := range s.partialWidths {
		s.partial(tokens, pairs)
	}
}

// partial writes the kernel for a number of tokens.
func (s isa) partial(tokens int, pairs bool) {
	p := &partialSums{isa: s, tokens: tokens, pairs: pairs}
	kind := "Partial"
	if pairs {
		kind = "PairsPartial"
	}
	function(fmt.Sprintf("%s%s%d", s.name, kind, tokens), partialSignature,
		partialDefinition(panelVectors*s.perVector(32), tokens))
	p.load()
	Label("step")
	Load(Param("turns"), p.turn)
	Label("terms")
	terms := partialTerms
	if pairs {
		terms /= 2
	}
	for k := range terms {
		p.multiply(k)
	}
	ADDQ(operand.U32(terms*s.bytes), p.w)
	ADDQ(operand.U32(terms*2*tokens*4), p.x)
	DECQ(p.turn)
	JNZ(operand.LabelRef("terms"))
	p.sample()
	DECQ(p.steps)
	JNZ(operand.LabelRef("step"))
	p.end()
	for i := range p.sum {
		VMOVUPS(p.sum[i], p.at(p.state, 0, i))
		VMOVUPS(p.squares[i], p.at(p.state, 1, i))
	}
	end()
}

// partialSignature has the parameters of a kernel of PartialSums.
const partialSignature = "(state, w, x *float32, steps, turns int, n float32, plans, ends int)"

// partialDefinition describes a kernel of PartialSums.
func partialDefinition(rows, tokens int) string {
	return fmt.Sprintf("the partialKernel of %d rows and %d tokens", rows, tokens)
}

// at is register i of a sum of the state, counted from a place in the state.
func (p *partialSums) at(from reg.GPPhysical, sum, i int) operand.Mem {
	return operand.Mem{Base: from, Disp: (sum*len(p.sum) + i) * p.bytes}
}

// load hands out the registers and loads the parameters.
func (p *partialSums) load() {
	g, v := general(), p.vectors()
	p.state, p.w, p.x, p.steps, p.turn, p.plan, p.plans = g.one(), g.one(), g.one(), left, g.one(), g.one(), g.one()
	p.sum, p.squares = v.take(panelVectors*p.tokens), v.take(panelVectors*p.tokens)
	p.weights, p.squared = v.take(panelVectors), v.take(panelVectors)
	p.number, p.term, p.n, p.exponent = v.one(), v.one(), v.one(), v.one()
	if p.half, p.short = halfShort, shortMask; p.bytes == 64 && !p.pairs {
		p.half, p.short = v.one(), v.one()
		VMOVUPS(halfShort, p.half)
		VMOVUPS(shortMask, p.short)
	}
	p.scratch = []reg.VecPhysical{p.weights[0], p.squared[0], p.weights[1], p.squared[1], p.number, p.term}
	Load(Param("state"), p.state)
	Load(Param("w"), p.w)
	Load(Param("x"), p.x)
	Load(Param("steps"), p.steps)
	n, err := Param("n").Resolve()
	if err != nil {
		panic(err)
	}
	VBROADCASTSS(n.Addr, p.n)
	MOVL(operand.U32(exponent), p.turn.As32())
	VMOVD(p.turn.As32(), x(p.sum[0])) // the assembler lacks this for the upper 16 registers
	VPBROADCASTD(x(p.sum[0]), p.exponent)
	for i := range p.sum {
		VMOVUPS(p.at(p.state, 0, i), p.sum[i])
		VMOVUPS(p.at(p.state, 1, i), p.squares[i])
	}
}

// multiply adds the products of the term, or pair of terms, k places after the present one.
func (p *partialSums) multiply(k int) {
	for j, r := range p.weights {
		at := operand.Mem{Base: p.w, Disp: k*p.bytes + j*panelTerms*p.bytes}
		VMOVUPS(at, r)
		if p.pairs {
			at.Disp += panelTerms / 2 * p.bytes
			VMOVUPS(at, p.squared[j])
			continue
		}
		VMULPS(r, r, p.squared[j])
		p.round(p.squared[j], p.half, p.short)
	}
	for i := range p.tokens {
		at := 4 * (2*k*p.tokens + i)
		VBROADCASTSS(operand.Mem{Base: p.x, Disp: at}, p.number)
		VBROADCASTSS(operand.Mem{Base: p.x, Disp: at + 4*p.tokens}, p.term)
		for j := range p.weights {
			p.add(p.weights[j], p.number, p.sum[panelVectors*i+j])
			p.add(p.squared[j], p.term, p.squares[panelVectors*i+j])
		}
	}
}

// add is sum += a·b.
func (p *partialSums) add(a, b, sum reg.VecPhysical) {
	if p.pairs {
		dotPairs(a, b, sum)
	} else {
		fma(32, a, b, sum)
	}
}

// dotPairs is VDPBF16PS, which the assembler lacks: sum += a·b of the upper halves of each place, then of the lower
// halves.
func dotPairs(a, b, sum reg.VecPhysical) {
	n := func(r reg.VecPhysical) uint32 { return uint32(r.PhysicalIndex()) }
	not := func(r reg.VecPhysical, bit int) uint32 { return ^n(r) >> bit & 1 }
	const map0F38, one, prefixF3, wide = 2, 1 << 2, 2, 2 << 5
	p0 := not(sum, 3)<<7 | not(a, 4)<<6 | not(a, 3)<<5 | not(sum, 4)<<4 | map0F38
	p1 := ^n(b)&15<<3 | one | prefixF3
	p2 := wide | not(b, 4)<<3
	code := operand.U32(0x62 | p0<<8 | p1<<16 | p2<<24)
	rest := operand.U16(0x52 | (0xc0|n(sum)&7<<3|n(a)&7)<<8)
	Instruction(&ir.Instruction{Opcode: "LONG", Operands: []operand.Op{code}})
	Instruction(&ir.Instruction{Opcode: "WORD", Operands: []operand.Op{rest}})
}

// round rounds numbers to 8 bits, ties away from 0, with the constants halfShort and shortMask.
func (s isa) round(r reg.VecPhysical, half, short operand.Op) {
	VPADDD(half, r, r)
	s.and(short, r, r)
}

// shorten writes the kernel of short for weights.
func (s isa) shorten() {
	e := s.beginElement("Shorten", "(dst, src *float32, n int)", "short of weights; dst may be src")
	v, short := e.vector.one(), e.short()
	e.loop(4, 4, func() {
		for i := range lanes / s.perVector(32) {
			VMOVUPS(e.from(i*s.bytes), v)
			short(v)
			VMOVUPS(v, e.to(i*s.bytes))
		}
	})
}

// shortPairs writes the kernel that makes a group of a panel of pairs from one of numbers, or from one of stored pairs of
// BF16, whose first number is in the lower half.
func (s isa) shortPairs(stored bool) {
	name, src := "ShortPairs", 2
	if stored {
		name, src = "ShortStored", 1
	}
	e := s.beginElement(name, "(dst, src *float32, n int)", "short of weights and of their squares, in pairs")
	number, square, short := e.vector.take(2), e.vector.take(2), e.short()
	SHRQ(operand.Imm(5), left)
	Label("pair")
	if stored {
		VPSLLD(operand.Imm(16), e.from(0), number[0])
		VMOVUPS(e.from(0), number[1])
		s.and(shortMask, number[1], number[1])
	} else {
		VMOVUPS(e.from(0), number[0])
		VMOVUPS(e.from(s.bytes), number[1])
	}
	for i, r := range number {
		short(r)
		VMULPS(r, r, square[i])
		s.round(square[i], halfShort, shortMask)
	}
	for i, r := range [][]reg.VecPhysical{number, square} {
		VPSRLD(operand.Imm(16), r[1], r[1])
		VPORD(r[0], r[1], r[1])
		VMOVUPS(r[1], e.to(i*panelTerms/2*s.bytes))
	}
	ADDQ(operand.U32(src*s.bytes), e.src)
	ADDQ(operand.U32(s.bytes), e.dst)
	DECQ(left)
	JNZ(operand.LabelRef("pair"))
	end()
}

// short returns a function that rounds numbers, or sets them to 0 where they are less than the least weight.
func (e *element) short() func(v reg.VecPhysical) {
	large, sizes, before := e.vector.one(), e.constant32(magnitude), e.constant32(leastWeight-1)
	return func(v reg.VecPhysical) {
		e.and(sizes, v, large)
		if e.bytes == 64 {
			VPCMPGTD(before, large, reg.K1)
			VPADDD(halfShort, v, v)
			VPANDD_Z(shortMask, v, reg.K1, v)
			return
		}
		VPCMPGTD(before, large, large)
		e.round(v, halfShort, shortMask)
		VPAND(large, v, v)
	}
}

// firstPlan sets plan to the first plan's part of the state.
func (p *partialSums) firstPlan() { LEAQ(p.at(p.state, 2, 0), p.plan) }

// nextPlan moves plan to the next plan's part of the state.
func (p *partialSums) nextPlan() { ADDQ(operand.U32(2*len(p.sum)*p.bytes), p.plan) }

// sample adds n·r² of the present partial sums to the sums of all plans.
func (p *partialSums) sample() {
	Load(Param("plans"), p.plans)
	TESTQ(p.plans, p.plans)
	JZ(operand.LabelRef("sampled"))
	p.firstPlan()
	Label("plan")
	for i, r := range p.sum {
		a, b := p.scratch[2*i%len(p.scratch)], p.scratch[(2*i+1)%len(p.scratch)]
		VSUBPS(p.at(p.plan, 0, i), r, a)
		p.power(a, a)
		VMULPS(p.n, a, b)
		VFMADD213PS(p.at(p.plan, 1, i), a, b)
		VMOVUPS(b, p.at(p.plan, 1, i))
	}
	p.nextPlan()
	DECQ(p.plans)
	JNZ(operand.LabelRef("plan"))
	Label("sampled")
}

// end ends the chains of the plans whose bits are set in the parameter ends.
func (p *partialSums) end() {
	Load(Param("ends"), p.plans)
	p.firstPlan()
	Label("end")
	TESTQ(p.plans, p.plans)
	JZ(operand.LabelRef("store"))
	SHRQ(operand.Imm(1), p.plans)
	JCC(operand.LabelRef("next"))
	for i, r := range p.sum {
		a, b := p.scratch[2*i%len(p.scratch)], p.scratch[(2*i+1)%len(p.scratch)]
		VMOVUPS(r, p.at(p.plan, 0, i))
		p.power(r, a)
		VMOVUPS(p.at(p.plan, 1, i), b)
		VFMADD231PS(a, a, b)
		VMOVUPS(b, p.at(p.plan, 1, i))
	}
	Label("next")
	p.nextPlan()
	JMP(operand.LabelRef("end"))
	Label("store")
}

// power is d = power(r).
func (p *partialSums) power(r, d reg.VecPhysical) {
	VMULPS(aboveShort, r, d)
	p.and(p.exponent, d, d)
}

// and is d = a & b, bit by bit.
func (s isa) and(a, b, d operand.Op) {
	if s.bytes == 64 {
		VPANDD(a, b, d)
	} else {
		VANDPS(a, b, d)
	}
}
