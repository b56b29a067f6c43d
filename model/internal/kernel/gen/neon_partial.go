package main

// Instructions on four float32 that the assembler lacks.
const (
	fmul32        = 0x6e20dc00
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
	number, term, terms, a, b := v.one(), v.one(), v.one(), v.one(), v.one()
	const state, w, other, x, steps, turn, at = "R0", "R1", "R2", "R3", "R4", "R5", "R6"
	bytes := neonBytes * sums // size of one of the four states
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
	// update adds a·b to partial sum i.
	update := func(i int) {
		n.op("ADD $%d, %s, %s", 2*bytes+neonBytes*i, state, at)
		n.op("VLD1 (%s), [V%d.S4]", at, term)
		n.op("VFMLA V%d.S4, V%d.S4, V%d.S4", a, b, term)
		n.op("VST1 [V%d.S4], (%s)", term, at)
	}
	n.function("neonPartial4", "(state, w, x *float32, steps int, n float32, end bool)", 37,
		partialDefinition(4*partialGroups, partialTokens))
	n.op("MOVD state+0(FP), %s", state)
	n.op("MOVD w+8(FP), %s", w)
	n.op("MOVD x+16(FP), %s", x)
	n.op("MOVD steps+24(FP), %s", steps)
	n.op("MOVWU n+32(FP), %s", turn)
	n.op("VDUP %s, V%d.S4", turn, terms)
	n.op("ADD $%d, %s, %s", neonBytes*chainTerms, w, other)
	n.op("MOVD %s, %s", state, at)
	each("VLD1", sum)
	n.op("ADD $%d, %s, %s", 3*bytes, state, at)
	each("VLD1", squares)
	n.op("CBZ %s, last", steps)
	n.label("step")
	n.op("MOVD $%d, %s", lanes/2, turn)
	n.label("terms")
	for range 2 {
		n.op("VLD1.P 16(%s), [V%d.S4]", w, weights[0])
		n.op("VLD1.P 16(%s), [V%d.S4]", other, weights[1])
		n.op("VLD1.P 32(%s), [V%d.S4, V%d.S4]", x, number, term)
		for g, r := range weights {
			n.word(fmul32, r, r, squared[g], "FMUL.S4")
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
	for i, r := range sum {
		n.word(fmul32, terms, r, a, "FMUL.S4")
		n.op("VORR V%d.B16, V%[1]d.B16, V%d.B16", r, b)
		update(i)
	}
	n.op("SUBS $1, %s", steps)
	n.op("BNE step")
	n.label("last")
	n.op("MOVBU end+36(FP), %s", turn)
	n.op("CBZ %s, store", turn)
	for i, r := range sum {
		n.op("ADD $%d, %s, %s", bytes+neonBytes*i, state, at)
		n.op("VLD1 (%s), [V%d.S4]", at, a)
		n.word(fadd32, r, a, a, "FADD.S4")
		n.op("VST1 [V%d.S4], (%s)", a, at)
		n.op("VORR V%d.B16, V%[1]d.B16, V%d.B16", a, b)
		update(i)
		n.op("VEOR V%d.B16, V%[1]d.B16, V%[1]d.B16", r)
	}
	n.label("store")
	n.op("MOVD %s, %s", state, at)
	store(sum)
	n.op("ADD $%d, %s, %s", 3*bytes, state, at)
	store(squares)
	n.op("RET")
}

// byElement is d += a·b[i], fused.
func (n *neon) byElement(b, i, a, d int) {
	code := uint32(fmlaByElement) | uint32(i&1)<<21 | uint32(i>>1)<<11 | uint32(b)<<16 | uint32(a)<<5 | uint32(d)
	n.op("WORD $0x%08x // FMLA V%d.S[%d], V%d.S4, V%d.S4", code, b, i, a, d)
}
