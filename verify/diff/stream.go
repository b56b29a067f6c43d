package diff

import (
	"bytes"
	"encoding/binary"
	"math"
	"slices"

	"dsmoe/model/tensor"
	"dsmoe/model/weights"
)

// tileElements is how many elements of each side are in memory at once, per worker.
const tileElements = 1 << 17

// compare measures one pair.
func (p pair) compare(r *weights.Reading, a, b Side) (Finding, error) {
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
	left, right := weights.NewStream(a.Reader, p.a), weights.NewStream(b.Reader, p.b)
	if !decodes(p.a) || !decodes(p.b) {
		return f, p.a.Failed(p.compareBytes(r, &f, left, right))
	}
	f.Cosine, f.Measured = 1, true
	t := tiles{pair: p, left: left, right: right}
	for at, err := range r.Tiles(0, f.Elements, tileElements, left, right) {
		if err == nil {
			err = t.compare(at)
		}
		if err != nil {
			return f, p.a.Failed(err)
		}
	}
	t.report(&f)
	return f, nil
}

// compareBytes compares tensors that are no floats, as integers are, or whose scales are
// unknown: elements are equal or not. Those of two dtypes cannot be compared.
func (p pair) compareBytes(r *weights.Reading, f *Finding, left, right *weights.Stream) error {
	d := p.a.DType
	if d != p.b.DType || (p.a.Scales == nil) != (p.b.Scales == nil) {
		f.Status = Differs
		return nil
	}
	for at, err := range r.Tiles(0, f.Elements, tileElements, left, right) {
		if err != nil {
			return err
		}
		if x, y := left.Raw, right.Raw; !bytes.Equal(x, y) {
			f.count(x, y, at, int(d.Elements(int64(len(x)))), int(d.Bytes(8)))
		}
	}
	return nil
}

// count counts the different elements among n of so many bits, which are as many as eight
// of them have bytes; the first has index at.
func (f *Finding) count(x, y []byte, at int64, n, bits int) {
	for i := range n {
		if element(x, i, bits) != element(y, i, bits) {
			if f.Different++; f.Different == 1 {
				f.Status, f.Worst = Differs, at+int64(i)
			}
		}
	}
}

// element returns the bits of element i, which do not cross a word of eight bytes from its
// first byte on.
func element(data []byte, i, bits int) uint64 {
	var word [8]byte
	copy(word[:], data[i*bits/8:])
	return binary.LittleEndian.Uint64(word[:]) >> (i * bits % 8) << (64 - bits)
}

// decodes says whether a weight has values that can be compared.
func decodes(w *weights.Weight) bool {
	return w.NumberType().Casts()
}

// tiles compares a pair tile by tile.
type tiles struct {
	pair
	left, right *weights.Stream
	metrics
}

// compare compares what was loaded, elements from at on.
func (t *tiles) compare(at int64) error {
	x, err := t.left.Values()
	if err != nil {
		return err
	}
	t.nanBits = t.a.DType == t.b.DType && t.a.Scales == nil && t.b.Scales == nil
	if t.nanBits && bytes.Equal(t.left.Raw, t.right.Raw) {
		t.same(x)
		return nil
	}
	y, err := t.right.Values()
	if err != nil {
		return err
	}
	t.add(x, y, at, t.a.NumberType(), t.b.NumberType())
	return nil
}

// metrics sums up a tensor. Sums are in float64, in the order of the elements.
type metrics struct {
	different, nonFinite int64
	onlyA, onlyB         int64 // elements that are not finite on one side
	rounded              int64 // different finite elements of which one is the other's rounding
	maxAbs               float64
	worst                int64
	maxULP               int64
	aa, bb, ab, dd       float64

	nanBits bool // two NaNs differ unless their bits are the same; otherwise all NaNs are one value
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
	aa, bb, ab, dd := m.aa, m.bb, m.ab, m.dd
	for i, x := range a {
		y := b[i]
		if !sameBits(x, y) && (m.nanBits || x == x || y == y) {
			m.differ(x, y, at+int64(i), da, db)
		}
		if x-x == 0 && y-y == 0 {
			p, q := float64(x), float64(y)
			aa += p * p // exact, as is p·q, so fusing does not show
			bb += q * q
			ab += p * q
			dd += float64((p - q) * (p - q))
		}
	}
	m.aa, m.bb, m.ab, m.dd = aa, bb, ab, dd
}

// differ takes note of a different element.
func (m *metrics) differ(x, y float32, at int64, da, db tensor.DType) {
	if m.different++; m.different == 1 {
		m.worst = at
	}
	if finiteA, finiteB := x-x == 0, y-y == 0; !finiteA || !finiteB {
		m.nonFinite++
		if finiteB {
			m.onlyA++
		} else if finiteA {
			m.onlyB++
		}
		return
	}
	if da != db && (sameBits(tensor.Rounded(x, db), y) || sameBits(tensor.Rounded(y, da), x)) {
		m.rounded++
	}
	if d := math.Abs(float64(x) - float64(y)); d > m.maxAbs {
		m.maxAbs, m.worst = d, at
	}
	ulp := steps(x, y, da)
	if da != db {
		ulp = min(ulp, steps(x, y, db))
	}
	m.maxULP = max(m.maxULP, ulp)
}

func sameBits(x, y float32) bool { return math.Float32bits(x) == math.Float32bits(y) }

// steps counts the values of d between x and y, rounded to it.
func steps(x, y float32, d tensor.DType) int64 {
	n := tensor.Ordinal(x, d) - tensor.Ordinal(y, d)
	return max(n, -n)
}

// report fills in a finding.
func (m *metrics) report(f *Finding) {
	f.Different, f.NonFinite, f.OnlyA, f.OnlyB, f.MaxAbs, f.MaxULP = m.different, m.nonFinite, m.onlyA, m.onlyB, m.maxAbs, m.maxULP
	if m.different > 0 {
		f.Status, f.Worst = Differs, m.worst
	}
	if m.different > 0 && m.rounded == m.different {
		f.Status = Close
	}
	if m.dd > 0 {
		f.RelRMS = math.Sqrt(m.dd / m.aa)
		f.Cosine = 0
		if m.aa > 0 && m.bb > 0 {
			f.Cosine = m.ab / math.Sqrt(m.aa) / math.Sqrt(m.bb)
		}
	}
	f.RelRMS = min(f.RelRMS, math.MaxFloat64) // JSON has no infinity
}
