package kernel

import (
	"encoding/binary"
	"iter"
)

// roundingsBlock is the number of roundings that a kernel tests together.
const roundingsBlock = lanes

// plainKernel returns how many of the first n numbers of src, whole blocks of them, are plainly those of out, as
// DoubtfulRoundings says; n is a multiple of roundingsBlock.
type plainKernel func(out, src *byte, n int) int

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
			for i := range min(roundingsBlock, n-at) {
				if doubtful[i] && !yield(at+i) {
					return
				}
			}
			at += roundingsBlock
		}
	}
}

// doubtfulPortable tests the first roundingsBlock numbers, or as many as there are, in portable Go.
func doubtfulPortable(out []byte, to Format, src []byte, from Format) (doubtful [roundingsBlock]bool) {
	half := [...]int64{F32: 0, F16: 1 << 12, BF16: 1 << 15}[to] // half a step, in float32's bits
	var x, y [roundingsBlock]int64
	plainBits(&x, src, from, to != F32)
	plainBits(&y, out, to, to != F32)
	for i := range x {
		doubtful[i] = uint64(x[i]-y[i]+half) > uint64(2*half) || x[i]|y[i] < 0
	}
	return doubtful
}

// plainBits sets bits to those of the float32 that numbers of data are; those of numbers that are infinite or NaN, in F16 or
// if finite, to a negative number far from all bits.
func plainBits(bits *[roundingsBlock]int64, data []byte, f Format, finite bool) {
	for i := range min(len(bits), len(data)/f.Size()) {
		switch f {
		case F32:
			bits[i] = int64(binary.LittleEndian.Uint32(data[4*i:]))
		case F16:
			bits[i] = int64(Decode(uint32(binary.LittleEndian.Uint16(data[2*i:])), F16))
		default:
			bits[i] = int64(binary.LittleEndian.Uint16(data[2*i:])) << 16
		}
		if (finite || f == F16) && bits[i]&0x7fffffff >= 0x7f800000 {
			bits[i] = -1 << 40
		}
	}
}
