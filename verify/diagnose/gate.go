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

func undoNormTopK(x *Trial) string {
	x.Config.Router.NormTopKProb = !x.Config.Router.NormTopKProb
	return fmt.Sprintf("the reference ran with norm_topk_prob %v, here it is %v", x.Config.Router.NormTopKProb,
		!x.Config.Router.NormTopKProb)
}

func undoGroups(x *Trial) string {
	if !x.Config.LimitsGroups() || x.Config.Router.TopKGroup >= x.Config.Router.NGroup {
		return ""
	}
	was := x.Config.Router.NGroup
	x.Config.Router.NGroup, x.Config.Router.TopKGroup = 1, 1
	return fmt.Sprintf("the reference chose among all experts, here there are %d groups", was)
}

// undoExpertsPerTok takes num_experts_per_tok from the golden.
func undoExpertsPerTok(x *Trial) string {
	shape, was := x.failed.Pack.Manifest.Tensors[x.failed.Name].Shape, x.Config.MoE.NumExpertsPerTok
	if len(shape) == 0 || shape[len(shape)-1] == was || shape[len(shape)-1] > x.Config.MoE.NRoutedExperts {
		return ""
	}
	x.Config.MoE.NumExpertsPerTok = shape[len(shape)-1]
	return fmt.Sprintf("the reference ran with num_experts_per_tok %d, here it is %d", x.Config.MoE.NumExpertsPerTok, was)
}

// undoNoGroups puts the experts into groups, where the config knows none.
func undoNoGroups(n, chosen int) func(x *Trial) string {
	return func(x *Trial) string {
		c := &x.Config
		if c.LimitsGroups() && c.Router.TopKGroup < c.Router.NGroup || c.MoE.NRoutedExperts%n != 0 ||
			c.MoE.NRoutedExperts/n < 2 ||
			chosen*(c.MoE.NRoutedExperts/n) < c.MoE.NumExpertsPerTok || c.Router.TopKMethod == "" {
			return ""
		}
		c.Router.NGroup, c.Router.TopKGroup = n, chosen
		if c.Router.TopKMethod == "greedy" {
			c.Router.TopKMethod = "group_limited_greedy"
		}
		return fmt.Sprintf("the reference chose from topk_group %d of n_group %d groups, here from all experts", chosen, n)
	}
}

// undoTopKGroup sets the number of groups that a token may choose from.
func undoTopKGroup(n int) func(x *Trial) string {
	return func(x *Trial) string {
		was := x.Config.Router.TopKGroup
		if !x.Config.LimitsGroups() || n == was ||
			n*(x.Config.MoE.NRoutedExperts/x.Config.Router.NGroup) < x.Config.MoE.NumExpertsPerTok ||
			n == x.Config.Router.NGroup {
			return "" // all groups: no limit
		}
		x.Config.Router.TopKGroup = n
		return fmt.Sprintf("the reference ran with topk_group %d, here it is %d", n, was)
	}
}

// undoNGroup sets the number of groups that the experts are in.
func undoNGroup(n int) func(x *Trial) string {
	return func(x *Trial) string {
		c := &x.Config
		was := c.Router.NGroup
		if !c.LimitsGroups() || c.Router.TopKGroup >= was || n == was || n <= c.Router.TopKGroup ||
			c.MoE.NRoutedExperts%n != 0 ||
			c.MoE.NRoutedExperts/n < 2 || c.Router.TopKGroup*(c.MoE.NRoutedExperts/n) < c.MoE.NumExpertsPerTok {
			return ""
		}
		c.Router.NGroup = n
		return fmt.Sprintf("the reference ran with n_group %d, here it is %d", n, was)
	}
}

func undoReference(x *Trial) string {
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
}

// undoScale takes routed_scaling_factor from the golden.
func undoScale(x *Trial) string {
	was := x.Config.Router.RoutedScalingFactor
	scale := x.failed.scaled(was)
	x.Config.Router.RoutedScalingFactor = scale
	if !(scale > 0) || scale == was {
		return ""
	}
	return fmt.Sprintf("the reference ran with routed_scaling_factor %g, here it is %g", scale, was)
}

// undoBiasLeak takes the weights from what the experts are chosen by.
func undoBiasLeak(x *Trial) string {
	if x.layer.MoE.Gate.EScoreCorrectionBias.Name == "" {
		return ""
	}
	x.Around = func(a bounds.Arithmetic) bounds.Arithmetic { return &biasLeak[*bounds.Value]{Arithmetic: a} }
	return "e_score_correction_bias, which is for the choice of experts only, is in their weights"
}

// biasLeak is an arithmetic with a mistake: the top-k weights are taken from the scores
// with e_score_correction_bias.
type biasLeak[V comparable] struct {
	model.Arithmetic[V]
	scores, biased V
}

// AddBias remembers what the scores become with the bias.
func (b *biasLeak[V]) AddBias(scores V, bias *model.Weight) V {
	b.scores, b.biased = scores, b.Arithmetic.AddBias(scores, bias)
	return b.biased
}

// Move takes from the biased scores what is taken from the scores.
func (b *biasLeak[V]) Move(m *model.Move, operands ...V) V {
	if operands[0] == b.scores {
		operands = []V{b.biased}
	}
	return b.Arithmetic.Move(m, operands...)
}

// scaled returns the factor that the failed stage is multiplied by, had it been such that the stage is the golden: a
// number that somebody would have written, of as few digits as its error allows.
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

func undoSeqAux(x *Trial) string {
	x.Config.Router.SeqAux = !x.Config.Router.SeqAux
	return fmt.Sprintf("the reference ran with seq_aux %v, here it is %v", x.Config.Router.SeqAux, !x.Config.Router.SeqAux)
}

// undoCounts leaves the division of the experts' counts by their fair share out.
func undoCounts(x *Trial) string {
	tokens := x.In.Seq
	if !x.Config.Router.SeqAux {
		tokens *= x.In.Batch
	}
	x.Config.Router.AuxLossAlpha *= float64(tokens*x.Config.MoE.NumExpertsPerTok) / float64(x.Config.MoE.NRoutedExperts)
	return "the reference did not divide the experts' counts by seq_len·num_experts_per_tok/n_routed_experts"
}

// undoAlpha takes aux_loss_alpha from the golden.
func undoAlpha(x *Trial) string {
	was := x.Config.Router.AuxLossAlpha
	x.Config.Router.AuxLossAlpha = x.failed.scaled(was)
	return fmt.Sprintf("the reference ran with aux_loss_alpha %g, here it is %g", x.Config.Router.AuxLossAlpha, was)
}

// undoRouterRows looks for the expert whose logits each of the gate's rows gives.
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

// undoRenumbered gives the router's rows and the experts the numbers that the golden's
// logits say, and what else is numbered by expert, unless that was left behind.
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

// routedSum is the check of a stage of the failed layer that its routed experts give; nil if none was compared.
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

// sumsInWords runs the layer with its own logits, choice and weights, and reports whether the routed sums are the golden's.
// In 16 bits the order of a sum shows, so that only float32 tells that they differ.
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

// reorderRouter reorders the gate's rows by the golden's logits. The biases and the table of experts follow unless the
// rest stays.
// It returns which row of ours each of the golden's experts is, nil if they are no others
// than ours in another order.
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
