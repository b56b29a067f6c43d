package operation

import (
	"encoding/binary"
	"math"

	"dsmoe/model/tensor"
)

// Tables hold what codes of FP8 may be written as, for the block of each column of the grid that was checked last, and
// memory for pieces of a Merge. The zero value holds none. They are for one goroutine.
type Tables struct {
	dtype  tensor.DType
	scales []uint64           // by column: made, and the bits of the scale that its table was made with; 0 for no table
	words  []tensor.CodeTable // for 16-bit dtypes. A code whose product rounds twice has other patterns, too
	whole  [][256]uint32      // for F32

	merging merging
}

// merging is the memory for a piece of a Merge: the numbers of the matrix, and of the factors, by direction.
type merging struct {
	numbers     []float32
	wide        []byte    // dequantised weights in F32
	sums        []float64 // of a row
	left, right []float64
	lines, cols int // of left and right
	row         int // that left begins with
}

// row makes the tables of blocks with these scales, which lie in a row of the grid from a column on, for the dtype of b:
// the patterns of the products of all codes.
func (t *Tables) row(scales []float32, column int, b *bounds) {
	if t.dtype != b.dtype {
		*t = Tables{dtype: b.dtype}
	}
	if more := column + len(scales) - len(t.scales); more > 0 {
		t.scales = append(t.scales, make([]uint64, more)...)
		if b.dtype == tensor.F32 {
			t.whole = append(t.whole, make([][256]uint32, more)...)
		} else {
			t.words = append(t.words, make([]tensor.CodeTable, more)...)
		}
	}
	const made = 1 << 32
	for i, scale := range scales {
		bits := made | uint64(math.Float32bits(scale))
		if t.scales[column+i] == bits {
			continue
		}
		t.scales[column+i] = bits
		for code := range 128 {
			p := b.pattern(magnitudesE4M3[code] * float64(scale))
			if b.dtype == tensor.F32 {
				t.whole[column+i][code], t.whole[column+i][code+128] = p, p^1<<31
			} else {
				t.words[column+i].Set(code, uint16(p))
			}
		}
	}
}

// magnitudesE4M3 are the values of the codes without a sign.
var magnitudesE4M3 = func() (values [128]float64) {
	for code := range values {
		values[code] = float64(tensor.E4M3(byte(code)))
	}
	return values
}()

// same returns how many of the first codes, of blocks of that length from a column on, have their pattern in out.
func (t *Tables) same(column int, codes, out []byte, block int) int {
	if t.dtype != tensor.F32 {
		return tensor.SamePatterns(t.words[column:], codes, out, block)
	}
	for i, code := range codes {
		if binary.LittleEndian.Uint32(out[4*i:]) != t.whole[column+i/block][code] {
			return i
		}
	}
	return len(codes)
}

// pattern returns a pattern that exact may be written as: of two at the same distance the even one.
func (b *bounds) pattern(exact float64) uint32 {
	if b.dtype == tensor.F32 {
		return math.Float32bits(float32(exact))
	}
	abs, inf := math.Abs(exact), len(b.high)-1
	bits, shift, lead := math.Float64bits(abs), 52-b.mantissa, (1023-b.bias)<<b.mantissa
	p := int((bits+1<<(shift-1)-1+bits>>shift&1)>>shift) - lead // the nearest, of two the even one
	if p <= 1<<b.mantissa || p >= inf {                         // not certainly a normal number
		p = inf + 1 // NaN
		if exact == exact {
			p = min(int(bits>>shift)-lead, inf) // the pattern of the largest magnitude that is at most abs
			if p < 1<<b.mantissa {              // denormal numbers are multiples of the least
				p = int(abs * math.Float64frombits(uint64(1023+b.bias-1+b.mantissa)<<52))
			}
			if p < inf && (abs > b.high[p] || abs == b.high[p] && p%2 == 1) {
				p++
			}
		}
	}
	if math.Signbit(exact) {
		p |= 0x8000
	}
	return uint32(p)
}
