package verify

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"dsmoe/model"
	"dsmoe/model/tensor"
	"dsmoe/text"
	"dsmoe/verify/pack"
	"dsmoe/verify/report"
)

// Replayed choices. A trainer may take each token's experts from a rollout's trace (routing replay, R2 and R3): its own
// router gives their weights alone.

// sameTokens refuses another trace that does not have the tokens of an input.
func sameTokens(in *model.Input, other *pack.Pack) error {
	its, err := other.Input()
	if err == nil && (in.Batch != its.Batch || !slices.Equal(in.InputIDs, its.InputIDs) ||
		!slices.Equal(in.AttentionMask, its.AttentionMask)) {
		return other.Fault("", "its tokens are not those of the trace that it is compared with")
	}
	return err
}

// checkReplay refuses a trace to replay that has other tokens, or not the choices of each layer whose choices are compared.
func (j *job) checkReplay() error {
	other, layers := j.options.Replay, 0
	if other == nil {
		return nil
	}
	if err := other.Spell(j.model.Config); err != nil {
		return err
	}
	if err := sameTokens(j.in, other); err != nil {
		return err
	}
	for _, name := range slices.Sorted(maps.Keys(j.pack.Manifest.Tensors)) {
		if !j.replays(name) {
			continue
		}
		layers++
		e, its := j.pack.Manifest.Tensors[name], other.Manifest.Tensors[name]
		if !other.Has(name) {
			return other.Fault(name, "the trace to replay lacks it, and the trace that replays has it")
		} else if cause := pack.Misfit(its, e.Shape, tensor.I64); cause != "" {
			return other.Fault(name, cause)
		}
		ids, err := other.Ints(name)
		if err != nil {
			return err
		}
		if cause := notExperts(ids, its.Shape[len(its.Shape)-1], j.model.Config.Choices(), false); cause != "" {
			return other.Fault(name, cause)
		}
	}
	if layers == 0 && j.options.Part == nil {
		return j.pack.Fault("", "it has no choices of experts that are compared: there is nothing to replay")
	}
	return nil
}

// replays reports whether a stage is a choice of experts that is compared with the replayed one. What a table lists for
// each token is not replayed.
func (j *job) replays(name string) bool {
	s := pack.Parse(name)
	return j.options.Replay != nil && s.Within == pack.TopKIdx && s.Layer < j.scope.layersEnd() &&
		!j.model.Config.Hashes(s.Layer) && j.scope.compares(name)
}

// compareReplayed compares the golden's choices of k experts, want, with those of the trace that it replays. What decides
// the router's own choices is not exercised.
func (t *pass) compareReplayed(c *report.Check, ours *choice, want []int, k int, padded pack.Padding) (report.LayerRouting,
	error) {
	j, tokens := t.job, ours.Scores.Rows()-c.Padding
	l := report.LayerRouting{Layer: fmt.Sprintf("model.layers.%d", c.Layer()), Choices: tokens * k, Replayed: true,
		Pinned: tokens * k, Load: make([]int, ours.Scores.Width()), Wrong: map[int]bool{}, Own: slices.Clone(ours.Idx)}
	replayed, err := j.options.Replay.Ints(c.Tensor)
	if err != nil {
		return l, err
	}
	first := ""
	for row := range ours.Scores.Rows() {
		if padded.Has(row) {
			continue
		}
		theirs, its := want[row*k:(row+1)*k], replayed[row*k:(row+1)*k]
		for _, e := range theirs {
			l.Load[e]++
			if slices.Contains(ours.Idx[row*k:(row+1)*k], e) {
				l.Same++
			}
		}
		for i, e := range theirs {
			if slices.Contains(its, e) {
				continue
			}
			if l.Mismatches++; len(l.Wrong) == 0 {
				c.Index, first = []int{row, i}, fmt.Sprintf("expert %d of token %d is not one of %v", e, row, its)
			}
			l.Wrong[row] = true
		}
	}
	if gate := &j.model.Layer(c.Layer()).MoE.Gate; gate.EScoreCorrectionBias.Name != "" {
		t.evidence.unpinned[gate.EScoreCorrectionBias.Name] = struct{}{}
	}
	if judgeChoices(c, tokens, l.Mismatches, "", ""); c.Verdict == report.Fail {
		c.Reason = fmt.Sprintf("%s of another expert than %s has for the token: %s", text.Plural(l.Mismatches, "choice"),
			text.Quote(j.options.Replay.Dir), first)
	}
	return l, nil
}

// replayedLayer is a layer whose choices are not those that it replays.
type replayedLayer struct {
	report.LayerRouting
	k, seq   int              // experts of a token, tokens of a sequence
	have     []int            // the trace's choices [tokens, k]
	replayed map[string][]int // choices of the trace that is replayed, by their layer
}

// has reports whether a token's experts are those that the replayed trace has for a token in a layer.
func (l *replayedLayer) has(token int, layer string, other int) bool {
	its := l.replayed[layer][other*l.k : (other+1)*l.k]
	return !slices.ContainsFunc(l.have[token*l.k:(token+1)*l.k], func(e int) bool { return !slices.Contains(its, e) })
}

// all reports whether all tokens have the experts that the replayed trace has for the tokens that of names, in a layer.
// of returns -1 for a token that may have any; there must be wrong tokens that of names.
func (l *replayedLayer) all(layer string, of func(token int) int) bool {
	named := 0
	for token := range len(l.have) / l.k {
		switch other := of(token); {
		case other < 0:
		case !l.has(token, layer, other):
			return false
		case l.Wrong[token]:
			named++
		}
	}
	return named > 0
}

// replayMistakes are the ways in which replayed choices go wrong. In each, words says how a layer's choices arose; "" if
// not so.
var replayMistakes = []struct {
	id    string
	words func(l *replayedLayer) string
}{
	{"replay-layer", func(l *replayedLayer) string {
		for _, other := range slices.SortedFunc(maps.Keys(l.replayed), layerOrder) {
			if len(l.replayed[other]) == len(l.have) && l.all(other, func(token int) int { return token }) {
				return "has the choices of " + other
			}
		}
		return ""
	}},
	{"replay-shift", func(l *replayedLayer) string {
		for by := 1; by <= l.seq/2; by++ { // of half of the tokens a choice may be known
			for _, shift := range []int{-by, by} {
				if l.all(l.Layer, func(token int) int {
					if at := token%l.seq + shift; at < 0 || at >= l.seq {
						return -1
					}
					return token + shift
				}) {
					return fmt.Sprintf("each token has the choices of the one %s %s it", text.Plural(by, "place"),
						map[bool]string{true: "before", false: "behind"}[shift < 0])
				}
			}
		}
		return ""
	}},
	{"replay-sequence", func(l *replayedLayer) string {
		n := len(l.have) / l.k
		for by := l.seq; by < n; by += l.seq {
			if l.all(l.Layer, func(token int) int { return (token + by) % n }) {
				return fmt.Sprintf("each sequence has the choices of the one %s behind it, cyclically", text.Plural(by/l.seq, "place"))
			}
		}
		return ""
	}},
	{"replay-stale", func(l *replayedLayer) string {
		var runs [][2]int // the token that others repeat, and the first of these
		for _, token := range slices.Sorted(maps.Keys(l.Wrong)) {
			if n, start := len(runs), token/l.seq*l.seq; n == 0 || runs[n-1][0] < start || !l.has(token, l.Layer, runs[n-1][0]) {
				if from := token - 1; from < start || l.Wrong[from] || !l.has(token, l.Layer, from) {
					return ""
				}
				runs = append(runs, [2]int{token - 1, token})
			}
		}
		var words []string
		for _, run := range runs {
			words = append(words, fmt.Sprintf("row %d's from row %d on", run[0], run[1]))
		}
		return "has choices again that are stale: " + text.Some(words, 4, ", ")
	}},
	{"replay-own", func(l *replayedLayer) string {
		for token := range l.Wrong {
			own := l.Own[token*l.k : (token+1)*l.k]
			if slices.ContainsFunc(l.have[token*l.k:(token+1)*l.k], func(e int) bool { return !slices.Contains(own, e) }) {
				return ""
			}
		}
		return fmt.Sprintf("the router's own choices are in %s: nothing was replayed there",
			text.Plural(len(l.Wrong), "token"))
	}},
}

// layerOrder compares layers' names by their numbers.
func layerOrder(a, b string) int { return pack.Parse(a).Layer - pack.Parse(b).Layer }

// replayCauses names how choices came to differ from those that were replayed: causes explain all layers in which they
// differ, hints some of them.
func (e *evidence) replayCauses(r *report.Report) error {
	var wrong []*replayedLayer
	j, replayed := e.job, map[string][]int{}
	for name := range j.options.Replay.Manifest.Tensors {
		if layer, is := strings.CutSuffix(name, "."+pack.TopKIdx); is {
			var err error
			if replayed[layer], err = j.options.Replay.Ints(name); err != nil {
				return err
			}
		}
	}
	for _, layer := range e.routing.Layers {
		if name := layer.Layer + "." + pack.TopKIdx; layer.Replayed && layer.Mismatches > 0 {
			have, err := j.pack.Ints(name)
			if err != nil {
				return err
			}
			k := j.model.Config.MoE.NumExpertsPerTok
			wrong = append(wrong, &replayedLayer{layer, k, len(have) / k / j.in.Batch, have, replayed})
		}
	}
	for _, m := range replayMistakes {
		of, order, explained := map[string][]int{}, []string{}, 0
		for _, l := range wrong {
			if words := m.words(l); words != "" {
				explained++
				if of[words] == nil {
					order = append(order, words)
				}
				of[words] = append(of[words], pack.Parse(l.Layer).Layer)
			}
		}
		if explained == 0 {
			continue
		}
		for i, words := range order {
			order[i] = report.LayersText(of[words]) + ": " + words
		}
		c := report.Cause{ID: m.id, Text: text.Some(order, 4, "; "), Explains: explained, Failing: len(wrong)}
		if explained < len(wrong) {
			r.Hints = append(r.Hints, c)
		} else {
			r.Causes = append(r.Causes, c)
		}
	}
	if len(r.Causes) > 0 {
		r.Cause = &r.Causes[0]
	}
	return nil
}
