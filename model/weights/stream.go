package weights

import (
	"fmt"
	"slices"

	"dsmoe/model/tensor"
	"dsmoe/text"
)

// Stream reads a weight's numbers a part at a time, as float32, codes multiplied by their
// scales. It is for one goroutine.
type Stream struct {
	// Raw is the bytes of the part that was loaded last, as they are stored, of a block type
	// whole blocks. Equal bytes of weights of one dtype without scales are equal numbers.
	Raw []byte

	src    ReaderAt
	w      *Weight
	at     int64
	lead   int                // numbers of Raw before those that were asked for: of a block that begins before them
	n      int                // that were asked for
	sides  map[*Weight][]byte // buffers
	stored map[*Weight][]byte // the stored tensors of w and its sides with Places
	values []float32
	grid   *tensor.Grid // scales of what was loaded last, or of all of w if they are few; nil if none were read yet
	first  int          // row of the whole grid with which grid begins
}

// smallGrid is the blocks of a grid that is read once, whole: a server is asked for its few bytes once.
const smallGrid = 8192

// NewStream returns a stream of w, whose bytes src reads.
func NewStream(src ReaderAt, w *Weight) *Stream { return &Stream{src: src, w: w} }

// Failed names w in an error; nil stays nil.
func (w *Weight) Failed(err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("tensor %s: %w", text.Quote(w.Name), err)
}

// NumberType is the dtype of the weight's numbers: its own, or what its stored form decodes
// them to. Codes without their scales count as numbers.
func (w *Weight) NumberType() tensor.DType {
	if to := w.Form().Numbers; to != tensor.Invalid && w.Part == "" && (w.Scales != nil || !w.Scaled()) {
		return to
	}
	return w.DType
}

// Load reads the n elements from at on into Raw.
func (s *Stream) Load(at int64, n int) error {
	block, _ := s.w.DType.Block()
	if s.grid != nil && !s.smallGrid() {
		s.grid = nil
	}
	s.lead, s.n = int(at%int64(block)), n
	s.at = at - int64(s.lead)
	whole := (s.lead + n + block - 1) / block * block
	s.Raw = sized(s.Raw, int(s.w.DType.Bytes(int64(whole))))
	return s.readAt(s.w, s.Raw, s.w.DType.Bytes(s.at))
}

// readAt fills dst with the bytes of w or a side from offset on. It keeps what lies in another order.
func (s *Stream) readAt(w *Weight, dst []byte, offset int64) error {
	if w.Places == nil {
		return w.ReadAt(s.src, dst, offset)
	}
	stored := s.stored[w]
	if stored == nil {
		var err error
		if stored, err = w.whole(s.src); err != nil {
			return err
		}
		if s.stored == nil {
			s.stored = map[*Weight][]byte{}
		}
		s.stored[w] = stored
	}
	w.Places.Part(dst, stored, offset, offset+int64(len(dst)), w.Places.Pick)
	return nil
}

// whole returns the stored tensor of a weight with Places: a view, or where there is none in memory.
func (w *Weight) whole(src ReaderAt) ([]byte, error) {
	if u, ok := src.(Unviewed); ok && u.HasView(w.Stored) {
		t, err := u.Tensor(w.Stored)
		return t.Data, err
	}
	stored := make([]byte, w.Places.Bytes())
	return stored, src.ReadAt(w.Stored, stored, 0)
}

// Values decodes what was loaded last. The slice is valid until the next call.
func (s *Stream) Values() ([]float32, error) {
	n := int(s.w.DType.Elements(int64(len(s.Raw))))
	var err error
	if s.w.Scales != nil {
		s.values = slices.Grow(s.values[:0], n)[:n]
		err = s.Decode(s.values, -s.lead)
	} else {
		s.values, err = tensor.Tensor{DType: s.w.DType, Shape: []int{n}, Data: s.Raw}.Float32s(s.values[:0])
	}
	if err != nil {
		return nil, err
	}
	return s.values[s.lead : s.lead+s.n], nil
}

// Part loads the n elements from at on and decodes them. The slice is valid until the next call.
func (s *Stream) Part(at int64, n int) ([]float32, error) {
	if err := s.Load(at, n); err != nil {
		return nil, err
	}
	return s.Values()
}

// Decode decodes len(dst) of the elements that were loaded last, from the one with that index on: a whole number of
// blocks of a block type.
func (s *Stream) Decode(dst []float32, from int) (err error) {
	from += s.lead
	raw := s.Raw[s.w.DType.Bytes(int64(from)):]
	if s.w.Scales == nil {
		n := s.w.DType.Bytes(int64(len(dst)))
		_, err = tensor.Tensor{DType: s.w.DType, Shape: []int{len(dst)}, Data: raw[:n]}.Float32s(dst[:0])
		return err
	}
	if len(dst) == 0 {
		return s.w.CheckScales()
	}
	if err := s.LoadScales(); err != nil {
		return err
	}
	b := s.w.Scaling().Blocks
	_, width := b.Grid()
	at := s.at + int64(from)
	s.w.Form().Widen(dst, raw, int(at), b, s.grid.From((b.GridRow(at)-s.first)*width))
	return nil
}

// LoadScales reads the scales of what was loaded last. Once it has, several goroutines may call Decode.
func (s *Stream) LoadScales() error {
	if s.w.Scales == nil || s.grid != nil {
		return nil
	}
	if err := s.w.CheckScales(); err != nil {
		return err
	}
	b := s.w.Scaling().Blocks
	first, last := b.GridRow(s.at), b.GridRow(s.at+s.w.DType.Elements(int64(len(s.Raw)))-1)
	if s.smallGrid() {
		rows, _ := b.Grid()
		first, last = 0, rows-1
	}
	grid, err := s.w.Grid(first, last, s.side)
	if err == nil {
		s.grid, s.first = &grid, first
	}
	return err
}

// smallGrid reports whether the whole grid is small.
func (s *Stream) smallGrid() bool {
	rows, cols := s.w.Scaling().Blocks.Grid()
	return rows*cols <= smallGrid
}

// side reads the bytes begin … end of a side into its buffer.
func (s *Stream) side(side *Weight, begin, end int64) ([]byte, error) {
	if s.sides == nil {
		s.sides = map[*Weight][]byte{}
	}
	s.sides[side] = sized(s.sides[side], int(end-begin))
	return s.sides[side], s.readAt(side, s.sides[side], begin)
}

// sized returns n bytes, whatever they are, in b's memory if that is enough.
func sized(b []byte, n int) []byte {
	if cap(b) < n {
		return make([]byte, n)
	}
	return b[:n]
}
