package diff

import (
	"bytes"
	"context"
	"fmt"
	"math"
	"slices"

	"dsmoe/model/tensor"
)

// tileElements is how many elements of each side are in memory at once, per worker.
const tileElements = 1 << 17

// compare measures one pair.
func (p pair) compare(ctx context.Context, a, b Source, progress func(int64)) (Finding, error) {
	f := Finding{Name: p.name, Status: Equal}
	if p.a != nil {
		f.DTypeA, f.ShapeA = &p.a.DType, p.a.Shape
	}
	if p.b != nil {
		f.DTypeB, f.ShapeB = &p.b.DType, p.b.Shape
	}
	switch {
	case p.b == nil:
		f.Status = Removed
		return f, nil
	case p.a == nil:
		f.Status = Added
		return f, nil
	case !slices.Equal(p.a.Shape, p.b.Shape):
		f.Status = Shape
		return f, nil
	}
	f.Elements = int64(p.a.Len())
	f.Cosine = 1
	left, right := newStream(a, p.a), newStream(b, p.b)
	if !left.decodes() || !right.decodes() {
		return f, p.compareBytes(ctx, &f, left, right)
	}
	var m metrics
	for at := int64(0); at < f.Elements; at += tileElements {
		if err := ctx.Err(); err != nil {
			return f, err
		}
		n := min(tileElements, f.Elements-at)
		if err := compareTile(&m, left, right, at, int(n)); err != nil {
			return f, fmt.Errorf("tensor %s: %w", p.name, err)
		}
		progress(n * int64(p.a.DType.Bits()) / 8)
	}
	m.report(&f)
	return f, nil
}

// compareBytes compares tensors that have no float values: equal or not.
func (p pair) compareBytes(ctx context.Context, f *Finding, left, right *stream) error {
	if p.a.DType != p.b.DType || (p.a.scale == nil) != (p.b.scale == nil) {
		f.Status, f.Different = Differs, f.Elements
		return nil
	}
	size := p.a.Bytes()
	for at := int64(0); at < size; at += tileElements {
		n := min(tileElements, size-at)
		if err := ctx.Err(); err != nil {
			return err
		}
		x, y := make([]byte, n), make([]byte, n)
		if err := left.source.ReadAt(p.name, x, at); err != nil {
			return err
		}
		if err := right.source.ReadAt(p.name, y, at); err != nil {
			return err
		}
		if !bytes.Equal(x, y) {
			f.Status = Differs
		}
	}
	return nil
}

// stream reads one weight of one side as F32.
type stream struct {
	source Source
	weight *weight
	dtype  tensor.DType // of its values: F32 for dequantised FP8
	raw    []byte
	values []float32
	wide   []byte
	grid   []byte
}

func newStream(s Source, w *weight) *stream {
	d := w.DType
	if w.scale != nil {
		d = tensor.F32
	}
	return &stream{source: s, weight: w, dtype: d}
}

// decodes says whether the weight has values that can be compared.
func (s *stream) decodes() bool {
	_, err := tensor.NewCast(s.dtype, tensor.F32)
	return err == nil
}

// read reads n elements; their bytes are in raw.
func (s *stream) read(at int64, n int) error {
	bits := int64(s.weight.DType.Bits())
	s.raw = sized(s.raw, int(int64(n)*bits/8))
	return s.source.ReadAt(s.weight.Name, s.raw, at*bits/8)
}

// decode turns raw into values.
func (s *stream) decode(at int64) error {
	if s.weight.scale != nil {
		return s.dequantise(at)
	}
	var err error
	s.values, err = tensor.Tensor{DType: s.dtype, Shape: []int{len(s.raw) * 8 / s.dtype.Bits()}, Data: s.raw}.Float32s(s.values[:0])
	return err
}

func (s *stream) dequantise(at int64) error {
	block := s.source.Block()
	b := tensor.Blocks{Rows: s.weight.Shape[0], Cols: s.weight.Shape[1], BlockRows: block[0], BlockCols: block[1]}
	rows, width := b.Grid()
	if !slices.Equal(s.weight.scale.Shape, []int{rows, width}) {
		return fmt.Errorf("scales have shape %v, not %v", s.weight.scale.Shape, []int{rows, width})
	}
	first, last := int(at)/b.Cols/b.BlockRows, (int(at)+len(s.raw)-1)/b.Cols/b.BlockRows
	size := width * s.weight.scale.DType.Bits() / 8
	s.grid = sized(s.grid, (last-first+1)*size)
	if err := s.source.ReadAt(s.weight.scale.Name, s.grid, int64(first*size)); err != nil {
		return err
	}
	scales, err := tensor.Tensor{DType: s.weight.scale.DType, Shape: []int{last - first + 1, width}, Data: s.grid}.Float32s(nil)
	if err != nil {
		return err
	}
	q, err := tensor.NewDequantiser(tensor.F32)
	if err != nil {
		return err
	}
	s.wide = sized(s.wide, 4*len(s.raw))
	q.Convert(s.wide, s.raw, int(at), b, scales)
	s.values, err = tensor.Tensor{DType: tensor.F32, Shape: []int{len(s.raw)}, Data: s.wide}.Float32s(s.values[:0])
	return err
}

func sized(b []byte, n int) []byte {
	if cap(b) < n {
		return make([]byte, n)
	}
	return b[:n]
}

// compareTile compares n elements.
func compareTile(m *metrics, left, right *stream, at int64, n int) error {
	if err := left.read(at, n); err != nil {
		return err
	}
	if err := right.read(at, n); err != nil {
		return err
	}
	plain := left.weight.DType == right.weight.DType && left.weight.scale == nil && right.weight.scale == nil
	if err := left.decode(at); err != nil {
		return err
	}
	if plain && bytes.Equal(left.raw, right.raw) {
		m.same(left.values)
		return nil
	}
	if err := right.decode(at); err != nil {
		return err
	}
	m.add(left.values, right.values, at, left.dtype, right.dtype)
	return nil
}

// metrics sums up a tensor. Sums are in float64, in the order of the elements.
type metrics struct {
	different, nonFinite int64
	rounded              int64 // different elements of which one is the other's rounding
	maxAbs               float64
	worst                int64
	maxULP               int64
	aa, bb, ab, dd       float64
}

// same adds values that are equal on both sides.
func (m *metrics) same(x []float32) {
	sum := 0.0
	for _, v := range x {
		if v-v == 0 {
			sum += float64(v) * float64(v)
		}
	}
	m.aa += sum
	m.bb += sum
	m.ab += sum
}

// add adds values of dtypes da and db.
func (m *metrics) add(a, b []float32, at int64, da, db tensor.DType) {
	for i, x := range a {
		y := b[i]
		if !sameBits(x, y) && !(x != x && y != y) {
			m.differ(x, y, at+int64(i), da, db)
		}
		if x-x == 0 && y-y == 0 {
			p, q := float64(x), float64(y)
			m.aa += p * p
			m.bb += q * q
			m.ab += p * q
			m.dd += (p - q) * (p - q)
		}
	}
}

// differ takes note of a different element.
func (m *metrics) differ(x, y float32, at int64, da, db tensor.DType) {
	if m.different++; m.different == 1 {
		m.worst = at
	}
	if da != db && (sameBits(tensor.Rounded(x, db), y) || sameBits(tensor.Rounded(y, da), x)) {
		m.rounded++
	}
	if x-x != 0 || y-y != 0 {
		m.nonFinite++
		return
	}
	if d := math.Abs(float64(x) - float64(y)); d > m.maxAbs {
		m.maxAbs, m.worst = d, at
	}
	m.maxULP = max(m.maxULP, min(steps(x, y, da), steps(x, y, db)))
}

func sameBits(x, y float32) bool { return math.Float32bits(x) == math.Float32bits(y) }

// steps counts the values of d between x and y, rounded to it.
func steps(x, y float32, d tensor.DType) int64 {
	n := tensor.Ordinal(x, d) - tensor.Ordinal(y, d)
	return max(n, -n)
}

// report fills in a finding.
func (m *metrics) report(f *Finding) {
	f.Different, f.NonFinite, f.MaxAbs, f.MaxULP = m.different, m.nonFinite, m.maxAbs, m.maxULP
	if m.different > 0 {
		f.Status, f.Worst = Differs, m.worst
	}
	if m.different > 0 && m.rounded == m.different {
		f.Status = Close
	}
	if m.dd > 0 {
		f.RelRMS = math.Sqrt(m.dd / max(m.aa, math.SmallestNonzeroFloat64))
		f.Cosine = 0
		if m.aa > 0 && m.bb > 0 {
			f.Cosine = m.ab / math.Sqrt(m.aa) / math.Sqrt(m.bb)
		}
	}
	f.RelRMS = min(f.RelRMS, math.MaxFloat64) // JSON has no infinity
}
