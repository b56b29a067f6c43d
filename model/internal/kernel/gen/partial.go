package main

import (
	"fmt"

	. "github.com/mmcloughlin/avo/build"
	"github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

const (
	panelTerms   = 512 // numbers of a row in a panel
	partialTerms = 4   // terms in a turn of the inner loop
)

// partialSums is a kernel of PartialSums and its registers.
type partialSums struct {
	isa
	tokens int

	state, w, x, steps, turn reg.GPPhysical
	plan, plans              reg.GPPhysical // the present plan's part of the state, plans left

	sum, squares     []reg.VecPhysical // one per token and register of rows, token by token
	weights, squared []reg.VecPhysical
	number, term     reg.VecPhysical // a token's number and term, broadcast
	n                reg.VecPhysical
	exponent         reg.VecPhysical // mask of the bits of an exponent
	scratch          []reg.VecPhysical
}

// partials writes the kernels of PartialSums.
func (s isa) partials() {
	for _, tokens := range s.partialWidths {
		s.partial(tokens)
	}
}

// partial writes the kernel for a number of tokens.
func (s isa) partial(tokens int) {
	p := &partialSums{isa: s, tokens: tokens}
	function(fmt.Sprintf("%sPartial%d", s.name, tokens), "(state, w, x *float32, steps, turns int, n float32, plans, ends int)",
		partialDefinition(panelVectors*s.perVector(32), tokens))
	p.load()
	Label("step")
	Load(Param("turns"), p.turn)
	Label("terms")
	for k := range partialTerms {
		p.multiply(k)
	}
	ADDQ(operand.U32(partialTerms*s.bytes), p.w)
	ADDQ(operand.U32(partialTerms*2*tokens*4), p.x)
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
	MOVL(operand.U32(0x7f800000), p.turn.As32())
	MOVQ(p.turn, x(p.sum[0])) // the assembler lacks this for the upper 16 registers
	VPBROADCASTD(x(p.sum[0]), p.exponent)
	for i := range p.sum {
		VMOVUPS(p.at(p.state, 0, i), p.sum[i])
		VMOVUPS(p.at(p.state, 1, i), p.squares[i])
	}
}

// multiply adds the products of the term k places after the present one.
func (p *partialSums) multiply(k int) {
	for j, r := range p.weights {
		VMOVUPS(operand.Mem{Base: p.w, Disp: k*p.bytes + j*panelTerms*p.bytes}, r)
		VMULPS(r, r, p.squared[j])
	}
	for i := range p.tokens {
		at := 4 * (2*k*p.tokens + i)
		VBROADCASTSS(operand.Mem{Base: p.x, Disp: at}, p.number)
		VBROADCASTSS(operand.Mem{Base: p.x, Disp: at + 4*p.tokens}, p.term)
		for j := range p.weights {
			fma(32, p.weights[j], p.number, p.sum[panelVectors*i+j])
			fma(32, p.squared[j], p.term, p.squares[panelVectors*i+j])
		}
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
		p.and(p.exponent, a, a)
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
		p.and(p.exponent, r, a)
		VMOVUPS(p.at(p.plan, 1, i), b)
		VFMADD231PS(a, a, b)
		VMOVUPS(b, p.at(p.plan, 1, i))
	}
	Label("next")
	p.nextPlan()
	JMP(operand.LabelRef("end"))
	Label("store")
}

// and is d = a & b, bit by bit.
func (s isa) and(a, b, d operand.Op) {
	if s.bytes == 64 {
		VPANDD(a, b, d)
	} else {
		VANDPS(a, b, d)
	}
}
