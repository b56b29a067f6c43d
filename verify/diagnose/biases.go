package diagnose

import (
	"encoding/binary"
	"fmt"
	"math"
	"slices"

	"dsmoe/model"
	"dsmoe/model/tensor"
	"dsmoe/verify/bounds"
	"dsmoe/verify/pack"
)

// Biases: of the router, which only decide who is chosen, and of attention's projections, read off a failed one.

// biasMistakes are what router biases may be instead of ours, where experts are chosen otherwise. The choices tell no
// more than that they are the reference's with these.
func biasMistakes(f *Failure) (list []mistake) {
	if f.Kind != pack.TopKIdx || f.Layer < 0 {
		return nil
	}
	add := func(words string, change func(x *Trial, bias *model.Weight) error) {
		list = append(list, mistake{id: "router-bias", kinds: []string{pack.TopKIdx}, undo: func(x *Trial) string {
			bias := &x.layer.MoE.Gate.EScoreCorrectionBias
			if bias.Name == "" || change(x, bias) != nil {
				return ""
			}
			return fmt.Sprintf(words+", experts are chosen as the reference chose them", bias.Name)
		}})
	}
	for _, known := range []struct {
		words string
		of    func(v float32) float32
	}{
		{"without %s", func(float32) float32 { return 0 }},
		{"with the other sign of %s", func(v float32) float32 { return -v }},
		{"with half of %s", func(v float32) float32 { return v / 2 }},
		{"with twice %s", func(v float32) float32 { return 2 * v }},
		{"with %s rounded to BF16", func(v float32) float32 { return tensor.Rounded(v, tensor.BF16) }},
	} {
		add(known.words, func(_ *Trial, bias *model.Weight) error {
			values, err := bias.Float32s(nil)
			bias.Tensor = vectorOf(values, func(_ int, v float32) float32 { return known.of(v) })
			return err
		})
	}
	add("with %s added to the scores in BF16", func(x *Trial, _ *model.Weight) error {
		x.change(func(a bounds.Arithmetic, o *operations) {
			o.addBias = func(scores *bounds.Value, bias *model.Weight) *bounds.Value {
				return inBF16(a, a.AddBias(inBF16(a, scores), bias))
			}
		})
		return nil
	})
	for l, d := range f.Model.Model.Layers {
		if l == f.Layer || !slices.Contains(f.Layers, l) || d.MoE == nil || d.MoE.Gate.EScoreCorrectionBias.Name == "" {
			continue
		}
		other := &d.MoE.Gate.EScoreCorrectionBias
		add("with "+other.Name+" in the place of %s", func(_ *Trial, bias *model.Weight) error {
			bias.Tensor = other.Tensor
			return nil
		})
	}
	return list
}

// biasOffMistakes is a bias that is not the reference's, read off a failed projection of attention: all rows are off by
// one vector.
func biasOffMistakes(f *Failure) []mistake {
	if f.Want == nil || f.distinctRows() < leastFactorRows || !f.isFinite() {
		return nil
	}
	width := f.Got.Width()
	off := make([]float32, width)
	for c := range off {
		sum := 0.0
		for i := c; i < len(f.Want); i += width {
			sum += f.residual(i)
		}
		mean := sum / float64(f.Got.Rows())
		for i := c; i < len(f.Want); i += width {
			if math.Abs(f.residual(i)-mean) > f.tolerance(i, i) {
				return nil
			}
		}
		off[c] = float32(mean)
	}
	return []mistake{{id: "bias-wrong", kinds: []string{f.kind()}, undo: func(x *Trial) string {
		for l, stage := range x.Projections() {
			if stage != f.Name || l.Bias.Name == "" {
				continue
			}
			values, err := l.Bias.Float32s(nil)
			if err != nil {
				return ""
			}
			l.Bias.Tensor = vectorOf(values, func(i int, v float32) float32 { return v + off[i] })
			return fmt.Sprintf("%s is not the reference's: all rows are off by one vector", l.Bias.Name)
		}
		return ""
	}}}
}

// vectorOf is a float32 vector of changed numbers.
func vectorOf(values []float32, of func(i int, v float32) float32) tensor.Tensor {
	var data []byte
	for i, v := range values {
		data = binary.LittleEndian.AppendUint32(data, math.Float32bits(of(i, v)))
	}
	return tensor.Tensor{DType: tensor.F32, Shape: []int{len(values)}, Data: data}
}
