package plan

import (
	"math"

	"dsmoe/convert/internal/digest"
	"dsmoe/convert/operation"
)

// Part is a share of a plan's output. The zero Part is all of it.
type Part struct {
	I int `json:"part"` // 1 ≤ I ≤ N
	N int `json:"of"`   // number of parts
}

// Span is the bytes From, …, To-1 of a tensor.
type Span struct {
	*Tensor
	Index    int // of the tensor in the plan
	From, To int64
}

// Size returns the bytes of the span.
func (s *Span) Size() int64 { return s.To - s.From }

// Whole reports whether the span is all of its tensor.
func (s *Span) Whole() bool { return s.From == 0 && s.To == s.Bytes() }

// FirstSegment returns the first segment with bytes of the span, and where it begins in the tensor.
func (s *Span) FirstSegment() (index int, begin int64) {
	for s.From > 0 && begin+s.Segments[index].Bytes <= s.From {
		begin += s.Segments[index].Bytes
		index++
	}
	return index, begin
}

// Shares divides the output into n shares of about the same number of bytes, one behind the other: a share ends
// where n equal shares would, rounded down to where the output can be cut. Shares of more parts than places to cut
// are empty.
func (p *Plan) Shares(n int) [][]Span {
	_, total := p.Bytes()
	equal := func(i int) int64 { return total/int64(n)*int64(i) + total%int64(n)*int64(i)/int64(n) }
	shares := make([][]Span, n)
	i, before := 0, int64(0) // the share, and the bytes of the tensors before
	for k := range p.Tensors {
		t := &p.Tensors[k]
		size, from := t.Bytes(), int64(0)
		for i < n-1 && equal(i+1) < before+size {
			if to := t.cut(equal(i+1) - before); to > from {
				shares[i] = append(shares[i], Span{t, k, from, to})
				from = to
			}
			i++
		}
		shares[i] = append(shares[i], Span{t, k, from, size})
		before += size
	}
	return shares
}

// Share returns a part's share of the output.
func (p *Plan) Share(part Part) []Span {
	if part.N == 0 {
		return p.Shares(1)[0]
	}
	return p.Shares(part.N)[part.I-1]
}

// leastSpan is the least number of bytes between two places in a segment where it can be cut.
const leastSpan = 64 << 10

// cut returns the last place, at most the given one, where the tensor can be cut: where a unit of a
// segment's operation and a chunk of the hashes of the output and of the segment's source begin.
func (t *Tensor) cut(at int64) int64 {
	begin, last := int64(0), int64(0)
	for i := range t.Segments {
		s := &t.Segments[i]
		if begin > at {
			break
		}
		if step := s.cutStep(); begin%digest.Chunk == 0 {
			last = begin + min(at-begin, s.Bytes)/step*step
		}
		begin += s.Bytes
	}
	return last
}

// cutStep is the number of output bytes between two places of the segment where it can be cut. One of
// blocks is not cut: the sums of its errors depend on their order.
func (s *Segment) cutStep() int64 {
	switch s.Operation.(type) {
	case *operation.Quantise, operation.Blockwise:
		return math.MaxInt64
	}
	u := s.Operation.Unit()
	step := wholeChunks(int64(u.Out))
	if u.In > 0 {
		step = max(step, wholeChunks(s.DType.Bytes(int64(u.Elements))))
	}
	step *= int64(u.Out)
	return (leastSpan + step - 1) / step * step
}

// wholeChunks is the least number of units of size bytes that are whole chunks: a power of two.
func wholeChunks(size int64) (n int64) {
	for n = 1; n*size%digest.Chunk != 0; n *= 2 {
	}
	return n
}
