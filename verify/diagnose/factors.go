package diagnose

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"

	"dsmoe/config"
	"dsmoe/model"
	"dsmoe/model/tensor"
	"dsmoe/text"
	"dsmoe/verify/bounds"
	"dsmoe/verify/pack"
)

// Weights that are a number times the reference's, as a whole or by rows, read off a failed product or norm: each
// column of the golden is a factor times ours.

const (
	// leastFactorRows is the least number of distinct rows that tell a factor from what a single row always has.
	leastFactorRows = 3
	// leastUniform is the least number of columns that tell one factor of all, even in a single row.
	leastUniform = 16
	// mostLeft is the largest share of a column's residual, in root mean square, that a factor may leave. It decides
	// what is tried; the trial holds the stage to its limits.
	mostLeft = 0.25
	// mostLeftOfRow is the same for the factor of one row, of which a percent or two are told from the rounding of BF16.
	mostLeftOfRow = 0.4
	// leastCertain is by how many of its standard deviations a factor differs from 1 at least: else a change of another
	// kind may look like one.
	leastCertain = 8
	// leastFactor is by how much a factor differs from 1 at least: one weight that is off does less to a row.
	leastFactor = 1e-3
	// sharedRoundings is by how much the variance that a weight's roundings give is taken too large: the same roundings
	// are in all rows, so that those of a column may all be as large as the largest.
	sharedRoundings = 4
	// mostAlike is the largest part of the inputs' square that lies in one direction: with inputs that are all alike
	// any change of a row is a factor.
	mostAlike = 0.9
)

// factorMistakes are factors of the failed product's or norm's weight, or of the routed sum.
func factorMistakes(f *Failure) []mistake {
	factors, errors := f.columnFactors()
	if !slices.ContainsFunc(factors, func(x float64) bool { return x != 1 }) { // a limit of the user's may fail without
		return nil
	}
	id, words, exact := f.describeFactors(factors, errors)
	of, name := "", ""
	switch {
	case f.Kind != pack.ExpertsOutput || f.Input != nil:
		of = f.module() + ".weight"
		name = of
	case !slices.Contains(factors, 1) && strings.HasSuffix(words, " times the reference's"):
		id, name = "routed-sum-scaled", "the routed sum"
	default:
		name = "down_proj.weight of all experts"
	}
	return []mistake{{id: id, kinds: []string{f.kind()}, undo: func(x *Trial) string {
		x.change((&factored{of, factors, errors, !exact}).change)
		return name + " " + words
	}}}
}

// factored are the factors of the columns of a product, a norm or the routed sum.
type factored struct {
	of      string // name of the weight; empty for the routed sum
	factors []float64
	errors  []float64 // standard deviations of the factors
	rounded bool      // what was stored is the reference's times a number, rounded
}

// change multiplies the columns of the weight's output, or of the routed sum.
func (s *factored) change(a bounds.Arithmetic, o *operations) {
	if s.of == "" {
		o.combine = func(weight *bounds.Value, parts []model.Part[*bounds.Value], order config.RoutedSum) *bounds.Value {
			y := a.Combine(weight, parts, order)
			return s.times(a, y, func(int) func(t int) float64 { // of weights in BF16
				return func(t int) (size float64) {
					for _, v := range y.Row(t) {
						size += bounds.Sq(float64(v)) / float64(y.Width())
					}
					return size * bounds.Sq(bounds.PrecisionOf(tensor.BF16).Ulp(1))
				}
			})
		}
		return
	}
	o.linear = func(x *bounds.Value, l *model.Linear) *bounds.Value {
		y := a.Linear(x, l)
		if l.Weight.Name != s.of {
			return y
		}
		return s.times(a, y, func(c int) func(t int) float64 {
			if l.Weight.Scales != nil {
				return func(int) float64 { return 0 }
			}
			row, _ := l.Weight.Row(c).Float32s(nil) // columnFactors leaves blocks out
			p := bounds.PrecisionOf(l.Weight.DType)
			return func(t int) (squares float64) {
				for k, w := range row {
					squares += bounds.Sq(p.Ulp(float64(w)) * float64(x.Rounded(t*len(row)+k)))
				}
				return squares
			}
		})
	}
	o.rmsNorm = func(x *bounds.Value, weight *model.Weight, eps float64) *bounds.Value {
		y := a.RMSNorm(x, weight, eps)
		if weight.Name != s.of {
			return y
		}
		ours, _ := weight.Float32s(nil)
		p := bounds.PrecisionOf(weight.DType)
		return s.times(a, y, func(c int) func(t int) float64 {
			return func(t int) float64 {
				w := float64(ours[c])
				if w == 0 {
					return 0
				}
				return bounds.Sq(p.Ulp(w) / w * float64(y.Values[t*y.Width()+c]))
			}
		})
	}
}

// times multiplies the columns of y. squares returns for a column a function of the row: the sum of the squares of the
// weights' units, each times its input.
func (s *factored) times(a bounds.Arithmetic, y *bounds.Value, squares func(c int) func(t int) float64) *bounds.Value {
	z, width := a.Move(model.OrderColumns(y.Shape, indices(y.Width())), y), y.Width()
	for c, factor := range s.factors {
		if factor == 1 {
			continue
		}
		units := squares(c)
		for t := range y.Rows() {
			i := t*width + c
			v, variance := float64(z.Values[i]), z.Variance(i)
			if s.rounded {
				variance += bounds.Sq(v*s.errors[c]/bounds.Unit) + sharedRoundings*units(t)/(12*bounds.Unit*bounds.Unit)
			}
			z.Set(i, v*factor, variance*bounds.Sq(factor))
		}
	}
	return z
}

// columnFactors returns the factor between each column of the golden and ours, and its standard deviation; nil if a
// column has no factor, or if there are too few rows to tell. If one factor fits all columns, they all have it.
func (f *Failure) columnFactors() (factors, errors []float64) {
	sum := f.Kind == pack.ExpertsOutput && f.Input == nil
	if !f.isFinite() || !f.isProduct() && !f.isNorm() && !sum || f.hasBias() {
		return nil, nil
	}
	d, scaled := tensor.BF16, false
	if !sum {
		w := f.Set.Find(f.module() + ".weight")
		if w == nil || w.DType.Blocked() {
			return nil, nil
		}
		d, scaled = w.DType, w.Scaled()
	}
	n, all := f.Got.Width(), new(fit)
	factors, errors = make([]float64, n), make([]float64, n)
	columns, size := make([]fit, n), make([]float64, f.Got.Rows()) // size: root mean square of each row
	for i, y := range f.Unrounded {
		size[i/n] = math.Hypot(size[i/n], float64(y)/math.Sqrt(float64(n)))
	}
	stored := 0.0 // a weight's roundings; scales change no code
	if !scaled {
		stored = bounds.PrecisionOf(d).Ulp(1) / 2
	}
	for i, want := range f.Want {
		y, g := float64(f.Unrounded[i])-f.beside(i), float64(want)-f.beside(i)
		unit := math.Hypot(f.tolerance(i, i), stored*size[i/n])
		columns[i%n].add(y/unit, g/unit)
		all.add(y/unit, g/unit)
	}
	if one := all.factor(); n >= leastUniform && all.left(one) <= min(mostLeft*all.left(1), 2*math.Sqrt(all.n)) {
		for c := range factors {
			factors[c], errors[c] = one, all.deviation()
		}
		return factors, errors
	}
	if f.distinctRows() < leastFactorRows || f.sameInputs() {
		return nil, nil
	}
	differ := false
	for c := range columns {
		factors[c] = 1
		if f.isColumn(c, c, 1) {
			continue
		}
		factors[c], errors[c] = columns[c].factor(), columns[c].deviation()
		most := mostLeftOfRow * columns[c].left(1)
		if f.Input == nil && !sum { // nothing but a factor can change a norm's channel
			most = max(most, math.Sqrt(columns[c].n))
		}
		if math.Abs(factors[c]-1) < max(leastFactor, leastCertain*errors[c]) || !(columns[c].left(factors[c]) <= most) {
			return nil, nil
		}
		differ = true
	}
	if !differ {
		return nil, nil
	}
	return factors, errors
}

// sameInputs reports whether the inputs of the failed product point in one direction, but for their signs and sizes.
func (f *Failure) sameInputs() bool {
	if f.Input == nil { // a norm, whose channels are apart
		return false
	}
	along, whole, largest, first := 0.0, 0.0, 0.0, f.Input.Row(0)
	for r := range f.Input.Rows() { // the longest row is the direction
		if n := dot(f.Input.Row(r), f.Input.Row(r)); n > largest {
			largest, first = n, f.Input.Row(r)
		}
	}
	for r := range f.Input.Rows() {
		if n := dot(f.Input.Row(r), f.Input.Row(r)); n > 0 {
			along, whole = along+bounds.Sq(dot(f.Input.Row(r), first))/(n*largest), whole+1
		}
	}
	return along > mostAlike*whole
}

// isNorm reports whether the stage is the output of a norm.
func (f *Failure) isNorm() bool {
	return len(f.Weights) == 1 && f.Weights[0] == strings.TrimSuffix(f.Name, ".output")+".weight" &&
		len(f.Set.Find(f.Weights[0]).Shape) == 1
}

// hasBias reports whether a bias takes part in the stage.
func (f *Failure) hasBias() bool {
	return slices.ContainsFunc(f.Weights, func(w string) bool { return strings.HasSuffix(w, ".bias") })
}

// describeFactors returns the id of the mistake and describes the factors, which have these standard deviations. exact
// factors are powers of two, which round nothing.
func (f *Failure) describeFactors(factors, errors []float64) (id, words string, exact bool) {
	changed, zeros, exact := []int{}, []int{}, true
	same := true
	for c, factor := range factors {
		if factor == 0 {
			zeros = append(zeros, c)
		}
		if factor != 1 {
			changed = append(changed, c)
			same = same && areAlike(factors, errors, c, changed[0], math.Inf(1))
			e := math.Log2(factor) // nothing is rounded with a power of two
			exact = exact && math.Abs(e-math.Round(e)) < 1e-5
		}
	}
	first := changed[0]
	id, of, by := "weight-scaled", "row", f.factorInWords(1/factors[first], errors[first]/math.Abs(factors[first]))
	if f.isNorm() {
		id, of = "norm-weight", "channel"
	}
	if len(changed) > 1 {
		of += "s"
	}
	switch {
	case len(zeros) > 0:
		return id, fmt.Sprintf("is not zero in %s %s, where the reference's is", of, ranges(zeros)), false
	case same && len(changed) == len(factors):
		return id, "is " + by + " times the reference's", exact
	case same:
		return id, fmt.Sprintf("has %s times the reference's numbers in %s %s", by, of, ranges(changed)), exact
	case f.isNorm():
		if words := f.normInWords(factors); words != "" {
			return id, words, false
		}
	}
	if len(changed) <= bounds.Few {
		return id, fmt.Sprintf("has other multiples of the reference's numbers in %s %s", of, ranges(changed)), false
	} else if f.isNorm() {
		return id, fmt.Sprintf("is not the reference's: %d of %d channels are off, each by a factor of its own", len(changed),
			len(factors)), false
	}
	var numbers []float64
	for _, factor := range factors {
		numbers = append(numbers, 1/factor)
	}
	least, most := slices.Min(numbers), slices.Max(numbers)
	each := "each row"
	if size := commonBlock(factors, errors); size > 1 {
		each = fmt.Sprintf("every %d rows", size)
	}
	return "weight-scaled", fmt.Sprintf("is the reference's times a number for %s, from %s to %s", each,
		unlike(least, 3, 1, most), unlike(most, 3, 1, least)), false
}

// areAlike reports whether the factors of two rows are one number, as near as can be told, and may differ by this much.
func areAlike(factors, errors []float64, a, b int, by float64) bool {
	size := math.Abs(factors[a])
	certain := float64(leastCertain*(errors[a]+errors[b])) + float64(1e-6*size)
	return math.Abs(factors[a]-factors[b]) <= min(by, 1e-3*size, certain)
}

// ranges lists rows, a few of them if they are many.
func ranges(rows []int) string {
	return text.Some(strings.Split(text.Ranges(rows), ", "), 4, ", ")
}

// commonBlock returns the largest power of two such that the rows of each block of that size have one factor; 1 if no
// size fits.
func commonBlock(factors, errors []float64) int {
	most := (slices.Max(factors) - slices.Min(factors)) / 16 // else rows are alike by chance
	for size := 256; size > 1; size /= 2 {
		same := len(factors) > size
		for c := range factors {
			same = same && areAlike(factors, errors, c, c-c%size, most)
		}
		if same {
			return size
		}
	}
	return 1
}

// factorInWords writes a factor and, if it is a known number, that number's name. deviation is the factor's relative
// one.
func (f *Failure) factorInWords(by, deviation float64) string {
	c := f.Model.Config
	root := math.Sqrt(float64(c.HiddenSize))
	for _, known := range []struct {
		is    float64
		words string
	}{
		{root, "√hidden_size"}, {1 / root, "1/√hidden_size"},
		{c.Router.RoutedScalingFactor, "routed_scaling_factor"}, {1 / c.Router.RoutedScalingFactor,
			"1/routed_scaling_factor"},
	} {
		if known.is != 1 && math.Abs(by/known.is-1) <= min(1e-3, float64(leastCertain*deviation)+1e-6) {
			return fmt.Sprintf("%s (%s)", unlike(by, 3, 1), known.words)
		}
	}
	digits := 4
	if f.Got.DType != tensor.F32 {
		digits = 3
	}
	return unlike(by, digits, 1)
}

// normInWords says what a norm's weight is, with a factor of its own in some channels; "" if that is nothing known.
func (f *Failure) normInWords(factors []float64) string {
	ours, err := f.numbers(f.Weights[0])
	if err != nil {
		return ""
	}
	reference := make([]float64, len(ours))
	for c, w := range ours {
		reference[c] = float64(w) * factors[c]
	}
	is := func(of func(c int) float64) bool { // with these numbers the golden is ours, within the limits
		return !slices.ContainsFunc(indices(len(ours)), func(c int) bool {
			w := float64(ours[c])
			return w == 0 && of(c) != 0 || w != 0 && !f.isColumn(c, c, of(c)/w)
		})
	}
	ones := !slices.ContainsFunc(ours, func(v float32) bool { return v != 1 })
	switch {
	case ones:
		return "is 1 in every channel, and the reference's is not"
	case is(func(int) float64 { return 1 }):
		return "is not 1 in every channel, as the reference's is"
	}
	for _, w := range f.Set.All() {
		if other, err := f.numbers(w.Name); len(w.Shape) == 1 && w.Name != f.Weights[0] && err == nil &&
			len(other) == len(ours) && is(func(c int) float64 { return float64(other[c]) }) {
			return "is not the reference's, which is stored as " + w.Name
		}
	}
	mine, order := slices.Sorted(slices.Values(ours)), indices(len(ours))
	slices.SortStableFunc(order, func(a, b int) int { return cmp.Compare(reference[a], reference[b]) })
	for i, c := range order {
		reference[c] = float64(mine[i])
	}
	if is(func(c int) float64 { return reference[c] }) {
		return "holds the reference's numbers in another order: the hidden channels may be permuted"
	}
	return ""
}

// numbers returns the numbers of a vector.
func (f *Failure) numbers(name string) ([]float32, error) {
	w := f.Set.Find(name)
	if len(w.Shape) != 1 || w.DType.Integer() {
		return nil, nil
	}
	t, err := w.View(f.Source)
	if err != nil {
		return nil, err
	}
	return t.Float32s(nil)
}
