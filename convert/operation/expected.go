package operation

import (
	"encoding/binary"
	"math"

	"dsmoe/model/tensor"
)

// tables hold what codes may be written as, for the block of each column of the grid that was checked last. They are
// for one goroutine.
type tables struct{ columns []table }

// table is what the codes of one block may be written as. A code whose product rounds twice has other patterns, too.
type table struct {
	scale, zero uint32 // bits of what the patterns were made with
	dtype       tensor.DType
	patterns    [256]uint32
}

// of returns the table of a block in a column of a grid, for codes of that form.
func (t *tables) of(form *tensor.Form, grid tensor.Grid, block, column int, b *bounds) *table {
	if column >= len(t.columns) {
		t.columns = append(t.columns, make([]table, column+1-len(t.columns))...)
	}
	x := &t.columns[column]
	if scale, zero := grid.Bits(block); x.dtype != b.dtype || x.scale != scale || x.zero != zero {
		x.scale, x.zero, x.dtype = scale, zero, b.dtype
		x.make(form, grid, block, b)
	}
	return x
}

// make sets the patterns to those of the products of all codes.
func (x *table) make(form *tensor.Form, grid tensor.Grid, block int, b *bounds) {
	var all [256]byte
	for i := range all {
		all[i] = byte(i)
	}
	var exact [256]float64
	form.Values(exact[:], all[:], 0)
	grid.Values(block, exact[:])
	sign := uint32(1) << (8*b.dtype.Bytes(1) - 1)
	for code, v := range exact[:128] {
		p := b.pattern(v)
		x.patterns[code] = p
		if negative := exact[code+128]; math.Float64bits(negative) == math.Float64bits(-v) {
			x.patterns[code+128] = p ^ sign
		} else {
			x.patterns[code+128] = b.pattern(negative)
		}
	}
}

// same returns how many of the first elements of out have the pattern of their code.
func (x *table) same(codes, out []byte) int {
	patterns := &x.patterns
	if x.dtype == tensor.F32 {
		for i, code := range codes {
			if binary.LittleEndian.Uint32(out[4*i:]) != patterns[code] {
				return i
			}
		}
		return len(codes)
	}
	i := 0
	for ; len(codes)-i >= 8; i += 8 {
		c, o := (*[8]byte)(codes[i:]), (*[16]byte)(out[2*i:])
		low, high := binary.LittleEndian.Uint64(o[:]), binary.LittleEndian.Uint64(o[8:])
		low ^= uint64(patterns[c[0]]) | uint64(patterns[c[1]])<<16 | uint64(patterns[c[2]])<<32 | uint64(patterns[c[3]])<<48
		high ^= uint64(patterns[c[4]]) | uint64(patterns[c[5]])<<16 | uint64(patterns[c[6]])<<32 | uint64(patterns[c[7]])<<48
		if low|high != 0 {
			break
		}
	}
	for ; i < len(codes); i++ {
		if uint32(binary.LittleEndian.Uint16(out[2*i:])) != patterns[codes[i]] {
			return i
		}
	}
	return i
}

// pattern returns a pattern that exact may be written as: of two at the same distance the even one.
func (b *bounds) pattern(exact float64) uint32 {
	if b.dtype == tensor.F32 {
		return math.Float32bits(float32(exact))
	}
	abs, inf := math.Abs(exact), len(b.high)-1
	p := b.nearest(abs)
	if p <= 1<<b.mantissa || p >= inf { // not certainly a normal number
		p = inf + 1 // NaN
		if exact == exact {
			p = b.below(abs)
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

// nearest returns the pattern nearest to abs, of two the even one, if that is above the least normal number.
func (b *bounds) nearest(abs float64) int {
	bits, shift := math.Float64bits(abs), 52-b.mantissa
	return int((bits+1<<(shift-1)-1+bits>>shift&1)>>shift) - (1023-b.bias)<<b.mantissa
}

// below returns the pattern of the largest magnitude that is at most abs.
func (b *bounds) below(abs float64) int {
	if p := int(math.Float64bits(abs)>>(52-b.mantissa)) - (1023-b.bias)<<b.mantissa; p >= 1<<b.mantissa {
		return min(p, len(b.high)-1)
	}
	return int(abs * math.Float64frombits(uint64(1023+b.bias-1+b.mantissa)<<52)) // denormals are multiples of the least
}
