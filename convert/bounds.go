package convert

// The proof of lossy operations. It does not repeat the cast: it decodes what was
// written and asks whether the exact value could have been rounded to it.

import (
	"encoding/binary"
	"fmt"
	"math"

	"dsmoe/model/tensor"
)

// bounds holds, for every pattern of a 16-bit dtype, the values that round to it.
type bounds struct {
	dtype     tensor.DType
	low, high []float64 // by the pattern without its sign; exact half-way points
}

func newBounds(d tensor.DType) *bounds {
	b := &bounds{dtype: d}
	if d == tensor.F32 {
		return b
	}
	inf := patternOfInf(d)
	b.low, b.high = make([]float64, inf+1), make([]float64, inf+1)
	for i := range inf {
		half := (magnitude(i+1, d) - magnitude(i, d)) / 2
		b.high[i] = magnitude(i, d) + half
		b.low[i+1] = b.high[i]
	}
	b.high[inf] = math.Inf(1)
	return b
}

func patternOfInf(d tensor.DType) int {
	if d == tensor.BF16 {
		return 0x7f80
	}
	return 0x7c00
}

// magnitude is the value of a pattern by the definition of the dtype; infinity's is
// what would follow the largest number.
func magnitude(pattern int, d tensor.DType) float64 {
	mantissa, bias := 10, 15
	if d == tensor.BF16 {
		mantissa, bias = 7, 127
	}
	exponent, fraction := pattern>>mantissa, pattern&(1<<mantissa-1)
	if exponent == 0 {
		return math.Ldexp(float64(fraction), 1-bias-mantissa)
	}
	return math.Ldexp(float64(fraction+1<<mantissa), exponent-bias-mantissa)
}

// check says whether exact may be written as the element at i of out. slack widens
// the bounds by that share, for operations that round more than once.
func (b *bounds) check(exact float64, out []byte, i int, slack float64) bool {
	if b.dtype == tensor.F32 {
		return b.checkF32(exact, math.Float32frombits(binary.LittleEndian.Uint32(out[4*i:])))
	}
	h := binary.LittleEndian.Uint16(out[2*i:])
	pattern := int(h & 0x7fff)
	if exact != exact || pattern >= len(b.low) {
		return exact != exact && pattern >= len(b.low)
	}
	abs := math.Abs(exact)
	return math.Signbit(exact) == (h&0x8000 != 0) && b.low[pattern]*(1-slack) <= abs && abs <= b.high[pattern]*(1+slack)
}

// checkF32 accepts the one value that a product, exact in float64, rounds to.
func (b *bounds) checkF32(exact float64, got float32) bool {
	if exact != exact {
		return got != got
	}
	want := float32(exact)
	return math.Float32bits(want) == math.Float32bits(got)
}

// prove compares a piece of the output, as it was read again, with the source that
// it was made of.
func (a *assembler) prove(to tensor.DType, p piece, out, src []byte) error {
	s := p.segment
	if s.Scale == nil && to == tensor.F32 {
		return proveWidening(s.DType, out, src)
	}
	if s.Scale == nil {
		return a.proveCast(to, s.DType, out, src)
	}
	if err := a.loadScales(s.Scale, p.from, p.to); err != nil {
		return err
	}
	return a.proveDequantised(to, p, out, src)
}

// proveWidening narrows every F32 to what it was made of: nothing may be lost.
func proveWidening(from tensor.DType, out, src []byte) error {
	for i := range len(src) / 2 {
		got, want := binary.LittleEndian.Uint32(out[4*i:]), binary.LittleEndian.Uint16(src[2*i:])
		same := got == uint32(want)<<16
		if from == tensor.F16 {
			same = narrows(got, want)
		}
		if !same {
			return disagree(i, fmt.Sprintf("%08x", got), fmt.Sprintf("%s %04x", from, want))
		}
	}
	return nil
}

// narrows says whether F32 bits are the value of an F16, with its NaN's payload.
func narrows(got uint32, want uint16) bool {
	v := float64(math.Float32frombits(got))
	abs := int(want & 0x7fff)
	switch {
	case got>>31 != uint32(want>>15):
		return false
	case abs == 0x7c00:
		return math.IsInf(v, 0)
	case abs > 0x7c00:
		return v != v && got&0x7fffff == uint32(want&0x3ff)<<13
	}
	return math.Abs(v) == magnitude(abs, tensor.F16)
}

func (a *assembler) proveCast(to, from tensor.DType, out, src []byte) error {
	values := a.codecs.values[from]
	decode := func(v []float32, i int) {
		switch from {
		case tensor.F32:
			for k := range v {
				v[k] = math.Float32frombits(binary.LittleEndian.Uint32(src[4*(i+k):]))
			}
		case tensor.BF16:
			for k := range v {
				v[k] = math.Float32frombits(uint32(binary.LittleEndian.Uint16(src[2*(i+k):])) << 16)
			}
		default:
			for k := range v {
				v[k] = float32(values[binary.LittleEndian.Uint16(src[2*(i+k):])])
			}
		}
	}
	exact := func(i int) float64 {
		var v [1]float32
		decode(v[:], i)
		return float64(v[0])
	}
	return a.codecs.bounds[to].checkAll(out, len(src)*8/from.Bits(), 0, exact, decode)
}

// checkAll checks n elements of out. exact gives the value that element i was made of;
// rounded sets v to those from i on, rounded to F32, and is asked first.
func (b *bounds) checkAll(out []byte, n int, slack float64, exact func(i int) float64, rounded func(v []float32, i int)) error {
	var values [512]float32
	size := b.dtype.Bits() / 8
	for i := 0; i < n; {
		v := values[:min(len(values), n-i)]
		rounded(v, i)
		for end := i + len(v); i < end; i++ {
			i += b.clear(v[len(v)-(end-i):], out[size*i:])
			if i < end && !b.check(exact(i), out, i, slack) {
				return disagree(i, fmt.Sprintf("%x", out[size*i:][:size]), fmt.Sprint(exact(i)))
			}
		}
	}
	return nil
}

// clear returns how many of the first elements of out check accepts at a glance: F32
// that are the same, and normal numbers of other dtypes less than half a step off.
func (b *bounds) clear(v []float32, out []byte) int {
	switch b.dtype {
	case tensor.F32:
		for i, x := range v {
			if math.Float32bits(x) != binary.LittleEndian.Uint32(out[4*i:]) {
				return i
			}
		}
	case tensor.BF16:
		for i, x := range v {
			h := uint32(binary.LittleEndian.Uint16(out[2*i:]))
			exponent := h & 0x7f80
			if math.Float32bits(x)-h<<16+0x7fff >= 0xffff || exponent == 0 || exponent == 0x7f80 {
				return i
			}
		}
	default:
		for i, x := range v {
			h := uint32(binary.LittleEndian.Uint16(out[2*i:]))
			exponent, bits := h&0x7c00, h&0x8000<<16|h&0x7fff<<13+112<<23
			if math.Float32bits(x)-bits+0xfff >= 0x1fff || exponent == 0 || exponent == 0x7c00 {
				return i
			}
		}
	}
	return len(v)
}

// valueF16 is the value of an F16.
func valueF16(h uint16) float64 {
	abs := int(h & 0x7fff)
	v := math.NaN()
	switch {
	case abs < 0x7c00:
		v = magnitude(abs, tensor.F16)
	case abs == 0x7c00:
		v = math.Inf(1)
	}
	if h&0x8000 != 0 {
		v = -v
	}
	return v
}

// valuesOf lists the values of all patterns of F16 or F8E4M3.
func valuesOf(d tensor.DType) []float64 {
	values := make([]float64, 1<<d.Bits())
	for i := range values {
		if d == tensor.F8E4M3 {
			values[i] = float64(tensor.E4M3(byte(i)))
		} else {
			values[i] = valueF16(uint16(i))
		}
	}
	return values
}

// twice is the slack of a product that is rounded to F32 before it is to 16 bits.
const twice = 0x1p-23

func (a *assembler) proveDequantised(to tensor.DType, p piece, out, src []byte) error {
	s, values := p.segment.Scale, a.codecs.values[tensor.F8E4M3]
	_, width := s.Blocks.Grid()
	first := s.gridRow(p.from)
	// run returns the scale of element i and how many after it share that.
	run := func(i int) (scale float64, n int) {
		row, col := (int(p.from)+i)/s.Blocks.Cols, (int(p.from)+i)%s.Blocks.Cols
		block := col / s.Blocks.BlockCols
		end := min((block+1)*s.Blocks.BlockCols, s.Blocks.Cols)
		return float64(a.scales[(row/s.Blocks.BlockRows-first)*width+block]), end - col
	}
	exact := func(i int) float64 {
		scale, _ := run(i)
		return values[src[i]] * scale
	}
	return a.codecs.bounds[to].checkAll(out, len(src), twice, exact, func(v []float32, i int) {
		for len(v) > 0 {
			scale, n := run(i)
			n = min(n, len(v))
			for k, code := range src[i : i+n] {
				v[k] = float32(values[code] * scale)
			}
			v, i = v[n:], i+n
		}
	})
}

// disagree is what is wrong with an element of a piece.
func disagree(i int, got, want string) error {
	return fmt.Errorf("element %d of the piece reads %s, but the source gives %s", i, got, want)
}
