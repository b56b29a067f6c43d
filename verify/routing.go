package verify

import (
	"fmt"
	"maps"
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
func (t *pass) topK(name string, ours *choice) error {
	j, s := t.job, pack.Parse(name)
	if s.OfIndexer() == pack.IndexerTopK {
		return t.topKeys(name, ours)
	}
	t.chosen = ours.Idx // what the pass goes on with
	if has, err := t.evidence.golden(name); err != nil || !has {
		return err
	}
	if !j.scope.compares(name) { // what decides the choices is not checked: the golden's take their place
		gate := &j.model.Layer(s.Layer).MoE.Gate
		t.leaveUndecided(gate.EScoreCorrectionBias.Name)
		if gate.TID2EID != nil {
			t.leaveUndecided(gate.TID2EID.Name)
		}
		return t.choose(name, ours.Idx, ours.Scores.Rows(), ours.Scores.Width(), ours.Table != nil)
	}
	k, padded := len(ours.Idx)/ours.Scores.Rows(), pack.PaddedTokens(j.rows, ours.Scores.Rows())
	c := j.check(name)
	c.Verdict = report.Fail
	c.Reason = pack.Misfit(j.pack.Manifest.Tensors[name], []int{ours.Scores.Rows(), k}, tensor.I64)
	if c.Reason == "" {
		want, err := j.pack.Ints(name)
		if err != nil {
			return err
		}
		c.Padding = padded.Count()
		if c.Reason = notRouting(want, k, ours, padded); c.Reason == "" && j.replays(name) {
			layer, err := t.compareReplayed(&c, ours, want, k, padded)
			if err != nil {
				return err
			}
			addLayer(&t.evidence.routing, layer)
			copy(ours.Idx, want)
		} else if c.Reason == "" {
			layer := t.compareTopK(&c, ours, want, k, padded)
			if layer.InFloat32 = t.inFloat32; t.roundsLogits {
				n := 0
				for slot, e := range want {
					if row := slot / k; !padded.Has(row) && !slices.Contains(t.inFloat32[row*k:(row+1)*k], e) {
						n++
					}
				}
				layer.Rounded = &n
			}
			if addLayer(&t.evidence.routing, layer); j.counts {
				m := make(misses, ours.Scores.Rows()/64+1)
				for row := range layer.Wrong {
					m.set(row)
				}
				t.evidence.misses[name] = m
			}
			copy(ours.Idx, want)
		}
	}
	return t.evidence.add(c)
}

// choose puts the golden's choice of experts in idx, if the pack has one.
func (t *pass) choose(name string, idx []int, tokens, experts int, repeats bool) error {
	k := len(idx) / tokens
	if pack.Misfit(t.job.pack.Manifest.Tensors[name], []int{tokens, k}, tensor.I64) != "" {
		return nil
	}
	want, err := t.job.pack.Ints(name)
	if err == nil && notExperts(want, k, experts, repeats) == "" {
		copy(idx, want)
	}
	return err
}

// addLayer adds the choices of a layer.
func addLayer(r *report.Routing, l report.LayerRouting) {
	r.Layers = append(r.Layers, l)
	r.Choices, r.Pinned, r.Mismatches = r.Choices+l.Choices, r.Pinned+l.Pinned, r.Mismatches+l.Mismatches
	r.ExactTies, r.NearTies = r.ExactTies+l.ExactTies, r.NearTies+l.NearTies
	if l.Rounded != nil {
		if r.Rounded == nil {
			r.Rounded = new(int)
		}
		*r.Rounded += *l.Rounded
	}
}

// markReached records the experts whose output shows for some token other than padding, given the
// weights of those last chosen.
func (t *pass) markReached(layer int, weights *model.Activation) {
	padded := pack.PaddedTokens(t.job.rows, weights.Rows())
	for slot, number := range t.chosen {
		if contributes(weights, padded, slot) {
			t.evidence.reached[expert{layer, number}] = true
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
			words := fmt.Sprintf("golden expert %d of token %d is not one of %d", e, i/k, experts)
			if e >= experts {
				return words + fmt.Sprintf("; the largest is %d: record the numbers of the router's rows, not of a load "+
					"balancer's physical slots or of fused shared experts", slices.Max(ids))
			}
			tokens := 0
			for row := range slices.Chunk(ids, k) {
				if slices.Min(row) < 0 {
					tokens++
				}
			}
			return words + fmt.Sprintf("; %d of %s have negative numbers, as those have that an engine did not route", tokens,
				text.Plural(len(ids)/k, "token"))
		}
		if !repeats && slices.Contains(ids[i/k*k:i], e) {
			return fmt.Sprintf("golden expert %d of token %d appears twice", e, i/k)
		}
	}
	return ""
}

// compareTopK counts the golden's choices that are not ours by what excuses them, and those
// that no rounding could change. Padding does not count.
func (t *pass) compareTopK(c *report.Check, ours *choice, want []int, k int, padded pack.Padding) report.LayerRouting {
	j, tokens := t.job, ours.Scores.Rows()-c.Padding
	l := report.LayerRouting{Layer: fmt.Sprintf("model.layers.%d", c.Layer()), Choices: tokens * k,
		Load: make([]int, ours.Scores.Width()), Wrong: map[int]bool{}}
	if ours.Table != nil {
		l.TableRows = distinctTokens(j.rows)
	}
	for row := range ours.Scores.Rows() {
		if padded.Has(row) {
			continue
		}
		theirs := want[row*k : (row+1)*k]
		for i, e := range theirs {
			l.Load[e]++
			if slices.Contains(theirs, ours.Idx[row*k+i]) {
				l.Same++
			}
		}
		found := compareRow(ours, theirs, row)
		if len(found.wrong) > 0 && l.Mismatches == 0 {
			place := slices.Index(theirs, found.wrong[0])
			for ours.Table != nil && theirs[place] == found.ours[place] { // the table lists it, too, elsewhere
				place++
			}
			c.Index = []int{row, place}
			c.Gap = gapOf(ours, theirs, row, found.wrong[0])
			c.Want, c.Got = fmt.Sprintf("expert %d", found.wrong[0]), fmt.Sprintf("experts %v", found.ours)
		}
		if l.Mismatches += len(found.wrong); len(found.wrong) > 0 {
			l.Wrong[row] = true
		}
		l.ExactTies, l.NearTies = l.ExactTies+found.exactTies, l.NearTies+found.nearTies
		l.Pinned += pinned(ours, row, k)
	}
	if layer := j.model.Layer(c.Layer()); layer.MoE != nil && layer.MoE.Gate.EScoreCorrectionBias.Name != "" {
		pins := biasPins(c.Layer(), ours, want, k, padded)
		if l.Mismatches == 0 {
			t.pinBias(&pins, &layer.MoE.Gate, want, k, padded)
		}
		t.evidence.routing.Biases = append(t.evidence.routing.Biases, pins)
	}
	if ours.Groups != nil {
		t.tellGroups(c.Layer(), l.Mismatches, want, k, padded)
	}
	skip := ""
	if j.options.Mode == report.Chained && j.pack.DType != tensor.F32 {
		skip = j.unjudged(c.Tensor)
	}
	judgeChoices(c, tokens, l.Mismatches, skip, "expert")
	if c.Verdict == report.Fail {
		var compared []int
		for row := range ours.Scores.Rows() {
			if !padded.Has(row) {
				compared = append(compared, row)
			}
		}
		c.Rows = t.failingRows(c.Tensor, []int{ours.Scores.Rows(), k}, compared, slices.Sorted(maps.Keys(l.Wrong)))
	}
	if c.Verdict == report.Fail && ours.Table != nil {
		c.Reason = fmt.Sprintf("%s of another expert than %s lists for the token", text.Plural(l.Mismatches, "choice"),
			ours.Table.Name)
	}
	return l
}

// biasPins says how far the golden's choices pin the bias of each expert: an expert that was
// chosen, by how much its score exceeds the best that was not; one that was not, by how much
// the worst that was exceeds its. Experts of masked groups, whose scores are -∞, and padding take
// no part.
func biasPins(layer int, ours *choice, want []int, k int, padded pack.Padding) report.BiasPins {
	pins := slices.Repeat([]float64{math.Inf(1)}, ours.Scores.Width())
	for row := range ours.Scores.Rows() {
		if padded.Has(row) {
			continue
		}
		scores, chosen := ours.Scores.Row(row), want[row*k:(row+1)*k]
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
