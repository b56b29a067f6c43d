package diagnose

import (
	"fmt"
	"math"
	"slices"

	"dsmoe/config"
	"dsmoe/model"
	"dsmoe/model/table"
	"dsmoe/verify/bounds"
	"dsmoe/verify/pack"
)

// Mistakes of plain attention with norms of queries and keys, windows and layers without RoPE, and of its gates.

// headNormStages are what the norms of queries and keys give.
var headNormStages = []string{pack.InAttention(table.QNorm), pack.InAttention(table.KNorm)}

// groupedMistakes are first seen in layers with plain attention.
func groupedMistakes(f *Failure) []mistake {
	list := []mistake{{id: "group-fill", kinds: []string{pack.TopKIdx}, undo: func(x *Trial) string {
		if !hasGroups(&x.Config) {
			return ""
		}
		fill, words := float32(0), "0, here minus infinity"
		if x.Config.Router.TopKMethod == "group_limited_greedy" {
			fill, words = float32(math.Inf(-1)), "minus infinity, here 0"
		}
		x.change(func(a bounds.Arithmetic, o *operations) {
			o.maskGroups = func(scores *bounds.Value, groups int, chosen []int, _ float32) *bounds.Value {
				return a.MaskGroups(scores, groups, chosen, fill)
			}
		})
		return "the reference gives experts of groups that are not chosen the score " + words
	}}}
	if f.Layer < 0 || f.Model.Layer(f.Layer).SelfAttn == nil {
		return list
	}
	list = append(list, []mistake{
		{id: "head-norms-exchanged", kinds: headNormStages, undo: func(x *Trial) string {
			a := x.layer.SelfAttn
			if !x.Config.Attention.UseQKNorm || !slices.Equal(a.QNorm.Weight.Shape, a.KNorm.Weight.Shape) {
				return ""
			}
			a.QNorm.Weight, a.KNorm.Weight = a.KNorm.Weight, a.QNorm.Weight
			return "the weights of q_norm and k_norm are exchanged"
		}},
		{id: "norm-after-rope", kinds: headNormStages, undo: undoLateNorm},
		{id: "rope-in-layer", kinds: attendStages, undo: func(x *Trial) string {
			rotates := x.Config.Rotates(x.failed.Layer)
			x.Config = *x.Config.WithRules(func(r *config.Rules) { r.RoPE.RotatesWindows = !r.RoPE.RotatesWindows })
			switch {
			case x.Config.Rotates(x.failed.Layer) == rotates:
				return ""
			case rotates:
				return "the reference's layer has no RoPE, here it has"
			}
			return "the reference's layer has RoPE, here it has none"
		}},
	}...)
	if f.Model.Config.Window(f.Layer) > 0 {
		list = append(append(list, windowMistakes(attendStages)...),
			mistake{id: "sliding-window", kinds: attendStages, undo: func(x *Trial) string {
				was := x.Config.Windows.SlidingWindow
				x.Config.Windows.SlidingWindow = math.MaxInt32
				return fmt.Sprintf("the reference ran without a window, here sliding_window is %d", was)
			}})
	}
	return list
}

// undoLateNorm norms queries and keys, whose rows are heads, when they are rotated.
func undoLateNorm(x *Trial) string {
	if !x.Config.Attention.UseQKNorm || x.Config.Rules().Attention.QKNorm == config.AllHeads {
		return ""
	}
	x.change(func(a bounds.Arithmetic, o *operations) {
		var due func(x *bounds.Value) *bounds.Value // the norm of what is rotated next; nil if none is
		o.rmsNorm = func(x *bounds.Value, weight *model.Weight, eps float64) *bounds.Value {
			if len(x.Shape) != 4 {
				return a.RMSNorm(x, weight, eps)
			}
			due = func(x *bounds.Value) *bounds.Value { return a.RMSNorm(x, weight, eps) }
			return a.Reshape(x, x.Shape...)
		}
		o.rope = func(x, cos, sin *bounds.Value, r *model.Rotary) *bounds.Value {
			y := a.RoPE(x, cos, sin, r)
			if due != nil {
				y, due = due(y), nil
			}
			return y
		}
	})
	return "the reference norms queries and keys after RoPE, here it is before"
}
