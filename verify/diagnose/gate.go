package diagnose

import (
	"context"
	"encoding/binary"
	"fmt"
	"math"
	"slices"

	"dsmoe/config"
	"dsmoe/model"
	"dsmoe/model/tensor"
	"dsmoe/text"
	"dsmoe/verify/bounds"
	"dsmoe/verify/pack"
	"dsmoe/verify/report"
)

// Mistakes of the gate: its weights, groups and auxiliary loss, and the order of its rows.

// gateMistakes are first seen in a choice of experts, in their weights or in the auxiliary loss.
func gateMistakes(f *Failure) []mistake {
	choice, weight, loss := []string{pack.TopKIdx}, []string{pack.TopKWeight}, []string{pack.AuxLoss}
	list := []mistake{
		{id: "experts-per-token", kinds: choice, undo: func(x *Trial) string {
			n := x.failed.goldenWidth()
			if n == 0 || n > x.Config.Choices() {
				return ""
			}
			return ran("num_experts_per_tok", &x.Config.MoE.NumExpertsPerTok, n)
		}},
		{id: "group-mask", kinds: choice, undo: func(x *Trial) string {
			r := &x.Config.Router
			if !hasGroups(&x.Config) {
				return ""
			}
			was := r.NGroup
			r.NGroup, r.TopKGroup = 1, 1
			return fmt.Sprintf("the reference chose among all experts, here there are %d groups", was)
		}},
		{id: "norm-topk", kinds: weight, undo: func(x *Trial) string {
			return ran("norm_topk_prob", &x.Config.Router.NormTopKProb, !x.Config.Router.NormTopKProb)
		}},
		{id: "reference", kinds: []string{pack.TopKWeight, pack.ExpertsOutput}, undo: func(x *Trial) string {
			other := config.Remote
			if x.Config.Reference == config.Remote {
				other = config.Native
			}
			c, err := x.Config.As(other)
			if err != nil {
				return ""
			}
			x.Config = *c
			return fmt.Sprintf("the pack follows the rules of the %s reference: verify with --reference %[1]s", other)
		}},
		{id: "routed-scale", kinds: weight, undo: func(x *Trial) string {
			scale := x.failed.scaled(x.Config.Router.RoutedScalingFactor)
			if !(scale > 0) {
				return ""
			}
			here := x.Config.Router.RoutedScalingFactor
			words := ran("routed_scaling_factor", &x.Config.Router.RoutedScalingFactor, scale)
			if words != "" && math.Abs(scale-here*here) < 1e-3*scale {
				words += fmt.Sprintf(": %g × %[1]g, it was applied twice", here)
			}
			return words
		}},
		{id: "routed-scale", kinds: []string{"mlp.output"}, undo: func(x *Trial) string {
			if !x.Config.Rules().MoE.ScalesSum {
				return ""
			}
			return ran(x.Config.Key("routed_scaling_factor"), &x.Config.Router.RoutedScalingFactor, 1)
		}},
		{id: "logit-softcap", kinds: []string{pack.GateLogits}, undo: func(x *Trial) string {
			return ran("moe_router_logit_softcapping", &x.Config.Router.LogitCap, 0)
		}},
		{id: "bias-leak", kinds: weight, undo: undoBiasLeak},
		{id: "scores-of-groups", kinds: weight, undo: func(x *Trial) string {
			if !hasGroups(&x.Config) || x.Config.Router.ScoringFunc != "softmax" {
				return ""
			}
			x.change(func(a bounds.Arithmetic, o *operations) {
				var scores, shares *bounds.Value
				o.maskGroups = func(of *bounds.Value, groups int, chosen []int, masked float32) *bounds.Value {
					scores, shares = of, a.Normalise(a.MaskGroups(of, groups, chosen, 0), model.Divisor{})
					return a.MaskGroups(of, groups, chosen, masked)
				}
				o.move = func(m *model.Move, operands ...*bounds.Value) *bounds.Value {
					if scores != nil && operands[0] == scores {
						operands = []*bounds.Value{shares}
					}
					return a.Move(m, operands...)
				}
			})
			return "the reference's softmax is over the experts of the chosen groups, here over all experts"
		}},
		{id: "aux-loss-form", kinds: loss, undo: func(x *Trial) string {
			return ran("seq_aux", &x.Config.Router.SeqAux, !x.Config.Router.SeqAux)
		}},
		{id: "aux-loss-counts", kinds: loss, undo: func(x *Trial) string {
			tokens, moe := x.In.Seq, x.Config.MoE
			if !x.Config.Router.SeqAux {
				tokens *= x.In.Batch
			}
			x.Config.Router.AuxLossAlpha *= float64(tokens*moe.NumExpertsPerTok) / float64(moe.NRoutedExperts)
			return "the reference did not divide the experts' counts by seq_len·num_experts_per_tok/n_routed_experts"
		}},
		{id: "aux-loss-alpha", kinds: loss, undo: func(x *Trial) string {
			return ran("aux_loss_alpha", &x.Config.Router.AuxLossAlpha, x.failed.scaled(x.Config.Router.AuxLossAlpha))
		}},
	}
	for n := 1; n < f.Model.Config.Router.NGroup; n++ { // of all groups: no limit
		list = append(list, mistake{id: "topk-group", kinds: choice, undo: func(x *Trial) string {
			r := &x.Config.Router
			if !x.Config.LimitsGroups() || n*(x.Config.Choices()/r.NGroup) < x.Config.MoE.NumExpertsPerTok {
				return ""
			}
			return ran("topk_group", &r.TopKGroup, n)
		}})
	}
	for n := 1; n <= f.Model.Config.Choices(); n++ {
		list = append(list, mistake{id: "group-count", kinds: choice, undo: func(x *Trial) string {
			r := &x.Config.Router
			if !hasGroups(&x.Config) || n <= r.TopKGroup || !holds(&x.Config, n, r.TopKGroup) {
				return ""
			}
			return ran("n_group", &r.NGroup, n)
		}})
	}
	for n := 2; n <= 16; n++ {
		for chosen := 1; chosen < n; chosen++ {
			list = append(list, mistake{id: "group-mask", kinds: choice, undo: func(x *Trial) string {
				r := &x.Config.Router
				if hasGroups(&x.Config) || !holds(&x.Config, n, chosen) || r.TopKMethod == "" {
					return ""
				}
				r.NGroup, r.TopKGroup = n, chosen
				if r.TopKMethod == "greedy" {
					r.TopKMethod = "group_limited_greedy"
				}
				return fmt.Sprintf("the reference chose from topk_group %d of n_group %d groups, here from all experts",
					chosen, n)
			}})
		}
	}
	return list
}

// hasGroups reports whether tokens choose from some of several groups of experts.
func hasGroups(c *config.Config) bool {
	return c.LimitsGroups() && c.Router.TopKGroup < c.Router.NGroup
}

// holds reports whether the experts, those without weights among them, can be in n groups such that the chosen groups hold
// enough experts for a token.
func holds(c *config.Config, n, chosen int) bool {
	experts := c.Choices()
	return experts%n == 0 && experts/n >= 2 && chosen*(experts/n) >= c.MoE.NumExpertsPerTok
}

// undoBiasLeak takes the experts' weights from the scores with the bias, which they are chosen by.
func undoBiasLeak(x *Trial) string {
	if x.layer.MoE.Gate.EScoreCorrectionBias.Name == "" {
		return ""
	}
	x.change(func(a bounds.Arithmetic, o *operations) {
		var scores, biased *bounds.Value
		o.addBias = func(of *bounds.Value, bias *model.Weight) *bounds.Value {
			scores, biased = of, a.AddBias(of, bias)
			return biased
		}
		o.move = func(m *model.Move, operands ...*bounds.Value) *bounds.Value {
			if operands[0] == scores {
				operands = []*bounds.Value{biased}
			}
			return a.Move(m, operands...)
		}
	})
	return "e_score_correction_bias, which is for the choice of experts only, is in their weights"
}

// scaled returns the factor of the failed stage with which it would be the golden: a number that somebody would have
// written, of as few digits as its error allows.
func (f *Failure) scaled(factor float64) float64 {
	all := new(fit)
	for i, want := range f.Want {
		unit := f.tolerance(i, i)
		all.add(float64(f.Unrounded[i])/unit, float64(want)/unit)
	}
	solved := factor * all.factor()
	for digits := 1; digits <= 6; digits++ {
		if v := written(solved, digits); math.Abs(v/solved-1) <= leastCertain*all.deviation()/all.factor()+1e-6 {
			return v
		}
	}
	return written(solved, 3)
}

// undoRouterRows reorders the gate's rows by the golden's logits.
func undoRouterRows(restStays bool) func(x *Trial) string {
	return func(x *Trial) string {
		order := x.reorderRouter(restStays)
		if order == nil {
			return ""
		}
		than := "the experts"
		if x.failed.routedSum() == nil {
			than = "the reference's (no stage of the experts was compared)"
		}
		return fmt.Sprintf("the router's rows are in another order than %s: %s", than, rowOrder(order))
	}
}

// undoRenumbered gives the router's rows and the experts the numbers that the golden's logits show. What else is
// numbered by expert follows, unless it was left behind.
func undoRenumbered(behind bool) func(x *Trial) string {
	return func(x *Trial) string {
		moe, left := x.layer.MoE, ""
		switch {
		case moe.Gate.TID2EID != nil:
			left = ", but tid2eid is not"
		case moe.Gate.EScoreCorrectionBias.Name != "":
			left = ", but e_score_correction_bias is not"
		case behind:
			return ""
		}
		order := x.reorderRouter(behind)
		if sum := x.failed.routedSum(); order == nil || slices.IsSorted(order) || sum == nil || sum.Verdict != report.Fail {
			return ""
		}
		experts := make([]model.DeepseekMLP, len(order))
		for e, from := range order {
			experts[e] = moe.Experts[from]
		}
		moe.Experts = experts
		if !behind {
			left = ""
		}
		return fmt.Sprintf("experts and the router's rows are numbered otherwise%s: %s", left, rowOrder(order))
	}
}

// routedSum is the check of the failed layer's stage that its routed experts give; nil if no such stage was compared.
func (f *Failure) routedSum() *report.Check {
	for _, kind := range []string{pack.ExpertsOutput, "mlp.output"} {
		name := pack.StageOf(f.Layer, kind)
		for i, c := range f.Checks {
			if c.Tensor == name && c.Verdict != report.Skipped {
				return &f.Checks[i]
			}
		}
	}
	return nil
}

// sumsInWords runs the layer with its own logits, choice and weights, and reports whether the routed sums are the
// golden's. In 16 bits the order of a sum shows, so that only float32 tells that they differ.
func (f *Failure) sumsInWords(ctx context.Context) (string, error) {
	x, name := f.NewTrial(), f.routedSum().Tensor
	for _, kind := range []string{pack.GateLogits, pack.TopKIdx, pack.TopKWeight} {
		x.Own = append(x.Own, pack.StageOf(f.Layer, kind))
	}
	passes, err := f.Rerun(ctx, x, []string{name})
	switch {
	case passes[name]:
		return "; the routed sums are the same, only the ids differ", err
	case f.Pack.DType == tensor.F32:
		return "; the routed sums differ", err
	}
	return "", err
}

// reorderRouter reorders the gate's rows by the golden's logits; the biases and the table of experts follow unless the
// rest stays. It returns our row of each of the golden's experts, nil if the golden's rows are not ours in another
// order.
func (x *Trial) reorderRouter(restStays bool) []int {
	order := x.failed.columnOrder() // golden column -> ours
	if order == nil {
		return nil
	}
	gate := &x.layer.MoE.Gate
	gate.Weight.Data = rowsOf(&gate.Weight, order)
	if gate.EScoreCorrectionBias.Name != "" && !restStays {
		gate.EScoreCorrectionBias.Data = rowsOf(&gate.EScoreCorrectionBias, order)
	}
	if table := gate.TID2EID; table != nil && !restStays {
		w := *table
		w.Data = nil
		for id := range slices.Chunk(table.Data, 8) {
			was := int(binary.LittleEndian.Uint64(id))
			w.Data = binary.LittleEndian.AppendUint64(w.Data, uint64(slices.Index(order, was)))
		}
		gate.TID2EID = &w
	}
	return order
}

// rowsOf are the rows of w in another order: row i is w's order[i].
func rowsOf(w *model.Weight, order []int) []byte {
	if len(w.Shape) == 2 && w.Shape[0] == 1 { // a row with an element for each
		vector := *w
		vector.Shape = w.Shape[1:]
		w = &vector
	}
	rows := make([]byte, 0, len(w.Data))
	for _, from := range order {
		rows = append(rows, w.Row(from).Data...)
	}
	return rows
}

func rowOrder(order []int) string {
	var moved []string
	for e, from := range order {
		if e != from {
			moved = append(moved, fmt.Sprintf("expert %d is row %d", e, from))
		}
	}
	return text.Some(moved, 4, ", ")
}
