package stats

// The statistics of many numbers: counts, which are exact, and sums in the order of the elements.

import (
	"dsmoe/model/tensor"
	"math"
	"slices"
)

// Numbers are the statistics of the elements of one tensor, or of several. FP8 elements count as numbers: code times
// scale, rounded to F32. All but the counts cover the finite elements, and are null if there are none.
type Numbers struct {
	Elements  int64           `json:"elements"`            // all of them
	NaN       int64           `json:"nan"`                 // not a number
	Infinite  int64           `json:"infinite"`            // +∞ or -∞
	Zeros     int64           `json:"zeros"`               // 0 or -0
	BeyondF16 int64           `json:"beyond_f16"`          // finite, but infinite in F16: of magnitude 65520 or more
	Min       *float64        `json:"min"`                 // exact
	Max       *float64        `json:"max"`                 // exact
	AbsMax    *float64        `json:"absmax"`              // largest magnitude, exact
	Mean      *float64        `json:"mean"`                // Σx / n, in float64
	Std       *float64        `json:"std"`                 // √(Σ(x - mean)² / n), in float64
	Quantiles []QuantileValue `json:"quantiles,omitempty"` // as asked for; empty if there are no finite elements
}

// QuantileValue is a quantile: the smallest element x such that at least q·n of the n
// finite elements are at most x; of q = 0, the smallest element. Nothing is interpolated.
type QuantileValue struct {
	Q     string  `json:"q"`     // as the user gave it: "0.01"
	Value float64 `json:"value"` // exact
}

// moments are the number of elements, their mean, and the sum of squares of their distances from the mean.
type moments struct {
	n        int64
	mean, m2 float64 // mean and Σ(x - mean)²
}

// merge adds others: T. Chan, G. Golub, R. LeVeque, Algorithms for Computing the Sample
// Variance, 1983.
func (m *moments) merge(o moments) {
	if o.n == 0 {
		return
	}
	n := m.n + o.n
	d := o.mean - m.mean
	share := float64(o.n) / float64(n)
	m.m2 += o.m2 + float64(float64(d*d)*float64(m.n))*share
	m.mean += float64(d * share)
	m.n = n
}

// sums are counts of some numbers, in any order, and their moments.
type sums struct {
	moments
	nan, infinite, zeros, beyond int64
	min, max                     float32 // of the finite numbers; +∞ and -∞ without one
}

func newSums() sums { return sums{min: float32(math.Inf(1)), max: float32(math.Inf(-1))} }

// merge adds the numbers of o, which follow the numbers of t.
func (t *sums) merge(o *sums) {
	t.moments.merge(o.moments)
	t.nan += o.nan
	t.infinite += o.infinite
	t.zeros += o.zeros
	t.beyond += o.beyond
	t.min, t.max = min(t.min, o.min), max(t.max, o.max)
}

// add counts a number so many times, and reports whether it is finite.
func (t *sums) add(v float32, times int64) (finite bool) {
	switch a := max(v, -v); {
	case v != v:
		t.nan += times
		return false
	case a > math.MaxFloat32:
		t.infinite += times
		return false
	case a == 0:
		t.zeros += times
	case a >= beyondF16:
		t.beyond += times
	}
	t.min, t.max = min(t.min, v), max(t.max, v)
	return true
}

// chunkElements is how many numbers are summed up one after the other. Chunks make tiles,
// tiles jobs, and jobs weights, so that no sum has many terms and rounding stays small.
const chunkElements = 1024

// addValues adds numbers in their order.
func (t *sums) addValues(values []float32) {
	tile := moments{}
	for chunk := range slices.Chunk(values, chunkElements) {
		for _, v := range chunk {
			t.add(v, 1)
		}
		tile.merge(momentsOf(chunk))
	}
	t.moments.merge(tile)
}

// momentsOf returns the moments of the finite ones of some numbers.
func momentsOf(values []float32) (m moments) {
	sum := 0.0
	for _, v := range values {
		if tensor.IsFinite(v) {
			sum += float64(v)
			m.n++
		}
	}
	m.mean = sum / float64(max(m.n, 1))
	for _, v := range values {
		if tensor.IsFinite(v) {
			d := float64(v) - m.mean
			m.m2 += float64(d * d)
		}
	}
	return m
}

// addOrdinary is addValues, and raiseAll of rows, for numbers that F16 has room for, as nearly all weights are. Of
// others it returns false, and adds none.
func (t *sums) addOrdinary(values []float32, rows *rowPeaks, at int64) bool {
	all := newSums()
	for from := 0; from < len(values); {
		row := values[from:][:min(rows.toRowEnd(at), int64(len(values)-from))]
		e := tensor.ExtremesOf(row)
		if !(e.Largest < beyondF16) {
			return false
		}
		all.min, all.max = min(all.min, e.Least), max(all.max, e.Most)
		all.zeros += int64(e.Zeros)
		rows.raise(at, e.Largest)
		at, from = at+int64(len(row)), from+len(row)
	}
	for runs := range slices.Chunk(values, tensor.Runs*chunkElements) {
		if len(runs) < tensor.Runs*chunkElements {
			for chunk := range slices.Chunk(runs, chunkElements) {
				all.moments.merge(momentsOf(chunk))
			}
			continue
		}
		var means, squares [tensor.Runs]float64
		tensor.Moments(&means, &squares, runs)
		for i, mean := range means {
			all.moments.merge(moments{chunkElements, mean, squares[i]})
		}
	}
	t.merge(&all)
	return true
}

// counted is a finite number and how often it occurs.
type counted struct {
	v float32
	n int64
}

// halves is how many bit patterns half a float32 has.
const halves = 1 << 16

// addCounts adds numbers in the order of their patterns, and appends the finite ones to known.
func (t *sums) addCounts(counts *[halves]int64, values *[halves]float32, known []counted) []counted {
	before := len(known)
	m, sum, squares := moments{}, series{}, series{}
	for p, n := range counts {
		if n > 0 && t.add(values[p], n) {
			known = append(known, counted{values[p], n})
			m.n += n
			sum.add(float64(values[p]) * float64(n))
		}
	}
	m.mean = sum.total() / float64(max(m.n, 1))
	for _, c := range known[before:] {
		d := float64(c.v) - m.mean
		squares.add(float64(d*d) * float64(c.n))
	}
	m.m2 = squares.total()
	t.moments.merge(m)
	return known
}

// series is a sum in which no rounding is lost: A. Neumaier, Rundungsfehleranalyse einiger
// Verfahren zur Summation endlicher Summen, 1974.
type series struct{ sum, lost float64 }

// add adds a term.
func (s *series) add(v float64) {
	t := s.sum + v
	if math.Abs(s.sum) >= math.Abs(v) {
		s.lost += (s.sum - t) + v
	} else {
		s.lost += (v - t) + s.sum
	}
	s.sum = t
}

func (s *series) total() float64 { return s.sum + s.lost }

// numbers returns the counts as a report has them.
func (t *sums) numbers() Numbers {
	n := Numbers{Elements: t.n + t.nan + t.infinite, NaN: t.nan, Infinite: t.infinite, Zeros: t.zeros, BeyondF16: t.beyond}
	if t.n > 0 {
		least, most := float64(t.min)+0, float64(t.max)+0 // -0 becomes 0
		largest, mean, std := max(-least, most), t.mean, math.Sqrt(t.m2/float64(t.n))
		n.Min, n.Max, n.AbsMax, n.Mean, n.Std = &least, &most, &largest, &mean, &std
	}
	return n
}
