package engine

// What writing and proving share: a worker's buffers, the pieces of a tensor, the reading
// of their source, and the hashes.

import (
	"errors"
	"slices"

	"dsmoe/convert/format"
	"dsmoe/convert/internal/digest"
	"dsmoe/convert/internal/disk"
	"dsmoe/convert/internal/progress"
	"dsmoe/convert/operation"
	"dsmoe/convert/plan"
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
}

func (e *execution) newWorker() *worker {
	return &worker{execution: e, memory: disk.NewTileMemory(e.shape.largest), whole: digest.New(), part: digest.New()}
}

// piece is a run of a tensor's bytes that comes from one segment.
type piece struct {
	segment  *plan.Segment
	index    int   // index of the segment
	from, to int64 // elements, in the segment's order
	offset   int64 // first byte in the tensor
	size     int64 // bytes in the tensor
}

// pieces calls do for the pieces of n bytes of t from offset on. Offset and n are whole units
// of the segments' operations; most bounds the bytes of a segment's pieces.
func pieces(t *plan.Tensor, offset, n int64, most func(*plan.Segment) int64, do func(piece) error) error {
	begin := int64(0) // of the segment in the tensor
	for i := range t.Segments {
		s := &t.Segments[i]
		u, most := s.Operation.Unit(), most(s)
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

// buffered bounds the bytes of a piece whose source goes through a worker's buffer.
func buffered(s *plan.Segment) int64 {
	u := s.Operation.Unit()
	return int64(max(maxPiece/max(u.In, u.Out), 1) * u.Out)
}

// direct is buffered, except that a plain copy is one piece: it is read straight into the tile.
func direct(s *plan.Segment) int64 {
	if s.Copies() && s.View == nil {
		return s.Bytes
	}
	return buffered(s)
}

// elementBytes returns the bytes of n elements of the segment in the source: 0 for
// synthetic elements.
func elementBytes(s *plan.Segment, n int64) int64 {
	if s.Operation.Unit().In == 0 {
		return 0
	}
	return s.DType.Bytes(n)
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

// readAhead is the bytes that a worker requests at once of a source that is not on the disk.
const readAhead = 4 << 20

// ahead is a run of a source file's bytes.
type ahead struct {
	file int
	at   int64
	data []byte
}

// readSource fills dst from the file of a segment, whose bytes end at its end. Pieces that follow each other, and
// those that are read twice, come from one request.
func (w *worker) readSource(s *plan.Segment, dst []byte, offset int64) error {
	if w.Origin == "" || len(dst) >= readAhead {
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

// picked returns what picks the elements of a view.
func (p *piece) picked(proof bool) func(v *tensor.View, take func(at, n int64) error) error {
	if proof {
		return p.byDefinition
	}
	return p.byRuns
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
	begin, window, err := w.around(p)
	if err != nil {
		return err
	}
	return p.picked(proof)(s.View, func(at, n int64) error {
		part := dst[:elementBytes(s, n)]
		dst = dst[len(part):]
		if window == nil {
			return w.read(s, part, at, n)
		}
		copy(part, window[elementBytes(s, at)-begin:])
		return nil
	})
}

// around reads everything between the elements of a view's piece: the bytes of the segment
// from begin on. It returns nil for elements too far apart for one read.
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
	return p.picked(proof)(s.View, take)
}

// readSide reads the bytes that an operation needs of a side into the memory of buffer.
func (w *worker) readSide(s *plan.Segment, i int, span operation.Span, buffer []byte, proof bool) ([]byte, error) {
	side := s.Sides[i]
	if p := s.Places().Sides[i]; p != nil {
		stored, pick, err := w.matrix(1+i, side.File, side.Offset, p, proof)
		if err != nil {
			return buffer, err
		}
		return p.Part(buffer, stored, span.Begin, span.End, pick), nil
	}
	buffer = slices.Grow(buffer[:0], int(span.End-span.Begin))[:span.End-span.Begin]
	return buffer, w.source.ReadFile(side.File, buffer, side.Offset+span.Begin)
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
		var err error
		if w.sides[i], err = w.readSide(s, i, span, w.sides[i], proof); err != nil {
			return err
		}
	}
	in.Sides = w.sides[:len(spans)]
	return do(in)
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

// begun returns the hashes of the bytes so far and of the segments that are finished; compared says whether
// these were compared with the source.
func (h *hasher) begun(compared bool) *progress.Proof {
	return &progress.Proof{Hash: h.output.Name(), Segments: slices.Clone(h.hashes), Compared: compared}
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
