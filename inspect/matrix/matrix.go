// Package matrix measures matrices of weights: hashes, spectral norms, and cosines between them. Products are
// those of model.Plain, whose bits no machine changes.
package matrix

import (
	"context"
	"iter"
	"math"
	"slices"
	"sync"

	"dsmoe/inspect"
	"dsmoe/model"
	"dsmoe/model/tensor"
	"dsmoe/model/weights"
)

// Matrix is the numbers of a weight.
type Matrix struct {
	Values     []float32 // row by row
	Rows, Cols int
}

// Row returns row r.
func (m *Matrix) Row(r int) []float32 { return m.Values[r*m.Cols : (r+1)*m.Cols] }

// Transpose fills dst with the columns of m as rows.
func (m *Matrix) Transpose(dst []float32) {
	const block = 64 // stays in the nearest cache
	for r0 := 0; r0 < m.Rows; r0 += block {
		for c0 := 0; c0 < m.Cols; c0 += block {
			for r := r0; r < min(r0+block, m.Rows); r++ {
				for c, v := range m.Row(r)[c0:min(c0+block, m.Cols)] {
					dst[(c0+c)*m.Rows+r] = v
				}
			}
		}
	}
}

// Reader reads the matrices of a checkpoint.
type Reader struct {
	inspect.Weights
	*weights.Reading
	Again  *weights.Reading // of weights a second time, whose bytes are not counted
	Spaces sync.Pool        // of *Space
}

// Space is the memory of a worker: two matrices, one as it is stored, and rows of it.
type Space struct {
	First, Second []float32
	Stored        []byte
	Rows          []float32
}

// NewReader returns a reader of w's matrices.
func NewReader(ctx context.Context, w inspect.Weights) *Reader {
	return &Reader{Weights: w, Reading: w.Reading(ctx), Again: weights.NewReading(ctx, w.Threads, nil),
		Spaces: sync.Pool{New: func() any { return new(Space) }}}
}

// Matrix reads a weight into the memory of dst.
func (x *Reader) Matrix(r *weights.Reading, w *weights.Weight, dst *[]float32) (*Matrix, error) {
	values, err := r.All(x.Reader, w, *dst)
	if err != nil {
		return nil, err
	}
	*dst = values
	return &Matrix{values, w.Shape[0], w.Shape[1]}, nil
}

// Stored is a matrix as it is stored. It is for one goroutine.
type Stored struct {
	Rows, Cols int
	weight     model.Weight
	p          *model.Plain
	rows       []float32 // memory of decoded rows
}

// Stored reads a weight into the memory of space, for products with p.
func (x *Reader) Stored(r *weights.Reading, w *weights.Weight, p *model.Plain, space *Space) (*Stored, error) {
	data, grid, err := r.Stored(x.Reader, w, space.Stored)
	if err != nil {
		return nil, err
	}
	space.Stored = data
	m := &Stored{Rows: w.Shape[0], Cols: w.Shape[1], p: p}
	m.weight = model.Weight{Name: w.Name, Tensor: tensor.Tensor{DType: w.DType, Shape: w.Shape, Data: data}, Grid: grid}
	if w.Scales != nil {
		b := w.Scaling().Blocks
		m.weight.Block = [2]int{b.BlockRows, b.BlockCols}
	}
	space.Rows = slices.Grow(space.Rows[:0], tensor.Runs*m.Cols)[:tensor.Runs*m.Cols]
	m.rows = space.Rows
	return m, nil
}

// Row returns the numbers of row r, until the next call.
func (m *Stored) Row(r int) []float32 { return m.p.RowOf(m.rows, &m.weight, r) }

// Runs yields an index and the numbers of tensor.Runs rows from that row on; the last time, of the rows that are left.
func (m *Stored) Runs() iter.Seq2[int, []float32] {
	return func(yield func(int, []float32) bool) {
		for r := 0; r < m.Rows; r += tensor.Runs {
			n := min(tensor.Runs, m.Rows-r)
			for i := range n {
				m.p.RowOf(m.rows[i*m.Cols:], &m.weight, r+i)
			}
			if !yield(r, m.rows[:n*m.Cols]) {
				return
			}
		}
	}
}

// Products returns the products of rows x with the rows of m: [len(x)/m.Cols, m.Rows].
func (m *Stored) Products(x []float32) []float32 { return m.p.Products(x, &m.weight) }

// SpectralNorm is Matrix.SpectralNorm.
func (m *Stored) SpectralNorm() float64 {
	return spectralNorm(m.Rows, m.Cols, func(v []float32) []float32 { return m.p.Times(&m.weight, v) },
		func(u []float32) []float32 { return m.p.TimesColumns(&m.weight, u) })
}

// Arithmetic returns what computes products: in float32, on one processor.
func Arithmetic() *model.Plain {
	return model.NewPlain(model.Options{Accumulate: model.Float32, Parallelism: 1})
}

// hashFactor is the golden ratio times 2⁶⁴.
const hashFactor = 0x9E3779B97F4A7C15

// Mix adds v to a hash of what came before it.
func Mix(h, v uint64) uint64 {
	h = (h ^ v) * hashFactor
	return h ^ h>>32
}

// Bits returns the bits of a float32; -0 has the bits of 0.
func Bits(v float32) uint64 { return uint64(math.Float32bits(v + 0)) }

// LogSum adds the logarithms of numbers other than 0. A few large numbers among many hardly change their mean.
type LogSum struct{ sum, n uint64 }

// Add adds a finite number.
func (l *LogSum) Add(v float32) {
	if b := uint64(math.Float32bits(v) &^ (1 << 31)); b != 0 {
		l.sum += b
		l.n++
	}
}

// AddBits adds n finite numbers whose bits without their signs have this sum. A 0 among them is taken off as -1 numbers.
func (l *LogSum) AddBits(sum uint64, n int) { l.sum, l.n = l.sum+sum, l.n+uint64(n) }

// Merge adds the numbers of another.
func (l *LogSum) Merge(o LogSum) { l.sum, l.n = l.sum+o.sum, l.n+o.n }

// Log2 returns the mean of log₂|v|, each within 0.09, above the right one: the bits of a float32 without its sign are
// (log₂(1+m) ≈ m) that logarithm in steps of 2⁻²³, and 127. NaN if there is no number.
func (l *LogSum) Log2() float64 { return float64(l.sum)/float64(l.n)/(1<<23) - 127 }

// Orderless hashes hashes in any order.
func Orderless(hashes []uint64) uint64 {
	sum := uint64(len(hashes))
	for _, h := range slices.Sorted(slices.Values(hashes)) {
		sum = Mix(sum, h)
	}
	return sum
}

// Sign is +1 or -1 by the highest bit of the SplitMix64 finaliser of probe·2³² + i + 1, times the golden ratio:
// G. Steele, D. Lea, C. Flood, Fast Splittable Pseudorandom Number Generators, 2014.
func Sign(probe, i int) float32 {
	z := (uint64(probe)<<32 + uint64(i) + 1) * hashFactor
	z = (z ^ z>>30) * 0xBF58476D1CE4E5B9
	z = (z ^ z>>27) * 0x94D049BB133111EB
	if (z^z>>31)>>63 == 1 {
		return -1
	}
	return 1
}

// lanczosSteps is how many steps SpectralNorm takes. For random matrices of the experts' widths σ₁ is then less
// than 10⁻³ short; for spectra with a gap it is exact in float32.
const lanczosSteps = 40

// SpectralNorm returns σ₁ of a matrix, the largest singular value, from below: that of the bidiagonal matrix to
// which lanczosSteps steps of G. Golub and W. Kahan, Calculating the Singular Values and Pseudo-Inverse of a
// Matrix, 1965, reduce it, begun with a fixed vector of ±1. transposed has the columns as rows. NaN if products
// overflow.
func (m *Matrix) SpectralNorm(p *model.Plain, transposed []float32) float64 {
	return spectralNorm(m.Rows, m.Cols, func(v []float32) []float32 { return p.Product(v, m.Values, m.Cols) },
		func(u []float32) []float32 { return p.Product(u, transposed, m.Rows) })
}

// spectralNorm is SpectralNorm of a matrix that these functions multiply with, and turned.
func spectralNorm(rows, cols int, times, timesColumns func(x []float32) []float32) float64 {
	v, u := make([]float32, cols), make([]float32, rows)
	for c := range v {
		v[c] = Sign(0, c) / float32(math.Sqrt(float64(cols)))
	}
	var alphas, betas []float64
	beta := 0.0
	for {
		alpha := residual(u, times(v), beta)
		alphas = append(alphas, alpha)
		if !(alpha > 0) || len(alphas) == min(lanczosSteps, rows, cols) {
			break
		}
		beta = residual(v, timesColumns(u), alpha)
		if !(beta > 1e-6*alpha) { // what is left is rounding
			break
		}
		betas = append(betas, beta)
	}
	return largestSingular(alphas, betas)
}

// residual sets x to (y - by·x) over its norm, and returns the norm. If the norm is 0, so is x.
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

// largestSingular returns the largest singular value of the upper bidiagonal matrix with alphas on its diagonal
// and betas above it, by bisection with Sturm sequences of its square.
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
	if !tensor.IsFinite(high) {
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

// hasAbove reports whether a symmetric tridiagonal matrix T has an eigenvalue above x: whether x·1 - T has a pivot
// that is not above 0.
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
