package stats

import (
	"cmp"
	"math"
	"slices"

	"dsmoe/model/tensor"
)

// rowPeaks are the largest finite magnitudes of the rows that a job reads. Methods of nil do nothing.
type rowPeaks struct {
	width int64 // elements of a row
	first int64 // row of the job's first element
	peaks []float32
}

// newRowPeaks returns room for the rows of n elements of a weight from at on.
func newRowPeaks(w *countedWeight, at, n int64, wanted bool) *rowPeaks {
	if !wanted || len(w.Shape) == 0 || w.Shape[0] > maxRows || n == 0 {
		return nil
	}
	width := int64(w.Len() / w.Shape[0])
	first, last := at/width, (at+n-1)/width
	return &rowPeaks{width: width, first: first, peaks: make([]float32, last-first+1)}
}

// toRowEnd returns the number of elements from at on to the end of its row.
func (r *rowPeaks) toRowEnd(at int64) int64 {
	if r == nil {
		return math.MaxInt32
	}
	return r.width - at%r.width
}

// raise notes a magnitude in the row of element at.
func (r *rowPeaks) raise(at int64, magnitude float32) {
	if r != nil {
		p := &r.peaks[at/r.width-r.first]
		*p = max(*p, magnitude)
	}
}

// raiseAll notes the magnitudes of the elements from at on.
func (r *rowPeaks) raiseAll(at int64, values []float32) {
	for r != nil && len(values) > 0 {
		n := min(r.toRowEnd(at), int64(len(values)))
		peak := float32(0)
		for _, v := range values[:n] {
			if tensor.IsFinite(v) {
				peak = max(peak, v, -v)
			}
		}
		r.raise(at, peak)
		at, values = at+n, values[n:]
	}
}

// rowStats sums up the largest magnitudes of rows.
func rowStats(peaks []float32) *rowSpread {
	if len(peaks) == 0 {
		return nil
	}
	sorted := slices.Clone(peaks)
	slices.Sort(sorted)
	s := &rowSpread{Count: len(peaks), Median: float64(sorted[(len(sorted)-1)/2]), Largest: []rowPeak{}}
	for i, p := range peaks {
		if float64(p) > OutlierRatio*s.Median {
			s.Largest = append(s.Largest, rowPeak{i, float64(p)})
		}
	}
	s.Outliers = len(s.Largest)
	slices.SortStableFunc(s.Largest, func(a, b rowPeak) int { return cmp.Compare(b.AbsMax, a.AbsMax) })
	s.Largest = slices.Clone(s.Largest[:min(len(s.Largest), maxPeaks)])
	return s
}
