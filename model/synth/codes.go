package synth

import (
	"encoding/binary"
	"math"

	"dsmoe/model/tensor"
)

// fillCodes writes the codes nearest to Largest·u from index i on, one byte per code.
func (g generator) fillCodes(dst []byte, form *tensor.Form, i uint64) {
	for k := range dst {
		dst[k] = form.Nearest(form.Largest * g.u(i+uint64(k)))
	}
}

// fillScales writes the bytes of the scales base·(1 + scale·u) from offset on; it may
// begin and end inside a scale.
func (g generator) fillScales(dst []byte, offset int64) {
	var scale [4]byte
	for i, from := uint64(offset/4), offset%4; len(dst) > 0; i, from = i+1, 0 {
		v := 1 + float32(g.scale*g.u(i))
		binary.LittleEndian.PutUint32(scale[:], math.Float32bits(g.base*v))
		dst = dst[copy(dst, scale[from:]):]
	}
}
