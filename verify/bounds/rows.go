package bounds

import (
	"slices"

	"dsmoe/model/tensor"
)

// Rows selects the rows of a golden tensor [rows, width] that are compared. Rows of padding
// tokens are not: no result that a user sees depends on them, and references disagree on them.
// Rows that are alike are one observation: an RMS over rows counts them once.
type Rows struct {
	Compared []int     // rows that are compared, ascending
	Padding  int       // rows of padding
	Weights  []float64 // of each compared row in an RMS: 1 / the number of rows alike
	Distinct int       // groups of compared rows that are alike: the sum of weights
}

// SelectRows selects the rows of want, of width elements each.
func SelectRows(want []float32, width int, padded []bool) *Rows {
	return SelectRowsOf(len(want)/width, func(row int) []float32 { return want[row*width : (row+1)*width] }, padded)
}

// SelectRowsOf selects among n rows, of which row returns row i.
func SelectRowsOf(n int, row func(i int) []float32, padded []bool) *Rows {
	r := &Rows{}
	for row := range n {
		if padded != nil && padded[row] {
			r.Padding++
		} else {
			r.Compared = append(r.Compared, row)
		}
	}
	r.Weights = make([]float64, len(r.Compared))
	groups := alikeGroups(len(r.Compared), func(i int) []float32 { return row(r.Compared[i]) })
	for _, group := range groups {
		for _, twin := range group {
			r.Weights[twin] = 1 / float64(len(group))
		}
	}
	r.Distinct = len(groups)
	return r
}

// alikeRows is the largest difference of two rows' elements, as a share of the largest element,
// up to which the rows are one observation: sums of terms so alike round alike. Equal tokens in
// equal contexts differ by some units of float32, 2^-20 after some layers; other tokens by far more.
const alikeRows = 0x1p-16

// alikeGroups groups n rows that are alike: sorted by their elements they are neighbours. The first elements of all
// rows are kept, and nearly always put them in order: a row is asked for about twice.
func alikeGroups(n int, row func(int) []float32) (groups [][]int) {
	const kept = 32
	order, heads := make([]int, n), make([][]float32, n)
	for i := range order {
		all := row(i)
		order[i], heads[i] = i, slices.Clone(all[:min(kept, len(all))])
	}
	slices.SortFunc(order, func(i, j int) int {
		if c := slices.Compare(heads[i], heads[j]); c != 0 {
			return c
		}
		return slices.Compare(row(i), row(j))
	})
	var begins []float32 // the first row of the group
	for first, i := 0, 0; i < n; i++ {
		next := row(order[i])
		if i > 0 && !alike(begins, next) {
			groups, first = append(groups, order[first:i]), i
		}
		if first == i {
			begins = next
		}
		if i == n-1 {
			groups = append(groups, order[first:])
		}
	}
	return groups
}

// alike reports whether two rows are one observation.
func alike(a, b []float32) bool {
	limit := alikeRows * largest(a)
	for i, x := range a {
		if d := x - b[i]; !(d <= limit && -d <= limit) {
			return false
		}
	}
	return true
}

// largest returns the largest magnitude of numbers; NaN if one of them is NaN.
func largest(numbers []float32) float32 { return tensor.ExtremesOf(numbers).Largest }

// Gather returns the values of the compared rows, one after the other.
func (r *Rows) Gather(values []float32, width int) []float32 {
	if r.Padding == 0 {
		return values
	}
	gathered := make([]float32, 0, len(r.Compared)*width)
	for _, row := range r.Compared {
		gathered = append(gathered, values[row*width:(row+1)*width]...)
	}
	return gathered
}

// AllFinite reports whether all numbers are finite.
func AllFinite(x []float32) bool { return tensor.IsFinite(largest(x)) }
