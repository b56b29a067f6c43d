package diff

import (
	"math"

	"gonum.org/v1/gonum/mat"

	"dsmoe/inspect"
	"dsmoe/inspect/matrix"
	"dsmoe/model"
	"dsmoe/model/weights"
)

// maxRank is the largest rank that is measured.
const maxRank = 64

// spare is the number of directions beyond maxRank: they make the first maxRank exact enough. N. Halko, P. Martinsson
// and J. Tropp, Finding Structure with Randomness, 2011.
const spare = 8

// floor is the smallest singular value, over the largest, that float32 products show.
const floor = 1e-5

// margin widens the bound on the singular values of rounding errors, which holds for large matrices.
const margin = 1.1

// rank measures the singular values of D: Y = D·Ω with columns Ω of ±1 spans the directions in which D is large, Q is an
// orthonormal basis of them, and QᵀD has the singular values of D, less what Q misses. Rounding gives D the standard
// deviation s.
func (c *comparer) rank(x *Change, p weights.Pair, stepA, stepB step) error {
	if !stepA.known || !stepB.known {
		return nil
	}
	m, n := p.A.Shape[0], p.A.Shape[1]
	plain := c.arithmetic.Get().(*model.Plain)
	defer c.arithmetic.Put(plain)
	k := min(maxRank+spare, m, n)
	omega := make([]float32, k*n)
	for i := range omega {
		omega[i] = matrix.Sign(i/n+1, i%n)
	}
	y, variance := make([]float32, m*k), 0.0
	if err := c.again.Numbers(p, tileSize(p.A), func(at int64, a, b []float32) {
		tile := 0.0
		for i, v := range b {
			tile += stepA.variance(a[i]) + stepB.variance(v)
		}
		variance += tile
		copy(y[int(at)/n*k:], plain.Product(subtract(a, b), omega, n))
	}); err != nil {
		return err
	}
	basis, k := orthonormal(y, m, k)
	qd := make([]float64, k*n) // QᵀD
	var columns, turned []float32
	err := c.again.Numbers(p, tileSize(p.A), func(at int64, a, b []float32) {
		d, first := subtract(a, b), int(at)/n
		t := len(d) / n
		columns, turned = sized(columns, t*n), sized(turned, t*k)
		(&matrix.Matrix{Values: d, Rows: t, Cols: n}).Transpose(columns)
		(&matrix.Matrix{Values: basis[first*k : (first+t)*k], Rows: t, Cols: k}).Transpose(turned)
		for i, v := range plain.Product(turned, columns, t) {
			qd[i] += float64(v)
		}
	})
	values := singularValues(qd, k, n)
	if err != nil || len(values) == 0 || !(values[0] > 0) {
		return err
	}
	noise := math.Sqrt(variance/float64(x.Elements)) * margin * (math.Sqrt(float64(m)) + math.Sqrt(float64(n)))
	x.StableRank = inspect.Finite(max(1, x.squares/(values[0]*values[0])))
	rank := 0
	for rank < len(values) && values[rank] > max(noise, floor*values[0]) {
		rank++
	}
	if rank <= maxRank {
		x.Rank = &rank
	}
	return nil
}

// subtract sets a to a - b, and returns it.
func subtract(a, b []float32) []float32 {
	for i, v := range b {
		a[i] -= v
	}
	return a
}

// sized returns a slice of n numbers, with the memory of dst if that is enough.
func sized(dst []float32, n int) []float32 {
	if cap(dst) < n {
		return make([]float32, n)
	}
	return dst[:n]
}

// orthonormal returns an orthonormal basis, m × rank row by row, of the columns of y, m × k: the left singular vectors,
// without those of singular values that rounding could have made.
func orthonormal(y []float32, m, k int) (basis []float32, rank int) {
	products, sums := mat.NewSymDense(k, nil), make([]float64, k*k) // of the columns
	for r := range m {
		row := y[r*k : (r+1)*k]
		for i, v := range row {
			for j := i; j < k; j++ {
				sums[i*k+j] += float64(v) * float64(row[j])
			}
		}
	}
	for i := range k {
		for j := i; j < k; j++ {
			products.SetSym(i, j, sums[i*k+j])
		}
	}
	values, vectors := eigen(products, k)
	for rank < k && values[rank] > 1e-11*values[0] { // float32 products: 3·10⁻⁶ of the largest singular value
		rank++
	}
	basis = make([]float32, m*rank)
	for r := range m {
		for j := range rank {
			sum := 0.0
			for i, v := range y[r*k : (r+1)*k] {
				sum += float64(v) * vectors.At(i, k-1-j)
			}
			basis[r*rank+j] = float32(sum / math.Sqrt(values[j]))
		}
	}
	return basis, rank
}

// eigen returns the eigenvalues, largest first, and the eigenvectors, in the opposite order.
func eigen(g *mat.SymDense, k int) (values []float64, vectors *mat.Dense) {
	var e mat.EigenSym
	vectors = mat.NewDense(k, k, nil)
	values = make([]float64, k)
	if !e.Factorize(g, true) {
		return values, vectors
	}
	e.VectorsTo(vectors)
	for i, v := range e.Values(nil) {
		values[k-1-i] = v
	}
	return values, vectors
}

// singularValues returns those of b, k × n, largest first.
func singularValues(b []float64, k, n int) []float64 {
	if k == 0 {
		return nil
	}
	x := mat.NewDense(k, n, b)
	g := mat.NewSymDense(k, nil)
	g.SymOuterK(1, x)
	values, _ := eigen(g, k)
	for i, v := range values {
		values[i] = math.Sqrt(max(v, 0))
	}
	return values
}
