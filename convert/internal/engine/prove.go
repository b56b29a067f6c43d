package engine

// The proof: the output is read again, each operation asked whether the source gives
// that, and everything hashed. Of blocks, which were compared with the source when they were
// encoded, the hash alone is compared. Which elements of the source a piece is made of is found by
// the definition of a view, element by element, not by the runs that writing copies; what
// is shared with writing is how a tensor is split into pieces, which part of the tensors
// beside the source, such as scales, goes with a piece, and the decoding of elements that are
// decoded before they are put in another order (Segment.Decode).

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"

	"dsmoe/convert/internal/digest"
	"dsmoe/convert/operation"
	"dsmoe/convert/plan"
	"dsmoe/text"
)

// proof is what is known of a finished tensor.
type proof struct {
	Hash     string   `json:"hash"`
	Segments []string `json:"segments,omitempty"` // hashes of the sources' elements; nil if they were not hashed
	Compared bool     `json:"compared"`           // with the source, after it was written
}

// proveTensor reads a tensor again and compares it with the source, or, if the source was
// compared with it when it was encoded, with its hash. One that differs is forgotten, so that
// the next run writes it anew.
func (w *worker) proveTensor(ctx context.Context, i int) error {
	t, s := &w.plan.Tensors[i], w.state(i)
	h, again := w.newHasher(t), w.compareSource
	encoded := s.proof != nil && s.proof.Segments != nil && t.Encodes()
	if encoded {
		again = w.readAgain
	}
	for at, end := int64(0), int64(0); at < t.Bytes(); at = end {
		if err := ctx.Err(); err != nil {
			return err
		}
		end = w.shape.tileEnd(t, at)
		tile := w.memory.Tile(t.Offset+at, t.Offset+end)
		if err := w.files[t.File].ReadTile(tile, t.Offset+at); err != nil {
			return err
		}
		if err := again(ctx, t, tile, at, h); err != nil {
			return w.forget(i, err)
		}
		w.advance(int64(len(tile)))
	}
	if encoded && h.output.Name() != s.proof.Hash {
		return w.forget(i, errReadBack)
	}
	if encoded {
		s.proof = &proof{s.proof.Hash, s.proof.Segments, true}
	} else {
		s.proof = h.finish(true)
		s.proof.Compared = true
	}
	w.mark(i, s)
	return nil
}

// errReadBack is the fault of a disk, or of memory.
var errReadBack = errors.New("what was read back is not what was written")

// forget names the file of a tensor that could not be proven. If it is not what it should be,
// the tensor's state is dropped.
func (w *worker) forget(i int, err error) error {
	var differs *mismatch
	if errors.As(err, &differs) || err == errReadBack {
		w.mark(i, tensorState{})
	}
	return fmt.Errorf("%s: %w", text.Quote(filepath.Join(w.dir, w.plan.Files[w.plan.Tensors[i].File].Name)), err)
}

// readAgain hashes a tile that was read again.
func (w *worker) readAgain(ctx context.Context, _ *plan.Tensor, tile []byte, _ int64, h *hasher) error {
	return w.computing(ctx, func() error { h.output.Write(tile); return nil })
}

// compareSource compares a tile that was read again with the source, and hashes both.
func (w *worker) compareSource(ctx context.Context, t *plan.Tensor, tile []byte, offset int64, h *hasher) error {
	if err := w.readAgain(ctx, t, tile, offset, h); err != nil {
		return err
	}
	return pieces(t, offset, int64(len(tile)), buffered, func(p piece) error {
		src, out := w.room(p), tile[p.at-offset:][:p.size]
		if err := w.load(p, src); err != nil {
			return err
		}
		if err := w.computing(ctx, func() error { h.source(p, src); return nil }); err != nil {
			return err
		}
		return w.withSides(p, src, func(in operation.Input) error {
			return w.computing(ctx, func() error { return p.located(p.segment.Operation.Prove(out, in)) })
		})
	})
}

// mismatch is an element that the source does not give, counted from the begin of the
// tensor.
type mismatch struct {
	*operation.Mismatch
	before int64 // elements of the tensor before the piece
}

// Error says what differs.
func (m *mismatch) Error() string { return m.Differs(m.before + int64(m.Element)) }

// located counts a mismatch's element from the begin of the tensor.
func (p *piece) located(err error) error {
	var m *operation.Mismatch
	if errors.As(err, &m) {
		u := p.segment.Operation.Unit()
		return &mismatch{m, p.at / int64(u.Out) * int64(u.Elements)}
	}
	return err
}

// load reads a piece's source into dst, by the definition of its view.
func (w *worker) load(p piece, dst []byte) error {
	s := p.segment
	if len(dst) == 0 {
		return nil
	}
	if s.View == nil {
		return w.read(s, dst, p.from, p.to-p.from)
	}
	begin, window, err := w.around(p)
	if err != nil {
		return err
	}
	for i := p.from; i < p.to; {
		at, n := s.View.Element(i), int64(1)
		for i+n < p.to && s.View.Element(i+n) == at+n {
			n++
		}
		part := dst[:elementBytes(s, n)]
		if window != nil {
			copy(part, window[elementBytes(s, at)-begin:])
		} else if err := w.read(s, part, at, n); err != nil {
			return err
		}
		dst = dst[len(part):]
		i += n
	}
	return nil
}

// hasher hashes one tensor and the elements of its source, from begin to end.
type hasher struct {
	tensor  *plan.Tensor
	output  digest.Hash
	segment digest.Hash // of the elements of the segment with this index
	index   int
	hashes  []string // of the segments before it
}

// newHasher returns a hasher with the worker's memory, for one tensor at a time.
func (w *worker) newHasher(t *plan.Tensor) *hasher {
	w.whole.Reset()
	w.part.Reset()
	return &hasher{tensor: t, output: w.whole, segment: w.part}
}

// source takes the source bytes of a piece.
func (h *hasher) source(p piece, src []byte) {
	if h.tensor.Copies() {
		return // it is the output's hash
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
	h.segment.Reset()
	h.index++
}

// finish returns the hash of the tensor and, if the source was hashed or is the same, those of
// its segments.
func (h *hasher) finish(source bool) *proof {
	p := &proof{Hash: h.output.Name()}
	switch {
	case h.tensor.Copies():
		p.Segments = []string{p.Hash}
	case source:
		for h.index < len(h.tensor.Segments) {
			h.next()
		}
		p.Segments = h.hashes
	}
	return p
}
