package bounds

import (
	"encoding/binary"
	"math"

	"dsmoe/model"
	"dsmoe/model/tensor"
)

// deltas are the variances of w's elements, in units of u²; nil if it was not rounded.
func (a *Analysis) deltas(w *model.Weight) []float64 {
	how := a.rounded[w.Name]
	if how.By == "" {
		return nil
	}
	deltas := make([]float64, w.Len())
	for i, h := range halfSteps(w, how) {
		deltas[i] = Sq(float64(h)/Unit) / 3
	}
	return deltas
}

// halfSteps are the half steps of a weight that was rounded so.
func halfSteps(w *model.Weight, how tensor.Rounding) []float32 {
	return scaleSteps(how.HalfSteps(nil, w.Tensor), w, 0)
}

// scaleSteps multiplies the half steps h of codes of w, from row first on, by the scales of their
// blocks. Other weights have none.
func scaleSteps(h []float32, w *model.Weight, first int) []float32 {
	if w.Scales == nil {
		return h
	}
	b := tensor.Blocks{Rows: w.Shape[0], Cols: w.Shape[1], BlockRows: w.Block[0], BlockCols: w.Block[1]}
	_, width := b.Grid()
	for i := range h {
		row, col := first+i/b.Cols, i%b.Cols
		h[i] *= float32(math.Abs(float64(w.Scales[row/b.BlockRows*width+col/b.BlockCols])))
	}
	return h
}

// delta is element i of deltas, 0 without any.
func delta(deltas []float64, i int) float64 {
	if deltas == nil {
		return 0
	}
	return deltas[i]
}

// blockElements is how many elements of a weight are taken at a time.
const blockElements = 1 << 22

// linearDeltas sets roots to the roots of the variances of l's products with x that the rounding of its weight
// causes, Σ h²/3·(x² + v_x) with half units h, of row t in units[t]; nil units if it was not rounded.
func (a *Analysis) linearDeltas(roots []float32, x *Value, l *model.Linear) (units []float64) {
	how := a.rounded[l.Weight.Name]
	if how.By == "" {
		return nil
	}
	w := &l.Weight
	errorsOf, factor := func(w *model.Weight, first, n int) model.Weight { return halfUnitRows(w, first, n, how) }, 1.0/3
	if steps := a.stepsOf(w); steps != nil {
		errorsOf = func(w *model.Weight, first, n int) model.Weight {
			first += w.FirstRow
			return float32Rows(w, n, steps[first*w.Shape[1]:(first+n)*w.Shape[1]])
		}
	} else if !w.DType.Blocked() && !w.DType.Scaled() && !how.Denormals {
		// A power of two, which takes part in no product, is divided by 2^(bits-1) here.
		errorsOf, factor = powersOfTwo, math.Exp2(2-2*float64(PrecisionOf(w.DType).bits))/12
	}
	a.scratch(func() *model.Activation {
		var terms []float32
		terms, units = a.perRow(x, factor)
		rows, width := w.Shape[0], w.Shape[1]
		for first := 0; first < rows; first += max(1, blockElements/width) {
			part := errorsOf(w, first, min(max(1, blockElements/width), rows-first))
			a.errors.WeightPartial(&part, &model.Partial{V: terms, Each: func(t, r int, _, _, carried []float64) {
				for i, v := range carried {
					roots[t*rows+first+r+i] = float32(math.Sqrt(v))
				}
			}})
		}
		return x.Activation
	})
	return units
}

// powersOfTwo are 2^e of n rows of w, 2^e ≤ |w| < 2^(e+1), in BF16, and at least that of
// the smallest normal number: the unit of w's dtype is that times 2^(1-bits).
func powersOfTwo(w *model.Weight, first, n int) model.Weight {
	least := float32(math.Exp2(float64(PrecisionOf(w.DType).least)))
	data, row := make([]byte, 0, 2*n*w.Shape[1]), []float32(nil)
	for r := range n {
		row, _ = w.Row(first + r).Float32s(row[:0]) // BF16 or F16
		for _, v := range row {
			b := math.Float32bits(max(least, float32(math.Abs(float64(v))))) >> 16 & 0x7f80
			data = append(data, byte(b), byte(b>>8))
		}
	}
	return model.Weight{Name: w.Name, Tensor: tensor.Tensor{DType: tensor.BF16, Shape: []int{n, w.Shape[1]}, Data: data}}
}

// halfUnitRows are the half units of n rows of w, which was rounded so.
func halfUnitRows(w *model.Weight, first, n int, how tensor.Rounding) model.Weight {
	var h []float32
	for r := range n {
		h = how.HalfSteps(h, w.Row(first+r))
	}
	return float32Rows(w, n, scaleSteps(h, w, first))
}

// stepsOf are the half steps of a weight that was decoded; nil of others.
func (a *Analysis) stepsOf(w *model.Weight) []float32 {
	if a.Decoded == nil {
		return nil
	}
	return a.Decoded(w.Name)
}

// float32Rows are n rows of numbers in place of w's.
func float32Rows(w *model.Weight, n int, h []float32) model.Weight {
	data := make([]byte, 0, 4*len(h))
	for _, v := range h {
		data = binary.LittleEndian.AppendUint32(data, math.Float32bits(v))
	}
	return model.Weight{Name: w.Name, Tensor: tensor.Tensor{DType: tensor.F32, Shape: []int{n, w.Shape[1]}, Data: data}}
}
