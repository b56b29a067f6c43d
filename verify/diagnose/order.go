package diagnose

import (
	"cmp"
	"fmt"
	"math"
	"slices"

	"dsmoe/model"
	"dsmoe/model/table"
	"dsmoe/text"
	"dsmoe/verify/bounds"
	"dsmoe/verify/pack"
)

// Rows of a weight in another order, read off a failed product: the golden's columns are ours in another order.

// orderMistakes is an order of the rows of the failed product's weight that is not the reference's.
func orderMistakes(f *Failure) []mistake {
	if !f.isProduct() || f.Kind == pack.GateLogits { // whose order is that of experts, too
		return nil
	}
	order := f.columnOrder()
	if order == nil || slices.IsSorted(order) {
		return nil
	}
	id, words := f.describeOrder(order)
	return []mistake{{id: id, kinds: []string{f.kind()}, undo: func(x *Trial) string {
		name := f.module() + ".weight"
		x.orderProduct(name, false, order)
		return fmt.Sprintf("the rows of %s are in another order than the reference's: %s", name, words)
	}}}
}

// orderProduct has a trial take the columns of the product with a weight in another order or, of inputs, the columns of
// the weight.
func (x *Trial) orderProduct(name string, inputs bool, order []int) {
	x.change(func(a bounds.Arithmetic, o *operations) {
		o.linear = func(x *bounds.Value, l *model.Linear) *bounds.Value {
			ordered := func(x *bounds.Value) *bounds.Value { return a.Move(model.OrderColumns(x.Shape, order), x) }
			switch {
			case l.Weight.Name != name:
				return a.Linear(x, l)
			case inputs:
				return a.Linear(ordered(x), l)
			}
			return ordered(a.Linear(x, l))
		}
	})
}

// kind is the kind of the failed stage, with * for an expert's number.
func (f *Failure) kind() string {
	return pack.Parse(f.Kind).Kind
}

// columnOrder returns our column of each column of the golden, within the limits; nil if the golden's columns are not
// ours in another order. A column that is its own stays.
func (f *Failure) columnOrder() []int {
	if f.Got == nil {
		return nil
	}
	n := f.Got.Width()
	order, taken := make([]int, n), make([]bool, n)
	for c := range n {
		order[c] = -1
		if f.isColumn(c, c, 1) {
			order[c], taken[c] = c, true
		}
	}
	sorted, widest := make([]int, n), 0.0 // ours, by the first row
	for c := range n {
		sorted[c], widest = c, max(widest, f.tolerance(c, c))
	}
	first := func(c int) float64 { return float64(f.Unrounded[c]) }
	slices.SortFunc(sorted, func(a, b int) int { return cmp.Compare(first(a), first(b)) })
	for e := range n {
		if order[e] >= 0 {
			continue
		}
		want := float64(f.Want[e])
		at, _ := slices.BinarySearchFunc(sorted, want-widest, func(c int, v float64) int { return cmp.Compare(first(c), v) })
		for ; at < n && first(sorted[at]) <= want+widest; at++ {
			c := sorted[at]
			switch {
			case !f.isColumn(e, c, 1):
			case order[e] >= 0 && !f.areEqual(order[e], c):
				return nil // it may be either
			case order[e] < 0 && !taken[c]:
				order[e], taken[c] = c, true
			}
		}
		if order[e] < 0 {
			return nil
		}
	}
	return order
}

// areEqual reports whether two of our columns have the same numbers.
func (f *Failure) areEqual(a, b int) bool {
	n := f.Got.Width()
	for first := 0; first < len(f.Unrounded); first += n {
		if f.Unrounded[first+a] != f.Unrounded[first+b] {
			return false
		}
	}
	return true
}

// isColumn reports whether golden column e is our column c times a factor, within the limits.
func (f *Failure) isColumn(e, c int, factor float64) bool {
	n := f.Got.Width()
	for first := 0; first < len(f.Want); first += n {
		ours := float64(factor * float64(f.Unrounded[first+c]))
		rounding := float64(0x1p-50 * math.Abs(ours)) // of ours
		most := float64(f.tolerance(first+e, first+c)*max(1, math.Abs(factor))) + rounding
		if math.Abs(float64(f.Want[first+e])-ours) > most {
			return false
		}
	}
	return true
}

// tolerance is how far element g of the golden may be from element y of ours if y stood in the place of g.
func (f *Failure) tolerance(g, y int) float64 {
	return bounds.Lambda*f.Deviations[y] + bounds.PrecisionOf(f.Got.DType).Ulp(float64(f.Want[g]))/2
}

// pattern is an order of rows with a name: row i of the reference's weight is row of(i) of ours.
type pattern struct {
	id, words string
	of        func(i int) int
}

// describeOrder returns the name of an order of rows, and describes it.
func (f *Failure) describeOrder(order []int) (id, words string) {
	for _, p := range f.patterns(len(order), order[0]) {
		if !slices.ContainsFunc(indices(len(order)), func(i int) bool { return p.of(i) != order[i] }) {
			return p.id, p.words
		}
	}
	id = "rows-permuted"
	if a, b, size := exchangedRuns(order); size > 0 {
		if width := f.headWidth(); size == width && a%width == 0 && b%width == 0 {
			return id, fmt.Sprintf("heads %d and %d are exchanged", a/width, b/width)
		}
		return id, exchangeInWords("row", a, b, size)
	}
	moved := slices.DeleteFunc(indices(len(order)), func(i int) bool { return order[i] == i })
	return id, fmt.Sprintf("%d of %d rows are elsewhere; row %d of the reference's is row %d", len(moved), len(order),
		moved[0], order[moved[0]])
}

// headWidth is how many rows of the failed product's weight a head has; all rows where heads share them.
func (f *Failure) headWidth() int {
	switch c := f.Model.Config; f.Kind {
	case pack.InAttention(table.QProj), pack.InAttention(table.QBProj):
		return c.QKHeadDim()
	case pack.InAttention(table.KProj):
		return c.QKHeadDim()
	case pack.InAttention(table.VProj):
		return c.ValueHeadDim()
	case pack.InAttention(table.KVBProj):
		return c.Attention.QKNopeHeadDim + c.Attention.VHeadDim
	}
	return f.Got.Width()
}

// patterns are the orders of n rows that have names; by is how far the first one is off.
func (f *Failure) patterns(n, by int) (list []pattern) {
	c, width := f.Model.Config, f.headWidth()
	inHeads := func(first, n int, of func(i int) int) func(int) int { // in the rows from first on of each head
		return func(r int) int {
			if i := r%width - first; i >= 0 && i < n {
				return r - i + of(i)
			}
			return r
		}
	}
	id, what, paired := "rows-permuted", "rows of each head that are halves here are pairs there, or the other way", width
	if slices.Contains(rotatedStages, f.Kind) {
		id, what = "rope-permutation", "they are permuted for the other RoPE layout (interleaved pairs against halves)"
		paired = c.HeadDim()
	}
	if half := paired / 2; half > 1 && width < n || id == "rope-permutation" {
		for _, of := range []func(i int) int{
			func(i int) int { return i%half*2 + i/half },
			func(i int) int { return i/2 + i%2*half },
		} {
			first := width - paired
			if c.RotaryFirst() {
				first = 0
			}
			list = append(list, pattern{id, what, inHeads(first, paired, of)})
		}
	}
	if nope, v, heads := c.Attention.QKNopeHeadDim, c.Attention.VHeadDim,
		c.Attention.NumAttentionHeads; f.Kind == pack.InAttention(table.KVBProj) {
		list = append(list,
			pattern{"keys-values-exchanged", "keys and values are exchanged in each head",
				inHeads(0, width, func(i int) int { return (i + v) % width })},
			pattern{"keys-values-exchanged", "the keys of all heads come first, then the values of all heads",
				func(r int) int {
					h, i := r/width, r%width
					if i < nope {
						return h*nope + i
					}
					return heads*nope + h*v + i - nope
				}})
	}
	circle := fmt.Sprintf("row 0 of the reference's is row %d, and so on in a circle", by)
	switch {
	case 2*by == n:
		circle = "their halves are exchanged"
	case by%width == 0:
		circle += fmt.Sprintf(", which is head %d", by/width)
	}
	return append(list,
		pattern{"rows-permuted", "they are reversed", func(i int) int { return n - 1 - i }},
		pattern{"rows-permuted", circle, func(i int) int { return (i + by) % n }},
		pattern{"rows-permuted", "the reference's even rows come first, then its odd rows",
			func(i int) int { return i%2*((n+1)/2) + i/2 }},
		pattern{"rows-permuted", "rows of the reference's two halves alternate",
			func(i int) int { return i%((n+1)/2)*2 + i/((n+1)/2) }})
}

// rotatedStages are the products with rows that RoPE rotates, the last rows of each head.
var rotatedStages = stagesOf(table.QProj, table.KProj, table.QBProj, table.KVAProjWithMQA)

// exchangedRuns returns the first rows of two runs of rows that are exchanged, and their size; 0 if the order is
// another one.
func exchangedRuns(order []int) (a, b, size int) {
	a = slices.IndexFunc(indices(len(order)), func(i int) bool { return order[i] != i })
	b = order[a]
	for size < b-a && b+size < len(order) && order[a+size] == b+size {
		size++
	}
	for i, from := range order {
		want := i
		switch {
		case i >= a && i < a+size:
			want = i - a + b
		case i >= b && i < b+size:
			want = i - b + a
		}
		if from != want {
			return 0, 0, 0
		}
	}
	return a, b, size
}

// exchangeInWords describes two runs of rows or columns.
func exchangeInWords(of string, a, b, size int) string {
	return fmt.Sprintf("%ss from %d and %[1]ss from %[3]d are exchanged, %[4]s each", of, a, b, text.Plural(size, of))
}
