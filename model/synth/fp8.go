package synth

import (
	"encoding/binary"
	"math"
)

// maxE4M3 is the largest number of F8_E4M3.
const maxE4M3 = 448

// fillFP8 writes the numbers 448·u from index i on, a byte each.
func (g generator) fillFP8(dst []byte, i uint64) {
	for k := range dst {
		dst[k] = e4m3(maxE4M3 * g.u(i+uint64(k)))
	}
}

// fillScales writes the bytes of the scales base·(1 + scale·u) from offset on; it may
// begin and end in the middle of one.
func (g generator) fillScales(dst []byte, offset int64) {
	var scale [4]byte
	for i, from := uint64(offset/4), offset%4; len(dst) > 0; i, from = i+1, 0 {
		v := 1 + float32(g.scale*g.u(i))
		binary.LittleEndian.PutUint32(scale[:], math.Float32bits(g.base*v))
		dst = dst[copy(dst, scale[from:]):]
	}
}

// e4m3 rounds v, of magnitude 448 at most, to nearest, ties to even. The numbers of
// exponent e are the multiples 0 … 16 of 2^(e-3), below 2^-6 those of 2^-9; code 8·(e+6) + n
// is n times that, the next exponent's beginning where n is 16.
func e4m3(v float32) byte {
	b := math.Float32bits(v)
	e := max(int(b>>23&0xff)-127, -6)
	n := math.RoundToEven(math.Abs(float64(v)) * math.Float64frombits(uint64(3-e+1023)<<52))
	return byte(b>>24&0x80) | byte(8*(e+6)+int(n))
}
