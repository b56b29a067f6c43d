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
// by the same, and so are experts with equal weights, as upcycling makes them. In a sum their deviations add up, not their
// variances. What is equal shows in what was computed: numbers and deviations are equal to the bit.

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

// related are two of a token's experts that have neurons in common, and the correlation of their errors: 1 of copies.
type related struct {
	a, b        weighted
	correlation float64
}

// relatedExperts are those of each token.
func (a *Analysis) relatedExperts(parts []model.Part[*Value], terms [][]weighted) [][]related {
	all, known := make([][]related, len(terms)), map[[2]int]float64{}
	for t, terms := range terms {
		for i, w := range terms {
			for _, v := range terms[:i] {
				p, q := parts[v.part].Out.Products, parts[w.part].Out.Products
				if len(p) != 1 || len(q) != 1 {
					continue
				}
				x, y := p[0].neurons(v.row), q[0].neurons(w.row)
				if !haveNeuronsInCommon(x, y) {
					continue
				}
				key := [2]int{v.part, w.part}
				if _, ok := known[key]; !ok {
					known[key] = a.correlation(&p[0].down.Weight, &q[0].down.Weight, x, y)
				}
				if known[key] > 0 {
					all[t] = append(all[t], related{v, w, known[key]})
				}
			}
		}
	}
	return all
}

// neurons are the standard deviations of the neurons of a row, in units of u.
func (p *product) neurons(row int) []float32 {
	width := p.down.Weight.Shape[1]
	return p.hidden[row*width : (row+1)*width]
}

// haveNeuronsInCommon reports whether at least one in 16 uncertain neurons has the same deviation in both of two experts, which are
// those of equal rows of gate_proj and up_proj. Fewer hardly add to a sum's variance.
func haveNeuronsInCommon(x, y []float32) bool {
	common, uncertain := 0, 0
	for k, s := range x {
		if s != 0 {
			uncertain++
			if s == y[k] {
				common++
			}
		}
	}
	return common > 0 && 16*common >= uncertain
}

// squares returns the variance of a sum of errors of these deviations, signed: Σ s², or Σ (Σ s)² over classes if that is more.
func (c *classes) squares(deviations []float32) float64 {
	independent, together := 0.0, 0.0
	for _, s := range deviations {
		independent += Sq(float64(s))
	}
	if c == nil {
		return independent
	}
	sums := make([]float64, len(c.first))
	for i, s := range deviations {
		sums[c.of[i]] += float64(s)
	}
	for _, sum := range sums {
		together += Sq(sum)
	}
	return max(independent, together)
}

// contribution is what the neurons of an expert, of these standard deviations, do to a projection.
type contribution struct{ neurons, of []float32 }

// with returns what neurons that experts before have, too, add to the variance of the projection.
func (c contribution) with(before []contribution) (more float64) {
	for _, b := range before {
		for k, s := range c.neurons {
			if s == b.neurons[k] {
				more += 2 * float64(c.of[k]) * float64(b.of[k])
			}
		}
	}
	return max(0, more)
}

// correlation is that of what neurons of the standard deviations x and y do to the outputs of two experts, where equal ones are
// one neuron, on average of some rows of both down_proj:
//
//	Σ v·Σ d·e / √(Σ v_x·Σ d² · Σ v_y·Σ e²)
func (a *Analysis) correlation(down, other *model.Weight, x, y []float32) float64 {
	const sampled = 64
	out, width := down.Shape[0], down.Shape[1]
	d, e := make([]float32, width), make([]float32, width)
	var both, ofX, ofY float64
	for r := 0; r < out; r += (out + sampled - 1) / sampled {
		d, e = a.plain.RowOf(d, down, r), a.plain.RowOf(e, other, r)
		for k, s := range x {
			dx, ey := float64(d[k])*float64(s), float64(e[k])*float64(y[k])
			ofX += Sq(dx)
			ofY += Sq(ey)
			if s == y[k] {
				both += float64(dx * ey)
			}
		}
	}
	return Ratio(both, math.Sqrt(ofX)*math.Sqrt(ofY))
}

// addRelated adds to a token's sum what the errors of two related experts do together: 2·ρ·√(v_a·v_b) of their terms.
func (y *Value) addRelated(p *precision, t int, weight *Value, parts []model.Part[*Value], pair related) {
	for c := range y.Width() {
		_, va := share(p, weight, parts, pair.a, c)
		_, vb := share(p, weight, parts, pair.b, c)
		i := t*y.Width() + c
		y.Set(i, float64(y.Values[i]), y.Variance(i)+float64(2*pair.correlation*math.Sqrt(va)*math.Sqrt(vb)))
	}
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
