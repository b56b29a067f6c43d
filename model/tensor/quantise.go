package tensor

import (
	"fmt"
	"math"
	"sync"

	"dsmoe/model/internal/kernel"
)

// Quantiser encodes numbers in a block type, byte for byte as ggml's reference encoder
// does without an importance matrix. It is safe for concurrent use.
type Quantiser struct {
	To     DType                         // a block type that Quantises
	encode func(dst []byte, x []float32) // encodes whole blocks
}

// NewQuantiser prepares the conversion, or says that there is none: of the block types, MXFP4 is only read.
func NewQuantiser(to DType) (*Quantiser, error) {
	if !to.Quantises() {
		return nil, fmt.Errorf("nothing can be quantised to dtype %s", to)
	}
	return &Quantiser{to, to.encodeBlocks}, nil
}

// Quantises says whether there is a Quantiser to d.
func (d DType) Quantises() bool { return int(d) < len(encoders) && encoders[d] != nil }

// Convert encodes x, whole blocks, into dst, which has room for exactly them, and adds to
// lost what that does to them: block after block, so that the sums do not depend on how a
// tensor is cut. A block of a number that is infinite or NaN is not defined; such numbers
// are counted. Each block is decoded again, by code that is not the encoder's. The error is a
// *BeyondError if a number is not within half a step of what its block stands for.
func (q *Quantiser) Convert(dst []byte, x []float32, lost *Loss) error {
	for first := 0; len(x) > 0; first += piece {
		part := x[:min(piece, len(x))]
		out := dst[:q.To.Bytes(int64(len(part)))]
		q.encode(out, part)
		if err := q.compareUnweighted(out, part, first, lost); err != nil {
			return err
		}
		x, dst = x[len(part):], dst[len(out):]
	}
	return nil
}

// ConvertRow is Convert of a row, whole, of a type that Weighs: the error of each number is weighted with
// the importance of its column, which is neither negative, infinite nor NaN. Numbers may be farther away
// than half a step then, within the bounds of beyondWeighted.
func (q *Quantiser) ConvertRow(dst []byte, x, importance []float32, lost *Loss) error {
	q.To.encodeRow(dst, x, importance)
	variance := squareSum(x) / float32(len(x))
	for first := 0; first < len(x); first += piece {
		part := x[first:min(first+piece, len(x))]
		out := dst[q.To.Bytes(int64(first)):][:q.To.Bytes(int64(len(part)))]
		err := q.compare(out, part, first, lost, func(_ *measure, y, x []float32, block []byte, at int, largest uint32) int {
			if largest >= infinityBits {
				return -1
			}
			var weights [256]float32
			q.To.weights(weights[:len(x)], x, importance[first+at:], variance)
			return beyondWeighted(y, x, weights[:len(x)], block, q.To)
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// compare adds to lost what encoding x, at most piece numbers, as out did to it. beyond returns the index of
// a number of a block, which begins at that index of x, that the block does not stand for; -1 if it
// stands for all. first is the index of x in what is converted.
func (q *Quantiser) compare(out []byte, x []float32, first int, lost *Loss,
	beyond func(m *measure, y, x []float32, block []byte, at int, largest uint32) int) error {
	m := measures.Get().(*measure)
	defer measures.Put(m)
	y := m.decoded[:len(x)]
	kernel.Widen(y, out, blockFormats[q.To])
	elements, size := q.To.Block()
	sums := m.sums[:len(x)/elements]
	kernel.Compare(sums, y, x)
	for k := range sums {
		i, s := k*elements, &sums[k]
		lost.quantised(y[i:i+elements], x[i:i+elements], s)
		if at := beyond(m, y[i:i+elements], x[i:i+elements], out[k*size:][:size], i, s.Largest); at >= 0 {
			return &BeyondError{q.To, first + i + at, x[i+at], y[i+at]}
		}
	}
	return nil
}

// compareUnweighted is compare of blocks that were encoded without importance.
func (q *Quantiser) compareUnweighted(out []byte, x []float32, first int, lost *Loss) error {
	within := func(m *measure, y, x []float32, block []byte, _ int, largest uint32) int {
		return m.beyond(y, x, block, q.To, largest)
	}
	if q.To != Q8_0 {
		return q.compare(out, x, first, lost, within)
	}
	m := measures.Get().(*measure)
	defer measures.Put(m)
	sums := m.sums[:len(x)/32]
	kernel.CompareQ8(sums, out, x)
	for k := range sums { // nearly all are within half a step, which is all that quantised needs to know
		if s := &sums[k]; s.Largest < infinityBits && math.Float32frombits(s.Largest) <= s.Half {
			lost.quantised(nil, nil, s)
		} else if err := q.compare(out[34*k:][:34], x[32*k:][:32], first+32*k, lost, within); err != nil {
			return err
		}
	}
	return nil
}

// measure is memory to measure losses in.
type measure struct {
	decoded [piece]float32
	sums    [piece / 32]kernel.BlockSums // of blocks of 32 numbers or more
	spans   [16]kernel.Span              // of the parts of a block
}

var measures = sync.Pool{New: func() any { return new(measure) }}

// encodeBlocks encodes whole blocks.
func (d DType) encodeBlocks(dst []byte, x []float32) {
	if d == Q8_0 {
		kernel.EncodeQ8(dst, x)
		return
	}
	for encode := encoders[d]; len(x) > 0; {
		n := min(d.encodedAtOnce(), len(x))
		size := d.Bytes(int64(n))
		encode(dst[:size:size], x[:n:n])
		x, dst = x[n:], dst[size:]
	}
}

// encodedAtOnce returns how many numbers an encoder takes: of Q4_K and Q5_K one or two blocks, whose parts fill a
// kernel.Fit, of others one.
func (d DType) encodedAtOnce() int {
	elements, _ := d.Block()
	if d == Q4_K || d == Q5_K {
		return 2 * elements
	}
	return elements
}

// quantised adds what a block of x lost when it became y.
func (l *Loss) quantised(y, x []float32, s *kernel.BlockSums) {
	const sign = 1 << 31
	if l.measure(y, x, s); s.Largest < infinityBits && s.Any&^sign == 0 {
		l.Flushed, l.Rounded = l.Flushed+int64(s.Changed), l.Rounded-int64(s.Changed)
	}
}

// measure adds the errors of y, which x became, as s has them. Numbers of which one became infinite or NaN
// are in no sum: each that did is counted, and none of them is rounded.
func (l *Loss) measure(y, x []float32, s *kernel.BlockSums) {
	if s.Largest >= infinityBits {
		source := NotFiniteValues(x)
		l.NotFinite += source
		if source == 0 {
			l.Overflow += max(1, NotFiniteValues(y))
		}
		return
	}
	l.Rounded += int64(s.Changed)
	l.Squares += s.Squares
	l.Errors += s.Errors
	l.Largest = max(l.Largest, float64(math.Float32frombits(s.Largest)))
}

// DequantiseBlocks decodes the blocks of src, of a block type, into dst, of F32, F16 or BF16,
// rounding to nearest, ties to even, and counts what is lost.
func DequantiseBlocks(dst, src []byte, from, to DType) (lost Loss) {
	f, _ := to.Format()
	from.eachDecoded(src, func(x []float32) {
		out := dst[:to.Bytes(int64(len(x)))]
		kernel.Narrow(out, x, f)
		lost.narrowed(out, f, x)
		dst = dst[len(out):]
	})
	return lost
}

// encoders holds the encoder of encodedAtOnce numbers of each type that can be written; nil for others.
var encoders = [...]func(dst []byte, x []float32){
	Q4_0: encodeQ4_0, Q4_1: encodeQ4_1, Q5_0: encodeQ5_0, Q5_1: encodeQ5_1, Q8_0: kernel.EncodeQ8,
	Q2_K: encodeQ2_K, Q3_K: encodeQ3_K,
	Q4_K:   func(dst []byte, x []float32) { encodeMinimums(dst, x, searchQ4_K, Q4_K) },
	Q5_K:   func(dst []byte, x []float32) { encodeMinimums(dst, x, searchQ5_K, Q5_K) },
	Q6_K:   func(dst []byte, x []float32) { encodeQ6_K(dst, x, nil) },
	IQ4_NL: encodeIQ4_NL, IQ4_XS: encodeIQ4_XS,
	MXFP4: nil,
}

// Weighs reports whether the encoder of d uses importance.
func (d DType) Weighs() bool { return d.Quantises() && d != Q8_0 && d != IQ4_NL && d != IQ4_XS }
