package diagnose

import (
	"fmt"
	"math"

	"dsmoe/model"
	"dsmoe/model/tensor"
	"dsmoe/verify/bounds"
)

// A weight that went through codes of few bits, unlike the reference's: its numbers show the codes, and the residual
// has the size of their rounding.

// The share of the size that roundings of the codes have, within which what differs is theirs.
const leastCoded, mostCoded = 0.4, 1.6

// codedMistakes is the rounding of the failed product's weight to codes, if that explains the failure.
func codedMistakes(f *Failure) []mistake {
	if !f.isProduct() || !f.isFinite() {
		return nil
	}
	w := f.loaded(f.module() + ".weight")
	if w == nil || w.Scales != nil || w.DType.Blocked() {
		return nil
	}
	codes := tensor.CodesOf(tensor.CodeRuns(w.Shape[0], func(i int) []float32 {
		row, _ := w.Row(i).Float32s(nil)
		return row
	}))
	if codes == tensor.NoCodes {
		return nil
	}
	squares, expected, n := 0.0, 0.0, f.Got.Width()
	for c := range n {
		steps := stepsOf(w, c, codes)
		for r := range f.Got.Rows() {
			squares += bounds.Sq(f.residual(r*n + c))
			expected += roundings(steps, f.Input.Row(r))
		}
	}
	if share := math.Sqrt(squares / expected); !(share >= leastCoded && share <= mostCoded) {
		return nil
	}
	words := map[tensor.Codes]string{tensor.FourBits: "4 bits", tensor.EightFloats: "FP8", tensor.EightBits: "8-bit integers"}[codes]
	return []mistake{{id: "weight-coded", kinds: []string{f.kind()}, undo: func(x *Trial) string {
		x.changeProduct(w.Name, func(in, y *bounds.Value) {
			row := make([]float32, in.Width())
			for c := range y.Width() {
				steps := stepsOf(w, c, codes)
				for t := range y.Rows() {
					for k := range row {
						row[k] = in.Rounded(t*len(row) + k)
					}
					i := t*y.Width() + c
					y.Set(i, float64(y.Values[i]), y.Variance(i)+sharedRoundings*roundings(steps, row)/bounds.Sq(bounds.Unit))
				}
			}
		})
		return fmt.Sprintf("%s went through %s: what differs has the size of that rounding, as where the reference's did not, "+
			"or went through other codes", w.Name, words)
	}}}
}

// stepsOf are the distances of neighbouring codes at each number of a row.
func stepsOf(w *model.Weight, r int, codes tensor.Codes) []float64 {
	row, _ := w.Row(r).Float32s(nil)
	return codes.Steps(row)
}

// roundings is the variance that roundings to codes give a product with x.
func roundings(steps []float64, x []float32) (variance float64) {
	for k, step := range steps {
		variance += bounds.Sq(step*float64(x[k])) / 12
	}
	return variance
}
