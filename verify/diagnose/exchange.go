package diagnose

import (
	"cmp"
	"fmt"
	"math"
	"slices"

	"dsmoe/model"
	"dsmoe/model/table"
	"dsmoe/verify/bounds"
	"dsmoe/verify/pack"
)

// Exchanged columns of a weight, runs of columns, or rows of gate_proj or up_proj. An exchange changes the factors of a
// few columns of a product. A search finds the two columns that explain most of the residual, the golden less ours; the
// trial exchanges them.

const (
	exchangedRows    = 32  // rows of the failed product that a search reads, those with the largest residuals
	exchangedOutputs = 256 // columns of these rows
	exchangedInputs  = 512 // columns of the weight, or runs, that are tried in pairs: those nearest to the residual
	mostLeftOfPair   = 0.5 // largest share of the residual, in root mean square, that an exchange may leave
)

// exchange is a search of a failed product.
type exchange struct {
	rows     []int       // rows of the product
	columns  [][]float64 // columns of the weight, at the outputs that are searched
	along    [][]float64 // products of residual and column, over the variance [row][column]
	unit     []float64   // 1 / variance of an element of each row
	residual float64     // sum of squares of the residual, over the variance
	noise    float64     // the same of a right product
}

// newExchange measures the residual of a failed product; nil of other stages, and without the weight in memory.
func newExchange(f *Failure) *exchange {
	if !f.isProduct() || !f.isFinite() {
		return nil
	}
	w, n := f.loaded(f.module()+".weight"), f.Got.Width()
	if w == nil {
		return nil
	}
	x := &exchange{columns: make([][]float64, w.Shape[1])}
	outputs, p := indices(min(n, exchangedOutputs)), bounds.PrecisionOf(f.Got.DType)
	for i := range outputs {
		outputs[i] = i * n / len(outputs)
	}
	sums, units := make([]float64, f.Got.Rows()), make([]float64, f.Got.Rows())
	for row := range sums {
		variance := 0.0
		for _, c := range outputs {
			sums[row] += bounds.Sq(f.residual(row*n + c))
			variance += bounds.Sq(f.Deviations[row*n+c]) + bounds.Sq(p.Ulp(float64(f.Want[row*n+c])))/12
		}
		units[row] = float64(len(outputs)) / variance
	}
	x.rows = indices(f.Got.Rows())
	slices.SortStableFunc(x.rows, func(a, b int) int { return cmp.Compare(sums[b]*units[b], sums[a]*units[a]) })
	x.rows = x.rows[:min(len(x.rows), exchangedRows)]
	for _, row := range x.rows {
		x.along = append(x.along, make([]float64, w.Shape[1]))
		x.unit = append(x.unit, units[row])
		x.residual, x.noise = x.residual+float64(sums[row]*units[row]), x.noise+float64(len(outputs))
	}
	plain := model.NewPlain(f.Options)
	defer plain.Close(nil)
	for _, c := range outputs {
		unit := w.Rows(c, c+1)
		values := plain.Values(&unit)
		for k, v := range values {
			x.columns[k] = append(x.columns[k], float64(v))
		}
		for t, row := range x.rows {
			by := f.residual(row*n+c) * x.unit[t]
			for k, v := range values {
				x.along[t][k] += float64(by * float64(v))
			}
		}
	}
	return x
}

// gain is how much smaller the residual becomes if two columns of the weight are multiplied with other numbers. ofFirst
// and ofSecond are how much of the gain is lost if only the first, or only the second column is. change is the
// difference of the number in row t for the first of two columns.
func (x *exchange) gain(a, b int, change func(t, of, other int) float64) (gain, ofFirst, ofSecond float64) {
	aa, ab, bb := 0.0, 0.0, 0.0
	for i, v := range x.columns[a] {
		w := x.columns[b][i]
		aa, ab, bb = aa+bounds.Sq(v), ab+float64(v*w), bb+bounds.Sq(w)
	}
	for t, along := range x.along {
		da, db := change(t, a, b), change(t, b, a)
		first := float64(2*along[a]*da) - float64(x.unit[t]*aa*da*da)
		second := float64(2*along[b]*db) - float64(x.unit[t]*bb*db*db)
		both := float64(2 * x.unit[t] * ab * da * db)
		gain, ofFirst, ofSecond = gain+first+second-both, ofFirst+second-both, ofSecond+first-both
	}
	return gain, ofFirst, ofSecond
}

// best returns the first columns of the two runs of columns, of a size, whose exchange gains most. The exchange
// explains the residual if it leaves little of it, and if both runs gain more than the best of many pairs does by
// chance.
func (x *exchange) best(size int, change func(t, of, other int) float64) (a, b int, explains bool) {
	runs := len(x.columns) / size
	share := make([]float64, runs) // part of the residual that each run explains
	for k, column := range x.columns[:runs*size] {
		squares := 0.0
		for _, v := range column {
			squares += bounds.Sq(v)
		}
		for t, along := range x.along {
			if squares > 0 {
				share[k/size] += bounds.Sq(along[k]) / (x.unit[t] * squares)
			}
		}
	}
	order := indices(runs)
	slices.SortStableFunc(order, func(a, b int) int { return cmp.Compare(share[b], share[a]) })
	order = order[:min(runs, exchangedInputs)]
	most, least := 0.0, 0.0 // of the best pair: the gain, and that of the run which gains less
	for i, p := range order {
		for _, q := range order[i+1:] {
			gain, first, second := 0.0, 0.0, 0.0
			for k := range size {
				both, ofFirst, ofSecond := x.gain(p*size+k, q*size+k, change)
				gain, first, second = gain+both, first+ofFirst, second+ofSecond
			}
			if gain > most {
				a, b, most, least = min(p, q)*size, max(p, q)*size, gain, min(first, second)
			}
		}
	}
	return a, b, least > leastCertain*leastCertain+float64(4*math.Log(float64(len(x.columns)))) &&
		x.residual-most <= float64(mostLeftOfPair*mostLeftOfPair*x.residual)+float64(1.5*x.noise)
}

// exchangedOrder is the order of n columns in which two runs are exchanged.
func exchangedOrder(n, a, b, size int) []int {
	order := indices(n)
	for k := range size {
		order[a+k], order[b+k] = b+k, a+k
	}
	return order
}

// exchangeMistakes are two runs of columns of the failed product's weight that are exchanged.
func exchangeMistakes(f *Failure) (list []mistake) {
	x := newExchange(f)
	if x == nil {
		return nil
	}
	sizes := []int{1, 2, 8} // columns of four bits in a byte, and in a word of 32
	if f.Kind == pack.InAttention(table.OProj) {
		sizes = append(sizes, f.Model.Config.ValueHeadDim())
	}
	for _, size := range sizes {
		a, b, explains := x.best(size, func(t, of, other int) float64 {
			in := f.Input.Row(x.rows[t])
			return float64(in[other]) - float64(in[of])
		})
		if !explains {
			continue
		}
		name := f.module() + ".weight"
		undo := func(x *Trial) string {
			x.orderProduct(name, true, exchangedOrder(f.Input.Width(), a, b, size))
			return fmt.Sprintf("the columns of %s are in another order than the reference's: %s", name,
				exchangeInWords("column", a, b, size))
		}
		list = append(list, mistake{id: "columns-permuted", kinds: []string{f.kind()}, unless: "columns-permuted", undo: undo})
	}
	return list
}
