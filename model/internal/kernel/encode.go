package kernel

import (
	"encoding/binary"
	"math"
)

// EncodeQ8 encodes src, whole blocks of 32, into dst, as ggml's quantize_row_q8_0_ref does:
//
//	d = max|x|/127, an F16; q[j] = x[j]·(1/d), rounded to nearest, half away from zero
//
// with 0 for 1/0, and codes of 0 where 1/d is infinite. The bytes of a block with an infinity or
// a NaN are undefined. EncodeQ8 panics if dst is too short.
func EncodeQ8(dst []byte, src []float32) {
	dst = dst[:Q8_0.Bytes(len(src))]
	encode := current().encodeQ8
	if encode == nil {
		for ; len(src) > 0; src, dst = src[32:], dst[34:] {
			encodeQ8Portable((*[34]byte)(dst), (*[32]float32)(src))
		}
		return
	}
	inChunks(len(src), func(i, n int) { encode(&dst[i/32*34], &src[i], n) })
}

// encodeQ8Portable is EncodeQ8 of a block in portable Go.
func encodeQ8Portable(dst *[34]byte, x *[32]float32) {
	// Adding belowHalf, with the number's sign, before truncating rounds half away from zero.
	const sign, belowHalf = 1 << 31, 0x3effffff
	q, largest := (*[32]byte)(dst[2:]), uint32(0)
	for _, v := range x {
		largest = max(largest, math.Float32bits(v)&^sign)
	}
	d := math.Float32frombits(largest) / 127
	binary.LittleEndian.PutUint16(dst[:], uint16(Encode(math.Float32bits(d), F16)))
	inverse := 1 / d
	if inverse > math.MaxFloat32 {
		inverse = 0
	}
	for j, v := range x {
		y := float32(v * inverse)
		q[j] = byte(int32(y + math.Float32frombits(math.Float32bits(y)&sign|belowHalf)))
	}
}

// BlockSums measures the errors of numbers y, which approximate numbers x.
type BlockSums struct {
	Squares float64 // Σ x²
	Errors  float64 // Σ e², e = y - x rounded to float32
	Largest uint32  // bits of the largest |e|; at least the bits of infinity if some e is infinite or NaN
	Any     uint32  // the bits of all y, or-ed
	Changed uint32  // |y| ≠ |x|, by their bits
	Half    float32 // of CompareQ8: half a step between codes, and what rounding the scale adds at the largest code
}

// Compare sets sums to those of blocks of the same length, a multiple of 8 numbers. Squares and Errors
// have four float64 partial sums, number k in partial sum k mod 4, added in pairs at the end; they are
// undefined if Largest is not finite. Compare panics if lengths do not fit.
func Compare(sums []BlockSums, y, x []float32) {
	n := len(x) / max(1, len(sums))
	if len(y) != len(x) || n*len(sums) != len(x) || n%8 != 0 {
		panic("kernel: Compare: lengths do not fit")
	}
	if f := current().blockErrors; f != nil && len(x) > 0 {
		for i, most := 0, max(1, chunk/n); i < len(sums); i += most {
			f(&sums[i].Squares, &y[i*n], &x[i*n], min(most, len(sums)-i), n)
		}
		return
	}
	for i := range sums {
		blockErrorsPortable(&sums[i], y[i*n:][:n], x[i*n:][:n])
	}
}

// CompareQ8 is Compare of what blocks of Q8_0 stand for. It panics if lengths do not fit.
func CompareQ8(sums []BlockSums, blocks []byte, x []float32) {
	if len(x) != 32*len(sums) || len(blocks) != 34*len(sums) {
		panic("kernel: CompareQ8: lengths do not fit")
	}
	f := current().compareQ8
	if f == nil {
		for i := range sums {
			compareQ8Portable(&sums[i], blocks[34*i:][:34], x[32*i:][:32])
		}
		return
	}
	inChunks(len(x), func(i, n int) { f(&sums[i/32].Squares, &blocks[i/32*34], &x[i], n/32) })
}

// compareQ8Portable is CompareQ8 of one block in portable Go.
func compareQ8Portable(s *BlockSums, block []byte, x []float32) {
	var y [32]float32
	widenQ8_0(y[:], block)
	blockErrorsPortable(s, y[:], x)
	scale := math.Float32frombits(math.Float32bits(f16At(block)) &^ (1 << 31)) // rounded by half a unit of F16 at most
	s.Half = float32(127*max(float32(0x1p-11*scale), 0x1p-25)) + float32(0.5*scale)
}

// blockErrorsPortable is Compare of one block in portable Go.
func blockErrorsPortable(s *BlockSums, y, x []float32) {
	bits := func(v float32) uint32 { return math.Float32bits(v) }
	magnitude := func(v float32) uint32 { return math.Float32bits(v) &^ (1 << 31) }
	*s = BlockSums{}
	var counts Losses
	lossesPortable(&counts, y, x, 0)
	s.Changed = counts.Changed
	var s0, s1, s2, s3, e0, e1, e2, e3 float64
	for ; len(x) >= 4 && len(y) >= 4; x, y = x[4:], y[4:] {
		d0, d1, d2, d3 := y[0]-x[0], y[1]-x[1], y[2]-x[2], y[3]-x[3]
		s.Any |= bits(y[0]) | bits(y[1]) | bits(y[2]) | bits(y[3])
		s.Largest = max(s.Largest, magnitude(d0), magnitude(d1), magnitude(d2), magnitude(d3))
		v0, v1, v2, v3 := float64(x[0]), float64(x[1]), float64(x[2]), float64(x[3])
		s0, s1, s2, s3 = s0+float64(v0*v0), s1+float64(v1*v1), s2+float64(v2*v2), s3+float64(v3*v3)
		v0, v1, v2, v3 = float64(d0), float64(d1), float64(d2), float64(d3)
		e0, e1, e2, e3 = e0+float64(v0*v0), e1+float64(v1*v1), e2+float64(v2*v2), e3+float64(v3*v3)
	}
	s.Squares, s.Errors = s0+s1+(s2+s3), e0+e1+(e2+e3)
}
