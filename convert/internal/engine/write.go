package engine

// Writing: any run of bytes of any output tensor, from the segments that it is made of.

import (
	"context"

	"dsmoe/convert/format"
	"dsmoe/convert/internal/digest"
	"dsmoe/convert/internal/disk"
	"dsmoe/convert/operation"
	"dsmoe/convert/plan"
	"dsmoe/model/tensor"
)

// worker is one goroutine's buffers.
type worker struct {
	*execution
	memory disk.TileMemory
	piece  []byte      // source bytes of a piece
	window []byte      // source bytes around a view's elements
	sides  [][]byte    // of a piece
	whole  digest.Hash // of the tensor that is written or proven
	part   digest.Hash // of a segment of its source
}

func (e *execution) newWorker() *worker {
	return &worker{execution: e, memory: disk.NewTileMemory(e.shape.largest), whole: digest.New(), part: digest.New()}
}

// computing runs f while the worker counts as one that computes.
func (w *worker) computing(ctx context.Context, f func() error) error {
	if err := w.compute.Acquire(ctx, 1); err != nil {
		return err
	}
	defer w.compute.Release(1)
	return f()
}

// hashesWriting reports whether the hash of t is made while it is written: always without
// verification, and of a tensor of blocks, because reading the same bytes again proves it.
// Otherwise the proof makes the hash of what it reads.
func (e *execution) hashesWriting(t *plan.Tensor) bool { return e.Unverified || t.Encodes() }

// writeTensor writes what is left of a tensor, tile by tile.
func (w *worker) writeTensor(ctx context.Context, i int) error {
	t, s := &w.plan.Tensors[i], w.state(i)
	var hash *hasher
	if w.hashesWriting(t) {
		hash = w.newHasher(t) // of all of it: reopen has forgotten what was written of it without a hash
	}
	for size := t.Bytes(); s.done < size; {
		if err := ctx.Err(); err != nil {
			return err
		}
		end := w.shape.tileEnd(t, s.done)
		tile := w.memory.Tile(t.Offset+s.done, t.Offset+end)
		err := w.fill(ctx, t, tile, s.done, &s.lost, hash)
		if err == nil && s.lost.Overflow > 0 && !w.AllowOverflow {
			err = &OverflowError{s.lost.Overflow, t.DType}
		}
		if err != nil {
			return err
		}
		if err := w.writeTile(ctx, t, tile, s.done, hash); err != nil {
			return err
		}
		w.advance(end - s.done)
		if s.done = end; s.done < size {
			w.mark(i, s)
		}
	}
	if hash != nil {
		s.proof = hash.finish(!w.Unverified)
	}
	w.mark(i, s)
	return nil
}

// writeTile writes a tile, and hashes it meanwhile if there is a hash.
func (w *worker) writeTile(ctx context.Context, t *plan.Tensor, tile []byte, at int64, hash *hasher) error {
	f := w.files[t.File]
	if hash == nil {
		return f.WriteTile(tile, t.Offset+at)
	}
	written := make(chan error, 1)
	go func() { written <- f.WriteTile(tile, t.Offset+at) }()
	err := w.computing(ctx, func() error { hash.output.Write(tile); return nil })
	if writeErr := <-written; writeErr != nil {
		return writeErr
	}
	return err
}

// piece is a run of a tensor's bytes that comes from one segment.
type piece struct {
	segment  *plan.Segment
	index    int   // of the segment
	from, to int64 // elements, counted in the order in which the segment uses them
	at       int64 // first byte in the tensor
	size     int64 // bytes in the tensor
}

// pieces calls do for the pieces of n bytes of t from offset on, both a whole number of
// units of their operations. most says how many bytes a piece of a segment may have.
func pieces(t *plan.Tensor, offset, n int64, most func(*plan.Segment) int64, do func(piece) error) error {
	begin := int64(0) // of the segment in the tensor
	for i := range t.Segments {
		s := &t.Segments[i]
		u, most := s.Operation.Unit(), most(s)
		for at := max(offset, begin); at < min(offset+n, begin+s.Bytes); {
			p := piece{segment: s, index: i, at: at, size: min(offset+n-at, begin+s.Bytes-at, most)}
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

// buffered is the most bytes of a piece whose source is read into a worker's buffer.
func buffered(s *plan.Segment) int64 {
	u := s.Operation.Unit()
	return int64(max(maxPiece/max(u.In, u.Out), 1) * u.Out)
}

// direct is buffered, but a run of bytes that is only copied is one piece: it is read
// straight into the tile.
func direct(s *plan.Segment) int64 {
	if s.Copies() && s.View == nil {
		return s.Bytes
	}
	return buffered(s)
}

// elementBytes returns how many bytes n elements of the segment have in the source: none if
// they are made.
func elementBytes(s *plan.Segment, n int64) int64 {
	if s.Operation.Unit().In == 0 {
		return 0
	}
	return s.DType.Bytes(n)
}

// fill writes the bytes of t from offset on into dst, and adds to lost, which is that of the
// bytes before it. With verification, hash takes the bytes of the source; it may be nil.
func (w *worker) fill(ctx context.Context, t *plan.Tensor, dst []byte, offset int64, lost *tensor.Loss, hash *hasher) error {
	return pieces(t, offset, int64(len(dst)), direct, func(p piece) error {
		out := dst[p.at-offset:][:p.size]
		src := out
		if !p.segment.Copies() {
			src = w.room(p)
		}
		if err := w.gather(p, src); err != nil {
			return err
		}
		return w.withSides(p, src, func(in operation.Input) error {
			return w.computing(ctx, func() error {
				if hash != nil && !w.Unverified {
					hash.source(p, src)
				}
				return p.located(p.segment.Operation.Apply(out, in, lost))
			})
		})
	})
}

// room returns memory for the source bytes of a piece.
func (w *worker) room(p piece) []byte {
	if w.piece == nil {
		w.piece = make([]byte, maxPiece)
	}
	return w.piece[:elementBytes(p.segment, p.to-p.from)]
}

// gather reads a piece's source into dst, in the order in which the segment uses it.
func (w *worker) gather(p piece, dst []byte) error {
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
	if window == nil {
		return w.gatherRuns(p, dst)
	}
	for r := range s.View.Runs(p.from, p.to) {
		n := copy(dst, window[elementBytes(s, r.At)-begin:][:elementBytes(s, r.N)])
		dst = dst[n:]
	}
	return nil
}

// read fills dst with n elements of a segment from first on, as they lie.
func (w *worker) read(s *plan.Segment, dst []byte, first, n int64) error {
	return format.ReadElements(func(dst []byte, offset int64) error { return w.source.ReadFile(s.File, dst, s.Offset+offset) }, dst, s.DType, s.Decode, first, n)
}

// around reads all that lies between the elements of a view's piece: the bytes of the
// segment from begin on. It is nil for elements that are spread too widely for one read.
func (w *worker) around(p piece) (begin int64, window []byte, err error) {
	s := p.segment
	first, last := s.View.Extent(p.from, p.to)
	begin, end := elementBytes(s, first), elementBytes(s, last)
	if end-begin > 2*maxPiece {
		return 0, nil, nil
	}
	if w.window == nil {
		w.window = make([]byte, 2*maxPiece)
	}
	window = w.window[:end-begin]
	return begin, window, w.read(s, window, first, last-first)
}

// gatherRuns reads run after run of a view that is spread too widely for one read.
func (w *worker) gatherRuns(p piece, dst []byte) error {
	s := p.segment
	for r := range s.View.Runs(p.from, p.to) {
		n := elementBytes(s, r.N)
		if err := w.read(s, dst[:n], r.At, r.N); err != nil {
			return err
		}
		dst = dst[n:]
	}
	return nil
}

// withSides reads what the operation needs beside a piece and calls do. It needs to know
// where in the matrix the elements of a view lie only if there is something.
func (w *worker) withSides(p piece, src []byte, do func(in operation.Input) error) error {
	s := p.segment
	in := operation.Input{Data: src, At: s.First + p.from}
	end := s.First + p.to
	if s.View != nil && len(s.Sides) > 0 {
		first, last := s.View.Extent(p.from, p.to)
		in.At, end = s.First+first, s.First+last
		in.Runs = func(yield func(tensor.Run) bool) {
			for r := range s.View.Runs(p.from, p.to) {
				if !yield(tensor.Run{At: s.First + r.At, N: r.N}) {
					return
				}
			}
		}
	}
	spans := s.Operation.Sides(in.At, end-in.At)
	for len(w.sides) < len(spans) {
		w.sides = append(w.sides, nil)
	}
	for i, span := range spans {
		if need := int(span.End - span.Begin); cap(w.sides[i]) < need {
			w.sides[i] = make([]byte, need)
		}
		w.sides[i] = w.sides[i][:span.End-span.Begin]
		if err := w.source.ReadFile(s.Sides[i].File, w.sides[i], s.Sides[i].Offset+span.Begin); err != nil {
			return err
		}
	}
	in.Sides = w.sides[:len(spans)]
	return do(in)
}
