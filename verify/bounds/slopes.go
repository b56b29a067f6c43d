package bounds

import "math"

// What a stage whose roundings are not known is held to beside Lambda: roundings to nearest have no direction, a wrong
// factor has.
const (
	RoundingRMSLimit = 1.3 // of the RMS of differences
	SlopeLimit       = 6   // of a slope
	leastSlopeRows   = 40  // distinct rows from which on the slope of a tensor is judged
)

// Slopes returns the RMS of the selected rows' differences d from the golden, in standard deviations s that have the
// golden's own rounding in them, and the largest slope of d over the values y:
//
//	|Σ_t d·y| / √(Σ_t s²·y²)            of a column
//	|Σ_t S_t| / √(Σ_t S_t²), S_t = Σ d·y  of the tensor's rows, if there are enough
func Slopes(x *Value, want []float32, selected *Rows, factor float64) (rms, slope float64) {
	p, width := PrecisionOf(x.DType), x.Width()
	along, spread := make([]float64, width), make([]float64, width)
	squares, total, rows := 0.0, 0.0, 0.0
	for n, row := range selected.Compared {
		sum := 0.0
		for c := range width {
			i := row*width + c
			g, y := float64(want[i]), float64(x.Values[i])
			s2 := Sq(factor)*(x.Variance(i)*(Unit*Unit)) + Sq(p.Ulp(math.Max(math.Abs(g), math.Abs(y))))/12
			d, weight := g-y, selected.Weights[n]
			squares += float64(weight * (d * d / s2))
			along[c] += float64(weight * (d * y))
			spread[c] += float64(weight * (s2 * (y * y)))
			sum += d * y
		}
		total += float64(selected.Weights[n] * sum)
		rows += float64(selected.Weights[n] * (sum * sum))
	}
	for c, a := range along {
		slope = max(slope, Ratio(math.Abs(a), math.Sqrt(spread[c])))
	}
	if selected.Distinct >= leastSlopeRows {
		slope = max(slope, Ratio(math.Abs(total), math.Sqrt(rows)))
	}
	return math.Sqrt(squares / float64(selected.Distinct*width)), slope
}
