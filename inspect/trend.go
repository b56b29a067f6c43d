package inspect

import (
	"math"
)

// farFactor is how many times as large as its neighbours a matrix of no healthy model is, or that fraction of them.
const farFactor = 20

// Neighbours compares log₂ of the magnitudes of a matrix in the layers that have it, in their order; NaN is unknown. For
// each layer usual is the lower median of the two layers before and after, NaN if there is none, and far reports
// whether the layer is farFactor or more from both middle values of these.
func Neighbours(sizes []float64) (usual []float64, far []bool) {
	for i, size := range sizes {
		var near []float64
		for k := max(0, i-2); k < min(len(sizes), i+3); k++ {
			if k != i && sizes[k] == sizes[k] {
				near = append(near, sizes[k])
			}
		}
		if near == nil {
			usual, far = append(usual, math.NaN()), append(far, false)
			continue
		}
		lower := LowerMedian(near) // sorts
		upper := near[len(near)/2]
		usual = append(usual, lower)
		far = append(far, size >= upper+math.Log2(farFactor) || size <= lower-math.Log2(farFactor))
	}
	return usual, far
}
