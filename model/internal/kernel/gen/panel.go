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
	for _, bits := range []int{32, 64} {
		for _, f := range formats {
			s.pack(f, bits)
		}
		for tokens := 1; tokens <= s.width; tokens++ {
			s.add(bits, tokens)
		}
		s.fold(bits)
	}
}

// perVector is how many numbers a register holds.
func (s isa) perVector(bits int) int { return 8 * s.bytes / bits }

// lanes16 sets lane and quads from a stride in numbers and a pointer, so that laneAt
// reaches all lanes.
func lanes16(bits int, pointer operand.Mem) {
	MOVQ(pointer, quads[0])
	SHLQ(operand.Imm(uint64(bits/32+1)), lane)
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

// parameter is a parameter's place.
func parameter(name string) operand.Mem {
	b, err := Param(name).Resolve()
	if err != nil {
		panic(err)
	}
	return b.Addr
}

// pack writes the kernel that widens and transposes rows.
func (s isa) pack(f format, bits int) {
	rows := s.bytes / 4
	name := fmt.Sprintf("%sPack%d%s", s.name, bits, f.name)
	TEXT(name, attr.NOSPLIT, fmt.Sprintf("func(dst *float%d, src *[16]*byte, steps, stride, lane int)", bits))
	Doc(
		fmt.Sprintf("%s widens %d rows of %s into the lanes of a panel.", name, rows, f.name),
		"",
		"\tfor s := range steps {",
		"\t\tfor l := range 16 {",
		fmt.Sprintf("\t\t\tfor i := range %d {", rows),
		"\t\t\t\tdst[l*lane+s*stride+i] = src[i][16*s+l]",
		"\t\t\t}",
		"\t\t}",
		"\t}",
	)
	Pragma("noescape")
	Load(Param("lane"), lane)
	lanes16(bits, parameter("dst"))
	Load(Param("src"), table)
	Load(Param("steps"), left)
	Load(Param("stride"), stride)
	SHLQ(operand.Imm(uint64(bits/32+1)), stride)
	XORQ(offset, offset)
	pairs := f.name == "BF16" // of which a register holds one step of 8 rows, two of 16
	if pairs && rows == 16 {
		SUBQ(operand.Imm(2), left)
		JL(operand.LabelRef("odd"))
		Label("two")
		s.packPairs(bits)
		SUBQ(operand.Imm(2), left)
		JGE(operand.LabelRef("two"))
		Label("odd")
		ADDQ(operand.Imm(2), left)
	}
	TESTQ(left, left)
	JZ(operand.LabelRef("end"))
	Label("step")
	if pairs && rows == 8 {
		s.packPairs(bits)
	} else {
		for half := range 16 / rows {
			s.load(f.size*rows, half, func(m operand.Mem, r reg.VecPhysical) { widen32(f, m, r) })
			for l, r := range s.transpose() {
				s.store(bits, r, half*rows+l)
			}
		}
		s.advance(16 * f.size)
	}
	DECQ(left)
	JNZ(operand.LabelRef("step"))
	Label("end")
	end()
}

// load reads part i of the present step, size bytes, of all rows.
func (s isa) load(size, i int, read func(m operand.Mem, r reg.VecPhysical)) {
	for row, r := range s.r[:s.bytes/4] {
		p := []reg.GPPhysical{reg.R11, reg.R13, reg.R15}[row%3]
		MOVQ(operand.Mem{Base: table, Disp: 8 * row}, p)
		read(operand.Mem{Base: p, Index: offset, Scale: 1, Disp: i * size}, r)
		if i == 0 {
			// So many streams are more than the processor fetches ahead by itself.
			PREFETCHT0(operand.Mem{Base: p, Index: offset, Scale: 1, Disp: 512})
		}
	}
}

// advance goes to the next step, size bytes on in each row.
func (s isa) advance(size int) {
	if size > 0 {
		ADDQ(operand.Imm(uint64(size)), offset)
	}
	for _, q := range quads {
		ADDQ(stride, q)
	}
}

// packPairs packs registers full of BF16. What is transposed is pairs of them, of which
// one is a float32 after a shift and the other after a mask.
func (s isa) packPairs(bits int) {
	s.load(s.bytes, 0, func(m operand.Mem, r reg.VecPhysical) { VMOVUPS(m, r) })
	columns := s.transpose()
	low, mask := s.r[0], s.r[1]
	if s.bytes == 64 {
		VPTERNLOGD(operand.U8(0xff), mask, mask, mask)
	} else {
		VPCMPEQD(mask, mask, mask)
	}
	VPSLLD(operand.Imm(16), mask, mask)
	for pair, high := range columns {
		VPSLLD(operand.Imm(16), high, low)
		s.store(bits, low, 2*pair%16)
		if s.bytes == 64 {
			VPANDD(mask, high, high)
		} else {
			VPAND(mask, high, high)
		}
		s.store(bits, high, 2*pair%16+1)
		if pair == 7 && len(columns) == 16 {
			s.advance(0)
		}
	}
	s.advance(s.bytes)
}

// store writes a register of float32 to a lane.
func (s isa) store(bits int, r reg.VecPhysical, l int) {
	switch {
	case bits == 32:
		VMOVUPS(r, laneAt(l, 0))
	case s.bytes == 64:
		low, spare := r.(reg.Vec).AsY(), z[15].(reg.Vec).AsY()
		VEXTRACTF64X4(operand.Imm(1), r, spare)
		VCVTPS2PD(low, r)
		VCVTPS2PD(spare, z[15])
		VMOVUPD(r, laneAt(l, 0))
		VMOVUPD(z[15], laneAt(l, 64))
	default:
		VEXTRACTF128(operand.Imm(1), r, x(y[7]))
		VCVTPS2PD(x(r), r)
		VCVTPS2PD(x(y[7]), y[7])
		VMOVUPD(r, laneAt(l, 0))
		VMOVUPD(y[7], laneAt(l, 32))
	}
}

// transpose turns the first half of the registers, rows of float32, into columns and
// returns the registers that hold these. The last of the first half is free then.
func (s isa) transpose() []reg.VecPhysical {
	n := s.bytes / 4
	a, b := s.r[:n], s.r[n:2*n]
	for i := 0; i < n; i += 2 {
		VUNPCKLPS(a[i+1], a[i], b[i])
		VUNPCKHPS(a[i+1], a[i], b[i+1])
	}
	for i := 0; i < n; i += 4 {
		for k := range 2 {
			VUNPCKLPD(b[i+2+k], b[i+k], a[i+2*k])
			VUNPCKHPD(b[i+2+k], b[i+k], a[i+2*k+1])
		}
	}
	// a[4*q+e] holds columns e, 4+e, … of rows 4*q to 4*q+3, 128 bits each.
	if n == 8 {
		for e := range 4 {
			VPERM2F128(operand.Imm(0x20), a[4+e], a[e], b[e])
			VPERM2F128(operand.Imm(0x31), a[4+e], a[e], b[4+e])
		}
		return b
	}
	for e := range 4 {
		for k, pieces := range []operand.U8{0x44, 0xEE} {
			VSHUFF32X4(pieces, a[4+e], a[e], b[4*e+2*k])
			VSHUFF32X4(pieces, a[12+e], a[8+e], b[4*e+2*k+1])
		}
	}
	columns := make([]reg.VecPhysical, 16)
	for e := range 4 {
		for k := range 2 {
			one, other := b[4*e+2*k], b[4*e+2*k+1]
			VSHUFF32X4(operand.U8(0x88), other, one, a[0])
			VSHUFF32X4(operand.U8(0xDD), other, one, other)
			VMOVAPS(a[0], one)
			columns[8*k+e], columns[8*k+4+e] = one, other
		}
	}
	return columns
}

// add writes the kernel that multiplies one lane of a panel of weights with one of
// tokens. The accumulators come first, a token's side by side.
func (s isa) add(bits, tokens int) {
	name := fmt.Sprintf("%sAdd%dx%d", s.name, bits, tokens)
	rows := panelVectors * s.perVector(bits)
	TEXT(name, attr.NOSPLIT, fmt.Sprintf("func(acc, start, w, x *float%d, steps int)", bits))
	Doc(
		fmt.Sprintf("%s adds the products of one lane of %d rows and %d token(s) to start.", name, rows, tokens),
		"",
		fmt.Sprintf("\tcopy(acc, start[:%d])", rows*tokens),
		"\tfor s := range steps {",
		fmt.Sprintf("\t\tfor i := range %d {", tokens),
		fmt.Sprintf("\t\t\tfor j := range %d {", rows),
		fmt.Sprintf("\t\t\t\tacc[%d*i+j] += x[%d*s+i] * w[%d*s+j] // fused", rows, tokens, rows),
		"\t\t\t}",
		"\t\t}",
		"\t}",
	)
	Pragma("noescape")
	Load(Param("start"), sums)
	Load(Param("w"), src)
	Load(Param("x"), dst)
	Load(Param("steps"), left)
	accs := panelVectors * tokens
	for a := range accs {
		VMOVUPS(at(a*s.bytes), s.r[a])
	}
	w, number := s.r[accs:accs+panelVectors], s.r[accs+panelVectors:]
	number = number[:min(len(number), 4)]
	TESTQ(left, left)
	JZ(operand.LabelRef("end"))
	Label("step")
	for j := range w {
		VMOVUPS(from(j*s.bytes), w[j])
	}
	for i := range tokens {
		v := number[i%len(number)]
		if bits == 32 {
			VBROADCASTSS(to(4*i), v)
		} else {
			VBROADCASTSD(to(8*i), v)
		}
		for j := range w {
			fma(bits, w[j], v, s.r[panelVectors*i+j])
		}
	}
	ADDQ(operand.U32(panelVectors*s.bytes), src)
	ADDQ(operand.U32(tokens*bits/8), dst)
	DECQ(left)
	JNZ(operand.LabelRef("step"))
	Label("end")
	Load(Param("acc"), sums)
	for a := range accs {
		VMOVUPS(s.r[a], at(a*s.bytes))
	}
	end()
}

// fold writes the kernel that sums lanes.
func (s isa) fold(bits int) {
	name := fmt.Sprintf("%sFold%d", s.name, bits)
	rows := panelVectors * s.perVector(bits)
	TEXT(name, attr.NOSPLIT, fmt.Sprintf("func(sum, acc *float%d, tokens, lane, stride int)", bits))
	Doc(
		fmt.Sprintf("%s folds the 16 lanes of %d rows and some tokens, at least one, as Dot%d does.", name, rows, bits),
		"",
		"\tfor i := range tokens {",
		fmt.Sprintf("\t\tfor j := range %d {", rows),
		"\t\t\tvar lanes [16]float"+fmt.Sprint(bits),
		"\t\t\tfor l := range 16 {",
		fmt.Sprintf("\t\t\t\tlanes[l] = acc[l*lane+i*%d+j]", rows),
		"\t\t\t}",
		"\t\t\tsum[i*stride+j] = tree(lanes)",
		"\t\t}",
		"\t}",
	)
	Pragma("noescape")
	Load(Param("lane"), lane)
	lanes16(bits, parameter("acc"))
	Load(Param("sum"), offset)
	Load(Param("tokens"), left)
	Load(Param("stride"), stride)
	SHLQ(operand.Imm(uint64(bits/32+1)), stride)
	add := func(a, b, sum operand.Op) {
		if bits == 32 {
			VADDPS(a, b, sum)
		} else {
			VADDPD(a, b, sum)
		}
	}
	Label("token")
	for v := range panelVectors {
		disp := v * s.bytes
		for l := range 8 {
			VMOVUPS(laneAt(l, disp), s.r[l])
			add(laneAt(l+8, disp), s.r[l], s.r[l])
		}
		for n := 4; n > 0; n /= 2 {
			for l := range n {
				add(s.r[l+n], s.r[l], s.r[l])
			}
		}
		VMOVUPS(s.r[0], operand.Mem{Base: offset, Disp: disp})
	}
	for _, q := range quads {
		ADDQ(operand.Imm(uint64(panelVectors*s.bytes)), q)
	}
	ADDQ(stride, offset)
	DECQ(left)
	JNZ(operand.LabelRef("token"))
	end()
}
