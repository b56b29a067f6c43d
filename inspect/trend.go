package inspect

import (
	"math"
)

const (
	// trendFactor: a matrix is off the trend from so many times the magnitude of its neighbours on, or at most that
	// fraction of it, if this is beyond the spread of the layers.
	trendFactor = 3
	// farFactor is how many times as large as its neighbours a matrix of no healthy model is, or that fraction of them.
	farFactor = 20
)

// Trend compares log₂ of the magnitudes of a matrix in the layers that have it, in their order; NaN is unknown. For
// each layer usual is the lower median of the two layers before and after, NaN without neighbours. off reports whether
// the layer is off the trend: farFactor or more from both middle values of its neighbours, or trendFactor or more from
// usual and beyond the spread of these distances. Healthy models differ in their first and last layer, and so do models
// of few layers: there only farFactor counts. matrices is the number of matrices that the caller compares.
func Trend(sizes []float64, matrices int) (usual []float64, off []bool) {
	for i, size := range sizes {
		var near []float64
		for k := max(0, i-2); k < min(len(sizes), i+3); k++ {
			if k != i && sizes[k] == sizes[k] {
				near = append(near, sizes[k])
			}
		}
		if near == nil {
			usual, off = append(usual, math.NaN()), append(off, false)
			continue
		}
		lower := LowerMedian(near) // sorts
		upper := near[len(near)/2]
		usual = append(usual, lower)
		off = append(off, size >= upper+math.Log2(farFactor) || size <= lower-math.Log2(farFactor))
	}
	var distances []float64 // of the layers between the first and the last
	for i := 1; i < len(sizes)-1; i++ {
		distances = append(distances, sizes[i]-usual[i])
	}
	p := PeersOf(distances, matrices)
	for i := 1; i < len(sizes)-1; i++ {
		off[i] = off[i] || p.Odd(sizes[i]-usual[i], math.Log2(trendFactor))
	}
	return usual, off
}
