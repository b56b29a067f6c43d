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
		v.rows(from, to, func(at, step, rows, skip, end int64) bool {
			_, inner := v.contiguous()
			for row := range rows {
				r := Run{at + row*step, inner}
				if row == rows-1 {
					r.N = end
				}
				if row == 0 {
					r.At, r.N = r.At+skip, r.N-skip
				}
				if !yield(r) {
					return false
				}
			}
			return true
		})
	}
}

// Extent returns the first of the stored elements that the view's elements from, …, to-1 are,
// and the one behind the last.
func (v *View) Extent(from, to int64) (first, last int64) {
	first = math.MaxInt64
	_, inner := v.contiguous()
	v.rows(from, to, func(at, step, rows, skip, end int64) bool {
		final := at + (rows-1)*step
		if rows > 1 {
			last = max(last, at+inner)
			first = min(first, final)
		}
		first, last = min(first, at+skip), max(last, final+end)
		return true
	})
	return first, last
}

// rows calls do for the runs that the view's elements from, …, to-1 lie in, for all runs along one axis at once: so many
// rows, which begin at at, at+step, …. The first one lacks its first skip elements, and the last one has end elements,
// counted from its begin. It stops when do returns false.
func (v *View) rows(from, to int64, do func(at, step, rows, skip, end int64) bool) {
	outer, inner := v.contiguous()
	step, length := int64(0), int64(1)
	if outer > 0 {
		step, length = v.Stride[outer-1], v.Shape[outer-1]
	}
	for from < to {
		row, skip := from/inner, from%inner
		rows := min(length-row%length, (to-1)/inner+1-row)
		end := min(to-(row+rows-1)*inner, inner)
		if !do(v.offset(row, outer), step, rows, skip, end) {
			return
		}
		from = (row+rows-1)*inner + end
	}
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

// Places says where in a stored tensor the elements of a matrix lie that is stored in another order: the
// view has the matrix's elements row by row.
type Places struct {
	Elements DType `json:"of"` // dtype of what is put into order: of codes, or of scales
	View
}

// Bytes returns the size of the stored tensor, and of the matrix.
func (p *Places) Bytes() int64 { return p.Elements.Bytes(p.Len()) }

// Picker sets elements of dst, from element at on, to the n elements of a matrix from element first on.
type Picker func(dst []byte, at int64, stored []byte, first, n int64)

// Pick sets elements of dst, from element at on, to the n elements of the matrix from element first on. stored
// is the whole stored tensor.
func (p *Places) Pick(dst []byte, at int64, stored []byte, first, n int64) {
	p.inBlocks(first, n, func(first, i, n int64) {
		last := len(p.Shape) - 1
		for index := p.index(first); n > 0; index[last] = 0 {
			run, place, step := min(p.Shape[last]-index[last], n), p.at(index), p.Stride[last]
			for end := i + run; i < end; i++ {
				p.put(dst, at+i, stored, place)
				place += step
			}
			p.next(index[:last])
			n -= run
		}
	})
}

// PickByDefinition is Pick with the definition of each element's place, which a proof compares Pick with.
func (p *Places) PickByDefinition(dst []byte, at int64, stored []byte, first, n int64) {
	p.inBlocks(first, n, func(first, i, n int64) {
		index := p.index(first)
		for end := i + n; i < end; i++ {
			p.put(dst, at+i, stored, p.at(index))
			p.next(index)
		}
	})
}

// placesBlock is how many elements along the last axis are picked of all rows before the next: their lines of
// the stored tensor, of which the next rows need the same, stay in the processor's cache.
const placesBlock = 64

// inBlocks calls do for parts of n elements from first on that make up all of them: each with its first element,
// which it is of the n, and its length.
func (p *Places) inBlocks(first, n int64, do func(first, i, n int64)) {
	row := p.Shape[len(p.Shape)-1]
	if row <= placesBlock || n <= row {
		do(first, 0, n)
		return
	}
	for begin := int64(0); begin < row; begin += placesBlock {
		for at := first - first%row; at < first+n; at += row {
			from, to := max(at+begin, first), min(at+begin+placesBlock, at+row, first+n)
			if from < to {
				do(from, from-first, to-from)
			}
		}
	}
}

// index returns where an element of the matrix is along each axis of the view.
func (p *Places) index(element int64) []int64 {
	index := make([]int64, len(p.Shape))
	for axis := len(index) - 1; axis >= 0; axis-- {
		index[axis], element = element%p.Shape[axis], element/p.Shape[axis]
	}
	return index
}

// next goes to the next element along the leading axes that index has.
func (p *Places) next(index []int64) {
	for axis := len(index) - 1; axis >= 0; axis-- {
		if index[axis]++; index[axis] < p.Shape[axis] {
			return
		}
		index[axis] = 0
	}
}

// at returns the place of an element: the sum of its index times Stride along each axis.
func (p *Places) at(index []int64) (place int64) {
	for axis, i := range index {
		place += i * p.Stride[axis]
	}
	return place
}

// put sets element i of dst to the stored element at place.
func (p *Places) put(dst []byte, i int64, stored []byte, place int64) {
	if bits, coded := p.Elements.codes(); coded && bits < 8 {
		code, at, mask := codeAt(stored, bits, int(place)), int(i)*bits, byte(1<<bits-1)
		dst[at/8] = dst[at/8]&^(mask<<(at%8)) | code<<(at%8)
		if at%8+bits > 8 {
			dst[at/8+1] = dst[at/8+1]&^(mask>>(8-at%8)) | code>>(8-at%8)
		}
		return
	}
	size := p.Elements.Bytes(1)
	copy(dst[i*size:(i+1)*size], stored[place*size:])
}

// Part returns the bytes begin … end of the matrix, in the memory of buffer if that is enough. pick is Pick or
// PickByDefinition.
func (p *Places) Part(buffer, stored []byte, begin, end int64, pick Picker) []byte {
	buffer = slices.Grow(buffer[:0], int(end-begin))[:end-begin]
	pick(buffer, 0, stored, p.Elements.Elements(begin), p.Elements.Elements(end-begin))
	return buffer
}
