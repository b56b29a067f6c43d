package convert

// Any run of bytes of any output tensor, from the source's segments.

import (
	"fmt"

	"dsmoe/model/tensor"
)

// reader reads weight files; View is one.
type reader interface {
	readFile(file int, dst []byte, offset int64) error
}

// codecs are the element operations of a plan, made once.
type codecs struct {
	casts  map[[2]tensor.DType]*tensor.Cast
	quants map[tensor.DType]*tensor.Dequantiser
	bounds map[tensor.DType]*bounds
	values map[tensor.DType][]float64 // of the patterns of F16 and F8E4M3
}

func newCodecs(p *Plan) (*codecs, error) {
	c := &codecs{map[[2]tensor.DType]*tensor.Cast{}, map[tensor.DType]*tensor.Dequantiser{}, map[tensor.DType]*bounds{}, map[tensor.DType][]float64{}}
	for i := range p.Tensors {
		t := &p.Tensors[i]
		for j := range t.Segments {
			if err := c.add(&t.Segments[j], t.DType); err != nil {
				return nil, fmt.Errorf("tensor %s: %w", t.Name, err)
			}
		}
	}
	return c, nil
}

func (c *codecs) add(s *Segment, to tensor.DType) (err error) {
	if s.copies(to) {
		return nil
	}
	if c.bounds[to] == nil {
		c.bounds[to] = newBounds(to)
	}
	if (s.DType == tensor.F16 || s.DType == tensor.F8E4M3) && c.values[s.DType] == nil {
		c.values[s.DType] = valuesOf(s.DType)
	}
	key := [2]tensor.DType{s.DType, to}
	switch {
	case s.Scale != nil && c.quants[to] == nil:
		c.quants[to], err = tensor.NewDequantiser(to)
	case s.Scale == nil && c.casts[key] == nil:
		c.casts[key], err = tensor.NewCast(s.DType, to)
	}
	return err
}

// copies says whether the segment's bytes go into the output as they are.
func (s *Segment) copies(to tensor.DType) bool { return s.DType == to }

// size returns the bytes that the segment has in the output.
func (s *Segment) size(to tensor.DType) int64 {
	if s.copies(to) {
		return s.End - s.Begin
	}
	return (s.End - s.Begin) * int64(to.Bits()) / int64(s.DType.Bits())
}

// piece is a run of a tensor's bytes that comes from one segment.
type piece struct {
	segment  *Segment
	index    int   // of the segment
	from, to int64 // bytes of the segment's source
	at       int64 // first byte in the tensor
	size     int64 // bytes in the tensor
}

// maxSource bounds the source bytes of a piece: what a level-2 cache holds.
const maxSource = 256 << 10

// pieces calls do for the pieces of n bytes of t from offset on.
func (t *PlannedTensor) pieces(offset, n int64, do func(piece) error) error {
	begin := int64(0) // of the segment in the tensor
	for i := range t.Segments {
		s := &t.Segments[i]
		size := s.size(t.DType)
		for at := max(offset, begin); at < min(offset+n, begin+size); {
			in, out := int64(1), int64(1) // bytes of an element, or of anything that is copied
			if !s.copies(t.DType) {
				in, out = int64(s.DType.Bits()/8), int64(t.DType.Bits()/8)
			}
			p := piece{segment: s, index: i, at: at, size: min(offset+n-at, begin+size-at, maxSource/in*out)}
			p.from, p.to = (at-begin)/out*in, (at-begin+p.size)/out*in
			if err := do(p); err != nil {
				return err
			}
			at += p.size
		}
		begin += size
	}
	return nil
}

// assembler fills tiles and checks them; each worker has its own.
type assembler struct {
	source reader
	codecs *codecs
	in     []byte // source bytes of a piece
	grid   []byte
	scales []float32
}

// load reads a piece's source into dst.
func (a *assembler) load(p piece, dst []byte) error {
	return a.source.readFile(p.segment.File, dst[:p.to-p.from], p.segment.Offset+p.from)
}

// fill writes the bytes of t from offset on into dst.
func (a *assembler) fill(t *PlannedTensor, dst []byte, offset int64) (lost tensor.Loss, err error) {
	err = t.pieces(offset, int64(len(dst)), func(p piece) error {
		out := dst[p.at-offset:][:p.size]
		if p.segment.copies(t.DType) {
			return a.load(p, out)
		}
		src := a.in[:p.to-p.from]
		if err := a.load(p, src); err != nil {
			return err
		}
		l, err := a.convert(t.DType, p, out, src)
		lost.Add(l)
		return err
	})
	return lost, err
}

// convert puts one piece through its operation.
func (a *assembler) convert(to tensor.DType, p piece, dst, src []byte) (tensor.Loss, error) {
	s := p.segment
	if s.Scale == nil {
		return a.codecs.casts[[2]tensor.DType{s.DType, to}].Convert(dst, src), nil
	}
	if err := a.loadScales(s.Scale, p.from, p.to); err != nil {
		return tensor.Loss{}, err
	}
	return a.codecs.quants[to].Convert(dst, src, int(p.from), s.Scale.Blocks, a.scales), nil
}

// loadScales reads the rows of the grid for the elements from, …, to-1.
func (a *assembler) loadScales(s *Scale, from, to int64) error {
	_, width := s.Blocks.Grid()
	first, last := s.gridRow(from), s.gridRow(to-1)
	row := int64(width) * int64(s.DType.Bits()/8)
	n := int64(last-first+1) * row
	if int64(cap(a.grid)) < n {
		a.grid = make([]byte, n)
	}
	a.grid = a.grid[:n]
	if err := a.source.readFile(s.File, a.grid, s.Offset+int64(first)*row); err != nil {
		return err
	}
	var err error
	a.scales, err = tensor.Tensor{DType: s.DType, Shape: []int{last - first + 1, width}, Data: a.grid}.Float32s(a.scales[:0])
	return err
}

// gridRow returns the row of the grid that scales an element.
func (s *Scale) gridRow(element int64) int {
	return int(element) / s.Blocks.Cols / s.Blocks.BlockRows
}
