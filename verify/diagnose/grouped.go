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
	list := []mistake{{id: "group-fill", kinds: []string{pack.TopKIdx}, undo: undoFill}}
	if f.Layer < 0 || f.Model.Layer(f.Layer).SelfAttn == nil {
		return list
	}
	list = append(list,
		mistake{id: "head-norms-exchanged", kinds: headNormStages, undo: undoHeadNorms},
		mistake{id: "norm-after-rope", kinds: headNormStages, undo: undoLateNorm},
		mistake{id: "rope-in-layer", kinds: attendStages, undo: undoRotatedLayer})
	if window := f.Model.Config.Window(f.Layer); window > 0 {
		for _, by := range []int{-1, 1} {
			list = append(list, mistake{id: "sliding-window", kinds: attendStages, undo: undoWindow(by)})
		}
		list = append(list, mistake{id: "sliding-window", kinds: attendStages, undo: undoNoWindow})
	}
	return list
}

// undoHeadNorms exchanges the norms of queries and keys.
func undoHeadNorms(x *Trial) string {
	a := x.layer.SelfAttn
	if !x.Config.Attention.UseQKNorm || !slices.Equal(a.QNorm.Weight.Shape, a.KNorm.Weight.Shape) {
		return ""
	}
	a.QNorm.Weight, a.KNorm.Weight = a.KNorm.Weight, a.QNorm.Weight
	return "the weights of q_norm and k_norm are exchanged"
}

// undoLateNorm norms heads when they are rotated.
func undoLateNorm(x *Trial) string {
	if !x.Config.Attention.UseQKNorm || x.Config.Rules().Attention.QKNorm == config.AllHeads {
		return ""
	}
	x.Around = func(a bounds.Arithmetic) bounds.Arithmetic { return &lateNorm{Arithmetic: a} }
	return "the reference norms queries and keys after RoPE, here it is before"
}

// lateNorm is an arithmetic with a mistake: norms of queries and keys act when these are rotated.
type lateNorm struct {
	bounds.Arithmetic
	weight *model.Weight // of the norm that is due; nil if none is
	eps    float64
}

// RMSNorm leaves queries and keys, whose rows are heads, as they are.
func (n *lateNorm) RMSNorm(x *bounds.Value, weight *model.Weight, eps float64) *bounds.Value {
	if len(x.Shape) != 4 {
		return n.Arithmetic.RMSNorm(x, weight, eps)
	}
	n.weight, n.eps = weight, eps
	return n.Arithmetic.Reshape(x, x.Shape...)
}

// RoPE norms what it rotated.
func (n *lateNorm) RoPE(x, cos, sin *bounds.Value, r *model.Rotary) *bounds.Value {
	y := n.Arithmetic.RoPE(x, cos, sin, r)
	if n.weight == nil {
		return y
	}
	y = n.Arithmetic.RMSNorm(y, n.weight, n.eps)
	n.weight = nil
	return y
}

// undoRotatedLayer rotates the queries and keys of a layer without RoPE, or the other way.
func undoRotatedLayer(x *Trial) string {
	rotates := x.Config.Rotates(x.failed.Layer)
	x.Config = *x.Config.WithRules(func(r *config.Rules) { r.RoPE.RotatesWindows = !r.RoPE.RotatesWindows })
	if x.Config.Rotates(x.failed.Layer) == rotates {
		return ""
	}
	if rotates {
		return "the reference's layer has no RoPE, here it has"
	}
	return "the reference's layer has RoPE, here it has none"
}

// undoNoWindow lets every query see all tokens before it.
func undoNoWindow(x *Trial) string {
	was := x.Config.Windows.SlidingWindow
	x.Config.Windows.SlidingWindow = math.MaxInt32
	return fmt.Sprintf("the reference ran without a window, here sliding_window is %d", was)
}

// undoFill gives the experts of groups that are not chosen the score 0, where they have minus infinity, or the other way.
func undoFill(x *Trial) string {
	c := x.Config
	if !c.LimitsGroups() || c.Router.TopKGroup >= c.Router.NGroup {
		return ""
	}
	fill, words := float32(0), "0, here minus infinity"
	if c.Router.TopKMethod == "group_limited_greedy" {
		fill, words = float32(math.Inf(-1)), "minus infinity, here 0"
	}
	x.Around = func(a bounds.Arithmetic) bounds.Arithmetic { return &filledGroups{a, fill} }
	return "the reference gives experts of groups that are not chosen the score " + words
}

// filledGroups is an arithmetic with a mistake: the score of experts in groups that are not chosen is another.
type filledGroups struct {
	bounds.Arithmetic
	fill float32
}

// MaskGroups sets the scores of groups to another number.
func (g *filledGroups) MaskGroups(scores *bounds.Value, groups int, chosen []int, _ float32) *bounds.Value {
	return g.Arithmetic.MaskGroups(scores, groups, chosen, g.fill)
}
