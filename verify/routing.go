package verify

import (
	"fmt"
	"math"
	"slices"

	"dsmoe/model"
	"dsmoe/model/tensor"
	"dsmoe/text"
	"dsmoe/verify/pack"
	"dsmoe/verify/report"
)

// topK compares the experts chosen with the golden's, as sets per token, and puts
// the golden's in their place, so that a difference is found once and the weights
// pair up by expert.
func (t *tracer) topK(name string, ours *choice) error {
	s := pack.Parse(name)
	if s.OfIndexer() == pack.IndexerTopK {
		return t.topKeys(name, ours)
	}
	t.chosen = ours.Idx // what the pass goes on with
	if has, err := t.golden(name); err != nil || !has {
		return err
	}
	if !t.scope.compares(name) {
		t.leaveUndecided(&t.m.Layer(s.Layer).MoE.Gate)
		return t.choose(name, ours.Idx, ours.Scores.Rows(), ours.Scores.Width(), ours.Table != nil)
	}
	k, padded := len(ours.Idx)/ours.Scores.Rows(), pack.PaddedTokens(t.rows, ours.Scores.Rows())
	e := t.pack.Manifest.Tensors[name]
	c := report.Check{Tensor: name, Verdict: report.Fail, DType: e.DType.String(), Shape: e.Shape}
	if c.Reason = pack.Misfit(e, []int{ours.Scores.Rows(), k}, tensor.I64); c.Reason == "" {
		want, err := t.pack.Ints(name)
		if err != nil {
			return err
		}
		c.Padding = padded.Count()
		if c.Reason = notRouting(want, k, ours, padded); c.Reason == "" {
			before := t.routing
			wrong := t.compareTopK(&c, ours, want, k, padded)
			addLayer(&t.routing, before, report.LayerRouting{Layer: fmt.Sprintf("model.layers.%d", s.Layer),
				Same: common(ours.Idx, want, k, padded), Load: loads(want, k, ours.Scores.Width(), padded),
				TableRows: t.tableRows(ours), Wrong: wrong})
			copy(ours.Idx, want)
		}
	}
	return t.add(c)
}

// choose puts the golden's choice of experts in idx, if it is one.
func (t *tracer) choose(name string, idx []int, tokens, experts int, repeats bool) error {
	k := len(idx) / tokens
	if pack.Misfit(t.pack.Manifest.Tensors[name], []int{tokens, k}, tensor.I64) != "" {
		return nil
	}
	want, err := t.pack.Ints(name)
	if err == nil && notExperts(want, k, experts, repeats) == "" {
		copy(idx, want)
	}
	return err
}

// tableRows counts the rows of a table of experts that the tokens read.
func (t *tracer) tableRows(ours *choice) int {
	if ours.Table == nil {
		return 0
	}
	return distinctTokens(t.rows)
}

// addLayer adds a layer with the counts since before.
func addLayer(r *report.Routing, before report.Routing, l report.LayerRouting) {
	l.Choices, l.Pinned, l.Mismatches = r.Choices-before.Choices, r.Pinned-before.Pinned, r.Mismatches-before.Mismatches
	l.ExactTies, l.NearTies = r.ExactTies-before.ExactTies, r.NearTies-before.NearTies
	r.Layers = append(r.Layers, l)
}

// common counts the experts that two choices of k for each token have in common, without
// padding.
func common(a, b []int, k int, padded pack.Padding) (n int) {
	for i, e := range a {
		if !padded.Has(i/k) && slices.Contains(b[i/k*k:i/k*k+k], e) {
			n++
		}
	}
	return n
}

// loads counts how often tokens other than padding chose each expert, k of them each.
func loads(chosen []int, k, experts int, padded pack.Padding) []int {
	load := make([]int, experts)
	for i, e := range chosen {
		if !padded.Has(i / k) {
			load[e]++
		}
	}
	return load
}

// markReached records the experts whose output shows for some token other than padding, given the
// weights of those last chosen.
func (t *tracer) markReached(layer int, weights *model.Activation) {
	padded := pack.PaddedTokens(t.rows, weights.Rows())
	for slot, e := range t.chosen {
		if contributes(weights, padded, slot) {
			addExpert(t.reached, layer, e)
		}
	}
}

// notRouting returns why ids are no choice of k experts per token, different ones unless a table lists them, or why
// there is nothing to compare them by. Scores of padding do not count.
func notRouting(ids []int, k int, ours *choice, padded pack.Padding) string {
	experts := ours.Scores.Width()
	for i, score := range ours.Scores.Values {
		if score != score && !padded.Has(i/experts) {
			return fmt.Sprintf("the score of expert %d for token %d is not a number", i%experts, i/experts)
		}
	}
	return notExperts(ids, k, experts, ours.Table != nil)
}

// notExperts returns why ids are no choice of k experts per token, which may repeat one or not.
func notExperts(ids []int, k, experts int, repeats bool) string {
	for i, e := range ids {
		if e < 0 || e >= experts {
			return fmt.Sprintf("golden expert %d of token %d is not one of %d", e, i/k, experts)
		}
		if !repeats && slices.Contains(ids[i/k*k:i], e) {
			return fmt.Sprintf("golden expert %d of token %d appears twice", e, i/k)
		}
	}
	return ""
}

// compareTopK counts the golden's choices that are not ours by what excuses them, and those
// that no rounding could change. Padding does not count. It returns the tokens with a choice that nothing excuses.
func (t *tracer) compareTopK(c *report.Check, ours *choice, want []int, k int, padded pack.Padding) (rows map[int]bool) {
	rows = map[int]bool{}
	wrong, tokens := 0, ours.Scores.Rows()-c.Padding
	for row := range ours.Scores.Rows() {
		if padded.Has(row) {
			continue
		}
		theirs := want[row*k : (row+1)*k]
		found := compareRow(ours, theirs, row)
		if len(found.wrong) > 0 && wrong == 0 {
			place := slices.Index(theirs, found.wrong[0])
			for ours.Table != nil && theirs[place] == found.ours[place] { // the table lists it, too, elsewhere
				place++
			}
			c.Index = []int{row, place}
			c.Gap = gapOf(ours, theirs, row, found.wrong[0])
			c.Want, c.Got = fmt.Sprintf("expert %d", found.wrong[0]), fmt.Sprintf("experts %v", found.ours)
		}
		if wrong += len(found.wrong); len(found.wrong) > 0 {
			rows[row] = true
		}
		t.routing.ExactTies += found.exactTies
		t.routing.NearTies += found.nearTies
		t.routing.Pinned += pinned(ours, row, k)
	}
	if layer := t.m.Layer(c.Layer()); layer.MoE != nil && layer.MoE.Gate.EScoreCorrectionBias.Name != "" {
		pins := biasPins(c.Layer(), ours, want, k, padded)
		if wrong == 0 {
			t.pinBias(&pins, &layer.MoE.Gate, want, k, padded)
		}
		t.routing.Biases = append(t.routing.Biases, pins)
	}
	if ours.Groups != nil {
		t.tellGroups(c.Layer(), wrong, want, k, padded)
	}
	t.routing.Choices += tokens * k
	t.routing.Mismatches += wrong
	skip := ""
	if t.o.Mode == report.Chained && t.pack.DType != tensor.F32 {
		skip = t.unjudged(c.Tensor)
	}
	switch {
	case tokens == 0:
		c.Verdict, c.Reason = report.Skipped, allPadding
	case skip != "":
		c.Verdict, c.Reason = report.Skipped, skip
	case wrong > 0:
		c.Reason = text.Plural(wrong, "choice") + " of another expert, where rounding does not explain it"
		if ours.Table != nil {
			c.Reason = fmt.Sprintf("%s of another expert than %s lists for the token", text.Plural(wrong, "choice"), ours.Table.Name)
		}
		c.Failed = []report.Measure{{Name: "choices", Value: report.JSONFloat(float64(wrong))}}
	default:
		c.Verdict = report.Pass
	}
	return rows
}

// biasPins says how far the golden's choices pin the bias of each expert: an expert that was
// chosen, by how much its score exceeds the best that was not; one that was not, by how much
// the worst that was exceeds its. Experts of masked groups, whose scores are -∞, and padding take
// no part.
func biasPins(layer int, ours *choice, want []int, k int, padded pack.Padding) report.BiasPins {
	pins := slices.Repeat([]float64{math.Inf(1)}, ours.Scores.Width())
	for row := range ours.Scores.Rows() {
		if !padded.Has(row) {
			pinBiases(pins, ours.Scores.Row(row), want[row*k:(row+1)*k])
		}
	}
	p := report.BiasPins{Layer: fmt.Sprintf("model.layers.%d", layer), Free: []int{}, Same: []string{}}
	var known []float64
	for e, slack := range pins {
		if math.IsInf(slack, 1) {
			p.Free = append(p.Free, e)
			continue
		}
		if known = append(known, slack); slack >= p.Widest {
			p.Widest, p.Expert = slack, e
		}
	}
	if slices.Sort(known); known != nil {
		p.Median = known[len(known)/2]
	}
	return p
}

// pinBiases lowers pins, one of each expert, to what the choice of one token leaves them.
func pinBiases(pins []float64, scores []float32, chosen []int) {
	least, most := math.Inf(1), math.Inf(-1) // of those chosen, and of the others
	for e, s := range scores {
		switch {
		case !tensor.IsFinite(s):
		case slices.Contains(chosen, e):
			least = min(least, float64(s))
		default:
			most = max(most, float64(s))
		}
	}
	for e, s := range scores {
		slack := least - float64(s)
		if slices.Contains(chosen, e) {
			slack = float64(s) - most
		}
		if tensor.IsFinite(s) {
			pins[e] = min(pins[e], max(0, slack))
		}
	}
}

// distinctTokens counts the token ids of an input, without padding.
func distinctTokens(in *model.Input) int {
	ids := map[int]bool{}
	for i, id := range in.InputIDs {
		if !in.IsPadding(i) {
			ids[id] = true
		}
	}
	return len(ids)
}
