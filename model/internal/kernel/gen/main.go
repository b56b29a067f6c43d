// Command gen writes the assembly of package kernel and its stubs; scripts/kernels.sh
// runs it.
//
// It is a module of its own so that nobody who uses dsmoe needs avo. All
// registers are chosen by hand: the tiles use every one there is.
package main

import (
	"flag"
	"fmt"
	"log"

	. "github.com/mmcloughlin/avo/build"
	"github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

func main() {
	neonAsm := flag.String("neon", "", "write the arm64 assembly to `FILE`")
	neonStubs := flag.String("neonstubs", "", "write the arm64 stubs to `FILE`")
	flag.Parse()
	if *neonAsm != "" {
		if err := writeNEON(*neonAsm, *neonStubs); err != nil {
			log.Fatal(err)
		}
	}
	ConstraintExpr("!purego")
	constants()
	for _, f := range formats {
		for _, tokens := range []int{1, 2, 4} {
			avx512Tile32(f, tokens)
			avx512Tile64(f, tokens)
		}
		for _, tokens := range []int{1, 2, 3} {
			avx2Tile32(f, tokens)
			avx2Tile64(f, tokens)
		}
	}
	avx512ISA.panels()
	avx2ISA.panels()
	avx512Codecs()
	avx2Codecs()
	exps()
	peaks()
	Generate()
}

// format is a storage format that the tiles widen in registers.
type format struct {
	name string
	size int
}

var formats = []format{{"F32", 4}, {"BF16", 2}, {"F16", 2}}

// widen32 reads one register of numbers as float32.
func widen32(f format, m operand.Mem, w operand.Op) {
	switch f.name {
	case "F32":
		VMOVUPS(m, w)
	case "BF16":
		VPMOVZXWD(m, w)
		VPSLLD(operand.Imm(16), w, w)
	case "F16":
		VCVTPH2PS(m, w)
	}
}

// widen64 reads one register of numbers as float64; half is the lower half of w.
func widen64(f format, m operand.Mem, w, half operand.Op) {
	if f.name == "F32" {
		VCVTPS2PD(m, w)
		return
	}
	widen32(f, m, half)
	VCVTPS2PD(half, w)
}

// fma is acc += a·b.
func fma(bits int, a, b, acc operand.Op) {
	if bits == 32 {
		VFMADD231PS(a, b, acc)
	} else {
		VFMADD231PD(a, b, acc)
	}
}

const rows = 4 // of weights in a tile

// tileDoc is the documentation of a tile: its reference loop.
func tileDoc(name, isa, f string, bits, tokens int) []string {
	multiple := ""
	if isa != "avx512" {
		multiple = " n is a multiple of 16."
	}
	return []string{
		fmt.Sprintf("%s multiplies %d rows of %s with %d row(s) of x, all n long.%s", name, rows, f, tokens, multiple),
		"The part of sum that holds no result is scratch.",
		"",
		fmt.Sprintf("\tfor i := range %d {", tokens),
		fmt.Sprintf("\t\tfor j := range %d {", rows),
		fmt.Sprintf("\t\t\tsum[4*i+j] = Dot%d(x[i][:n], w[j][:n])", bits),
		"\t\t}",
		"\t}",
	}
}

// General registers of the tiles.
var (
	sums  = reg.RAX
	wBase = []reg.GPPhysical{reg.RBX, reg.RDX, reg.RSI, reg.RDI}
	xBase = []reg.GPPhysical{reg.R8, reg.R9, reg.R10, reg.R11}
	index = reg.R12 // element of K
	limit = reg.R13 // n, then its whole blocks
	count = reg.RCX
	next  = reg.RCX // element of the rows to come
	start = reg.R15 // of a chunk
)

// header loads the pointers.
func header(tokens int) {
	Load(Param("w"), sums)
	for j, r := range wBase {
		MOVQ(at(8*j), r)
	}
	Load(Param("x"), sums)
	for i, r := range xBase[:tokens] {
		MOVQ(at(8*i), r)
	}
	Load(Param("sum"), sums)
}

// at is the place of the sums or of scratch at a byte offset.
func at(offset int) operand.Mem { return operand.Mem{Base: sums, Disp: offset} }

// wAt is element index+k of row j.
func wAt(f format, j, k int) operand.Mem {
	return operand.Mem{Base: wBase[j], Index: index, Scale: uint8(f.size), Disp: k * f.size}
}

// xAt is element index+k, of the given size, of token i.
func xAt(size, i, k int) operand.Mem {
	return operand.Mem{Base: xBase[i], Index: index, Scale: uint8(size), Disp: k * size}
}

// ahead sets next to the distance, in elements, of the rows that come after these
// if a matrix has them at equal strides, so that they can be asked for meanwhile.
func ahead(f format) {
	MOVQ(wBase[1], next)
	SUBQ(wBase[0], next)
	if shift := map[int]uint64{1: 2, 2: 1}[f.size]; shift > 0 {
		SHLQ(operand.Imm(shift), next)
	}
}

// prefetch asks for the next 16 elements of the rows to come, for the second-level
// cache: in the first they would displace what is being used.
func prefetch(f format) {
	for j := range rows {
		PREFETCHT1(operand.Mem{Base: wBase[j], Index: next, Scale: uint8(f.size)})
	}
	ADDQ(operand.Imm(16), next)
}

// whole runs step for index = 0, 16, … below n rounded down to a block.
func whole(f format, label string, step func()) {
	Load(Param("n"), limit)
	ANDQ(operand.I32(-16), limit)
	XORQ(index, index)
	CMPQ(index, limit)
	JGE(operand.LabelRef(label + "_end"))
	ahead(f)
	Label(label)
	prefetch(f)
	step()
	ADDQ(operand.Imm(16), index)
	CMPQ(index, limit)
	JLT(operand.LabelRef(label))
	Label(label + "_end")
}

var permute32, permute64 operand.Mem

// constants declares the read-only data.
func constants() {
	permute32 = GLOBL("permute32", 8|16) // RODATA|NOPTR
	for k := range 16 {
		DATA(4*k, operand.U32(4*(k%4)+k/4))
	}
	permute64 = GLOBL("permute64", 8|16)
	for k := range 8 {
		DATA(8*k, operand.U64(2*(k%4)+k/4))
	}
}
