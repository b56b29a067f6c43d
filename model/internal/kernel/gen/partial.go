package main

import (
	"fmt"

	. "github.com/mmcloughlin/avo/build"
	"github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

const (
	chainTerms   = 512 // numbers of a row in a panel
	partialTerms = 4   // terms in a turn of the inner loop
)

// partialSums is a kernel of PartialSums and its registers.
type partialSums struct {
	isa
	tokens int

	state, w, x, steps, turn reg.GPPhysical

	sum, squares     []reg.VecPhysical // one per token and register of rows, token by token
	weights, squared []reg.VecPhysical
	number, term     reg.VecPhysical // a token's number and term, broadcast
	n, scratch       reg.VecPhysical
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
	function(fmt.Sprintf("%sPartial%d", s.name, tokens), "(state, w, x *float32, steps int, n float32, end bool)",
		partialDefinition(panelVectors*s.perVector(32), tokens))
	p.load()
	TESTQ(p.steps, p.steps)
	JZ(operand.LabelRef("last"))
	Label("step")
	MOVQ(operand.U32(lanes/partialTerms), p.turn)
	Label("terms")
	for k := range partialTerms {
		p.multiply(k)
	}
	ADDQ(operand.U32(partialTerms*s.bytes), p.w)
	ADDQ(operand.U32(partialTerms*2*tokens*4), p.x)
	DECQ(p.turn)
	JNZ(operand.LabelRef("terms"))
	for i, r := range p.sum {
		VMULPS(p.n, r, p.scratch)
		VFMADD213PS(p.at(2, i), r, p.scratch)
		VMOVUPS(p.scratch, p.at(2, i))
	}
	DECQ(p.steps)
	JNZ(operand.LabelRef("step"))
	Label("last")
	p.end()
	for i := range p.sum {
		VMOVUPS(p.sum[i], p.at(0, i))
		VMOVUPS(p.squares[i], p.at(3, i))
	}
	end()
}

// partialDefinition describes a kernel of PartialSums.
func partialDefinition(rows, tokens int) string {
	return fmt.Sprintf("the partialKernel of %d rows and %d tokens", rows, tokens)
}

// at is register i of one of the four states.
func (p *partialSums) at(state, i int) operand.Mem {
	return operand.Mem{Base: p.state, Disp: (state*len(p.sum) + i) * p.bytes}
}

// load hands out the registers and loads the parameters.
func (p *partialSums) load() {
	g, v := general(), p.vectors()
	p.state, p.w, p.x, p.steps, p.turn = g.one(), g.one(), g.one(), left, g.one()
	p.sum, p.squares = v.take(panelVectors*p.tokens), v.take(panelVectors*p.tokens)
	p.weights, p.squared = v.take(panelVectors), v.take(panelVectors)
	p.number, p.term, p.n, p.scratch = v.one(), v.one(), v.one(), v.one()
	Load(Param("state"), p.state)
	Load(Param("w"), p.w)
	Load(Param("x"), p.x)
	Load(Param("steps"), p.steps)
	n, err := Param("n").Resolve()
	if err != nil {
		panic(err)
	}
	VBROADCASTSS(n.Addr, p.n)
	for i := range p.sum {
		VMOVUPS(p.at(0, i), p.sum[i])
		VMOVUPS(p.at(3, i), p.squares[i])
	}
}

// multiply adds the products of the term k places after the present one.
func (p *partialSums) multiply(k int) {
	for j, r := range p.weights {
		VMOVUPS(operand.Mem{Base: p.w, Disp: k*p.bytes + j*chainTerms*p.bytes}, r)
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

// end ends a chain, if the parameter end is true.
func (p *partialSums) end() {
	Load(Param("end"), p.turn.As8())
	TESTB(p.turn.As8(), p.turn.As8())
	JZ(operand.LabelRef("store"))
	for i, r := range p.sum {
		VADDPS(p.at(1, i), r, p.scratch)
		VMOVUPS(p.scratch, p.at(1, i))
		VFMADD213PS(p.at(2, i), p.scratch, p.scratch)
		VMOVUPS(p.scratch, p.at(2, i))
		p.zero(r)
	}
	Label("store")
}
