package plan

import (
	"math"
	"slices"

	"dsmoe/convert/operation"
	"dsmoe/model/digest"
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

// MaxParts is the most parts of an output: as many as an Indexed Job of Kubernetes has. Each part leaves a journal in one
// directory, and plans the whole conversion again.
const MaxParts = 100_000

// Share returns a part's share of the output. The shares of all parts are of about the same number of bytes, one
// behind the other: a share ends where equal shares would, rounded down to where the output can be cut. Shares of
// more parts than places to cut are empty.
func (p *Plan) Share(part Part) []Span { return p.Shares(max(part.N, 1))(max(part.I, 1)) }

// Shares returns a function that computes the share of part i of n, 1 ≤ i ≤ n ≤ MaxParts.
func (p *Plan) Shares(n int) func(i int) []Span {
	begins := make([]int64, len(p.Tensors)+1) // where each tensor begins, all tensors one behind the other
	for k := range p.Tensors {
		begins[k+1] = begins[k] + p.Tensors[k].Bytes()
	}
	total := begins[len(p.Tensors)]
	equal := func(i int) int64 { return total/int64(n)*int64(i) + total%int64(n)*int64(i)/int64(n) }
	return func(i int) (spans []Span) {
		begin, end := equal(i-1), equal(i)
		first, _ := slices.BinarySearch(begins[1:], begin) // the first tensor that does not end before begin
		for k := first; k < len(p.Tensors) && begins[k] <= end; k++ {
			t := &p.Tensors[k]
			from, to := t.cut(begin-begins[k]), t.cut(end-begins[k])
			empty := t.Bytes() == 0 && (begins[k] > begin || i == 1)
			if from < to || empty {
				spans = append(spans, Span{t, k, from, to})
			}
		}
		return spans
	}
}

// leastSpan is the least number of bytes between two places in a segment where it can be cut.
const leastSpan = 64 << 10

// cut returns the last place, at most the given one, where the tensor can be cut: where a unit of a
// segment's operation and a chunk of the hashes of the output and of the segment's source begin. A place before the
// tensor is cut at its begin, and one behind it at its end.
func (t *Tensor) cut(at int64) int64 {
	if size := t.Bytes(); at >= size {
		return size
	}
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
