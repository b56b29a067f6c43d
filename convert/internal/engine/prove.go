package engine

// The proof: the output is read again, each operation asked whether the source gives
// that, and everything hashed. Which elements of the source a piece is made of is found by
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

// proveTensor reads a tensor again and compares it with the source. One that differs is
// forgotten, so that the next run writes it anew.
func (w *worker) proveTensor(ctx context.Context, i int) error {
	t, s := &w.plan.Tensors[i], w.state(i)
	w.whole.Reset()
	w.part.Reset()
	v := &prover{worker: w, tensor: t, whole: w.whole, segment: w.part}
	for at, end := int64(0), int64(0); at < t.Bytes(); at = end {
		if err := ctx.Err(); err != nil {
			return err
		}
		end = w.shape.tileEnd(t, at)
		tile := w.memory.Tile(t.Offset+at, t.Offset+end)
		if err := w.files[t.File].ReadTile(tile, t.Offset+at); err != nil {
			return err
		}
		if err := v.tile(ctx, tile, at); err != nil {
			var differs *mismatch
			if errors.As(err, &differs) {
				w.mark(i, tensorState{})
			}
			return fmt.Errorf("%s: %w", text.Quote(filepath.Join(w.dir, w.plan.Files[t.File].Name)), err)
		}
		w.advance(int64(len(tile)))
	}
	s.proof = v.finish()
	w.mark(i, s)
	return nil
}

// prover compares one tensor with its source, from its begin to its end, and hashes both.
type prover struct {
	*worker
	tensor  *plan.Tensor
	whole   digest.Hash
	segment digest.Hash
	index   int      // of the segment that segment is of
	hashes  []string // of the segments before it
}

// tile compares a tile that was read again.
func (v *prover) tile(ctx context.Context, tile []byte, offset int64) error {
	if err := v.computing(ctx, func() error { v.whole.Write(tile); return nil }); err != nil {
		return err
	}
	return pieces(v.tensor, offset, int64(len(tile)), buffered, func(p piece) error {
		src, out := v.room(p), tile[p.at-offset:][:p.size]
		if err := v.load(p, src); err != nil {
			return err
		}
		if err := v.computing(ctx, func() error { v.hashSource(p, src); return nil }); err != nil {
			return err
		}
		u := p.segment.Operation.Unit()
		return v.withSides(p, src, func(in operation.Input) error {
			before := p.at / int64(u.Out) * int64(u.Elements)
			return v.computing(ctx, func() error { return located(p.segment.Operation.Prove(out, in), before) })
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
func located(err error, before int64) error {
	var m *operation.Mismatch
	if errors.As(err, &m) {
		return &mismatch{m, before}
	}
	return err
}

// load reads a piece's source into dst, by the definition of its view.
func (v *prover) load(p piece, dst []byte) error {
	s := p.segment
	if len(dst) == 0 {
		return nil
	}
	if s.View == nil {
		return v.read(s, dst, p.from, p.to-p.from)
	}
	begin, window, err := v.around(p)
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
		} else if err := v.read(s, part, at, n); err != nil {
			return err
		}
		dst = dst[len(part):]
		i += n
	}
	return nil
}

// hashSource takes the source bytes of a piece.
func (v *prover) hashSource(p piece, src []byte) {
	if v.tensor.Copies() {
		return // it is the output's hash
	}
	for v.index < p.index { // segments without elements
		v.next()
	}
	v.segment.Write(src)
	if u := p.segment.Operation.Unit(); p.to == p.segment.Bytes/int64(u.Out)*int64(u.Elements) {
		v.next()
	}
}

func (v *prover) next() {
	v.hashes = append(v.hashes, v.segment.Name())
	v.segment.Reset()
	v.index++
}

// finish returns the hashes of a tensor that was compared with its source.
func (v *prover) finish() *proof {
	p := &proof{Hash: v.whole.Name(), Compared: true}
	if v.tensor.Copies() {
		p.Segments = []string{p.Hash}
		return p
	}
	for v.index < len(v.tensor.Segments) {
		v.next()
	}
	p.Segments = v.hashes
	return p
}
