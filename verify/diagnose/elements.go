package diagnose

import (
	"fmt"
	"math"
	"slices"
	"strings"

	"dsmoe/model"
	"dsmoe/model/tensor"
	"dsmoe/verify/bounds"
)

// Single numbers of a weight, or one of its columns, that are not the reference's, read off a failed product: the
// residual of each column is one input channel times a number.

// element is a number of a weight that differs.
type element struct {
	row, column   int
	ours, by, err float64 // the reference's is ours + by; err is the standard deviation of by
}

// elementMistakes are the few elements, or the one column, of the failed product's weight that differ, if these are
// all.
func elementMistakes(f *Failure) []mistake {
	elements := f.elements()
	if elements == nil {
		return nil
	}
	name := f.module() + ".weight"
	id, words := describeElements(elements, f.Set.Find(name).DType)
	return []mistake{{id: id, kinds: []string{f.kind()}, undo: func(x *Trial) string {
		x.changeProduct(name, func(in, y *bounds.Value) {
			for _, e := range elements {
				for t := range y.Rows() {
					i, v := t*y.Width()+e.row, float64(in.Rounded(t*in.Width()+e.column))
					y.Set(i, float64(y.Values[i])+e.by*v, y.Variance(i)+bounds.Sq(e.err*v/bounds.Unit))
				}
			}
		})
		return name + " " + words
	}}}
}

// elements returns the elements of the failed product's weight that differ; nil if others may differ, or if the inputs
// are too much alike to tell.
func (f *Failure) elements() (list []element) {
	if !f.isProduct() || f.hasBias() || !f.isFinite() || f.distinctRows() < leastFactorRows || f.sameInputs() {
		return nil
	}
	w := f.loaded(f.module() + ".weight")
	if w == nil {
		return nil
	}
	plain := model.NewPlain(f.Options)
	defer plain.Close(nil)
	column := -1
	for c := range f.Got.Width() {
		if f.isColumn(c, c, 1) {
			continue
		}
		e, ok := f.elementOf(c, column)
		if !ok && (column < 0 || len(list) < bounds.Few) {
			e, ok = f.elementOf(c, -1)
		}
		if !ok {
			return nil
		}
		unit := w.Rows(c, c+1)
		e.ours, column = float64(plain.Values(&unit)[e.column]), e.column
		list = append(list, e)
	}
	if len(list) > bounds.Few && slices.ContainsFunc(list, func(e element) bool { return e.column != column }) {
		return nil
	}
	return list
}

// elementOf returns the element of a row of the weight that explains a column of the golden, in a column of the weight
// or, if that is below 0, in the only one that does.
func (f *Failure) elementOf(row, column int) (e element, ok bool) {
	n, columns := f.Got.Width(), []int{column}
	if column < 0 {
		columns = indices(f.Input.Width())
	}
	for _, k := range columns {
		var s fit
		for r := range f.Got.Rows() {
			i := r*n + row
			unit := f.tolerance(i, i)
			s.add(float64(f.Input.Row(r)[k])/unit, f.residual(i)/unit)
		}
		by := s.factor()
		if s.yy == 0 || s.left(by) > math.Sqrt(s.n) || !f.leaves(row, k, by) {
			continue
		}
		if ok {
			return e, false // two that explain it
		}
		e, ok = element{row: row, column: k, by: by, err: 1 / math.Sqrt(s.yy) / bounds.Lambda}, true
	}
	return e, ok
}

// leaves reports whether the golden's column is ours plus by times an input channel, within the limits.
func (f *Failure) leaves(row, column int, by float64) bool {
	n := f.Got.Width()
	for r := range f.Got.Rows() {
		i := r*n + row
		if math.Abs(f.residual(i)-float64(by*float64(f.Input.Row(r)[column]))) > 1.5*f.tolerance(i, i) {
			return false
		}
	}
	return true
}

// theirs is the reference's number in words, to the digits that are known. err does not count what is lost of a sum as
// large as ours. If the number may be 0, the words are what it is at most.
func (e element) theirs() string {
	theirs, deviation := e.ours+e.by, e.err+float64(math.Abs(e.ours)*bounds.Unit)
	if most := math.Abs(theirs) + float64(bounds.Lambda*deviation); most > 2*math.Abs(theirs) {
		return fmt.Sprintf("at most %.1g", 1.5*most) // one digit may be a third less
	}
	return unlike(theirs, max(1, min(4, int(-math.Log10(4*deviation/math.Abs(theirs))))), e.ours)
}

// describeElements names what differs in a weight of a dtype, and describes it.
func describeElements(list []element, d tensor.DType) (id, words string) {
	if len(list) <= bounds.Few {
		var each []string
		for _, e := range list {
			theirs := e.ours + e.by
			each = append(each, fmt.Sprintf("[%d %d] is %s, the reference's %s", e.row, e.column, unlike(e.ours, 4, theirs), e.theirs()))
		}
		return "weight-elements", "has other numbers than the reference's in single places: " + strings.Join(each, "; ")
	}
	words = fmt.Sprintf("differs from the reference's in column %d, the input channel", list[0].column)
	by := new(fit) // the factor that makes the reference's numbers ours
	for _, e := range list {
		by.add((e.ours+e.by)/e.err, e.ours/e.err)
	}
	for _, e := range list { // ours may be a product that was rounded
		certain := float64(bounds.Lambda*math.Abs(by.factor())*e.err) + bounds.PrecisionOf(d).Ulp(e.ours)/2
		if by.yy < bounds.Lambda*bounds.Lambda || math.Abs(float64(by.factor()*(e.ours+e.by))-e.ours) > certain {
			return "weight-column", words
		}
	}
	return "weight-column", fmt.Sprintf("%s, which is %s times the reference's", words, unlike(by.factor(), 3, 1))
}
