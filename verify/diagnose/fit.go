package diagnose

import (
	"fmt"
	"math"
	"slices"
	"strconv"

	"dsmoe/verify/bounds"
)

// Factors that are fitted, and numbers as they are written.

// dot is the product of two rows.
func dot(a, b []float32) (sum float64) {
	for i, x := range a {
		sum += float64(float64(x) * float64(b[i]))
	}
	return sum
}

// fit has the sums over n numbers y of ours and g of the golden, in units of their errors, that a factor is fitted
// with.
type fit struct{ n, yy, yg, gg float64 }

func (s *fit) add(y, g float64) {
	s.n, s.yy, s.yg, s.gg = s.n+1, s.yy+bounds.Sq(y), s.yg+float64(y*g), s.gg+bounds.Sq(g)
}

// deviation is the standard deviation of the factor.
func (s *fit) deviation() float64 {
	if s.yy == 0 {
		return 0
	}
	return s.left(s.factor()) / math.Sqrt(s.yy*max(1, s.n-1))
}

// factor is the number that y times it is nearest to g.
func (s *fit) factor() float64 {
	if s.yy == 0 {
		return 1
	}
	return s.yg / s.yy
}

// left is the root of the sum of squares of g - factor·y.
func (s *fit) left(factor float64) float64 {
	return math.Sqrt(max(0, s.gg-float64(2*factor*s.yg)+float64(factor*factor*s.yy)))
}

// written rounds a number to so many digits.
func written(v float64, digits int) float64 {
	x, _ := strconv.ParseFloat(strconv.FormatFloat(v, 'g', digits, 64), 64)
	return x
}

// unlike writes a number with so many digits, or with as many more as it takes to read otherwise than other numbers.
func unlike(v float64, digits int, others ...float64) string {
	for ; digits < 17 && slices.ContainsFunc(others, func(x float64) bool {
		return x != v && fmt.Sprintf("%.*g", digits, x) == fmt.Sprintf("%.*g", digits, v)
	}); digits++ {
	}
	return fmt.Sprintf("%.*g", digits, v)
}
