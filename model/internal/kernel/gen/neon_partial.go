package main

// Instructions on four float32 that the assembler lacks.
const (
	fmul32        = 0x6e20dc00
	fsub32        = 0x4ea0d400
	cmhs32        = 0x6ea03c00 // all ones where, unsigned, the second operand is at least the first
	fmlaByElement = 0x4f801000
)

const (
	partialTokens = 4 // tokens, which fill a register
	partialGroups = 2 // groups of rows, a register each
)

// partialPack writes the kernel that rearranges four rows for PartialSums: an instruction that
// stores four registers interleaved.
func (n *neon) partialPack() {
	n.function("neonPack4", "(dst *float32, src *[16]*byte, steps, stride, lane int)", 40,
		"the packKernel of 4 rows of F32 with stride 64 and lane 4")
	n.op("MOVD dst+0(FP), R0")
	n.op("MOVD src+8(FP), R1")
	n.op("MOVD steps+16(FP), R2")
	n.op("LDP (R1), (R3, R4)")
	n.op("LDP 16(R1), (R5, R6)")
	n.op("LSL $2, R2")
	n.op("CBZ R2, end")
	n.label("four")
	for i := range 4 {
		n.op("VLD1.P 16(R%d), [V%d.S4]", 3+i, i)
	}
	n.op("VST4.P [V0.S4, V1.S4, V2.S4, V3.S4], 64(R0)")
	n.op("SUBS $1, R2")
	n.op("BNE four")
	n.label("end")
	n.op("RET")
}

// partial writes the kernel of PartialSums for 4 tokens and 8 rows.
func (n *neon) partial() {
	v := newBank(neonRegisters)
	sums := partialTokens * partialGroups // token i and group g at 2*i + g
	sum, squares := v.take(sums), v.take(sums)
	weights, squared := v.take(partialGroups), v.take(partialGroups)
	number, term, terms, mask := v.one(), v.one(), v.one(), v.one()
	above, half, short := v.one(), v.one(), v.one()   // constants of power and of rounding to 8 bits
	a, b, total := weights[0], weights[1], squared[0] // free between two steps
	const (
		state, w, other, x, steps, turn, at = "R0", "R1", "R2", "R3", "R4", "R5", "R6"
		plans, start, result                = "R7", "R8", "R9" // plans left; the present plan's two sums
	)
	bytes := neonBytes * sums // size of a sum of the state
	each := func(load string, registers []int) {
		for i := 0; i < len(registers); i += 4 {
			n.op("%s.P 64(%s), %s", load, at, four(registers[i:]))
		}
	}
	store := func(registers []int) {
		for i := 0; i < len(registers); i += 4 {
			n.op("VST1.P %s, 64(%s)", four(registers[i:]), at)
		}
	}
	firstPlan := func() {
		n.op("ADD $%d, %s, %s", 2*bytes, state, start)
		n.op("ADD $%d, %s, %s", 3*bytes, state, result)
	}
	// add adds a·b to the present plan's sum, and moves to the next register of it.
	add := func() {
		n.op("VLD1 (%s), [V%d.S4]", result, total)
		n.op("VFMLA V%d.S4, V%d.S4, V%d.S4", a, b, total)
		n.op("VST1.P [V%d.S4], %d(%s)", total, neonBytes, result)
	}
	// power sets a to power of r.
	power := func(r int) {
		n.word(fmul32, above, r, a, "FMUL.S4")
		n.op("VAND V%d.B16, V%d.B16, V%d.B16", mask, a, a)
	}
	// next moves over sums of the state.
	next := func(sums int) {
		n.op("ADD $%d, %s", sums*bytes, start)
		n.op("ADD $%d, %s", sums*bytes, result)
	}
	n.function("neonPartial4", partialSignature, 64, partialDefinition(4*partialGroups, partialTokens))
	n.op("MOVD state+0(FP), %s", state)
	n.op("MOVD w+8(FP), %s", w)
	n.op("MOVD x+16(FP), %s", x)
	n.op("MOVD steps+24(FP), %s", steps)
	n.op("MOVWU n+40(FP), %s", turn)
	n.op("VDUP %s, V%d.S4", turn, terms)
	n.constant(exponent, turn, mask)
	n.constant(aboveOne, turn, above)
	n.constant(halfBit, turn, half)
	n.constant(upperHalf, turn, short)
	n.op("ADD $%d, %s, %s", neonBytes*panelTerms, w, other)
	n.op("MOVD %s, %s", state, at)
	each("VLD1", sum)
	each("VLD1", squares)
	n.label("step")
	n.op("MOVD turns+32(FP), %s", turn)
	n.label("terms")
	for range partialTerms {
		n.op("VLD1.P 16(%s), [V%d.S4]", w, weights[0])
		n.op("VLD1.P 16(%s), [V%d.S4]", other, weights[1])
		n.op("VLD1.P 32(%s), [V%d.S4, V%d.S4]", x, number, term)
		for g, r := range weights {
			n.word(fmul32, r, r, squared[g], "FMUL.S4")
			n.round(squared[g], half, short)
		}
		for i := range partialTokens {
			for g := range partialGroups {
				n.byElement(number, i, weights[g], sum[partialGroups*i+g])
				n.byElement(term, i, squared[g], squares[partialGroups*i+g])
			}
		}
	}
	n.op("SUBS $1, %s", turn)
	n.op("BNE terms")
	n.op("MOVD plans+48(FP), %s", plans)
	n.op("CBZ %s, sampled", plans)
	firstPlan()
	n.label("plan")
	for _, r := range sum {
		n.op("VLD1.P %d(%s), [V%d.S4]", neonBytes, start, a)
		n.word(fsub32, a, r, a, "FSUB.S4")
		power(a)
		n.word(fmul32, terms, a, b, "FMUL.S4")
		add()
	}
	next(1)
	n.op("SUBS $1, %s", plans)
	n.op("BNE plan")
	n.label("sampled")
	n.op("SUBS $1, %s", steps)
	n.op("BNE step")
	n.op("MOVD ends+56(FP), %s", plans)
	firstPlan()
	n.label("end")
	n.op("CBZ %s, store", plans)
	n.op("AND $1, %s, %s", plans, turn)
	n.op("LSR $1, %s", plans)
	n.op("CBZ %s, over", turn)
	for _, r := range sum {
		n.op("VST1.P [V%d.S4], %d(%s)", r, neonBytes, start)
		power(r)
		n.op("VORR V%d.B16, V%[1]d.B16, V%d.B16", a, b)
		add()
	}
	next(1)
	n.op("JMP end")
	n.label("over")
	next(2)
	n.op("JMP end")
	n.label("store")
	n.op("MOVD %s, %s", state, at)
	store(sum)
	store(squares)
	n.op("RET")
}

// constant sets all places of a vector register to a value, by way of a general register.
func (n *neon) constant(value int, general string, register int) {
	n.op("MOVD $0x%x, %s", value, general)
	n.op("VDUP %s, V%d.S4", general, register)
}

// round rounds numbers to 8 bits, ties away from 0, with the constants halfBit and upperHalf.
func (n *neon) round(r, half, short int) {
	n.op("VADD V%d.S4, V%d.S4, V%d.S4", half, r, r)
	n.op("VAND V%d.B16, V%d.B16, V%d.B16", short, r, r)
}

// shorten writes the kernel of short for weights.
func (n *neon) shorten() {
	const dst, src, left, general = "R0", "R1", "R2", "R3"
	v := newBank(neonRegisters)
	r, large, half, short, sizes, least := v.take(4), v.one(), v.one(), v.one(), v.one(), v.one()
	n.function("neonShorten", "(dst, src *float32, n int)", 24, "short of weights; dst may be src")
	n.op("MOVD dst+0(FP), %s", dst)
	n.op("MOVD src+8(FP), %s", src)
	n.op("MOVD n+16(FP), %s", left)
	n.constant(halfBit, general, half)
	n.constant(upperHalf, general, short)
	n.constant(magnitude, general, sizes)
	n.constant(leastWeight, general, least)
	n.label("numbers")
	n.op("VLD1.P 64(%s), %s", src, four(r))
	for _, r := range r {
		n.op("VAND V%d.B16, V%d.B16, V%d.B16", sizes, r, large)
		n.word(cmhs32, least, large, large, "CMHS.S4")
		n.round(r, half, short)
		n.op("VAND V%d.B16, V%d.B16, V%d.B16", large, r, r)
	}
	n.op("VST1.P %s, 64(%s)", four(r), dst)
	n.op("SUBS $%d, %s", lanes, left)
	n.op("BNE numbers")
	n.op("RET")
}

// byElement is d += a·b[i], fused.
func (n *neon) byElement(b, i, a, d int) {
	code := uint32(fmlaByElement) | uint32(i&1)<<21 | uint32(i>>1)<<11 | uint32(b)<<16 | uint32(a)<<5 | uint32(d)
	n.op("WORD $0x%08x // FMLA V%d.S[%d], V%d.S4, V%d.S4", code, b, i, a, d)
}
