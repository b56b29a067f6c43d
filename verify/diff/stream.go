package diff

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"math"
	"slices"
	"unsafe"

	"dsmoe/model/tensor"
	"dsmoe/model/weights"
)

// tileElements is how many elements of each side are in memory at once, per worker.
const tileElements = 1 << 17

// compare measures one pair.
func compare(w *weights.Walk, p weights.Pair) (Finding, error) {
	f := Finding{Name: cmp.Or(p.A, p.B).Name, Status: Equal}
	if p.A != nil {
		f.DTypeA, f.ShapeA = &p.A.DType, p.A.Shape
	}
	if p.B != nil {
		f.DTypeB, f.ShapeB = &p.B.DType, p.B.Shape
	}
	switch {
	case p.B == nil:
		f.Status = Removed
		return f, nil
	case p.A == nil:
		f.Status = Added
		return f, nil
	case !slices.Equal(p.A.Shape, p.B.Shape):
		f.Status = Shape
		return f, nil
	}
	f.Elements = int64(p.A.Len())
	if !decodes(p.A) || !decodes(p.B) {
		return f, p.A.Failed(f.compareBytes(w, p))
	}
	f.Cosine, f.Measured = 1, true
	m := metrics{nanBits: p.A.DType == p.B.DType && p.A.Scales == nil && p.B.Scales == nil}
	err := w.Tiles(p, tileElements, func(at int64, a, b *weights.Stream) error { return m.addTile(p, at, a, b) })
	m.report(&f)
	return f, p.A.Failed(err)
}

// compareBytes compares tensors that are no floats, as integers are, or whose scales are
// unknown: elements are equal or not. Those of two dtypes cannot be compared.
func (f *Finding) compareBytes(w *weights.Walk, p weights.Pair) error {
	d := p.A.DType
	if d != p.B.DType || (p.A.Scales == nil) != (p.B.Scales == nil) {
		f.Status = Differs
		return nil
	}
	return w.Tiles(p, tileElements, func(at int64, a, b *weights.Stream) error {
		if x, y := a.Raw, b.Raw; !bytes.Equal(x, y) {
			f.count(x, y, at, int(d.Elements(int64(len(x)))), int(d.Bytes(8)))
		}
		return nil
	})
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

// metrics sums up a tensor. Sums are in float64, in the order of the elements.
type metrics struct {
	steps
	nonFinite      int64
	onlyA, onlyB   int64 // elements that are not finite on one side
	first          int64 // index of the first different element
	maxAbs         float64
	worst          int64 // index of maxAbs
	aa, bb, ab, dd float64

	skipped bool // values of the last chunk that are not finite
	nanBits bool // two NaNs differ unless their bits are the same; otherwise all NaNs are one value
}

// steps counts different elements, and the steps between their values.
type steps struct {
	different int64
	rounded   int64 // different finite elements of which one is the other's rounding
	maxULP    int64
}

// addTile adds what was loaded of a pair, elements from at on.
func (m *metrics) addTile(p weights.Pair, at int64, a, b *weights.Stream) error {
	x, err := a.Values()
	if err != nil {
		return err
	}
	if m.nanBits && bytes.Equal(a.Raw, b.Raw) {
		m.same(x)
		return nil
	}
	y, err := b.Values()
	if err == nil {
		m.add(x, y, at, p.A.NumberType(), p.B.NumberType())
	}
	return err
}

// same adds values that are equal on both sides.
func (m *metrics) same(x []float32) {
	sum := 0.0
	for _, v := range x {
		if tensor.IsFinite(v) {
			sum += float64(v) * float64(v)
		}
	}
	m.aa += sum
	m.bb += sum
	m.ab += sum
}

// chunk is how many values add takes at once: they stay in the nearest cache.
const chunk = 2048

// add adds values of dtypes da and db.
func (m *metrics) add(a, b []float32, at int64, da, db tensor.DType) {
	for len(a) > 0 {
		n := min(len(a), chunk)
		m.addChunk(a[:n], b[:n], at, da, db)
		a, b, at = a[n:], b[n:], at+int64(n)
	}
}

func (m *metrics) addChunk(a, b []float32, at int64, da, db tensor.DType) {
	before, u, v := m.steps, patterns(a), patterns(b)
	switch finite := m.finite(u, v, at, da); {
	case !finite, da == tensor.F16, db == tensor.F16:
		m.steps = before
		m.values(a, b, at, da, db)
		return
	case da != db:
		m.maxULP = before.maxULP
		m.roundings(u, v)
	}
	if before.different == 0 && m.different > 0 {
		m.first = at + int64(firstDifferent(a, b))
	}
}

// patterns returns the bits of the values, in place.
func patterns(values []float32) []uint32 {
	return unsafe.Slice((*uint32)(unsafe.Pointer(unsafe.SliceData(values))), len(values))
}

// finite adds finite values, by their patterns, and reports whether all are. Of others it adds nothing, but
// its steps mean nothing then, nor do they of F16 or of two dtypes.
func (m *metrics) finite(a, b []uint32, at int64, d tensor.DType) bool {
	shift := stepShift(d)
	aa, bb, ab, dd, different := m.aa, m.bb, m.ab, m.dd, m.different
	top, most := m.maxAbs*m.maxAbs, m.maxULP<<shift
	m.skipped, b = false, b[:len(a)]
	for i, u := range a {
		v := b[i]
		p, q := float64(math.Float32frombits(u)), float64(math.Float32frombits(v))
		d := p - q
		square := float64(d * d) // of two differences the larger one has the larger square, rounded
		if !(square <= top) {
			if !tensor.IsFinite(square) {
				m.skipped = true
				continue
			}
			top, m.maxAbs, m.worst = square, math.Abs(d), at+int64(i)
		}
		aa += p * p // exact, as is p·q, so fusing does not show
		bb += q * q
		ab += p * q
		dd += square
		if u != v {
			different++
		}
		if int64(u<<1)+int64(v<<1) > most { // at most so far apart
			most = max(most, apart(u, v))
		}
	}
	m.aa, m.bb, m.ab, m.dd, m.different, m.maxULP = aa, bb, ab, dd, different, most>>shift
	return !m.skipped
}

// roundings counts the values of F32 and BF16 that round to the same, and the steps between them, which are
// fewer in BF16 than in F32.
func (m *metrics) roundings(a, b []uint32) {
	shift := stepShift(tensor.BF16)
	most := m.maxULP << shift
	for i, u := range a {
		if v := b[i]; u != v {
			u, v = nearestBF16(u), nearestBF16(v)
			if most = max(most, apart(u, v)); u == v {
				m.rounded++
			}
		}
	}
	m.maxULP = most >> shift
}

// stepShift returns by how many bits a step of F32 or BF16 is shifted in what apart returns.
func stepShift(d tensor.DType) int {
	if d == tensor.BF16 {
		return 17
	}
	return 1
}

// apart returns twice the steps of F32 between two patterns.
func apart(u, v uint32) int64 {
	n := ordinal(u) - ordinal(v)
	return max(n, -n)
}

// ordinal numbers the patterns of F32 in ascending order of their values, two apart; both zeros are 0.
func ordinal(pattern uint32) int64 {
	sign := int64(int32(pattern) >> 31)
	return int64(pattern<<1) ^ sign - sign
}

// nearestBF16 returns the pattern of a finite value rounded to BF16, ties to even.
func nearestBF16(pattern uint32) uint32 {
	return (pattern + 0x7fff + pattern>>16&1) &^ 0xffff
}

// firstDifferent returns the index of the first different element; there is one.
func firstDifferent(a, b []float32) int {
	i := 0
	for sameBits(a[i], b[i]) {
		i++
	}
	return i
}

// values compares values one by one.
func (m *metrics) values(a, b []float32, at int64, da, db tensor.DType) {
	for i, x := range a {
		if y := b[i]; !sameBits(x, y) && (m.nanBits || x == x || y == y) {
			m.differ(x, y, at+int64(i), da, db)
		}
	}
}

// differ takes note of a different element.
func (m *metrics) differ(x, y float32, at int64, da, db tensor.DType) {
	if m.different++; m.different == 1 {
		m.first = at
	}
	if finiteA, finiteB := tensor.IsFinite(x), tensor.IsFinite(y); !finiteA || !finiteB {
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
	ulp := stepsBetween(x, y, da)
	if da != db {
		ulp = min(ulp, stepsBetween(x, y, db))
	}
	m.maxULP = max(m.maxULP, ulp)
}

func sameBits(x, y float32) bool { return math.Float32bits(x) == math.Float32bits(y) }

// stepsBetween counts the values of d between x and y, rounded to it.
func stepsBetween(x, y float32, d tensor.DType) int64 {
	n := tensor.Ordinal(x, d) - tensor.Ordinal(y, d)
	return max(n, -n)
}

// report fills in a finding.
func (m *metrics) report(f *Finding) {
	f.Different, f.NonFinite, f.OnlyA, f.OnlyB = m.different, m.nonFinite, m.onlyA, m.onlyB
	f.MaxAbs, f.MaxULP = m.maxAbs, m.maxULP
	if m.different > 0 {
		f.Status, f.Worst = Differs, m.first
	}
	if m.maxAbs > 0 {
		f.Worst = m.worst
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
