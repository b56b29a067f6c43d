package verify

import (
	"fmt"
	"slices"
	"strings"

	"dsmoe/text"
	"dsmoe/verify/bounds"
	"dsmoe/verify/pack"
	"dsmoe/verify/report"
)

// advise adds to the report of a failure what shows that the pack is of other weights, and what to do without a cause.
func advise(e *evidence, r *report.Report) (err error) {
	if r.Verdict != report.Fail {
		return nil
	}
	same := false
	if e.job.options.OtherFiles != nil {
		r.OtherFiles, same, err = e.job.options.OtherFiles()
	}
	r.OtherWeights = otherWeights(r, same)
	weights, ran := e.behind[*r.FirstDivergence]
	first := r.Checks[slices.IndexFunc(r.Checks, func(c report.Check) bool { return c.Tensor == *r.FirstDivergence })]
	switch s := pack.Parse(*r.FirstDivergence); {
	case r.Cause != nil || r.Mode != report.Local:
		return err
	case strings.HasPrefix(first.Reason, "dtype: ") || strings.HasPrefix(first.Reason, "shape: "):
		r.Next = &report.Next{Text: "no value of this stage was compared: look at how it was computed and recorded, not " +
			"at weights", Weights: []string{}}
		return err
	case !ran && s.Within == pack.TopKIdx: // a choice is no value with weights behind it
		if names := e.deciding(s); len(names) > 0 {
			r.Next = nextOf(names, r.OtherWeights != "")
		}
		return err
	case !ran:
		return err
	}
	names, experts := []string{}, slices.Concat(first.Experts, first.ExpertOneOf)
	for _, name := range weights {
		if w := e.job.weights.Find(name); len(experts) == 0 || w != nil && slices.Contains(experts, w.Expert) {
			names = append(names, name)
		}
	}
	r.Next = nextOf(names, r.OtherWeights != "")
	adviseOfEngine(r, !slices.ContainsFunc(names, func(name string) bool {
		_, passed := e.passed[name]
		return !passed
	}))
	return err
}

// deciding names the weights that decide a gate's choices, given the logits that the pack has.
func (e *evidence) deciding(choices pack.Stage) (names []string) {
	gate := &e.job.model.Layer(choices.Layer).MoE.Gate
	if _, given := e.job.pack.Manifest.Tensors[strings.Replace(choices.Name, pack.TopKIdx, pack.GateLogits, 1)]; !given {
		names = append(names, gate.Weight.Name)
	}
	if gate.EScoreCorrectionBias.Name != "" {
		names = append(names, gate.EScoreCorrectionBias.Name)
	}
	if gate.TID2EID != nil {
		names = append(names, gate.TID2EID.Name)
	}
	return names
}

// adviseMerged adds to a merged report what to do about the first divergence, which it has from one of the reports.
func adviseMerged(r, one *report.Report) {
	r.Next = one.Next
	if r.Next == nil || len(r.Next.Weights) == 0 && one.OtherWeights == r.OtherWeights {
		return
	}
	proven := r.Next.Command == "" // no command compares weights that took part in stages that pass
	r.Next = nextOf(r.Next.Weights, r.OtherWeights != "")
	adviseOfEngine(r, proven)
}

// adviseOfEngine has the next step of an engine's trace say whether the operation or the weights are at fault: an
// operation is the same in all layers. proven says that all weights of the stage took part in stages that pass. Of choices,
// which are no values with weights behind them, it says nothing.
func adviseOfEngine(r *report.Report, proven bool) {
	n, first := r.Next, pack.Parse(*r.FirstDivergence)
	if r.Golden.Reference.Kind != pack.Engine || r.OtherWeights != "" || first.Within == pack.TopKIdx {
		return
	}
	layers, failed := 0, 0 // that have the stage
	for _, c := range r.Checks {
		if c.Stage().Within == first.Within && c.Layer() >= 0 && c.Verdict != report.Skipped {
			if layers++; c.Verdict == report.Fail {
				failed++
			}
		}
	}
	switch {
	case len(n.Weights) == 0:
		n.Text = "no weight took part in this stage: look at the engine's operation, and at what it makes of config.json"
	case proven:
		n.Text = "the weights of this stage took part in stages that pass, too: look at the engine's operation, not at the weights"
		n.Command = ""
	case layers > 1 && failed == layers && len(r.Hints) == 0:
		n.Text = fmt.Sprintf("the stage differs in all %d layers that have it: look at the engine's operation first; then "+
			"%s", layers, n.Text)
	case first.Layer >= 0 && failed < layers:
		n.Text = fmt.Sprintf("the stage differs in %d of %s: if the engine got new weights while it ran, it may have kept old "+
			"ones: verify OLD, the checkpoint before; else %s", failed, text.Plural(layers, "layer"), n.Text)
		n.Command = fmt.Sprintf("dsmoe verify OLD TRACE --layers %d", first.Layer)
	}
}

// nextOf returns what to do about a first divergence without a cause, of these weights. others: all weights are others.
func nextOf(names []string, others bool) *report.Next {
	n := &report.Next{Text: "compare " + text.Some(names, bounds.Few, ", ") + " with the original's", Weights: names,
		Command: "dsmoe diff ORIGINAL CHECKPOINT"}
	switch {
	case others:
		n.Text = "verify the checkpoint that the pack was recorded from, or record a pack from this one; to compare the two"
	case len(names) == 0:
		n.Text, n.Command = "no weight took part in this stage: compare config.json and the rules of the reference with what it "+
			"ran with", ""
	default:
		for _, glob := range globsOf(names) {
			n.Command += " --include '" + glob + "'"
		}
	}
	return n
}

// globsOf returns globs that match the weights: of the module of one layer that has them all, or of each one's module.
func globsOf(names []string) (globs []string) {
	common := strings.Split(names[0], ".")
	for _, name := range names {
		module := strings.Split(name, ".")
		module = module[:len(module)-1]
		n := 0
		for n < min(len(common), len(module)) && common[n] == module[n] {
			n++
		}
		common = common[:n]
		if glob := strings.Join(module, ".") + ".*"; !slices.Contains(globs, glob) {
			globs = append(globs, glob)
		}
	}
	if len(globs) > 1 && len(common) > 2 && common[1] == "layers" {
		globs = []string{strings.Join(common, ".") + ".*"}
	}
	return globs
}

// weighed are kinds of stages that weights decide, and no number of config.json.
var weighed = slices.Concat([]string{pack.Embedded, pack.GateLogits, pack.Logits, pack.ExpertsOutput}, pack.MLPOutputs)

// otherRun is what otherWeights says of weight files with the pack's hashes.
const otherRun = "every compared stage with weights differs, though the weight files have the hashes in the pack: the " +
	"reference ran with other weights than theirs"

// otherWeights says that the pack was recorded from other weights: every compared stage with weights failed, and there
// is no cause. It is empty where that is not so. sameFiles: the weight files have the pack's hashes.
func otherWeights(r *report.Report, sameFiles bool) string {
	checked, failed := 0, 0
	for _, p := range r.Places {
		checked, failed = checked+p.Checked, failed+p.Failed
	}
	decided := slices.ContainsFunc(r.Checks, func(c report.Check) bool {
		kind := c.Stage().Within
		return c.Verdict == report.Fail && slices.Contains(weighed, kind)
	})
	switch {
	case r.Verdict != report.Fail || r.Cause != nil || r.Mode != report.Local || r.Stopped || !decided || failed < checked:
		return ""
	case sameFiles:
		return otherRun
	}
	return fmt.Sprintf("the pack was recorded from other weights: every compared stage with weights differs, %s in all",
		text.Plural(checked, "weight"))
}
