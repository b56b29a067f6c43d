package verify

import (
	"math"

	"dsmoe/model/tensor"
	"dsmoe/verify/bounds"
)

// distances are how far a golden tensor of shape [rows, width] is from what was computed, in
// standard deviations: z = d/σ of each element, d the distance of the value from the reals
// that round to the golden's. Where σ = 0 the two must be equal.
type distances struct {
	largest   float64 // z
	worst     int     // flat index of largest, or of the first element that is not finite
	finite    bool    // both tensors are; if not, only worst is set
	rms       float64 // of z, over distinct rows
	rowRMS    float64 // the largest of a row
	columnRMS float64 // the largest of a column, over distinct rows
	beyond    int     // elements further than lambda
	columns   []bool  // that have such elements
	rows      []bool
	sees      float64 // lambda·rms(σ)/rms(golden): what a deviation must be to be seen; infinite if some σ is no number
	ambiguous float64 // share of elements that may round to either neighbour
}

// measure returns the distances of the selected rows of want from x, σ being multiplied by
// factor.
func measure(x *value, want []float32, selected *rowSet, factor float64) *distances {
	p, width := precisionOf(x.DType), x.Width()
	d := &distances{finite: true, worst: selected.compared[0] * width, columns: make([]bool, width), rows: make([]bool, x.Rows())}
	sums := make([]float64, width) // of z², per column
	var total, sigmas, goldens float64
	ambiguous := 0
	for n, row := range selected.compared {
		rowSum := 0.0
		for c := range width {
			i := row*width + c
			g, y, s := float64(want[i]), float64(x.Values[i]), factor*unit*math.Sqrt(x.v(i))
			if !agree(g, p.round(y)) {
				return &distances{worst: i}
			}
			if s-s != 0 {
				s = math.Inf(1)
			}
			z := p.z(g, y, s)
			if z > d.largest {
				d.largest, d.worst = z, i
			}
			if z > bounds.Lambda {
				d.beyond++
				d.columns[c], d.rows[row] = true, true
			}
			rowSum += float64(z * z)
			sums[c] += float64(selected.weights[n] * float64(z*z))
			sigmas += float64(s * s)
			goldens += float64(g * g)
			if x.DType != tensor.F32 && s > 0 && p.round(y-bounds.Lambda*s) != p.round(y+bounds.Lambda*s) {
				ambiguous++
			}
		}
		total += float64(selected.weights[n] * rowSum)
		d.rowRMS = max(d.rowRMS, math.Sqrt(rowSum/float64(width)))
	}
	d.rms = math.Sqrt(total / float64(selected.distinct*width))
	for _, sum := range sums {
		d.columnRMS = max(d.columnRMS, math.Sqrt(sum/float64(selected.distinct)))
	}
	d.sees = ratio(bounds.Lambda*math.Sqrt(sigmas), math.Sqrt(goldens))
	d.ambiguous = float64(ambiguous) / float64(len(selected.compared)*width)
	return d
}

// agree says whether a golden and what it is compared with are both finite, or infinities of
// the same sign.
func agree(g, y float64) bool { return g-g == 0 && y-y == 0 || g == y }

// z is the distance of y from the golden g in standard deviations s.
func (p precision) z(g, y, s float64) float64 {
	switch {
	case g == p.round(y):
		return 0
	case s == 0:
		return math.Inf(1)
	}
	return p.distance(g, y) / s
}

// blindness is the share of a golden's RMS from which on a stage says nothing, when numbers
// were rounded to dtype d: hardly anything smaller would be seen. In BF16 and F16 that is an
// eighth: an expert that is missing of 8 is .35 of a routed sum. To block types weights were
// rounded coarsely on purpose. Their stages say something as long as a stage of zeros would
// fail: with 8 σ of twice the RMS the larger of normally distributed elements do, and in float32
// the RMS of all of them, 4 σ.
func blindness(d tensor.DType) float64 {
	switch {
	case d.Blocked():
		return 2
	case d == tensor.BF16 || d == tensor.F16:
		return 0x1p-3
	}
	return 1e-3
}

// saysNothing says whether the bounds are that wide.
func (d *distances) saysNothing(t tensor.DType) bool { return d.sees > blindness(t) }
