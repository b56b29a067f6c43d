package diagnose

import (
	"math"
	"slices"
	"strings"

	"dsmoe/model"
	"dsmoe/model/table"
	"dsmoe/model/tensor"
	"dsmoe/verify/bounds"
	"dsmoe/verify/pack"
)

// Mistakes of engines outside attention: modules that get another module's input, other activations of MLPs, and a
// router in BF16.

// wiringMistakes are first seen at the output of the module that gets the wrong input.
func wiringMistakes(f *Failure) (list []mistake) {
	if f.Layer < 0 {
		return nil
	}
	const before, after = "input_layernorm", "post_attention_layernorm"
	at := func(module string) string { return pack.StageOf(f.Layer, module) + ".weight" }
	list = []mistake{
		{id: "residual-normed", kinds: []string{after + ".output"}, undo: func(x *Trial) string {
			x.change(func(a bounds.Arithmetic, o *operations) {
				var in, normed *bounds.Value
				o.rmsNorm = func(x *bounds.Value, w *model.Weight, eps float64) *bounds.Value {
					y := a.RMSNorm(x, w, eps)
					if w.Name == at(before) {
						in, normed = x, y
					}
					return y
				}
				o.add = func(x, z *bounds.Value) *bounds.Value {
					if x == in {
						x = normed
					}
					return a.Add(x, z)
				}
			})
			return "the reference adds the output of attention to its normed input, here to the input before input_layernorm"
		}},
		{id: "router-input", kinds: []string{pack.GateLogits}, undo: func(x *Trial) string {
			x.change(func(a bounds.Arithmetic, o *operations) {
				var in *bounds.Value
				o.rmsNorm = func(x *bounds.Value, w *model.Weight, eps float64) *bounds.Value {
					if w.Name == at(after) {
						in = a.Reshape(x, x.Rows(), x.Width())
					}
					return a.RMSNorm(x, w, eps)
				}
				o.linear = func(x *bounds.Value, l *model.Linear) *bounds.Value {
					if in != nil && l.Weight.Name == at("mlp.gate") {
						if x.DType == tensor.F32 {
							in = a.Float32(in)
						}
						x = in
					}
					return a.Linear(x, l)
				}
			})
			return "the reference's router reads its input before post_attention_layernorm, here behind it"
		}},
		{id: "latent-norm-width", kinds: []string{pack.InAttention(table.KVALayernorm)}, undo: func(x *Trial) string {
			if x.failed.Got.DType != tensor.F32 {
				return ""
			}
			x.change(func(a bounds.Arithmetic, o *operations) {
				var whole *bounds.Value // latent, and the key's part with RoPE
				o.move = func(m *model.Move, operands ...*bounds.Value) *bounds.Value {
					if x := operands[0]; x.Width() == f.latentWidth() {
						whole = x
					}
					return a.Move(m, operands...)
				}
				o.rmsNorm = func(x *bounds.Value, w *model.Weight, eps float64) *bounds.Value {
					y := a.RMSNorm(x, w, eps)
					if whole != nil && w.Name == at("self_attn.kv_a_layernorm") {
						for t := range y.Rows() {
							own, all := math.Sqrt(meanSquare(x.Row(t))+eps), math.Sqrt(meanSquare(whole.Row(t))+eps)
							for i := t * y.Width(); i < (t+1)*y.Width(); i++ {
								y.Set(i, float64(y.Values[i])*own/all, y.Variance(i)*bounds.Sq(own/all))
							}
						}
					}
					return y
				}
			})
			return "the reference's kv_a_layernorm divides by the root mean square of the latent and of the key's part with " +
				"RoPE together, here of the latent"
		}},
	}
	for _, other := range []struct {
		words string
		of    func(g float64) float64
	}{
		{"GELU (tanh)", func(g float64) float64 {
			return g / 2 * (1 + math.Tanh(math.Sqrt(2/math.Pi)*(g+float64(0.044715*g*g*g))))
		}},
		{"GELU", func(g float64) float64 { return g / 2 * math.Erfc(-g/math.Sqrt2) }},
		{"GELU (sigmoid)", func(g float64) float64 { return g / (1 + math.Exp(-1.702*g)) }},
		{"ReLU", func(g float64) float64 { return max(0, g) }},
		{"ReLU²", func(g float64) float64 { return max(0, g) * max(0, g) }},
		{"the sigmoid alone", func(g float64) float64 { return 1 / (1 + math.Exp(-g)) }},
	} {
		for _, of := range []string{mlpIn(f.Kind), ""} { // in one kind of MLP, or in all
			list = append(list, mistake{id: "activation", kinds: activated, unless: "activation", undo: func(x *Trial) string {
				x.change(func(a bounds.Arithmetic, o *operations) {
					own := false
					o.linear = func(x *bounds.Value, l *model.Linear) *bounds.Value {
						own = strings.Contains(l.Weight.Name, of)
						return a.Linear(x, l)
					}
					o.swiGLU = func(gate, up *bounds.Value) *bounds.Value {
						y := a.SwiGLU(gate, up)
						for i := range y.Values {
							g, u := float64(gate.Rounded(i)), float64(up.Rounded(i))
							if v := float64(float32(other.of(g))) * u; own {
								y.Set(i, v, y.Variance(i)+2*bounds.Sq(max(math.Abs(v), math.Abs(g*u)))) // g is the largest term
							}
						}
						return y
					}
				})
				return "the reference's activation is " + other.words + ", here it is SiLU"
			}})
		}
	}
	for _, router := range []struct {
		words                   string
		operands, whole, result bool
	}{
		{"computes the router's product in BF16, operands and logits", true, true, true},
		{"rounds the operands of the router's product to BF16", true, true, false},
		{"rounds the input of the router to BF16", true, false, false},
		{"rounds the router's logits to BF16", false, false, true},
	} {
		undo := func(x *Trial) string {
			x.change(func(a bounds.Arithmetic, o *operations) {
				o.linear = func(x *bounds.Value, l *model.Linear) *bounds.Value {
					if l.Weight.Name != at("mlp.gate") || x.DType != tensor.F32 {
						return a.Linear(x, l)
					}
					other := *l
					if router.operands {
						x = inBF16(a, x)
					}
					if router.whole {
						stored, _ := l.Weight.Float32s(nil) // loading has checked the dtype
						other.Weight.Tensor = vectorOf(stored, func(_ int, v float32) float32 { return tensor.Rounded(v, tensor.BF16) })
						other.Weight.Shape = l.Weight.Shape
					}
					y := a.Linear(x, &other)
					if router.result {
						y = inBF16(a, y)
					}
					return y
				}
			})
			return "the reference " + router.words + ", here they are in float32"
		}
		list = append(list, mistake{id: "router-bf16", kinds: []string{pack.GateLogits}, unless: "router-bf16", undo: undo})
	}
	return list
}

// activated are what MLPs with an activation give.
var activated = slices.Concat(pack.MLPOutputs, []string{pack.ExpertOutput}, pack.InMLPs(table.DownProj))

// mlpIn is the part of the names of weights that tells the kind of MLP of a stage.
func mlpIn(kind string) string {
	for _, of := range []string{".mlp.experts.", ".mlp.shared_experts."} {
		if strings.HasPrefix("."+kind, of) {
			return of
		}
	}
	return ".mlp."
}

// latentWidth is how wide the output of kv_a_proj_with_mqa is.
func (f *Failure) latentWidth() int {
	return f.Model.Config.Attention.KVLoraRank + f.Model.Config.Attention.QKRopeHeadDim
}

// meanSquare is the mean of the squares of a row.
func meanSquare(row []float32) (mean float64) {
	for _, v := range row {
		mean += bounds.Sq(float64(v)) / float64(len(row))
	}
	return mean
}

// inBF16 is x in float32 with its numbers rounded to BF16, a rounding point.
func inBF16(a bounds.Arithmetic, x *bounds.Value) *bounds.Value {
	return a.Float32(a.Cast(x, tensor.BF16))
}
