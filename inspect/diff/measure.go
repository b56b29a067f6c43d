package diff

import (
	"bytes"
	"math"
	"unsafe"

	"dsmoe/model/tensor"
	"dsmoe/model/weights"
)

// Measures is how the elements of two weights of one shape differ. Its sums are over the elements that are finite in
// both.
type Measures struct {
	sums
	MaxAbs float64 // the largest |a - b|

	steps
	nonFinite    int64 // different elements that are not finite in a or in b
	onlyA, onlyB int64 // elements that are not finite on one side
	nans         int64 // different elements that are NaN in both
	alike        int64 // elements that are not finite and not different
	first        int64 // index of the first different element
	worst        int64 // index of MaxAbs

	skipped bool // the last chunk has values that are not finite
	nanBits bool // two NaNs differ unless their bits are the same; otherwise all NaNs are one value
}

// sums are sums of products in float64: in the order of the elements within a tile, then of the tiles.
type sums struct {
	SumA, SumB float64 // Σa², Σb²
	SumD       float64 // Σ(a - b)²
	sumAB      float64 // Σab
}

// steps counts different elements, and the steps between their values.
type steps struct {
	different int64 // elements whose bits differ, as float32
	zeros     int64 // those that are 0 and -0
	rounded   int64 // different finite elements of which one is the other's rounding
	maxULP    int64
}

// Unequal is how many elements are not equal: 0 equals -0, and NaN equals NaN.
func (m *Measures) Unequal() int64 { return m.different - m.zeros - m.nans }

// NotFinite is how many of Unequal are not finite in a or in b.
func (m *Measures) NotFinite() int64 { return m.nonFinite - m.nans }

// AllFinite reports whether all elements of both weights are finite.
func (m *Measures) AllFinite() bool { return m.nonFinite+m.alike == 0 }

// Measure measures a pair of weights of one shape, whose numbers are those that the models compute with: codes times
// their scales. Errors about B name the checkpoint as w does.
func Measure(w *weights.Walk, p weights.Pair) (m Measures, err error) {
	m.nanBits = p.A.DType == p.B.DType && p.A.Scales == nil && p.B.Scales == nil
	err = w.Tiles(p, weights.TileElements, func(at int64, a, b *weights.Stream) error {
		x, err := a.Values()
		if err != nil {
			return err
		}
		whole := m.sums
		m.sums = sums{}
		if m.nanBits && bytes.Equal(a.Raw, b.Raw) {
			for _, v := range x {
				if tensor.IsFinite(v) {
					m.SumA += float64(v) * float64(v)
				} else {
					m.alike++
				}
			}
			m.SumB, m.sumAB = m.SumA, m.SumA
		} else if y, err := b.Values(); err != nil {
			return w.InB(err)
		} else {
			m.add(x, y, at, numberType(p.A), numberType(p.B))
		}
		m.SumA, m.SumB, m.sumAB, m.SumD = whole.SumA+m.SumA, whole.SumB+m.SumB, whole.sumAB+m.sumAB, whole.SumD+m.SumD
		return nil
	})
	return m, err
}

// numberType is the dtype in which steps between a weight's numbers are counted.
func numberType(w *weights.Weight) tensor.DType {
	if d := w.NumberType(); d.Casts() {
		return d
	}
	return tensor.F32
}

// chunk is how many values add takes at once: they stay in the nearest cache.
const chunk = 2048

// add adds values of dtypes da and db; the first has index at.
func (m *Measures) add(a, b []float32, at int64, da, db tensor.DType) {
	for from := 0; from < len(a); from += chunk {
		x, y, first := a[from:min(from+chunk, len(a))], b[from:min(from+chunk, len(a))], at+int64(from)
		before, u, v := m.steps, patterns(x), patterns(y)
		switch finite := m.finite(u, v, first, da); {
		case !finite, da == tensor.F16, db == tensor.F16:
			m.steps = before
			m.values(x, y, first, da, db)
			continue
		case da != db:
			// The values that round to the same, and the steps between them, which are fewer in BF16 than in F32.
			shift := stepShift(tensor.BF16)
			most := before.maxULP << shift
			for i, u := range u {
				if v := v[i]; u != v {
					u, v = nearestBF16(u), nearestBF16(v)
					if most = max(most, apart(u, v)); u == v {
						m.rounded++
					}
				}
			}
			m.maxULP = most >> shift
		}
		if before.different == 0 && m.different > 0 {
			for m.first = first; sameBits(x[m.first-first], y[m.first-first]); m.first++ {
			}
		}
	}
}

// patterns returns the bits of the values, in place.
func patterns(values []float32) []uint32 {
	return unsafe.Slice((*uint32)(unsafe.Pointer(unsafe.SliceData(values))), len(values))
}

// finite adds finite values, by their patterns, and reports whether all are. Of others it adds nothing, but
// its steps mean nothing then, nor do they of F16 or of two dtypes.
func (m *Measures) finite(a, b []uint32, at int64, d tensor.DType) bool {
	shift := stepShift(d)
	aa, bb, ab, dd, different, zeros := m.SumA, m.SumB, m.sumAB, m.SumD, m.different, m.zeros
	top, most := m.MaxAbs*m.MaxAbs, m.maxULP<<shift
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
			top, m.MaxAbs, m.worst = square, math.Abs(d), at+int64(i)
		}
		aa += p * p // exact, as is p·q, so fusing does not show
		bb += q * q
		ab += p * q
		dd += square
		if u != v {
			if different++; (u|v)<<1 == 0 {
				zeros++
			}
		}
		if int64(u<<1)+int64(v<<1) > most { // at most so far apart
			most = max(most, apart(u, v))
		}
	}
	m.SumA, m.SumB, m.sumAB, m.SumD, m.different, m.zeros, m.maxULP = aa, bb, ab, dd, different, zeros, most>>shift
	return !m.skipped
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

// values compares values one by one.
func (m *Measures) values(a, b []float32, at int64, da, db tensor.DType) {
	steps := func(x, y float32, d tensor.DType) int64 { // values of d between x and y, rounded to it
		n := tensor.Ordinal(x, d) - tensor.Ordinal(y, d)
		return max(n, -n)
	}
	for i, x := range a {
		y := b[i]
		finiteA, finiteB := tensor.IsFinite(x), tensor.IsFinite(y)
		if sameBits(x, y) || !m.nanBits && x != x && y != y {
			if !finiteA {
				m.alike++
			}
			continue
		}
		if m.different++; m.different == 1 {
			m.first = at + int64(i)
		}
		if !finiteA || !finiteB {
			m.nonFinite++
			switch {
			case finiteB:
				m.onlyA++
			case finiteA:
				m.onlyB++
			case x != x && y != y:
				m.nans++
			}
			continue
		}
		if x == y {
			m.zeros++
		}
		if da != db && (sameBits(tensor.Rounded(x, db), y) || sameBits(tensor.Rounded(y, da), x)) {
			m.rounded++
		}
		ulp := steps(x, y, da)
		if da != db {
			ulp = min(ulp, steps(x, y, db))
		}
		m.maxULP = max(m.maxULP, ulp)
	}
}

func sameBits(x, y float32) bool { return math.Float32bits(x) == math.Float32bits(y) }
