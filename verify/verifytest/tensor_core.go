package verifytest

import "math"

// TensorCore adds up products as a GPU's tensor cores do, as measured of them (arXiv 2511.10909, MMA-Sim): so many
// exact products and the sum before are cut off, toward zero, to so many bits behind the leading bit of the largest of
// them, and added exactly; their sum is cut off to a float32. Volta: 4 terms, 23 bits; Ampere: 8 and 24, of TF32 4 terms;
// Hopper: 16 and 25, of TF32 8 terms. Without terms it is a chain of fused float32 additions, as of GPU's other products.
type TensorCore struct{ Terms, Fraction int }

// Dot is Σ x·w of numbers of which the products are exact in float64.
func (c TensorCore) Dot(x, w []float32) float32 {
	sum, terms := 0.0, max(c.Terms, 1)
	for from := 0; from < len(x); from += terms {
		to := min(from+terms, len(x))
		if c.Terms == 0 {
			sum = float64(float32(sum + float64(x[from])*float64(w[from])))
			continue
		}
		largest := math.Abs(sum)
		for k := from; k < to; k++ {
			largest = max(largest, math.Abs(float64(x[k])*float64(w[k])))
		}
		if largest == 0 {
			continue
		}
		_, e := math.Frexp(largest) // largest in [2^(e-1), 2^e)
		unit := math.Ldexp(1, e-1-c.Fraction)
		all := math.Trunc(sum / unit)
		for k := from; k < to; k++ {
			all += math.Trunc(float64(x[k]) * float64(w[k]) / unit)
		}
		sum = cut(all * unit)
	}
	return float32(sum)
}

// cut is x without the bits that a float32 has not.
func cut(x float64) float64 {
	if r := float64(float32(x)); math.Abs(r) <= math.Abs(x) {
		return r
	}
	return float64(math.Nextafter32(float32(x), 0))
}
