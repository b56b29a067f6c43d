package diagnose

import (
	"slices"

	"dsmoe/config"
	"dsmoe/model"
	"dsmoe/verify/bounds"
	"dsmoe/verify/pack"
)

// Mistakes of mixtures that are not DeepSeek-V3's: other choices, activations and sums of experts.

// blockMistakes are tried where the rules of the model are others than DeepSeek-V3's.
func blockMistakes(f *Failure) []mistake {
	c, choice, weight := f.Model.Config, []string{pack.TopKIdx}, []string{pack.TopKWeight}
	list := []mistake{{id: "shared-experts", kinds: []string{"mlp.output"}, unless: "shared-experts", undo: func(x *Trial) string {
		if x.layer == nil || x.layer.MoE == nil || x.layer.MoE.SharedExperts == nil {
			return ""
		}
		x.layer.MoE.SharedExperts, x.Config.MoE.NSharedExperts = nil, 0
		return "the reference leaves out shared experts"
	}}, {id: "norm-topk", kinds: weight, unless: "norm-topk", undo: undoMissingNorm}}
	if c.Rules().Router.ChoosesByLogits {
		list = append(list, mistake{id: "router-bias", kinds: choice, undo: func(x *Trial) string {
			x.change(func(a bounds.Arithmetic, o *operations) {
				o.addBias = func(logits *bounds.Value, bias *model.Weight) *bounds.Value {
					return a.AddBias(a.Sigmoid(logits), bias)
				}
			})
			return "the reference adds e_score_correction_bias to the scores, here it is added to the logits"
		}})
		for _, scored := range []bool{true, false} {
			list = append(list, mistake{id: "bias-leak", kinds: weight, undo: undoBiasOfLogits(scored)})
		}
	}
	if c.MoE.ZeroExperts > 0 {
		list = append(list, mistake{id: "zero-experts", kinds: []string{pack.ExpertsOutput}, undo: func(x *Trial) string {
			x.change(func(a bounds.Arithmetic, o *operations) {
				o.combine = func(w *bounds.Value, parts []model.Part[*bounds.Value], order config.RoutedSum) *bounds.Value {
					parts = slices.DeleteFunc(slices.Clone(parts), func(p model.Part[*bounds.Value]) bool {
						return p.Expert >= x.Config.MoE.NRoutedExperts
					})
					return a.Combine(w, parts, order)
				}
			})
			return "the reference adds nothing for the experts without weights, which give what they take"
		}})
	}
	if c.Rules().MoE.Activation == config.SwiGLUShifted {
		list = append(list, mistake{id: "activation", kinds: slices.Concat(pack.MLPOutputs,
			[]string{"mlp.experts.*.down_proj.input", "mlp.shared_experts.down_proj.input"}), undo: func(x *Trial) string {
			x.change(func(a bounds.Arithmetic, o *operations) {
				o.siLU = func(gate *bounds.Value, _ float32) *bounds.Value { return a.SiLU(gate, 1) }
				o.multiply = func(y, up *bounds.Value, _ float32) *bounds.Value { return a.Multiply(y, up, 0) }
			})
			return "the reference multiplies silu(gate) with up, here gate · sigmoid(swiglu_alpha · gate) with up + 1"
		}})
	}
	return list
}

// undoMissingNorm divides the experts' weights by their sum, where no key of the config does so.
func undoMissingNorm(x *Trial) string {
	other := x.Config
	other.Router.NormTopKProb = !other.Router.NormTopKProb
	here, _ := x.Config.TopKWeights()
	if there, _ := other.TopKWeights(); here || there || x.layer.MoE.Gate.EScoreCorrectionBias.Name == "" {
		return ""
	}
	x.change(func(a bounds.Arithmetic, o *operations) {
		var scores *bounds.Value
		o.addBias = func(of *bounds.Value, bias *model.Weight) *bounds.Value {
			scores = of
			return a.AddBias(of, bias)
		}
		o.move = func(m *model.Move, operands ...*bounds.Value) *bounds.Value {
			y := a.Move(m, operands...)
			if scores != nil && operands[0] == scores {
				y = a.Normalise(y, model.Divisor{})
			}
			return y
		}
	})
	return "the reference divides the experts' weights by their sum, which this model never does"
}

// undoBiasOfLogits takes the experts' weights from the logits with the bias, or from the scores of these.
func undoBiasOfLogits(scored bool) func(x *Trial) string {
	return func(x *Trial) string {
		x.change(func(a bounds.Arithmetic, o *operations) {
			var biased *bounds.Value // until the experts' weights are taken
			o.addBias = func(of *bounds.Value, bias *model.Weight) *bounds.Value {
				biased = a.AddBias(of, bias)
				return biased
			}
			o.move = func(m *model.Move, operands ...*bounds.Value) *bounds.Value {
				if biased != nil {
					operands, biased = []*bounds.Value{biased}, nil
					if scored {
						operands[0] = a.Sigmoid(operands[0])
					}
				}
				return a.Move(m, operands...)
			}
		})
		return "e_score_correction_bias, which is for the choice of experts only, is in their weights"
	}
}
