package main

import (
	"fmt"

	"github.com/mmcloughlin/avo/attr"
	. "github.com/mmcloughlin/avo/build"
	"github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

// The kernels of packed panels. A panel holds m rows of L numbers, L a multiple of 16,
// for registers of l lanes: [16/l][L/16][m][l], so that what a tile wants next is what
// comes next in memory, and each group of lanes is a panel of its own.

// isa is an instruction set that panels are written for.
type isa struct {
	name  string
	r     []reg.VecPhysical
	bytes int // of a register
	width int // of the widest tile
}

var (
	avx512ISA = isa{"avx512", z, 64, 6}
	avx2ISA   = isa{"avx2", y, 32, 3}
)

// General registers of the panels' kernels.
var (
	group  = reg.R8  // bytes between two groups of lanes
	group3 = reg.R9  // three times that
	stride = reg.R10 // bytes between two blocks
	ask    = reg.R11 // what is prefetched
)

func (s isa) panels() {
	for _, bits := range []int{32, 64} {
		for _, f := range formats {
			s.pack(f, bits)
		}
		for tokens := 1; tokens <= s.width; tokens++ {
			s.add(bits, tokens)
		}
	}
	s.fold32()
	s.fold64()
}

func (s isa) lanes(bits int) int { return 8 * s.bytes / bits }

// fma is acc += a·b.
func fma(bits int, a, b, acc operand.Op) {
	if bits == 32 {
		VFMADD231PS(a, b, acc)
	} else {
		VFMADD231PD(a, b, acc)
	}
}

// pack writes the kernel that widens a row into its places in a panel.
func (s isa) pack(f format, bits int) {
	name := fmt.Sprintf("%sPack%d%s", s.name, bits, f.name)
	TEXT(name, attr.NOSPLIT, fmt.Sprintf("func(dst *float%d, src *byte, n, stride, group int)", bits))
	Doc(
		fmt.Sprintf("%s widens a row of %s into a panel and asks for the row behind it. n is a", name, f.name),
		"multiple of 16.",
		"",
		fmt.Sprintf("\tconst lanes = %d", s.lanes(bits)),
		"\tfor k := range n {",
		"\t\tdst[k%16/lanes*group+k/16*stride+k%lanes] = src[k]",
		"\t}",
	)
	Pragma("noescape")
	Load(Param("dst"), dst)
	Load(Param("src"), src)
	Load(Param("n"), left)
	Load(Param("stride"), stride)
	Load(Param("group"), group)
	shift := operand.Imm(uint64(bits/32 + 1))
	SHLQ(shift, stride)
	SHLQ(shift, group)
	LEAQ(operand.Mem{Base: group, Index: group, Scale: 2}, group3)
	LEAQ(operand.Mem{Base: src, Index: left, Scale: uint8(f.size)}, ask)
	SHRQ(operand.Imm(4), left)
	JZ(operand.LabelRef("end"))
	Label("block")
	lanes := s.lanes(bits)
	places := []operand.Mem{
		{Base: dst}, {Base: dst, Index: group, Scale: 1}, {Base: dst, Index: group, Scale: 2}, {Base: dst, Index: group3, Scale: 1},
	}
	for g := range 16 / lanes {
		s.widen(f, bits, from(g*lanes*f.size), s.r[g])
		VMOVUPS(s.r[g], places[g])
	}
	PREFETCHT0(operand.Mem{Base: ask})
	ADDQ(operand.Imm(uint64(16*f.size)), src)
	ADDQ(operand.Imm(uint64(16*f.size)), ask)
	ADDQ(stride, dst)
	DECQ(left)
	JNZ(operand.LabelRef("block"))
	Label("end")
	end()
}

// widen reads one register of numbers.
func (s isa) widen(f format, bits int, m operand.Mem, w reg.VecPhysical) {
	if s.bytes == 32 {
		avx2Widen(f, bits, m, w)
		return
	}
	half := w.(reg.Vec).AsY()
	switch {
	case f.name == "F32" && bits == 32:
		VMOVUPS(m, w)
	case f.name == "F32":
		VCVTPS2PD(m, w)
	case f.name == "BF16" && bits == 32:
		VPMOVZXWD(m, w)
		VPSLLD(operand.Imm(16), w, w)
	case f.name == "BF16":
		VPMOVZXWD(m, half)
		VPSLLD(operand.Imm(16), half, half)
		VCVTPS2PD(half, w)
	case f.name == "F16" && bits == 32:
		VCVTPH2PS(m, w)
	case f.name == "F16":
		VCVTPH2PS(m, half)
		VCVTPS2PD(half, w)
	}
}

// add writes the kernel that multiplies a panel of weights with one of tokens. The
// accumulators are the first registers, as 4*token+row, then the activations, and the
// last two or one take turns with the weights.
func (s isa) add(bits, tokens int) {
	name := fmt.Sprintf("%sAdd%dx%d", s.name, bits, tokens)
	lanes := s.lanes(bits)
	TEXT(name, attr.NOSPLIT, fmt.Sprintf("func(acc, start, w, x *float%d, n int, ahead uintptr)", bits))
	Doc(
		fmt.Sprintf("%s adds n blocks of one group of lanes of a panel of %d rows and one of %d token(s)", name, rows, tokens),
		"to start, n > 0, and asks for the n lines of 64 bytes from ahead on.",
		"",
		fmt.Sprintf("\tconst lanes = %d", lanes),
		fmt.Sprintf("\tcopy(acc, start[:%d*lanes])", rows*tokens),
		"\tfor b := range n {",
		fmt.Sprintf("\t\tfor i := range %d {", tokens),
		fmt.Sprintf("\t\t\tfor j := range %d {", rows),
		"\t\t\t\tfor l := range lanes {",
		fmt.Sprintf("\t\t\t\t\tacc[(4*i+j)*lanes+l] += x[(%d*b+i)*lanes+l] * w[(4*b+j)*lanes+l] // fused", tokens),
		"\t\t\t\t}",
		"\t\t\t}",
		"\t\t}",
		"\t}",
	)
	Pragma("noescape")
	Load(Param("start"), sums)
	Load(Param("w"), src)
	Load(Param("x"), dst)
	Load(Param("n"), left)
	Load(Param("ahead"), ask)
	accs := rows * tokens
	for a := range accs {
		VMOVUPS(at(a*s.bytes), s.r[a])
	}
	free := s.r[accs+tokens:]
	free = free[:min(2, len(free))]
	Label("block")
	for i := range tokens {
		VMOVUPS(to(i*s.bytes), s.r[accs+i])
	}
	for j := range rows {
		w := free[j%len(free)]
		VMOVUPS(from(j*s.bytes), w)
		for i := range tokens {
			fma(bits, w, s.r[accs+i], s.r[rows*i+j])
		}
	}
	PREFETCHT1(operand.Mem{Base: ask})
	ADDQ(operand.Imm(64), ask)
	ADDQ(operand.U32(rows*s.bytes), src)
	ADDQ(operand.U32(tokens*s.bytes), dst)
	DECQ(left)
	JNZ(operand.LabelRef("block"))
	Load(Param("acc"), sums)
	for a := range accs {
		VMOVUPS(s.r[a], at(a*s.bytes))
	}
	end()
}

// fold starts a kernel that sums the lanes of accumulators, step for two tokens at a
// time. Their groups are group bytes apart from src on, the sums go to sums.
func (s isa) fold(bits int, step func()) {
	name := fmt.Sprintf("%sFold%d", s.name, bits)
	TEXT(name, attr.NOSPLIT, fmt.Sprintf("func(sum, acc *float%d, tokens int)", bits))
	Doc(
		fmt.Sprintf("%s folds the 16 lanes of the accumulators of %d rows and some tokens, as Dot%d does.", name, rows, bits),
		"It reads and writes as for an even number of tokens, and writes 16 numbers at least.",
		"",
		fmt.Sprintf("\tconst lanes = %d", s.lanes(bits)),
		"\tfor a := range 4 * tokens {",
		"\t\tvar lane [16]float"+fmt.Sprint(bits),
		"\t\tfor l := range 16 {",
		"\t\t\tlane[l] = acc[(l/lanes*4*tokens+a)*lanes+l%lanes]",
		"\t\t}",
		"\t\tsum[a] = tree(lane)",
		"\t}",
	)
	Pragma("noescape")
	Load(Param("sum"), sums)
	Load(Param("acc"), src)
	Load(Param("tokens"), left)
	MOVQ(left, group)
	IMUL3Q(operand.I32(int32(rows*s.bytes)), group, group)
	LEAQ(operand.Mem{Base: group, Index: group, Scale: 2}, group3)
	Label("pair")
	step()
	ADDQ(operand.U32(2*rows*s.bytes), src)
	ADDQ(operand.U32(2*rows*bits/8), sums)
	SUBQ(operand.Imm(2), left)
	JG(operand.LabelRef("pair"))
	end()
}

// lanesAt is accumulator a's register of a group.
func (s isa) lanesAt(g, a int) operand.Mem {
	m := operand.Mem{Base: src, Disp: a * s.bytes}
	switch g {
	case 1, 2:
		m.Index, m.Scale = group, uint8(g)
	case 3:
		m.Index, m.Scale = group3, 1
	}
	return m
}

func (s isa) fold32() {
	s.fold(32, func() {
		for a := range 2 * rows {
			VMOVUPS(s.lanesAt(0, a), s.r[a])
			if s.bytes == 32 {
				VADDPS(s.lanesAt(1, a), s.r[a], s.r[a])
			}
		}
		if s.bytes == 64 {
			avx512Sum32(2)
			return
		}
		for i := range 2 {
			avx2Sum32(i)
		}
	})
}

func (s isa) fold64() {
	s.fold(64, func() {
		for a := range 2 * rows {
			VMOVUPD(s.lanesAt(0, a), s.r[a])
			if s.bytes == 64 {
				VADDPD(s.lanesAt(1, a), s.r[a], s.r[a])
				continue
			}
			VADDPD(s.lanesAt(2, a), s.r[a], s.r[a])
			VMOVUPD(s.lanesAt(1, a), y[yT])
			VADDPD(s.lanesAt(3, a), y[yT], y[yT])
			VADDPD(y[yT], s.r[a], s.r[a])
		}
		if s.bytes == 64 {
			avx512Sum64(2)
			return
		}
		for i := range 2 {
			avx2Sum64(i)
		}
	})
}
