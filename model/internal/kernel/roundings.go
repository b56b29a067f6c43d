package kernel

import (
	"encoding/binary"
	"iter"
	"math/bits"
)

// DoubtfulRoundings yields the indices of the numbers of src, in ascending order, that are not plainly rounded to the number
// of out in the same place. Plainly rounded is a number that is at most half a step of F16's or BF16's normal numbers away
// from it, in bits of float32, if neither is infinite or NaN. Plainly F32 is what has the same bits; F16 as F32 only if it is
// finite. Formats are F32, F16 and BF16. It panics if lengths differ.
func DoubtfulRoundings(out []byte, to Format, src []byte, from Format) iter.Seq[int] {
	n := len(src) / from.Size()
	if len(out) != n*to.Size() {
		panic("kernel: DoubtfulRoundings: lengths do not fit")
	}
	return func(yield func(int) bool) {
		plain := current().plain[from][to]
		for at := 0; at < n; {
			if whole := min(chunk, n-at) &^ (roundingsBlock - 1); plain != nil && whole > 0 {
				done := plain(&out[at*to.Size()], &src[at*from.Size()], whole)
				if at += done; done == whole {
					continue
				}
			}
			doubtful := doubtfulPortable(out[at*to.Size():], to, src[at*from.Size():], from)
			for ; doubtful != 0; doubtful &= doubtful - 1 {
				if !yield(at + bits.TrailingZeros32(doubtful)) {
					return
				}
			}
			at += roundingsBlock
		}
	}
}

// doubtfulPortable tests the first roundingsBlock numbers, or as many as there are, in portable Go: bit i is set if number i
// is doubtful.
func doubtfulPortable(out []byte, to Format, src []byte, from Format) (doubtful uint32) {
	half := [...]uint32{F32: 0, F16: 1 << 12, BF16: 1 << 15}[to] // half a step, in float32's bits
	finite := to != F32 || from == F16                           // a number that is infinite or NaN is doubtful
	var x, y [roundingsBlock]uint32
	float32Bits(&x, src, from)
	float32Bits(&y, out, to)
	for i, b := range x {
		bit := uint32(0)
		if b-y[i]+half > 2*half || finite && max(b<<1, y[i]<<1) >= 0xff<<24 {
			bit = 1
		}
		doubtful |= bit << i
	}
	return doubtful
}

// float32Bits sets numbers to the bits of the float32 that numbers of data are, and of 0 after the last.
func float32Bits(numbers *[roundingsBlock]uint32, data []byte, f Format) {
	var last [4 * roundingsBlock]byte
	if size := roundingsBlock * f.Size(); len(data) < size {
		copy(last[:], data)
		data = last[:size]
	}
	if f == F32 {
		b := (*[4 * roundingsBlock]byte)(data)
		for i := range numbers {
			numbers[i] = binary.LittleEndian.Uint32(b[4*i:])
		}
		return
	}
	b := (*[2 * roundingsBlock]byte)(data)
	for i := range numbers {
		numbers[i] = uint32(binary.LittleEndian.Uint16(b[2*i:])) << 16
	}
	if f == F16 {
		for i, h := range numbers {
			if numbers[i] = h&(1<<31) | h<<1>>4 + 112<<23; h<<1-1<<27 >= 30<<27 { // not a normal number
				numbers[i] = Decode(h>>16, F16)
			}
		}
	}
}
