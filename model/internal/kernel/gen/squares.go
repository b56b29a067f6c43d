package main

import (
	. "github.com/mmcloughlin/avo/build"
	"github.com/mmcloughlin/avo/reg"
)

// squares writes the kernels that square numbers and that add multiples of numbers.
func (s isa) squares() {
	e := s.beginElement("Square", "(dst, src *float32, n int)", "square")
	v := e.vector.take(lanes / s.perVector(32))
	e.loop(4, 4, func() {
		for i, r := range v {
			VMOVUPS(e.from(i*s.bytes), r)
			VMULPS(r, r, r)
			VMOVUPS(r, e.to(i*s.bytes))
		}
	})

	e = s.beginElement("AddMultiple", "(dst, src *float32, n int, factor float32)", "addMultiple")
	factor := e.vector.one()
	v = e.vector.take(lanes / s.perVector(32))
	Load(Param("factor"), factor.AsX().(reg.Register))
	VBROADCASTSS(factor.AsX(), factor)
	e.loop(4, 4, func() {
		for i, r := range v {
			VMULPS(e.from(i*s.bytes), factor, r)
			VADDPS(e.to(i*s.bytes), r, r)
			VMOVUPS(r, e.to(i*s.bytes))
		}
	})
}
