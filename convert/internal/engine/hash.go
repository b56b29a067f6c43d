package engine

// The hashes of a span and of its source.

import (
	"dsmoe/convert/internal/progress"
	"dsmoe/convert/plan"
	"dsmoe/model/digest"
)

// hasher hashes one span and the elements of its source, from begin to end.
type hasher struct {
	span    *plan.Span
	output  digest.Hash
	segment digest.Hash // hash of the current segment's elements
	spare   digest.Hash // memory for it
	index   int         // index of the current segment in the tensor
	begin   int64       // first byte of the current segment in the tensor
	hashes  []string    // hashes of the span's segments before it
}

// newHasher returns a hasher with the worker's memory, for one span at a time.
func (w *worker) newHasher(t *plan.Span) *hasher {
	w.whole.Reset()
	h := &hasher{span: t, output: w.whole, spare: w.part}
	if !t.Whole() {
		h.output = digest.From(t.From)
	}
	h.index, h.begin = t.FirstSegment()
	h.enter()
	return h
}

// enter begins to hash the current segment, or the run of it that is in the span.
func (h *hasher) enter() {
	if h.index == len(h.span.Segments) {
		return
	}
	s := &h.span.Segments[h.index]
	if h.segment = h.spare; h.begin < h.span.From || h.begin+s.Bytes > h.span.To {
		u := s.Operation.Unit()
		h.segment = digest.From(elementBytes(s, max(h.span.From-h.begin, 0)/int64(u.Out)*int64(u.Elements)))
	}
	h.segment.Reset()
}

// source hashes the source bytes of a piece.
func (h *hasher) source(p piece, src []byte) {
	if h.span.Copies() {
		return // the source's hash is the output's
	}
	for h.index < p.index { // segments without elements
		h.next()
	}
	h.segment.Write(src)
	if u := p.segment.Operation.Unit(); p.to == p.segment.Bytes/int64(u.Out)*int64(u.Elements) {
		h.next()
	}
}

func (h *hasher) next() {
	h.hashes = append(h.hashes, h.segment.Name())
	h.begin += h.span.Segments[h.index].Bytes
	h.index++
	h.enter()
}

// finish returns the hash of the span, and the hashes of its segments if the source was
// hashed or is a plain copy.
func (h *hasher) finish(source bool) *progress.Proof {
	p := &progress.Proof{Hash: h.output.Name()}
	switch {
	case h.span.Copies():
		p.Segments = []string{p.Hash}
	case source:
		for h.index < len(h.span.Segments) && h.begin+min(h.span.Segments[h.index].Bytes, 1) <= h.span.To {
			h.next()
		}
		p.Segments = h.hashes
	}
	return p
}
