package main

import (
	"fmt"

	. "github.com/mmcloughlin/avo/build"
	"github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

const (
	panelVectors = 2 // registers that the rows of a panel of weights fill
	unrolled     = 2 // steps between two prefetches and between two tests of the end
	// mostNumbers is the largest number of registers that receive the numbers of tokens in
	// turn; fewer where fewer are free.
	mostNumbers = 4
)

// addition is an add kernel, or an addPairs kernel, and the registers that it uses.
type addition struct {
	isa
	bits, tokens int
	pairs        bool

	acc    reg.GPPhysical // accumulators of the first panel
	weight reg.GPPhysical // first step of the lane of weights
	token  reg.GPPhysical // first step of the panel of tokens
	w, x   reg.GPPhysical // present step of weights and tokens
	out    reg.GPPhysical // output of the present token
	stride reg.GPPhysical // bytes between tokens of out
	ahead  reg.GPPhysical // address to prefetch next
	pace   reg.GPPhysical // bytes between addresses to prefetch
	again  reg.GPPhysical
	done   reg.GPPhysical // bytes of accumulators of the panels before
	panels reg.GPPhysical // panels left
	wide   reg.GPPhysical // present step of the widened pairs

	sum     []reg.VecPhysical // one per token and register of rows, token by token
	weights []reg.VecPhysical
	number  []reg.VecPhysical // a number of a token, broadcast
	upper   reg.VecPhysical   // mask of the odd numbers of pairs, with AVX-512
}

// panels writes all kernels that work on panels.
func (s isa) panels() {
	s.pack(bf16, 32)
	for _, bits := range []int{32, 64} {
		s.pack(f32, bits)
		for _, tokens := range s.panelWidths {
			s.add(bits, tokens, false)
			s.add(bits, tokens, true)
		}
	}
}

// add writes the kernel that multiplies one lane of a panel of weights with panels of
// tokens, or one lane of pairs of BF16 with one panel.
func (s isa) add(bits, tokens int, pairs bool) {
	a := &addition{isa: s, bits: bits, tokens: tokens, pairs: pairs}
	a.begin()
	a.load()
	Label("panel")
	MOVQ(a.weight, a.w)
	MOVQ(a.token, a.x)
	a.accumulators()
	if pairs {
		Load(Param("odd"), left.As8())
		TESTB(left.As8(), left.As8())
		JNZ(operand.LabelRef("odd"))
		a.loop("even", false)
		JMP(operand.LabelRef("fold"))
		Label("odd")
		if s.bytes == 64 {
			VPTERNLOGD(operand.U8(0xff), a.upper, a.upper, a.upper)
			VPSLLD(operand.Imm(16), a.upper, a.upper)
		}
	}
	a.loop("", true)
	Label("fold")
	a.fold()
	Label("write")
	for i := range tokens {
		for j := range a.weights {
			VMOVUPS(a.sum[panelVectors*i+j], operand.Mem{Base: a.out, Disp: j * s.bytes})
		}
		ADDQ(a.stride, a.out)
	}
	if !pairs {
		ADDQ(operand.U32(len(a.sum)*s.bytes), a.done)
		Load(Param("next"), left)
		LEAQ(operand.Mem{Base: a.token, Index: left, Scale: uint8(bits / 8)}, a.token)
		DECQ(a.panels)
		JNZ(operand.LabelRef("panel"))
	}
	end()
}

// rows returns the number of rows of weights in a panel.
func (a *addition) rows() int { return panelVectors * a.perVector(a.bits) }

// begin starts the function.
func (a *addition) begin() {
	name, kind, operands := "Add", "addKernel", "w, x *float%[1]d, steps, panels, next int"
	if a.pairs {
		name, kind = "AddPairs", "addPairsKernel"
		operands = "pairs *uint32, odd bool, w, x *float%[1]d, steps int"
	}
	signature := "(acc *float%[1]d, " + operands + ", again bool, pending *float%[1]d, folds, lane int, " +
		"out *float%[1]d, stride int, ahead uintptr, pace int)"
	function(fmt.Sprintf("%s%s%dx%d", a.isa.name, name, a.bits, a.tokens), fmt.Sprintf(signature, a.bits),
		fmt.Sprintf("the %s of %d rows and %d tokens", kind, a.rows(), a.tokens))
}

// load hands out the registers and loads the parameters.
func (a *addition) load() {
	g, v := general(), a.vectors()
	a.acc, a.panels, a.again, a.weight, a.token = g.one(), g.one(), g.one(), g.one(), g.one()
	a.w, a.x, a.out, a.stride, a.ahead, a.pace, a.done = g.one(), g.one(), g.one(), g.one(), g.one(), g.one(), g.one()
	a.wide = a.panels // pairs come with one panel, which needs no counter
	a.sum, a.weights = v.take(panelVectors*a.tokens), v.take(panelVectors)
	if a.pairs && a.bytes == 64 {
		a.upper = v.one()
	}
	a.number = v.take(min(mostNumbers, len(v.free)))
	Load(Param("acc"), a.acc)
	Load(Param("x"), a.token)
	if a.pairs {
		Load(Param("pairs"), a.weight)
		Load(Param("w"), a.wide)
	} else {
		Load(Param("w"), a.weight)
		Load(Param("panels"), a.panels)
	}
	Load(Param("again"), a.again.As8())
	Load(Param("out"), a.out)
	Load(Param("stride"), a.stride)
	toBytes(a.bits, a.stride)
	Load(Param("ahead"), a.ahead)
	Load(Param("pace"), a.pace)
	XORQ(a.done, a.done)
}

// accumulators sets the sums of a panel to 0 or to the accumulators.
func (a *addition) accumulators() {
	TESTB(a.again.As8(), a.again.As8())
	JNZ(operand.LabelRef("resume"))
	for _, r := range a.sum {
		a.zero(r)
	}
	JMP(operand.LabelRef("begin"))
	Label("resume")
	for i, r := range a.sum {
		VMOVUPS(operand.Mem{Base: a.acc, Index: a.done, Scale: 1, Disp: i * a.bytes}, r)
	}
	Label("begin")
}

// loop runs all steps, unrolled of them at a time, and jumps to the fold.
func (a *addition) loop(label string, odd bool) {
	Load(Param("steps"), left)
	SHRQ(operand.Imm(1), left)
	JZ(operand.LabelRef(label + "rest"))
	Label(label + "steps")
	for k := range unrolled {
		a.step(k, odd)
	}
	ADDQ(operand.U32(unrolled*a.stored()), a.w)
	ADDQ(operand.U32(unrolled*a.tokens*a.bits/8), a.x)
	if a.pairs {
		ADDQ(operand.U32(unrolled*panelVectors*a.bytes), a.wide)
	}
	DECQ(left)
	JNZ(operand.LabelRef(label + "steps"))
	Label(label + "rest")
	Load(Param("steps"), left)
	ANDQ(operand.Imm(unrolled-1), left)
	JZ(operand.LabelRef("fold"))
	a.step(0, odd)
}

// stored returns the bytes of a step's weights: widened numbers or pairs.
func (a *addition) stored() int {
	if a.pairs {
		return 4 * a.rows()
	}
	return panelVectors * a.bytes
}

// step multiplies the weights with the tokens of the step k places after the present one.
func (a *addition) step(k int, odd bool) {
	if a.pairs {
		a.widenPairs(operand.Mem{Base: a.w, Disp: a.stored() * k}, odd)
	}
	for j, r := range a.weights {
		disp := (panelVectors*k + j) * a.bytes
		if a.pairs {
			VMOVUPS(r, operand.Mem{Base: a.wide, Disp: disp})
		} else {
			VMOVUPS(operand.Mem{Base: a.w, Disp: disp}, r)
		}
	}
	for i := range a.tokens {
		v, m := a.number[i%len(a.number)], operand.Mem{Base: a.x, Disp: (a.tokens*k + i) * a.bits / 8}
		if a.bits == 32 {
			VBROADCASTSS(m, v)
		} else {
			VBROADCASTSD(m, v)
		}
		for j, w := range a.weights {
			fma(a.bits, w, v, a.sum[panelVectors*i+j])
		}
	}
	if k == unrolled-1 {
		PREFETCHT1(operand.Mem{Base: a.ahead})
		ADDQ(a.pace, a.ahead)
	}
}

// widenPairs reads the odd or even numbers of pairs of BF16 into the weights.
func (a *addition) widenPairs(m operand.Mem, odd bool) {
	for _, r := range a.weights[:64/a.bits] {
		switch {
		case a.bytes == 64 && odd:
			VPANDD(m, a.upper, r)
		case a.bytes == 64:
			VPSLLD(operand.Imm(16), m, r)
		default:
			VMOVUPS(m, r)
			if odd {
				VPSRLD(operand.Imm(16), r, r)
			}
			VPSLLD(operand.Imm(16), r, r)
		}
		m.Disp += a.bytes
	}
	if a.bits == 64 {
		a.split(a.weights[0], a.weights[1])
	}
}

// fold adds the pending sums.
func (a *addition) fold() {
	pending, distance := a.w, a.x // the products no longer need them
	Load(Param("folds"), left)
	TESTQ(left, left)
	JZ(operand.LabelRef("write"))
	Load(Param("lane"), distance)
	toBytes(a.bits, distance)
	Load(Param("pending"), pending)
	ADDQ(a.done, pending)
	Label("folds")
	for i, r := range a.sum {
		m := operand.Mem{Base: pending, Disp: i * a.bytes}
		if a.bits == 32 {
			VADDPS(m, r, r)
		} else {
			VADDPD(m, r, r)
		}
	}
	SUBQ(distance, pending)
	DECQ(left)
	JNZ(operand.LabelRef("folds"))
}
