package bounds

import (
	"math"

	"dsmoe/model"
	"dsmoe/model/tensor"
)

// matrix is an operand of a product: numbers with standard deviations, in units of u, or none.
type matrix struct {
	rows, cols int
	y          []float32
	sigma      []float32 // nil where all numbers are exact
}

// matrixOf is x as a matrix of its rows.
func matrixOf(x *Value) matrix { return matrix{x.Rows(), x.Width(), x.Values, x.deviations()} }

// matrixAt is the i-th matrix of x's last two axes.
func (x *Value) matrixAt(i int) matrix {
	rows, cols := x.Shape[len(x.Shape)-2], x.Width()
	return matrix{rows * len(x.Values), cols, x.Values, x.deviations()}.part(i*rows, rows)
}

// part is n rows of m, from the first on.
func (m matrix) part(first, n int) matrix {
	from, to := first*m.cols, (first+n)*m.cols
	p := matrix{n, m.cols, m.y[from:to], nil}
	if m.sigma != nil {
		p.sigma = m.sigma[from:to]
	}
	return p
}

// transposed is m with rows and columns swapped.
func (m matrix) transposed() matrix {
	turn := func(x []float32) []float32 {
		if x == nil {
			return nil
		}
		y := make([]float32, len(x))
		for r := range m.rows {
			for c := range m.cols {
				y[c*m.rows+r] = x[r*m.cols+c]
			}
		}
		return y
	}
	return matrix{m.cols, m.rows, turn(m.y), turn(m.sigma)}
}

// productOf is a product of two matrices: values and variances.
type productOf struct{ y, v []float64 }

// each calls f with each element.
func (p productOf) each(f func(i int, y, v float64)) {
	for i, y := range p.y {
		f(i, y, p.v[i])
	}
}

// gradient is a product as a tensor.
func (a *Analysis) gradient(p productOf, shape ...int) *Value {
	x := a.result(tensor.F32, shape...)
	p.each(x.Set)
	return x
}

// product is a·bᵀ of two matrices, [a.rows, b.rows]. The reference sums k terms, of which these may be a part:
//
//	v = Σ_runs (Σ σ_a·|b|)² + Σ_runs (Σ σ_b·|a|)² + Σ v_a·v_b + that of a sum
//
// where the partial sums of a sum (see sums.variance) are Σ_runs (Σ r)² of each plan. A run is of equal terms,
// one behind the other, as repeated tokens give: adding a term to a sum again and again is rounded the same
// way again and again. Other terms are runs of one. So are terms that are hardly more than the spacing of
// numbers at S: what is lost of each has its sign, and many of one sign, as the logits of tokens that never
// occur give, add up: (Σ ±min(|term|/u, |S|))²/2 more.
func (a *Analysis) product(left, right matrix, k int) productOf {
	p := productOf{make([]float64, left.rows*right.rows), make([]float64, left.rows*right.rows)}
	s := a.gemm(tensor.F32, k)
	if a.few(left.rows, right.rows) || a.few(right.rows, left.rows) { // by dot products, or in one chain
		s.kappa, s.plans = max(s.kappa, a.noise*float64(k)/6), plans(k, true)
	}
	a.plain.Each(left.rows, 4*len(p.y)*left.cols, func(r int) {
		x := left.part(r, 1)
		for c := range right.rows {
			i := r*right.rows + c
			p.y[i], p.v[i] = sumOf(x, right.part(c, 1), s)
		}
	})
	return p
}

// littleTerm is up to how many half spacings of a sum a term is hardly more than what is lost of it.
const littleTerm = 16

// chains are the partial sums of one plan.
type chains struct {
	length, left int     // terms of a chain, and those left of the present one
	start        float64 // total of the chains before the present one
	ordered, run float64 // Σ r² of runs, and Σ r of the present one
	lost         float64 // Σ ±min(|term|/u, |S|) of little terms
}

// add adds a term, after which the sum of all chains is total.
func (c *chains) add(term, total float64, continues bool) {
	s := total - c.start
	if !continues {
		c.ordered += Sq(c.run)
		c.run = 0
	}
	if term != 0 { // else nothing is rounded
		c.run += power(s)
	}
	if math.Abs(term) < littleTerm*Unit*math.Abs(s) {
		c.lost += math.Copysign(min(math.Abs(term)/Unit, math.Abs(s)), term)
	}
	if c.left--; c.left == 0 {
		c.ordered += Sq(power(total))
		c.start, c.left = total, c.length
	}
}

// sumOf is one element of a product.
func sumOf(a, b matrix, s *sums) (y, v float64) {
	var squares, last, partial float64
	var of [model.MostPlans]chains
	plans := of[:len(s.plans)]
	for i, length := range s.plans {
		plans[i].length, plans[i].left = length, length
	}
	for k, x := range a.y {
		term := float64(x) * float64(b.y[k])
		y += term
		squares += Sq(term)
		for i := range plans {
			plans[i].add(term, y, term == last)
		}
		last = term
	}
	for i := range plans {
		c := &plans[i]
		partial = max(partial, c.ordered+Sq(c.run)+1.5*Sq(c.lost))
	}
	if a.sigma != nil || b.sigma != nil {
		v = carried(a, b)
	}
	return y, roughly(y, v+s.variance(y, partial, squares))
}

// carried is Σ (v_a·b² + v_b·a² + v_a·v_b). Where a or b repeats a number, as equal tokens do, the
// errors are not independent, and may all be the same.
func carried(a, b matrix) (v float64) {
	var ofA, ofB float64
	for k, x := range a.y {
		y := b.y[k]
		if k > 0 && x != a.y[k-1] && y != b.y[k-1] {
			v, ofA, ofB = v+Sq(ofA)+Sq(ofB), 0, 0
		}
		va, vb := variance(a.sigma, k), variance(b.sigma, k)
		ofA += math.Sqrt(va) * math.Abs(float64(y))
		ofB += math.Sqrt(vb) * math.Abs(float64(x))
		v += va * vb * (Unit * Unit)
	}
	return v + Sq(ofA) + Sq(ofB)
}

// repeats reports whether a column of m equals the column before it.
func (m matrix) repeats() bool {
	for c := 1; c < m.cols; c++ {
		same := true
		for r := 0; same && r < m.rows; r++ {
			same = m.y[r*m.cols+c] == m.y[r*m.cols+c-1]
		}
		if same {
			return true
		}
	}
	return false
}

// variance is the square of element i of sigma.
func variance(sigma []float32, i int) float64 {
	if sigma == nil {
		return 0
	}
	return Sq(float64(sigma[i]))
}
