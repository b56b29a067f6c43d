package tensor

import (
	"cmp"
	"iter"
	"math"
	"slices"
)

// View is some elements of a run of stored ones, or all, in another order, as NumPy has it:
// element (i, j, …) of Shape, in row-major order, is the stored one at
// i·Stride[0] + j·Stride[1] + …, counted from the first of the run. Permuted rows, a slice of
// every head, a transposed matrix are views.
type View struct {
	Shape  []int64 `json:"shape"`  // of the elements in the order in which they are used
	Stride []int64 `json:"stride"` // how many stored elements apart neighbours along each axis are
}

// Run is a run of stored elements that a view uses one after the other.
type Run struct {
	At int64 // the first
	N  int64 // how many
}

// Len returns the number of elements.
func (v *View) Len() int64 {
	n := int64(1)
	for _, d := range v.Shape {
		n *= d
	}
	return n
}

// Runs yields the runs that the view's elements from, …, to-1 lie in, in their order.
func (v *View) Runs(from, to int64) iter.Seq[Run] {
	return func(yield func(Run) bool) {
		outer, inner := v.contiguous()
		for from := from; from < to; {
			row, at := from/inner, from%inner
			n := min(inner-at, to-from)
			if !yield(Run{v.offset(row, outer) + at, n}) {
				return
			}
			from += n
		}
	}
}

// Extent returns the first of the stored elements that the view's elements from, …, to-1 are,
// and the one behind the last.
func (v *View) Extent(from, to int64) (first, last int64) {
	first = math.MaxInt64
	for r := range v.Runs(from, to) {
		first, last = min(first, r.At), max(last, r.At+r.N)
	}
	return first, last
}

// contiguous returns how many leading axes step from run to run, and the length of a
// run: the product of the axes behind them, whose elements lie side by side.
func (v *View) contiguous() (outer int, inner int64) {
	outer, inner = len(v.Shape), 1
	for outer > 0 && v.Stride[outer-1] == inner {
		outer--
		inner *= v.Shape[outer]
	}
	return outer, inner
}

// offset returns where run number row begins.
func (v *View) offset(row int64, axes int) (at int64) {
	for i := axes - 1; i >= 0; i-- {
		at += row % v.Shape[i] * v.Stride[i]
		row /= v.Shape[i]
	}
	return at
}

// Element returns where the view's i-th element is stored. It is the definition, which a
// proof compares Runs with.
func (v *View) Element(i int64) (at int64) {
	for axis := len(v.Shape) - 1; axis >= 0; axis-- {
		at += i % v.Shape[axis] * v.Stride[axis]
		i /= v.Shape[axis]
	}
	return at
}

// Inverse returns the view of elements that are stored in v's order that puts them back in
// the order that they were in: v has all elements of a run, its axes in another order.
func (v *View) Inverse() *View {
	axes := make([]int, len(v.Shape))
	stored := make([]int64, len(v.Shape)) // how far apart neighbours along each axis are in v's order
	step := int64(1)
	for i := len(axes) - 1; i >= 0; i-- {
		axes[i], stored[i] = i, step
		step *= v.Shape[i]
	}
	slices.SortStableFunc(axes, func(a, b int) int { return cmp.Compare(v.Stride[b], v.Stride[a]) })
	back := &View{Shape: make([]int64, len(axes)), Stride: make([]int64, len(axes))}
	for i, axis := range axes {
		back.Shape[i], back.Stride[i] = v.Shape[axis], stored[axis]
	}
	return back
}

// Inner returns the view of the elements that share their place along the first axis, and
// how many places there are.
func (v *View) Inner() (inner *View, places int64) {
	return &View{Shape: v.Shape[1:], Stride: v.Stride[1:]}, v.Shape[0]
}
