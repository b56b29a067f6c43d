package main

import (
	"fmt"

	"github.com/mmcloughlin/avo/attr"
	. "github.com/mmcloughlin/avo/build"
	"github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

// The kernels of packed panels: package kernel says in panel.go what a panel is. Each
// of the 16 lanes of a dot product is a matrix product of its own, of every 16th
// number, with the rows of weights side by side in registers.

// isa is an instruction set that panels are written for.
type isa struct {
	name  string
	r     []reg.VecPhysical
	bytes int // of a register
	width int // of the widest tile, in tokens
}

var (
	avx512ISA = isa{"avx512", z, 64, 12}
	avx2ISA   = isa{"avx2", y, 32, 6}
)

// panelVectors is how many registers the rows of a panel fill.
const panelVectors = 2

// General registers of the panels' kernels.
var (
	table  = reg.RSI // pointers to rows
	offset = reg.RDX // in each of them
	lane   = reg.R8  // bytes between two lanes
	lane3  = reg.R9  // three times that
	stride = reg.R10 // bytes between two steps
	quads  = []reg.GPPhysical{reg.RDI, reg.RAX, reg.RBX, reg.R12}
)

func (s isa) panels() {
	s.pack(formats[1], 32)
	for _, bits := range []int{32, 64} {
		s.pack(formats[0], bits)
		s.pack(formats[2], bits)
		for tokens := 1; tokens <= s.width; tokens++ {
			s.add(bits, tokens, false)
			s.add(bits, tokens, true)
		}
	}
}

// perVector is how many numbers a register holds.
func (s isa) perVector(bits int) int { return 8 * s.bytes / bits }

// toBytes turns a count of numbers into one of bytes.
func toBytes(bits int, r reg.GPPhysical) { SHLQ(operand.Imm(uint64(bits/32+1)), r) }

// lanesAt sets lane and quads from the parameters lane, a distance in numbers, and dst,
// so that laneAt reaches all lanes.
func lanesAt(bits int) {
	Load(Param("lane"), lane)
	Load(Param("dst"), quads[0])
	toBytes(bits, lane)
	LEAQ(operand.Mem{Base: lane, Index: lane, Scale: 2}, lane3)
	for q := range 3 {
		LEAQ(operand.Mem{Base: quads[q], Index: lane, Scale: 4}, quads[q+1])
	}
}

// laneAt is a byte of lane l.
func laneAt(l, disp int) operand.Mem {
	m := operand.Mem{Base: quads[l/4], Disp: disp}
	switch l % 4 {
	case 1, 2:
		m.Index, m.Scale = lane, uint8(l%4)
	case 3:
		m.Index, m.Scale = lane3, 1
	}
	return m
}

// pack writes the kernel that transposes rows and widens them, but for those of BF16.
func (s isa) pack(f format, bits int) {
	rows, pairs := s.bytes/4, f.name == "BF16"
	name, number, lanes := fmt.Sprintf("%sPack%d%s", s.name, bits, f.name), fmt.Sprintf("float%d", bits), 16
	if pairs {
		name, number, lanes = s.name+"PackPairs", "uint32", 8
	}
	TEXT(name, attr.NOSPLIT, fmt.Sprintf("func(dst *%s, src *[16]*byte, steps, stride, lane int)", number))
	what := fmt.Sprintf("%s widens %d rows of %s into the lanes of a panel.", name, rows, f.name)
	if pairs {
		what = fmt.Sprintf("%s arranges %d rows of pairs of BF16 as a panel of half the lanes.", name, rows)
	}
	Doc(
		what,
		"",
		"\tfor s := range steps { // which is even",
		fmt.Sprintf("\t\tfor l := range %d {", lanes),
		fmt.Sprintf("\t\t\tfor i := range %d {", rows),
		fmt.Sprintf("\t\t\t\tdst[l*lane+s*stride+i] = src[i][%d*s+l]", lanes),
		"\t\t\t}",
		"\t\t}",
		"\t}",
	)
	Pragma("noescape")
	lanesAt(bits)
	Load(Param("src"), table)
	Load(Param("steps"), left)
	Load(Param("stride"), stride)
	toBytes(bits, stride)
	SHRQ(operand.Imm(1), left)
	JZ(operand.LabelRef("end"))
	XORQ(offset, offset)
	Label("steps")
	size := f.size
	if pairs {
		size = 4
	}
	for word := 0; word < 2*lanes; word += rows {
		for i, column := range s.columns(f, word*size) {
			at := (word + i) % lanes
			s.store(bits, column, at)
			if at == lanes-1 {
				for _, q := range quads {
					ADDQ(stride, q)
				}
			}
		}
	}
	ADDQ(operand.Imm(uint64(2*lanes*size)), offset)
	DECQ(left)
	JNZ(operand.LabelRef("steps"))
	Label("end")
	end()
}

// columns reads the words of each row that fill a register, disp bytes on, and returns
// the registers that hold their columns.
func (s isa) columns(f format, disp int) []reg.VecPhysical {
	// Halves of registers are loaded to where the transposition wants them: register
	// n/2*h+i gets half h of one row in its lower half, and of the row four further on in
	// its upper half.
	n, half := s.bytes/4, s.bytes/2
	if f.name == "F16" {
		half /= 2
	}
	a, b := s.r[:n], s.r[n:2*n]
	for row := range n {
		p := []reg.GPPhysical{reg.R11, reg.R13, reg.R15}[row%3]
		MOVQ(operand.Mem{Base: table, Disp: 8 * row}, p)
		for h := range 2 {
			m := operand.Mem{Base: p, Index: offset, Scale: 1, Disp: disp + h*half}
			loadHalf(m, half, row/4%2, a[n/2*h+row/8*4+row%4])
		}
	}
	if f.name == "F16" {
		for _, r := range a {
			VCVTPH2PS(narrow(r, 2*half), r)
		}
	}
	transpose4(a, b)
	if n == 8 {
		return a
	}
	for h := range 2 {
		for e := range 4 {
			one, other := a[8*h+e], a[8*h+4+e]
			VSHUFF32X4(operand.U8(0x88), other, one, b[8*h+e])
			VSHUFF32X4(operand.U8(0xDD), other, one, b[8*h+4+e])
		}
	}
	return b
}

// loadHalf reads size bytes into the lower or upper part of the first 2·size of r.
func loadHalf(m operand.Mem, size, upper int, r reg.VecPhysical) {
	switch {
	case size == 8 && upper == 0:
		VMOVSD(m, x(r))
	case size == 8:
		VMOVHPD(m, x(r), x(r))
	case upper == 0:
		VMOVUPS(m, narrow(r, size))
	case size == 16:
		VINSERTF128(operand.Imm(1), m, narrow(r, 32), narrow(r, 32))
	default:
		VINSERTF64X4(operand.Imm(1), m, r, r)
	}
}

// narrow is the part of r that is 16, 32 or 64 bytes wide.
func narrow(r reg.VecPhysical, bytes int) reg.VecPhysical {
	switch bytes {
	case 16:
		return x(r)
	case 32:
		return r.(reg.Vec).AsY().(reg.VecPhysical)
	}
	return r
}

// transpose4 transposes 4×4 words in each 16 bytes of four registers of a after the
// other, in place; b is scratch.
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

// store writes a register of float32 to a lane.
func (s isa) store(bits int, r reg.VecPhysical, l int) {
	if bits == 32 {
		VMOVUPS(r, laneAt(l, 0))
		return
	}
	spare := s.r[s.bytes/4%16] // which columns leaves free
	s.split(r, spare)
	VMOVUPD(r, laneAt(l, 0))
	VMOVUPD(spare, laneAt(l, s.bytes))
}

// split widens the float32 of r to float64, of which r and high are filled.
func (s isa) split(r, high reg.VecPhysical) {
	half := narrow(high, s.bytes/2)
	if s.bytes == 64 {
		VEXTRACTF64X4(operand.Imm(1), r, half)
	} else {
		VEXTRACTF128(operand.Imm(1), r, half)
	}
	VCVTPS2PD(narrow(r, s.bytes/2), r)
	VCVTPS2PD(half, high)
}

// add writes the kernel that multiplies one lane of a panel of weights with panels of
// tokens, or of pairs of BF16 with one panel. The accumulators come first, a token's side
// by side.
func (s isa) add(bits, tokens int, pairs bool) {
	rows, size := panelVectors*s.perVector(bits), bits/8
	name := fmt.Sprintf("%sAdd%dx%d", s.name, bits, tokens)
	what := "w, x *float%[1]d, steps, panels, next int"
	if pairs {
		name = fmt.Sprintf("%sAddPairs%dx%d", s.name, bits, tokens)
		what = "pairs *uint32, odd bool, w, x *float%[1]d, steps int"
	}
	TEXT(name, attr.NOSPLIT, fmt.Sprintf("func(acc *float%[1]d, "+what+", again bool, pending *float%[1]d, folds, lane int, out *float%[1]d, stride int, ahead uintptr, pace int)", bits))
	if pairs {
		Doc(
			fmt.Sprintf("%s is %sAdd%dx%d with one panel, after", name, s.name, bits, tokens),
			"",
			"\tfor s := range steps {",
			fmt.Sprintf("\t\tfor j := range %d {", rows),
			fmt.Sprintf("\t\t\tw[%d*s+j] = BF16(pairs[%[1]d*s+j] >> (odd ? 16 : 0))", rows),
			"\t\t}",
			"\t}",
		)
	} else {
		Doc(
			fmt.Sprintf("%s adds the products of one lane of %d rows and panels of %d token(s) to acc,", name, rows, tokens),
			"or to 0 unless again, then pending sums, and writes the sum to out. Meanwhile it asks",
			"for the memory at ahead, the line pace bytes further on every 2 steps.",
			"",
			"\tfor p := range panels {",
			fmt.Sprintf("\t\tfor i := range %d {", tokens),
			fmt.Sprintf("\t\t\tfor j := range %d {", rows),
			fmt.Sprintf("\t\t\t\tat := %d*(%d*p+i) + j", rows, tokens),
			"\t\t\t\tsum := acc[at] // or 0",
			"\t\t\t\tfor s := range steps {",
			fmt.Sprintf("\t\t\t\t\tsum += x[next*p+%d*s+i] * w[%d*s+j] // fused", tokens, rows),
			"\t\t\t\t}",
			"\t\t\t\tfor f := range folds {",
			"\t\t\t\t\tsum += pending[at-lane*f]",
			"\t\t\t\t}",
			fmt.Sprintf("\t\t\t\tout[stride*(%d*p+i)+j] = sum", tokens),
			"\t\t\t}",
			"\t\t}",
			"\t}",
		)
	}
	Pragma("noescape")
	var (
		w, x              = reg.R8, reg.R9 // of the present panel
		panels, wide      = reg.RBX, reg.RBX
		out, outStride    = reg.R10, reg.R11
		prefetched, pace  = reg.R12, reg.R13
		again             = reg.RDX
		done              = reg.R15 // bytes of accumulators of the panels before
		pending, distance = w, x
	)
	Load(Param("acc"), sums)
	Load(Param("x"), dst)
	if pairs {
		Load(Param("pairs"), src)
		Load(Param("w"), wide)
	} else {
		Load(Param("w"), src)
		Load(Param("panels"), panels)
	}
	Load(Param("again"), again.As8())
	Load(Param("out"), out)
	Load(Param("stride"), outStride)
	toBytes(bits, outStride)
	Load(Param("ahead"), prefetched)
	Load(Param("pace"), pace)
	XORQ(done, done)
	accs := s.r[:panelVectors*tokens]
	weights, number := s.r[len(accs):len(accs)+panelVectors], s.r[len(accs)+panelVectors:]
	number = number[:min(len(number), 4)]
	stored := panelVectors * s.bytes // bytes of weights in a step
	if pairs {
		stored = 4 * rows
	}
	step := func(k int, odd bool) {
		if pairs {
			s.widenPairs(bits, operand.Mem{Base: w, Disp: stored * k}, odd, weights)
		}
		for j, r := range weights {
			disp := (panelVectors*k + j) * s.bytes
			if pairs {
				VMOVUPS(r, operand.Mem{Base: wide, Disp: disp})
			} else {
				VMOVUPS(operand.Mem{Base: w, Disp: disp}, r)
			}
		}
		for i := range tokens {
			v, m := number[i%len(number)], operand.Mem{Base: x, Disp: (tokens*k + i) * size}
			if bits == 32 {
				VBROADCASTSS(m, v)
			} else {
				VBROADCASTSD(m, v)
			}
			for j := range weights {
				fma(bits, weights[j], v, accs[panelVectors*i+j])
			}
		}
		if k%2 == 1 {
			PREFETCHT1(operand.Mem{Base: prefetched})
			ADDQ(pace, prefetched)
		}
	}
	// loop goes over all steps, two at once.
	loop := func(label string, odd bool) {
		const unrolled = 2
		advance := func(steps int) {
			ADDQ(operand.U32(steps*stored), w)
			ADDQ(operand.U32(steps*tokens*size), x)
			if pairs {
				ADDQ(operand.U32(steps*panelVectors*s.bytes), wide)
			}
		}
		Load(Param("steps"), left)
		SHRQ(operand.Imm(1), left)
		JZ(operand.LabelRef(label + "rest"))
		Label(label + "steps")
		for k := range unrolled {
			step(k, odd)
		}
		advance(unrolled)
		DECQ(left)
		JNZ(operand.LabelRef(label + "steps"))
		Label(label + "rest")
		Load(Param("steps"), left)
		ANDQ(operand.Imm(unrolled-1), left)
		JZ(operand.LabelRef("fold"))
		step(0, odd)
	}
	Label("panel")
	MOVQ(src, w)
	MOVQ(dst, x)
	TESTB(again.As8(), again.As8())
	JNZ(operand.LabelRef("resume"))
	for _, r := range accs {
		if s.bytes == 64 {
			VPXORD(r, r, r)
		} else {
			VXORPS(r, r, r)
		}
	}
	JMP(operand.LabelRef("begin"))
	Label("resume")
	for a, r := range accs {
		VMOVUPS(operand.Mem{Base: sums, Index: done, Scale: 1, Disp: a * s.bytes}, r)
	}
	Label("begin")
	if pairs {
		Load(Param("odd"), left.As8())
		TESTB(left.As8(), left.As8())
		JNZ(operand.LabelRef("odd"))
		loop("even", false)
		JMP(operand.LabelRef("fold"))
		Label("odd")
		if s.bytes == 64 {
			VPTERNLOGD(operand.U8(0xff), z[31], z[31], z[31])
			VPSLLD(operand.Imm(16), z[31], z[31])
		}
	}
	loop("", true)
	Label("fold")
	Load(Param("folds"), left)
	TESTQ(left, left)
	JZ(operand.LabelRef("write"))
	Load(Param("lane"), distance)
	toBytes(bits, distance)
	Load(Param("pending"), pending)
	ADDQ(done, pending)
	Label("folds")
	for a, r := range accs {
		m := operand.Mem{Base: pending, Disp: a * s.bytes}
		if bits == 32 {
			VADDPS(m, r, r)
		} else {
			VADDPD(m, r, r)
		}
	}
	SUBQ(distance, pending)
	DECQ(left)
	JNZ(operand.LabelRef("folds"))
	Label("write")
	for i := range tokens {
		for j := range weights {
			VMOVUPS(accs[panelVectors*i+j], operand.Mem{Base: out, Disp: j * s.bytes})
		}
		ADDQ(outStride, out)
	}
	if !pairs {
		ADDQ(operand.U32(len(accs)*s.bytes), done)
		Load(Param("next"), left)
		LEAQ(operand.Mem{Base: dst, Index: left, Scale: uint8(size)}, dst)
		DECQ(panels)
		JNZ(operand.LabelRef("panel"))
	}
	end()
}

// widenPairs reads the odd or even numbers of pairs of BF16 as float32 or float64. With
// AVX-512, z31 masks the odd ones.
func (s isa) widenPairs(bits int, m operand.Mem, odd bool, w []reg.VecPhysical) {
	for _, r := range w[:64/bits] {
		switch {
		case s.bytes == 64 && odd:
			VPANDD(m, z[31], r)
		case s.bytes == 64:
			VPSLLD(operand.Imm(16), m, r)
		default:
			VMOVUPS(m, r)
			if odd {
				VPSRLD(operand.Imm(16), r, r)
			}
			VPSLLD(operand.Imm(16), r, r)
		}
		m.Disp += s.bytes
	}
	if bits == 64 {
		s.split(w[0], w[1])
	}
}
