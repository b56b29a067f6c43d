// Command gen writes the assembly of package kernel and its stubs; scripts/kernels.sh
// runs it, and KERNELS.md explains what it writes.
//
// It is a separate module, so that users of dsmoe do not need avo.
package main

import (
	"flag"
	"log"

	"github.com/mmcloughlin/avo/attr"
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
	partialConstants()
	for _, f := range formats {
		for _, tokens := range avx512.tileWidths {
			avx512Tile32(f, tokens)
			avx512Tile64(f, tokens)
		}
		for _, tokens := range avx2.tileWidths {
			avx2Tile32(f, tokens)
			avx2Tile64(f, tokens)
		}
	}
	avx512.panels()
	avx2.panels()
	avx512Codecs()
	avx2Codecs()
	avx512.partials(false)
	avx512.partials(true)
	avx2.partials(false)
	avx512.squares()
	avx2.squares()
	avx2.blocks()
	avx512.largest()
	avx2.largest()
	avx512Patterns()
	avx2Patterns()
	avx512.losses()
	avx2.losses()
	avx512.roundings()
	avx2.roundings()
	avx512.extremes()
	avx2.extremes()
	avx2.spread()
	avx2.fits()
	avx512.fits()
	avx2.lines()
	exps()
	peaks()
	Generate()
}

// lanes is the number of partial sums of a dot product.
const lanes = 16

// isa is an instruction set of amd64.
type isa struct {
	name        string
	bytes       int // size of a vector register
	registers   int // number of vector registers of that size
	tileWidths  []int
	panelWidths []int

	partialWidths []int
}

var (
	avx512 = isa{"avx512", 64, 32, []int{1, 2, 4}, []int{4, 8, 12}, []int{1, 2, 4}}
	avx2   = isa{"avx2", 32, 16, []int{1, 2, 3}, []int{3, 6}, []int{1, 2}}
)

// vectors returns a bank of the vector registers of s.
func (s isa) vectors() *bank[reg.VecPhysical] {
	b := newBank(zRegisters[:s.registers])
	for i, r := range b.free {
		b.free[i] = part(r, s.bytes)
	}
	return b
}

// perVector returns how many numbers of the given width in bits a register holds.
func (s isa) perVector(bits int) int { return 8 * s.bytes / bits }

// zero sets a register to 0.
func (s isa) zero(r reg.VecPhysical) {
	if s.bytes == 64 {
		VPXORD(r, r, r) // VXORPS on 64 bytes belongs to another extension
	} else {
		VXORPS(r, r, r)
	}
}

// format is a storage format that kernels widen in registers.
type format struct {
	name string
	size int
}

var (
	f32     = format{"F32", 4}
	bf16    = format{"BF16", 2}
	formats = []format{f32, bf16}
)

// widen32 reads one register of numbers as float32.
func widen32(f format, m operand.Mem, w operand.Op) {
	if f == f32 {
		VMOVUPS(m, w)
		return
	}
	VPMOVZXWD(m, w)
	VPSLLD(operand.Imm(16), w, w)
}

// widen64 reads one register of numbers as float64; half is the lower half of w.
func widen64(f format, m operand.Mem, w, half operand.Op) {
	if f == f32 {
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

// toBytes turns a count of numbers into a count of bytes.
func toBytes(bits int, r reg.GPPhysical) { SHLQ(operand.Imm(uint64(bits/32+1)), r) }

// left counts the iterations left. It is RCX, whose lower byte is the only register that
// gives a variable shift.
var left = reg.RCX

// function begins a kernel and documents its stub: its definition is a function type or a
// portable function.
func function(name, signature, definition string) {
	TEXT(name, attr.NOSPLIT, "func"+signature)
	Doc(name + " is " + definition + ".")
	Pragma("noescape")
}

// end returns from a kernel.
func end() {
	VZEROUPPER()
	RET()
}

// The permutations that end the sums of the AVX-512 tiles.
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
