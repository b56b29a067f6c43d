package model_test

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"dsmoe/model"
	"dsmoe/model/tensor"
)

// TestColumns: products with columns of a weight, single columns, and products with squares equal
// the results with its decoded numbers, for plain dtypes, blocks, FP8 with scales, and INT4 with a scale for each column.
func TestColumns(t *testing.T) {
	r := rand.New(rand.NewPCG(7, 8))
	draw := func(n int) []float32 {
		x := make([]float32, n)
		for i := range x {
			x[i] = float32(r.NormFloat64())
		}
		return x
	}
	const out, in, rows = 37, 3 * 256, 5
	p := model.NewPlain(model.Options{Accumulate: model.Float32})
	for _, d := range []tensor.DType{tensor.F32, tensor.BF16, tensor.Q8_0, tensor.Q4_K, tensor.F8E4M3, tensor.INT4} {
		w := &model.Weight{Tensor: tensor.Tensor{DType: d, Shape: []int{out, in}, Data: make([]byte, d.Bytes(out*in))}}
		if d == tensor.F8E4M3 {
			w.Block, w.Scales = [2]int{16, 128}, draw(3*6)
			for i := range w.Data {
				w.Data[i] = byte(r.UintN(0x7f))
			}
		} else if d == tensor.INT4 { // each column is of a group of its own
			w.Block, w.Scales, w.Zeros = [2]int{1, 1}, draw(out*in), draw(out*in)
			for i := range w.Data {
				w.Data[i] = byte(r.UintN(256))
			}
		} else if q, err := tensor.NewQuantiser(d); err == nil {
			q.Convert(w.Data, draw(out*in), &tensor.Loss{})
		} else {
			for i := range w.Data { // the upper bytes of numbers around 1
				if w.Data[i] = byte(r.UintN(256)); (i+1)%int(d.Bytes(1)) == 0 {
					w.Data[i] = byte(0x3e + r.UintN(2))
				}
			}
		}
		values := p.Values(w)
		a := &model.Activation{DType: tensor.F32, Shape: []int{rows, out}, Values: draw(rows * out)}
		next := 0
		p.EachColumns(a, w, func(from int, products *model.Activation) {
			require.Equal(t, next, from)
			next += products.Width()
			for row := range rows {
				for c, got := range products.Row(row) {
					want, size := 0.0, 0.0
					for o, x := range a.Row(row) {
						term := float64(x) * float64(values[o*in+from+c])
						want, size = want+term, size+math.Abs(term)
					}
					require.InDelta(t, want, float64(got), 1e-5*size, d)
				}
			}
		})
		require.Equal(t, in, next)
		for _, i := range []int{0, 127, 128, 300, in - 1} {
			column := p.Column(w, i)
			require.Len(t, column, out)
			for o, v := range column {
				require.Equal(t, values[o*in+i], v, d)
			}
		}
		x := &model.Activation{DType: tensor.F32, Shape: []int{rows, in}, Values: draw(rows * in)}
		for i, got := range p.Squares(x, w).Values {
			want, size := 0.0, 0.0
			for k, v := range values[i%out*in : (i%out+1)*in] {
				term := float64(x.Row(i / out)[k]) * float64(v) * float64(v)
				want, size = want+term, size+math.Abs(term)
			}
			require.InDelta(t, want, float64(got), 0x1p-7*size, d) // x and the squares have 8 bits
		}
	}
}
