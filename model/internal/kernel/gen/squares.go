package main

import (
	. "github.com/mmcloughlin/avo/build"
	"github.com/mmcloughlin/avo/reg"
)

// squares writes the kernel that squares numbers, and the one that adds multiples of them.
func (s isa) squares() {
	name := s.name + "Square"
	e := s.beginElement(name, "func(dst, src *float32, n int)", loopDoc(name, "squares numbers", "dst[i] = src[i] * src[i]"))
	v := e.vector.take(lanes / s.perVector(32))
	e.loop(4, 4, func() {
		for i, r := range v {
			VMOVUPS(e.from(i*s.bytes), r)
			VMULPS(r, r, r)
			VMOVUPS(r, e.to(i*s.bytes))
		}
	})

	name = s.name + "AddMultiple"
	e = s.beginElement(name, "func(dst, src *float32, n int, factor float32)",
		loopDoc(name, "adds a multiple of numbers", "dst[i] += float32(factor * src[i])"))
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
