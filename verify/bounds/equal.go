package bounds

import (
	"cmp"
	"encoding/binary"
	"math"
	"slices"

	"dsmoe/model"
	"dsmoe/model/tensor"
)

// Errors of equal computations are equal: neurons with equal rows of gate_proj and up_proj, as cloning makes them, are off
// by the same. In a sum their deviations add up, not their variances.

// classes are the columns of a value that are one computation: their numbers and their deviations are equal in every row.
type classes struct {
	of    []int // the class of each column, counted by its first column
	first []int // the first column of each class
}

// classesOf returns the classes of x's columns; nil if no two columns that are uncertain are equal.
func classesOf(x *Value) *classes {
	width := x.Width()
	uncertain := make([]bool, width)
	for t := range x.Rows() {
		for i, s := range x.sigma.Row(t) {
			uncertain[i] = uncertain[i] || s != 0
		}
	}
	order := slices.DeleteFunc(ascending(width), func(i int) bool { return !uncertain[i] })
	compare := func(i, j int) int {
		for at := 0; at < len(x.Values); at += width {
			if c := compareBits(x.Values[at+i], x.Values[at+j]); c != 0 {
				return c
			}
			if c := compareBits(x.sigma.Values[at+i], x.sigma.Values[at+j]); c != 0 {
				return c
			}
		}
		return 0
	}
	slices.SortFunc(order, func(i, j int) int { return cmp.Or(compare(i, j), i-j) })
	leader, found := ascending(width), false
	for n := 1; n < len(order); n++ {
		if compare(order[n-1], order[n]) == 0 {
			leader[order[n]], found = leader[order[n-1]], true
		}
	}
	if !found {
		return nil
	}
	c := &classes{of: make([]int, width)}
	for i, first := range leader {
		if first == i {
			c.of[i] = len(c.first)
			c.first = append(c.first, i)
		} else {
			c.of[i] = c.of[first]
		}
	}
	return c
}

// ascending are the numbers from 0 on.
func ascending(n int) []int {
	numbers := make([]int, n)
	for i := range numbers {
		numbers[i] = i
	}
	return numbers
}

// compareBits orders numbers by their bits.
func compareBits(a, b float32) int { return cmp.Compare(math.Float32bits(a), math.Float32bits(b)) }

// carried returns what rows of variances v of a value of these classes do to its products with w, [rows, out]: the larger of
//
//	Σ w²·v              all errors are independent
//	Σ (Σ w)²·v          errors of a class are equal; the inner sum is over its columns
//
// A reference may compute columns at the edge of a matrix in another way, so that equal errors that cancel are not counted on.
func (a *Analysis) carried(v *model.Activation, w *model.Weight, c *classes) *model.Activation {
	y := a.errors.Squares(v, w)
	if c != nil {
		for i, together := range a.together(v, w, c).Values {
			y.Values[i] = max(y.Values[i], together)
		}
	}
	return y
}

// together returns Σ (Σ w)²·v over classes, the inner sum over the columns of a class: [rows, out].
func (a *Analysis) together(v *model.Activation, w *model.Weight, c *classes) *model.Activation {
	out, width, n := w.Shape[0], w.Shape[1], len(c.first)
	y, terms := a.errors.Make(tensor.F32, v.Rows(), out), a.errors.Make(tensor.F32, v.Rows(), n)
	for t := range v.Rows() {
		for class, i := range c.first {
			terms.Row(t)[class] = v.Row(t)[i]
		}
	}
	block := max(1, blockElements/width)
	for from := 0; from < out; from += block {
		rows := min(block, out-from)
		sums := model.Weight{Tensor: tensor.Tensor{DType: tensor.F32, Shape: []int{rows, n}, Data: make([]byte, 4*rows*n)}}
		a.plain.Each(rows, rows*width, func(r int) {
			row := make([]float32, n)
			for i, weight := range a.plain.RowOf(make([]float32, width), w, from+r) {
				row[c.of[i]] += weight
			}
			for class, sum := range row {
				binary.LittleEndian.PutUint32(sums.Data[4*(r*n+class):], math.Float32bits(sum))
			}
		})
		a.errors.WeightPartial(&sums, &model.Partial{V: terms.Values, Each: func(t, r int, _, _, squares []float32) {
			copy(y.Row(t)[from+r:], squares)
		}})
	}
	return y
}

// commonOf returns what x's common error does to its products with l, and takes it from x: [rows, out]; nil without one.
func (a *Analysis) commonOf(x *Value, l *model.Linear) []float32 {
	if x.common == nil {
		return nil
	}
	y := a.errors.Linear(x.common, &model.Linear{Weight: l.Weight})
	x.common = nil
	return y.Values
}

// addCommon adds to the variances of y, the sum of its products, what their common error c adds beside those of each:
//
//	v += (Σ g·c)² - Σ (g·c)², if that is more than 0
func (y *Value) addCommon() {
	sums, squares := make([]float64, len(y.Values)), make([]float64, len(y.Values))
	for i := range y.Products {
		p := &y.Products[i]
		for at, c := range p.common {
			to := p.tokens[at/y.Width()]*y.Width() + at%y.Width()
			c := float64(c) * float64(p.weights[at/y.Width()])
			sums[to] += c
			squares[to] += Sq(c)
		}
	}
	for i, sum := range sums {
		if more := Sq(sum) - squares[i]; more > 0 {
			y.Set(i, float64(y.Values[i]), y.Variance(i)+more)
		}
	}
}
