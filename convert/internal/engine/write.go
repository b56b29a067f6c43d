package engine

// Writing: any run of bytes of an output tensor, from its segments.

import (
	"context"
	"slices"

	"dsmoe/convert/internal/progress"
	"dsmoe/convert/operation"
	"dsmoe/convert/plan"
)

// writeSpan writes the unwritten bytes of a span, tile by tile.
func (w *worker) writeSpan(ctx context.Context, i int) error {
	t, s := &w.Spans[i], w.State(i)
	w.forgetSource()
	var hash *hasher
	if w.hashesWriting(t.Tensor) {
		var err error
		if hash, err = w.hashPartial(ctx, t, &s); err != nil {
			return err
		}
	}
	for at := t.From + s.Done; at < t.To; {
		if err := ctx.Err(); err != nil {
			return err
		}
		end := w.shape.tileEnd(t, at)
		tile := w.memory.Tile(t.Offset+at, t.Offset+end)
		err := w.fill(ctx, t.Tensor, tile, at, &s.Lost, hash)
		if n := s.Lost.Total().Overflow; err == nil && n > 0 && !w.AllowOverflow {
			err = &OverflowError{n, t.DType}
		}
		if err != nil {
			return err
		}
		if err := w.writeTile(ctx, t.Tensor, tile, at, hash); err != nil {
			return err
		}
		w.Advance(end - at)
		at, s.Done = end, end-t.From
		if at < t.To {
			if hash != nil {
				s.Partial = &progress.Proof{Hash: hash.output.Name(), Segments: slices.Clone(hash.hashes), Compared: !w.Unverified}
			}
			w.Mark(i, s)
		}
	}
	if hash != nil {
		s.Proof, s.Partial = hash.finish(!w.Unverified), nil
	}
	w.Mark(i, s)
	return nil
}

// hashPartial returns a hasher that has read again what an earlier run wrote of a span and, of the source, the segment
// that this run did not finish. The span starts over if its bytes changed since, or if they are to be compared with the
// source and were not.
func (w *worker) hashPartial(ctx context.Context, t *plan.Span, s *progress.State) (*hasher, error) {
	h := w.newHasher(t)
	if s.Done == 0 {
		return h, nil
	}
	for from, end := t.From, int64(0); from < t.From+s.Done; from = end {
		end = min(w.shape.tileEnd(t, from), t.From+s.Done)
		tile := w.memory.Tile(t.Offset+from, t.Offset+end)
		if err := w.out.ReadTile(t.File, tile, t.Offset+from); err != nil {
			return nil, err
		}
		h.output.Write(tile)
	}
	if h.output.Name() != s.Partial.Hash || !w.Unverified && !s.Partial.Compared {
		*s = progress.State{}
		return w.newHasher(t), nil
	}
	if w.Unverified || t.Copies() {
		return h, nil // the source is not hashed
	}
	for range s.Partial.Segments {
		h.next()
	}
	h.hashes = slices.Clone(s.Partial.Segments)
	begin := int64(0)
	for i := range h.index {
		begin += t.Segments[i].Bytes
	}
	begin = max(begin, t.From)
	return h, pieces(t.Tensor, begin, t.From+s.Done-begin, func(p piece) error {
		src := w.room(p)
		if err := w.gather(p, src, false); err != nil {
			return err
		}
		h.source(p, src)
		return ctx.Err()
	})
}

// writeTile writes a tile and hashes it meanwhile; hash may be nil.
func (w *worker) writeTile(ctx context.Context, t *plan.Tensor, tile []byte, offset int64, hash *hasher) error {
	if hash == nil {
		return w.out.WriteTile(t.File, tile, t.Offset+offset)
	}
	written := make(chan error, 1)
	go func() { written <- w.out.WriteTile(t.File, tile, t.Offset+offset) }()
	err := w.computing(ctx, func() error { hash.output.Write(tile); return nil })
	if writeErr := <-written; writeErr != nil {
		return writeErr
	}
	return err
}

// fill computes the bytes of t from offset on into dst and adds their losses to all. With
// verification it hashes the source's bytes; hash may be nil.
func (w *worker) fill(ctx context.Context, t *plan.Tensor, dst []byte, offset int64,
	all *progress.Losses, hash *hasher) error {
	return pieces(t, offset, int64(len(dst)), func(p piece) error {
		if err := w.measure(ctx, t, p, false); err != nil {
			return err
		}
		if p.from == 0 {
			all.Next()
		}
		lost := all.Current()
		out := dst[p.offset-offset:][:p.size]
		src := out
		if !p.segment.Copies() {
			src = w.room(p)
		}
		if err := w.gather(p, src, false); err != nil {
			return err
		}
		err := w.withSides(p, src, false, func(in operation.Input) error {
			return w.computing(ctx, func() error {
				if hash != nil && !w.Unverified {
					hash.source(p, src)
				}
				return p.located(p.segment.Operation.Apply(out, in, &lost))
			})
		})
		all.Set(lost)
		// A source that is read once is compared now. An operation of blocks has compared them itself, and a plain copy is
		// the source's bytes.
		compares := w.Origin != "" && !w.Unverified && !t.Encodes() && (!p.segment.Copies() || p.segment.View != nil)
		if err != nil || !compares || lost.Overflow > 0 && !w.AllowOverflow {
			return err
		}
		return w.comparePiece(ctx, t, p, out, nil)
	})
}
