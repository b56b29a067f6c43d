package engine

// Pieces: runs of a tensor that come from one segment.

import (
	"errors"

	"dsmoe/convert/operation"
	"dsmoe/convert/plan"
	"dsmoe/model/tensor"
)

// piece is a run of a tensor's bytes that comes from one segment.
type piece struct {
	segment  *plan.Segment
	index    int   // index of the segment
	from, to int64 // elements, in the segment's order
	offset   int64 // first byte in the tensor
	size     int64 // bytes in the tensor
}

// pieces calls do for the pieces of n bytes of t from offset on. Offset and n are whole units
// of the segments' operations. A piece and its source each have at most maxPiece bytes, unless a unit has more.
func pieces(t *plan.Tensor, offset, n int64, do func(piece) error) error {
	begin := int64(0) // of the segment in the tensor
	for i := range t.Segments {
		s := &t.Segments[i]
		u := s.Operation.Unit()
		most := int64(max(maxPiece/max(u.In, u.Out), 1) * u.Out)
		for at := max(offset, begin); at < min(offset+n, begin+s.Bytes); {
			p := piece{segment: s, index: i, offset: at, size: min(offset+n-at, begin+s.Bytes-at, most)}
			p.from = (at - begin) / int64(u.Out) * int64(u.Elements)
			p.to = p.from + p.size/int64(u.Out)*int64(u.Elements)
			if err := do(p); err != nil {
				return err
			}
			at += p.size
		}
		begin += s.Bytes
	}
	return nil
}

// elementBytes returns the bytes of n elements of the segment in the source: 0 for
// synthetic elements.
func elementBytes(s *plan.Segment, n int64) int64 {
	if s.Operation.Unit().In == 0 {
		return 0
	}
	return s.DType.Bytes(n)
}

// pick calls take for the elements of a view that a piece has: run by run or, for the proof, one by one as the view
// defines them, neighbours together.
func (p *piece) pick(v *tensor.View, proof bool, take func(at, n int64) error) error {
	if !proof {
		for r := range v.Runs(p.from, p.to) {
			if err := take(r.At, r.N); err != nil {
				return err
			}
		}
		return nil
	}
	for i := p.from; i < p.to; {
		at, n := v.Element(i), int64(1)
		for i+n < p.to && v.Element(i+n) == at+n {
			n++
		}
		if err := take(at, n); err != nil {
			return err
		}
		i += n
	}
	return nil
}

// mismatch is an element that differs from the source, counted from the begin of the tensor.
type mismatch struct {
	*operation.Mismatch
	before int64 // elements of the tensor before the piece
}

// Error names the element and both values.
func (m *mismatch) Error() string { return m.Differs(m.before + int64(m.Element)) }

// located counts a mismatch's element from the begin of the tensor.
func (p *piece) located(err error) error {
	var m *operation.Mismatch
	if errors.As(err, &m) {
		return &mismatch{m, p.at()}
	}
	return err
}

// at returns the index in the tensor of the first element of a piece.
func (p *piece) at() int64 {
	u := p.segment.Operation.Unit()
	return p.offset / int64(u.Out) * int64(u.Elements)
}
