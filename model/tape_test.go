package model

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"dsmoe/config"
	"dsmoe/model/internal/kernel"
	"dsmoe/model/tensor"
)

// TestGradientsOfOperations compares the gradients that the tape's operations add with central
// differences of Plain's results. TestGradientsByFiniteDifferences_every covers gradients of weights.
func TestGradientsOfOperations(t *testing.T) {
	type operation = func(a Arithmetic[*Activation], x []*Activation) *Activation
	rotary := &Rotary{Cos: []float32{1, 0.5, 0.25}, Sin: []float32{0, 0.75, -0.5}, Half: 1, DType: tensor.F32}
	in := &Input{Batch: 2, Seq: 3, AttentionMask: []int{1, 1, 1, 1, 0, 1}}
	mask := &Mask{Lowest: lowest[tensor.F32], In: in}
	attend := func(s *Scoring) operation {
		return func(a Arithmetic[*Activation], x []*Activation) *Activation {
			var blocks []*Activation
			for _, first := range []int{0, 2} { // of two queries, and of one
				scores := a.Scores(x[0], x[1], first, min(2, 3-first), s)
				blocks = append(blocks, a.Scope(scores, func(x2 *Activation) *Activation { return a.Context(a.Softmax(x2), x[2]) }))
			}
			return a.Move(mergeHeads(in, x[0].Shape[1], x[2].Shape[2], 2), blocks...)
		}
	}
	for name, test := range map[string]struct {
		shapes [][]int
		run    operation
	}{
		"add":      {[][]int{{2, 3}, {2, 3}}, func(a Arithmetic[*Activation], x []*Activation) *Activation { return a.Add(x[0], x[1]) }},
		"twice":    {[][]int{{2, 3}}, func(a Arithmetic[*Activation], x []*Activation) *Activation { return a.Add(x[0], x[0]) }},
		"swiglu":   {[][]int{{2, 3}, {2, 3}}, func(a Arithmetic[*Activation], x []*Activation) *Activation { return a.SwiGLU(x[0], x[1]) }},
		"softmax":  {[][]int{{2, 5}}, func(a Arithmetic[*Activation], x []*Activation) *Activation { return a.Softmax(x[0]) }},
		"silu":     {[][]int{{2, 5}}, func(a Arithmetic[*Activation], x []*Activation) *Activation { return a.SiLU(x[0], 1.7) }},
		"multiply": {[][]int{{2, 5}, {2, 5}}, func(a Arithmetic[*Activation], x []*Activation) *Activation { return a.Multiply(x[0], x[1], 1) }},
		"square":   {[][]int{{2, 5}}, func(a Arithmetic[*Activation], x []*Activation) *Activation { return a.Multiply(x[0], x[0], 0) }},
		"softcap":  {[][]int{{2, 5}}, func(a Arithmetic[*Activation], x []*Activation) *Activation { return a.SoftCap(x[0], 1.5) }},
		"sigmoid":  {[][]int{{2, 5}}, func(a Arithmetic[*Activation], x []*Activation) *Activation { return a.Sigmoid(x[0]) }},
		"scale":    {[][]int{{2, 5}}, func(a Arithmetic[*Activation], x []*Activation) *Activation { return a.Scale(x[0], 2.5) }},
		"views": {[][]int{{2, 6}}, func(a Arithmetic[*Activation], x []*Activation) *Activation {
			return a.Add(a.Reshape(a.Float32(x[0]), 3, 4), a.Reshape(x[0], 3, 4))
		}},
		"columns": {[][]int{{2, 6}}, func(a Arithmetic[*Activation], x []*Activation) *Activation {
			return a.Move(TakeColumns(&Input{Batch: 1, Seq: 2}, 6, 1, 4), x[0])
		}},
		"rows": {[][]int{{3, 2}}, func(a Arithmetic[*Activation], x []*Activation) *Activation {
			return a.Move(takeRows([]int{2, 0, 2}, 2), x[0])
		}},
		"gather": {[][]int{{2, 4}}, func(a Arithmetic[*Activation], x []*Activation) *Activation {
			return a.Move(gather([]int{3, 1, 0, 2}, 2, 4), x[0])
		}},
		"normalise": {[][]int{{2, 4}}, func(a Arithmetic[*Activation], x []*Activation) *Activation {
			return a.Normalise(x[0], Divisor{Eps: 1e-20})
		}},
		"heads": {[][]int{{2, 3, 8}}, func(a Arithmetic[*Activation], x []*Activation) *Activation {
			return a.Move(splitHeads(in, 2, 4, 1, 3), x[0])
		}},
		"heads, transposed": {[][]int{{2, 3, 8}}, func(a Arithmetic[*Activation], x []*Activation) *Activation {
			return a.Move(splitHeadsT(in, 2, 4, 1, 3), x[0])
		}},
		"heads, joined": {[][]int{{2, 2, 3, 4}, {2, 1, 3, 2}}, func(a Arithmetic[*Activation], x []*Activation) *Activation {
			return a.Move(joinHeads(in, 2, 4, 2), x[0], x[1])
		}},
		"rope": {[][]int{{2, 2, 3, 4}}, func(a Arithmetic[*Activation], x []*Activation) *Activation {
			cos, sin := a.Tables(rotary)
			return a.RoPE(x[0], cos, sin, rotary)
		}},
		"attention, divided": {[][]int{{2, 4, 3, 2}, {2, 2, 3, 2}, {2, 2, 5, 3}}, attend(&Scoring{By: 1.5, Divides: true, Mask: mask})},
		"attention, scaled":  {[][]int{{2, 2, 3, 2}, {2, 2, 3, 2}, {2, 2, 3, 3}}, attend(&Scoring{By: 0.5, Mask: mask})},
		"routed sum": {[][]int{{2, 2}, {1, 3}, {3, 3}}, func(a Arithmetic[*Activation], x []*Activation) *Activation {
			parts := []Part[*Activation]{{Expert: 1, Slots: []int{1}, Out: x[1]}, {Expert: 4, Slots: []int{0, 2, 3}, Out: x[2]}}
			return a.Add(a.Combine(x[0], parts, config.ByChoice), a.Combine(x[0], parts, config.ByExpert))
		}},
	} {
		t.Run(name, func(t *testing.T) {
			r := rand.New(rand.NewPCG(1, 2))
			var x []*Activation
			for _, shape := range test.shapes {
				x = append(x, random(r, shape))
			}
			tape := NewTape(NewPlain(Options{}), nil)
			defer tape.Close(nil)
			y := test.run(tape, x)
			weights := random(r, y.Shape) // of the loss, the weighted sum of y
			copy(tape.of(y), weights.Values)
			tape.outstanding = 1
			tape.rewind()
			for _, operand := range x {
				for i := range operand.Values {
					want := slope(&operand.Values[i], func() float64 {
						sum := 0.0
						for c, v := range test.run(tape.Plain, x).Values {
							sum += float64(v) * float64(weights.Values[c])
						}
						return sum
					})
					require.InDelta(t, want, float64(tape.of(operand)[i]), 1e-4)
				}
			}
		})
	}
}

// random returns numbers from 0.5 to 1.5.
func random(r *rand.Rand, shape []int) *Activation {
	n := 1
	for _, d := range shape {
		n *= d
	}
	x := &Activation{Shape: slices.Clone(shape), Values: make([]float32, n), DType: tensor.F32}
	for i := range x.Values {
		x.Values[i] = 0.5 + r.Float32()
	}
	return x
}

// slope is the derivative of f by v: a central difference of fourth order.
func slope(v *float32, f func() float64) float64 {
	const h = 1.0 / 32
	was := *v
	at := func(d float32) float64 {
		*v = was + d
		return f()
	}
	s := (8*(at(h)-at(-h)) - (at(2*h) - at(-2*h))) / (12 * h)
	*v = was
	return s
}

// TestRotaryTable: a unit vector becomes the cosine and sine of the angle, cast to the
// compute dtype unless the reference rotates in float32.
func TestRotaryTable(t *testing.T) {
	c := config.Defaults("deepseek_v2")
	c.Attention.QKRopeHeadDim = 2
	for ref, dtype := range map[config.Reference]tensor.DType{config.Remote: tensor.BF16, config.Native: tensor.F32} {
		c.Reference = ref
		r := newRotary(c, mainRope(c), 5, tensor.BF16, tensor.F32)
		require.Equal(t, dtype, r.DType)
		format, _ := dtype.Format()
		for pos := range 5 {
			sin, cos := math.Sincos(float64(r.Angles[pos]))
			x := []float32{1, 0}
			r.rotate(x, r.Cos[pos*r.Half:], r.Sin[pos*r.Half:], kernel.F32)
			require.Equal(t, []float32{kernel.Rounded(float32(cos), format), kernel.Rounded(float32(sin), format)}, x)
			r.rotate(x, r.Cos[pos*r.Half:], []float32{-r.Sin[pos*r.Half]}, kernel.F32)
			require.InDeltaSlice(t, []float32{1, 0}, x, 1e-2)
		}
	}
}
