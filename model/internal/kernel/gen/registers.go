package main

import (
	"fmt"

	"github.com/mmcloughlin/avo/reg"
)

// The registers of amd64. Left out of the general ones are SP, BP, which is Go's frame
// pointer, and R14, which is Go's goroutine.
var (
	generalRegisters = []reg.GPPhysical{
		reg.RAX, reg.RBX, reg.RCX, reg.RDX, reg.RSI, reg.RDI,
		reg.R8, reg.R9, reg.R10, reg.R11, reg.R12, reg.R13, reg.R15,
	}
	zRegisters = []reg.VecPhysical{
		reg.Z0, reg.Z1, reg.Z2, reg.Z3, reg.Z4, reg.Z5, reg.Z6, reg.Z7,
		reg.Z8, reg.Z9, reg.Z10, reg.Z11, reg.Z12, reg.Z13, reg.Z14, reg.Z15,
		reg.Z16, reg.Z17, reg.Z18, reg.Z19, reg.Z20, reg.Z21, reg.Z22, reg.Z23,
		reg.Z24, reg.Z25, reg.Z26, reg.Z27, reg.Z28, reg.Z29, reg.Z30, reg.Z31,
	}
)

// bank hands out the registers of one kernel, each once. Kernels use nearly all registers, too
// many for an allocator; a kernel that takes more than the bank has makes the generator panic.
type bank[R comparable] struct{ free []R }

// general returns a bank of the general registers without left.
func general() *bank[reg.GPPhysical] {
	b := newBank(generalRegisters)
	b.reserve(left)
	return b
}

// newBank makes a bank of registers.
func newBank[R comparable](registers []R) *bank[R] {
	return &bank[R]{append([]R(nil), registers...)}
}

// reserve takes a certain register out of the bank.
func (b *bank[R]) reserve(r R) {
	for i, f := range b.free {
		if f == r {
			b.free = append(b.free[:i], b.free[i+1:]...)
			return
		}
	}
	panic(fmt.Sprintf("register %v is taken", r))
}

// take hands out the next n registers.
func (b *bank[R]) take(n int) []R {
	if n > len(b.free) {
		panic(fmt.Sprintf("%d registers wanted, %d left", n, len(b.free)))
	}
	taken := b.free[:n:n]
	b.free = b.free[n:]
	return taken
}

// one hands out the next register.
func (b *bank[R]) one() R { return b.take(1)[0] }

// part is the lower 16, 32 or 64 bytes of a vector register.
func part(r reg.VecPhysical, bytes int) reg.VecPhysical {
	v := r.(reg.Vec)
	return map[int]reg.Register{16: v.AsX(), 32: v.AsY(), 64: v.AsZ()}[bytes].(reg.VecPhysical)
}

// x is the lower 16 bytes of a vector register, y the lower 32.
func x(r reg.VecPhysical) reg.VecPhysical { return part(r, 16) }
func y(r reg.VecPhysical) reg.VecPhysical { return part(r, 32) }
