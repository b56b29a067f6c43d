package main

import (
	"fmt"

	"github.com/mmcloughlin/avo/attr"
	. "github.com/mmcloughlin/avo/build"
	"github.com/mmcloughlin/avo/operand"
)

// peaks writes loops of nothing but independent fused multiply-adds, 12 per round,
// which measure what the processor can do at most.
func peaks() {
	for _, bits := range []int{32, 64} {
		avx512.peak(bits)
		avx2.peak(bits)
	}
}

func (s isa) peak(bits int) {
	name := fmt.Sprintf("%sPeak%d", s.name, bits)
	TEXT(name, attr.NOSPLIT, "func(n int)")
	Doc(fmt.Sprintf("%s runs n rounds of 12 independent fused multiply-adds of full registers of float%d.", name, bits))
	v := s.vectors()
	sums, a, b := v.take(12), v.one(), v.one()
	Load(Param("n"), left)
	for _, r := range append(sums[:12:12], a, b) {
		s.zero(r)
	}
	Label("round")
	for _, sum := range sums {
		fma(bits, a, b, sum)
	}
	DECQ(left)
	JNZ(operand.LabelRef("round"))
	end()
}
