package inspect

// What one matrix of an expert is by itself.

import (
	"math"
	"slices"

	"dsmoe/model"
)

// matrix is the numbers of a weight.
type matrix struct {
	values     []float32 // row by row
	rows, cols int
}

// row returns row r.
func (m *matrix) row(r int) []float32 { return m.values[r*m.cols : (r+1)*m.cols] }

// examinedMatrix is what of a matrix is compared with others.
type examinedMatrix struct {
	neurons  []uint64  // a hash of each neuron's numbers: rows of gate_proj and up_proj, columns of down_proj
	print    uint64    // a hash of those, whatever their order
	zero     []bool    // neurons all of whose numbers are 0
	channels []float64 // norms of the other axis, which experts share, over their median; nil if that is 0
	peak     float64   // the largest norm of a neuron over their median; 0 if that is 0
	neuron   int       // whose it is
}

// The hash of numbers in their order: each is mixed into what was there before.
const hashFactor = 0x9E3779B97F4A7C15

func mixed(h, v uint64) uint64 {
	h = (h ^ v) * hashFactor
	return h ^ h>>32
}

// bitsOf returns the bits of a float32; those of -0 are those of 0.
func bitsOf(v float32) uint64 { return uint64(math.Float32bits(v + 0)) }

// orderless hashes hashes in any order.
func orderless(hashes []uint64) uint64 {
	sum := uint64(len(hashes))
	for _, h := range slices.Sorted(slices.Values(hashes)) {
		sum = mixed(sum, h)
	}
	return sum
}

// axis is the rows, or the columns, of a matrix.
type axis struct {
	hashes  []uint64
	squares []float64
}

func newAxis(n int) *axis { return &axis{make([]uint64, n), make([]float64, n)} }

// measure counts in a matrix, and hashes its neurons, which are its columns if down is set.
func (m *matrix) measure(n *MatrixNumbers, down bool) examinedMatrix {
	rows, cols := newAxis(m.rows), newAxis(m.cols)
	total := 0.0
	for r := range m.rows {
		for c, v := range m.row(r) {
			switch {
			case v == 0:
				n.Zeros++
			case v != v:
				n.NaN++
			case v-v != 0:
				n.Infinite++
			}
			b, square := bitsOf(v), float64(v)*float64(v)
			rows.hashes[r] = mixed(rows.hashes[r], b)
			cols.hashes[c] = mixed(cols.hashes[c], b)
			rows.squares[r] += square
			cols.squares[c] += square
		}
		total += rows.squares[r]
	}
	n.Norm, n.RMS = finite(math.Sqrt(total)), finite(math.Sqrt(total/float64(m.rows*m.cols)))
	n.Distinct = m.distinct()
	neurons, channels := rows, cols
	if down {
		neurons, channels = cols, rows
	}
	x := examinedMatrix{neurons: neurons.hashes, print: orderless(neurons.hashes), channels: channels.ratios()}
	for _, s := range neurons.squares {
		x.zero = append(x.zero, s == 0) // no square of a float32 is too small for float64
	}
	if ratios := neurons.ratios(); ratios != nil {
		x.peak = slices.Max(ratios)
		x.neuron = slices.Index(ratios, x.peak)
	}
	return x
}

// ratios returns the norms over their median, nil if that is 0 or not finite.
func (a *axis) ratios() []float64 {
	median := math.Sqrt(lowerMedian(slices.Clone(a.squares)))
	if !(median > 0) || math.IsInf(median, 1) || slices.ContainsFunc(a.squares, func(s float64) bool { return s-s != 0 }) {
		return nil
	}
	ratios := make([]float64, len(a.squares))
	for i, s := range a.squares {
		ratios[i] = math.Sqrt(s) / median
	}
	return ratios
}

// Runs of distinct: so many, evenly over the rows, of at most so many numbers.
const (
	distinctRuns   = 64
	distinctLength = 128
)

// distinct is the number of different magnitudes, other than 0, in the first 128 numbers of each
// of up to 64 rows, over the number of those that are not 0. Numbers that were quantised to few
// bits repeat, whatever their scale. nil if all are 0.
func (m *matrix) distinct() *float64 {
	different, all := 0, 0
	runs, length := min(distinctRuns, m.rows), min(distinctLength, m.cols)
	sorted := make([]float32, 0, length)
	for i := range runs {
		sorted = sorted[:0]
		for _, v := range m.row(i * m.rows / runs)[:length] {
			if v != 0 && v == v {
				sorted = append(sorted, max(v, -v))
			}
		}
		all += len(sorted)
		slices.Sort(sorted)
		different += len(slices.Compact(sorted))
	}
	if all == 0 {
		return nil
	}
	return finite(float64(different) / float64(all))
}

// lanczosSteps is how many steps spectral goes. The σ₁ of random matrices of the experts' widths are
// then less than 10⁻³ short, and those of spectra with a gap exact in float32.
const lanczosSteps = 40

// spectral returns σ₁ of a matrix, the largest singular value, from below: that of the bidiagonal
// matrix to which lanczosSteps steps of G. Golub and W. Kahan, Calculating the Singular Values and
// Pseudo-Inverse of a Matrix, 1965, reduce it, begun with a fixed vector of ±1. transposed has the
// columns as rows. NaN if products overflow.
func (m *matrix) spectral(p *model.Plain, transposed []float32) float64 {
	v, u := make([]float32, m.cols), make([]float32, m.rows)
	for c := range v {
		v[c] = sign(0, c) / float32(math.Sqrt(float64(m.cols)))
	}
	var alphas, betas []float64
	beta := 0.0
	for range min(lanczosSteps, m.rows, m.cols) {
		alpha := residual(u, p.Product(v, m.values, m.cols), beta)
		alphas = append(alphas, alpha)
		if !(alpha > 0) {
			break
		}
		beta = residual(v, p.Product(u, transposed, m.rows), alpha)
		if !(beta > 1e-6*alpha) { // what is left is rounding
			break
		}
		betas = append(betas, beta)
	}
	return largestSingular(alphas, betas)
}

// residual sets x to (y - by·x) over its norm, and returns the norm. Of norm 0, x is 0.
func residual(x, y []float32, by float64) float64 {
	squares := 0.0
	for i, v := range y {
		d := float64(v) - float64(by*float64(x[i]))
		squares += float64(d * d)
		y[i] = float32(d)
	}
	norm := math.Sqrt(squares)
	for i, v := range y {
		x[i] = 0
		if norm > 0 {
			x[i] = float32(float64(v) / norm)
		}
	}
	return norm
}

// largestSingular returns the largest singular value of the upper bidiagonal matrix with alphas on
// its diagonal and betas above it, by bisection with Sturm sequences of its square.
func largestSingular(alphas, betas []float64) float64 {
	diagonal, off := make([]float64, len(alphas)), make([]float64, len(alphas))
	high := 0.0
	for i, a := range alphas {
		diagonal[i] = float64(a * a)
		if i > 0 {
			diagonal[i] += float64(betas[i-1] * betas[i-1])
			off[i] = alphas[i-1] * betas[i-1]
		}
		high += diagonal[i] // their sum is at least the largest eigenvalue
	}
	if high-high != 0 {
		return math.NaN()
	}
	low := 0.0
	for range 200 {
		middle := (low + high) / 2
		if middle <= low || middle >= high {
			break
		}
		if hasAbove(diagonal, off, middle) {
			low = middle
		} else {
			high = middle
		}
	}
	return math.Sqrt(high)
}

// hasAbove says whether a symmetric tridiagonal matrix has an eigenvalue above x: whether x·1 - T
// has a pivot that is not above 0.
func hasAbove(diagonal, off []float64, x float64) bool {
	pivot := 1.0
	for i, d := range diagonal {
		pivot = x - d - float64(off[i]*off[i])/pivot
		if !(pivot > 0) {
			return true
		}
	}
	return false
}

// transpose fills dst with the columns of m as rows.
func (m *matrix) transpose(dst []float32) {
	const block = 64 // stays in the nearest cache
	for r0 := 0; r0 < m.rows; r0 += block {
		for c0 := 0; c0 < m.cols; c0 += block {
			for r := r0; r < min(r0+block, m.rows); r++ {
				for c, v := range m.row(r)[c0:min(c0+block, m.cols)] {
					dst[(c0+c)*m.rows+r] = v
				}
			}
		}
	}
}

// sign is +1 or -1 by the highest bit of the SplitMix64 finaliser of probe·2³² + i + 1, times
// the golden ratio: G. Steele, D. Lea, C. Flood, Fast Splittable Pseudorandom Number Generators, 2014.
func sign(probe, i int) float32 {
	z := (uint64(probe)<<32 + uint64(i) + 1) * hashFactor
	z = (z ^ z>>30) * 0xBF58476D1CE4E5B9
	z = (z ^ z>>27) * 0x94D049BB133111EB
	if (z^z>>31)>>63 == 1 {
		return -1
	}
	return 1
}
