package engine

// What writing and proving share: a worker's buffers, and the reading of the source.

import (
	"slices"

	"dsmoe/convert/format"
	"dsmoe/convert/internal/disk"
	"dsmoe/convert/operation"
	"dsmoe/convert/plan"
	"dsmoe/model/digest"
	"dsmoe/model/tensor"
)

// worker is one goroutine with its buffers.
type worker struct {
	*execution
	memory     disk.TileMemory
	piece      []byte      // source bytes of a piece
	window     []byte      // source bytes around a view's elements
	sides      [][]byte    // bytes of a piece's sides
	matrices   []matrix    // stored tensors with places: of the segment and of each side
	written    gridRow     // the last row of blocks that was read to write it
	proven     gridRow     // the same for the proof
	ahead      ahead       // bytes of the source that were read already
	magnitudes []float32   // largest of the blocks that a piece needs
	whole      digest.Hash // hash of the tensor
	part       digest.Hash // hash of one segment's source
	tables     operation.Tables
}

func (e *execution) newWorker(memory disk.TileMemory) *worker {
	return &worker{execution: e, memory: memory, whole: digest.New(), part: digest.New()}
}

// room returns memory for the source bytes of a piece.
func (w *worker) room(p piece) []byte {
	if w.piece == nil {
		w.piece = make([]byte, maxPiece)
	}
	return w.piece[:elementBytes(p.segment, p.to-p.from)]
}

// read fills dst with n elements of a segment from first on, in stored order.
func (w *worker) read(s *plan.Segment, dst []byte, first, n int64) error {
	readAt := func(dst []byte, offset int64) error { return w.readSource(s, dst, s.Offset+offset) }
	return format.ReadElements(readAt, dst, s.DType, s.Decode, first, n)
}

// ahead is a run of a source file's bytes.
type ahead struct {
	file int
	at   int64
	data []byte
}

// readSource fills dst from the file of a segment, whose bytes end at its end. The elements of a view, and of a source
// that is not on the disk pieces that follow each other and those that are read twice, come from one request.
func (w *worker) readSource(s *plan.Segment, dst []byte, offset int64) error {
	if w.Origin == "" && s.View == nil || len(dst) >= readAhead {
		return w.source.ReadFile(s.File, dst, offset)
	}
	a := &w.ahead
	end := offset + int64(len(dst))
	if a.file != s.File || offset < a.at || offset > a.at+int64(len(a.data)) {
		*a = ahead{s.File, offset, a.data[:0]}
	}
	if have := a.at + int64(len(a.data)); end > have {
		if a.data == nil || cap(a.data) < readAhead {
			a.data = make([]byte, 0, readAhead)
		}
		kept := copy(a.data[:cap(a.data)], a.data[offset-a.at:])
		a.at, a.data = offset, a.data[:kept]
		more := min(offset+readAhead, s.Offset+s.End-s.Begin) - have
		if err := w.source.ReadFile(s.File, a.data[kept:kept+int(more)], have); err != nil {
			return err
		}
		a.data = a.data[:kept+int(more)]
	}
	copy(dst, a.data[offset-a.at:])
	return nil
}

// gather fills dst with the source of a piece in the segment's order; proof has it pick elements by definition.
func (w *worker) gather(p piece, dst []byte, proof bool) error {
	s := p.segment
	if len(dst) == 0 {
		return nil
	}
	if places := s.Places().Codes; places != nil {
		return w.gatherMatrix(p, dst, places, proof)
	}
	if s.View == nil {
		return w.read(s, dst, p.from, p.to-p.from)
	}
	// Unless they are far apart, one read fetches everything between the elements: window, from byte begin of the segment.
	first, last := s.View.Extent(p.from, p.to)
	begin, end := elementBytes(s, first), elementBytes(s, last)
	var window []byte
	if end-begin <= 2*maxPiece {
		if w.window == nil {
			w.window = make([]byte, 2*maxPiece)
		}
		window = w.window[:end-begin]
		if err := w.read(s, window, first, last-first); err != nil {
			return err
		}
	}
	return p.pick(s.View, proof, func(at, n int64) error {
		part := dst[:elementBytes(s, n)]
		dst = dst[len(part):]
		if window == nil {
			return w.read(s, part, at, n)
		}
		copy(part, window[elementBytes(s, at)-begin:])
		return nil
	})
}

// matrix is a whole stored tensor whose elements lie in another order.
type matrix struct {
	file   int
	offset int64
	stored []byte // empty: not read
}

// matrix returns a stored tensor with places, at an offset of a source file, and what picks its elements: as the
// places define them for a proof. i numbers the matrices of a segment.
func (w *worker) matrix(i, file int, offset int64, p *tensor.Places, proof bool) (stored []byte, pick tensor.Picker,
	err error) {
	for len(w.matrices) <= i {
		w.matrices = append(w.matrices, matrix{})
	}
	m := &w.matrices[i]
	if len(m.stored) == 0 || m.file != file || m.offset != offset {
		*m = matrix{file, offset, slices.Grow(m.stored[:0], int(p.Bytes()))[:p.Bytes()]}
		if err = w.source.ReadFile(file, m.stored, offset); err != nil {
			m.stored = m.stored[:0]
		}
	}
	if proof {
		return m.stored, p.PickByDefinition, err
	}
	return m.stored, p.Pick, err
}

// gatherMatrix is gather for a segment with places.
func (w *worker) gatherMatrix(p piece, dst []byte, places *tensor.Places, proof bool) error {
	s := p.segment
	stored, pick, err := w.matrix(0, s.File, s.Offset-s.Begin, places, proof)
	if err != nil {
		return err
	}
	begin, done := s.DType.Elements(s.Begin), int64(0)
	take := func(at, n int64) error {
		pick(dst, done, stored, begin+at, n)
		done += n
		return nil
	}
	if s.View == nil {
		return take(p.from, p.to-p.from)
	}
	return p.pick(s.View, proof, take)
}

// withSides reads the sides that the operation needs for a piece and calls do. The positions
// of a view's elements in the matrix matter only to an operation with sides.
func (w *worker) withSides(p piece, src []byte, proof bool, do func(in operation.Input) error) error {
	s := p.segment
	if _, is := s.Operation.(operation.Blockwise); is {
		return do(operation.Input{Data: src, At: p.at(), Largest: w.magnitudes})
	}
	in := operation.Input{Data: src, At: s.First + p.from, Into: p.at()}
	end := s.First + p.to
	if _, merges := s.Operation.(*operation.Merge); s.View != nil && len(s.Sides) > 0 && !merges {
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
	spans := operation.SidesOf(s.Operation, in.At, end-in.At)
	for len(w.sides) < len(spans) {
		w.sides = append(w.sides, nil)
	}
	for i, span := range spans {
		side := s.Sides[i]
		if places := s.Places().Sides; i < len(places) && places[i] != nil {
			p := places[i]
			stored, pick, err := w.matrix(1+i, side.File, side.Offset, p, proof)
			if err != nil {
				return err
			}
			w.sides[i] = p.Part(w.sides[i], stored, span.Begin, span.End, pick)
			continue
		}
		n := int(span.End - span.Begin)
		w.sides[i] = slices.Grow(w.sides[i][:0], n)[:n]
		if err := w.source.ReadFile(side.File, w.sides[i], side.Offset+span.Begin); err != nil {
			return err
		}
	}
	in.Sides, in.Tables = w.sides[:len(spans)], &w.tables
	return do(in)
}

// gridRow is a row of blocks of a matrix.
type gridRow struct {
	codes   *plan.Tensor // whose source it is; nil if none was read
	row     int
	largest []float32
}
