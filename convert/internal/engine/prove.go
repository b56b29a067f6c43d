package engine

// The proof: the output is read again and hashed, and each operation checks that the source
// gives the same elements. Blocks were compared with the source when they were encoded; only
// their hash is compared. So is all of a source that is read once: its tiles go through the same
// comparison before they are written. The proof picks the elements of views and places by the view's definition,
// not by the runs that writing copies. Writing and proving share how a tensor is split into pieces,
// which sides (such as scales) go with a piece, and how elements are decoded before they are
// put in another order (Segment.Decode).

import (
	"context"
	"errors"
	"fmt"

	"dsmoe/convert/internal/progress"
	"dsmoe/convert/operation"
	"dsmoe/convert/plan"
	"dsmoe/text"
)

// proveSpan reads a span again and compares it with the source or, if it was compared
// while it was encoded, with its hash. A span that differs is written again by the next run.
func (w *worker) proveSpan(ctx context.Context, i int) error {
	t, s := &w.Spans[i], w.State(i)
	h := w.newHasher(t)
	w.forgetSource()
	encoded := s.Proof != nil && s.Proof.Segments != nil && w.comparedWriting(t.Tensor)
	for from, end := t.From, int64(0); from < t.To; from = end {
		if err := ctx.Err(); err != nil {
			return err
		}
		end = w.shape.tileEnd(t, from)
		tile := w.memory.Tile(t.Offset+from, t.Offset+end)
		if err := w.out.ReadTile(t.File, tile, t.Offset+from); err != nil {
			return err
		}
		err := pieces(t.Tensor, from, end-from, func(p piece) error {
			out := tile[p.offset-from:][:p.size]
			if !encoded {
				if err := w.comparePiece(ctx, t.Tensor, p, out, h); err != nil {
					return err
				}
			}
			return w.computing(ctx, func() error { h.output.Write(out); return nil })
		})
		if err != nil {
			return w.reject(i, err)
		}
		w.Advance(int64(len(tile)))
	}
	if encoded && h.output.Name() != s.Proof.Hash {
		return w.reject(i, errReadBack)
	}
	if encoded {
		s.Proof = &progress.Proof{Hash: s.Proof.Hash, Segments: s.Proof.Segments, Compared: true}
	} else {
		s.Proof = h.finish(true)
		s.Proof.Compared = true
	}
	w.Mark(i, s)
	return nil
}

// errReadBack means that a disk, or memory, is faulty.
var errReadBack = errors.New("what was read back is not what was written")

// reject adds the file's name to a proof's error. A span that differs is to be written again.
func (w *worker) reject(i int, err error) error {
	var differs *mismatch
	if errors.As(err, &differs) || err == errReadBack {
		w.Mark(i, progress.State{})
	}
	return fmt.Errorf("%s: %w", text.Quote(w.out.PathOf(w.Spans[i].File)), err)
}

// comparePiece compares a piece with the source, and hashes the source; h may be nil.
func (w *worker) comparePiece(ctx context.Context, t *plan.Tensor, p piece, out []byte, h *hasher) error {
	if err := w.measure(ctx, t, p, true); err != nil {
		return err
	}
	src := w.room(p)
	if err := w.gather(p, src, true); err != nil {
		return err
	}
	return w.withSides(p, src, true, func(in operation.Input) error {
		return w.computing(ctx, func() error {
			if h != nil {
				h.source(p, src)
			}
			return p.located(p.segment.Operation.Prove(out, in))
		})
	})
}
