package main

import (
	"fmt"

	. "github.com/mmcloughlin/avo/build"
	"github.com/mmcloughlin/avo/operand"
)

// peaks writes loops of independent fused multiply-adds, 12 per round, which measure the
// processor's peak.
func peaks() {
	for _, bits := range []int{32, 64} {
		avx512.peak(bits)
		avx2.peak(bits)
	}
}

func (s isa) peak(bits int) {
	function(fmt.Sprintf("%sPeak%d", s.name, bits), "(n int)", "n rounds of 12 independent fused multiply-adds")
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
