package verify

import (
	"cmp"
	"fmt"
	"math"
	"slices"

	"dsmoe/model"
	"dsmoe/model/tensor"
	"dsmoe/text"
	"dsmoe/verify/bounds"
	"dsmoe/verify/pack"
	"dsmoe/verify/report"
)

// topKeys compares the keys that an indexer chose for each query with the golden's, as sets, and puts the
// golden's in their place.
func (t *tracer) topKeys(name string, ours *choice) error {
	if has, err := t.golden(name); err != nil || !has {
		return err
	}
	c := report.Check{Tensor: name, Verdict: report.Fail, DType: t.pack.Manifest.Tensors[name].DType.String(),
		Shape: t.pack.Manifest.Tensors[name].Shape}
	rows := &keyRows{ours, len(ours.Idx) / ours.Scores.Rows(), t.in.Seq}
	padded := pack.PaddedTokens(t.rows, ours.Scores.Rows())
	want, reason, err := t.goldenKeys(name, rows.k, ours.Scores.Rows(), ours.Scores.Width())
	if err != nil {
		return err
	}
	if c.Reason, c.Padding = reason, padded.Count(); c.Reason == "" {
		c.Reason = rows.notVisible(want, padded)
	}
	if !t.scope.compares(name) {
		if c.Reason == "" {
			copy(ours.Idx, want)
		}
		return nil
	}
	if c.Reason == "" {
		t.compareKeys(&c, rows, want, padded)
		copy(ours.Idx, want)
	}
	return t.add(c)
}

// goldenKeys returns the golden choice of an indexer, k of so many keys for each query, or why it is none.
func (t *tracer) goldenKeys(name string, k, queries, all int) (keys []int, reason string, err error) {
	if reason = pack.Misfit(t.pack.Manifest.Tensors[name], []int{t.in.Batch, queries / t.in.Batch, k},
		tensor.I64); reason != "" {
		return nil, reason, nil
	}
	if keys, err = t.pack.Ints(name); err != nil {
		return nil, "", err
	}
	last := make([]int, all) // 1 + the last query that chose a key
	for i, key := range keys {
		if key < -1 || key >= all || key >= 0 && last[key] == i/k+1 {
			return nil, fmt.Sprintf("golden key %d of query %d is not one of %d, or appears twice", key, i/k, all), nil
		}
		if key >= 0 {
			last[key] = i/k + 1
		}
	}
	if t.pack.IsTrace() { // in any order; those that the mask hides go last
		for row := range slices.Chunk(keys, k) {
			slices.SortFunc(row, func(a, b int) int { return cmp.Compare(uint(a), uint(b)) })
		}
	}
	return keys, "", nil
}

// sharedKeys returns the golden choice of a layer's indexer that is not run.
func (t *tracer) sharedKeys(layer int) ([]int, error) {
	name, seq := pack.StageOf(layer, pack.IndexerTopK), t.in.Seq
	keys, reason, err := t.goldenKeys(name, min(t.m.Config.IndexTopK, seq), len(t.in.InputIDs), seq)
	if err == nil && reason != "" {
		err = t.pack.Fault(name+", which later layers share", reason)
	}
	return keys, err
}

// keyRows are the choices of an indexer, of k keys for each query.
type keyRows struct {
	*choice
	k   int
	seq int // queries of a sequence
}

// hidden reports whether the mask hides a key from a query, whatever its score.
func (r *keyRows) hidden(row, key int) bool { return r.Mask.Masked(row/r.seq, row%r.seq, key) }

// visible returns the keys of a query that the mask does not hide.
func (r *keyRows) visible(row int) (keys []int) {
	for key := range r.Scores.Width() {
		if !r.hidden(row, key) {
			keys = append(keys, key)
		}
	}
	return keys
}

// notVisible returns why want is no choice of the keys that each query sees.
func (r *keyRows) notVisible(want []int, padded pack.Padding) string {
	for row := range r.Scores.Rows() {
		if padded.Has(row) {
			continue
		}
		visible, chosen := r.visible(row), of(want, row, r.k)
		if n := min(r.k, len(visible)); len(chosen) != n {
			return fmt.Sprintf("the golden has %d keys of query %d, which sees %d: not %d", len(chosen), row, len(visible), n)
		}
		for _, key := range chosen {
			if r.hidden(row, key) {
				return fmt.Sprintf("golden key %d of query %d is hidden by the mask", key, row)
			}
		}
		for _, key := range visible {
			if !tensor.IsFinite(r.Scores.Row(row)[key]) {
				return fmt.Sprintf("the score of key %d for query %d is not finite", key, row)
			}
		}
	}
	return ""
}

// of returns the keys of a query, without those that the mask hides.
func of(idx []int, row, k int) []int {
	keys := idx[row*k : (row+1)*k]
	if hidden := slices.Index(keys, -1); hidden >= 0 {
		return keys[:hidden]
	}
	return keys
}

// compareKeys counts the golden's keys that are not ours by what excuses them. Padding does not count.
func (t *tracer) compareKeys(c *report.Check, rows *keyRows, want []int, padded pack.Padding) {
	count, wrong := &report.KeyChoices{}, 0
	t.keys[c.Layer()] = count
	for row := range rows.Scores.Rows() {
		if padded.Has(row) {
			continue
		}
		rows.countCut(count, row)
		theirs := of(want, row, rows.k)
		found := rows.compareRow(theirs, row)
		if len(found.wrong) > 0 && wrong == 0 {
			c.Index = []int{row / t.in.Seq, row % t.in.Seq, slices.Index(theirs, found.wrong[0])}
			c.Want, c.Got = fmt.Sprintf("key %d", found.wrong[0]), fmt.Sprintf("keys %v", found.ours)
		}
		wrong += len(found.wrong)
		count.ExactTies += found.exactTies
		count.NearTies += found.nearTies
	}
	count.Mismatches += wrong
	switch skip := t.unjudgedKeys(c.Tensor); {
	case c.Padding == rows.Scores.Rows():
		c.Verdict, c.Reason = report.Skipped, allPadding
	case skip != "":
		c.Verdict, c.Reason = report.Skipped, skip
	case wrong > 0:
		c.Reason = text.Plural(wrong, "choice") + " of another key, where rounding does not explain it"
		c.Failed = []report.Measure{{Name: "choices", Value: report.JSONFloat(float64(wrong))}}
	default:
		c.Verdict = report.Pass
	}
}

// unjudgedKeys returns why the choice of keys is not judged end to end.
func (t *tracer) unjudgedKeys(name string) string {
	switch {
	case t.o.Mode == report.Local:
		return ""
	case t.pack.DType != tensor.F32:
		return t.unjudged(name)
	case t.keysErr == nil:
		return "end to end, without " + pack.IndexerScores + " in the pack, how far scores are off is not known"
	}
	return ""
}

// countCut counts a query that sees more keys than are chosen, and whether the choice falls among equal
// scores.
func (r *keyRows) countCut(count *report.KeyChoices, row int) {
	visible, scores := r.visible(row), r.Scores.Row(row)
	if len(visible) <= r.k {
		return
	}
	count.Queries++
	slices.SortFunc(visible, func(a, b int) int { return cmp.Compare(scores[b], scores[a]) })
	if last := scores[visible[r.k-1]]; last == scores[visible[r.k]] {
		count.TiedCuts++
		if last == 0 {
			count.ZeroCuts++
		}
	}
}

// compareRow compares one query's keys. Those that only we chose and those that only the golden chose
// are paired by score, best with best: every pair has to tie. A query sees as many keys in both.
func (r *keyRows) compareRow(theirs []int, row int) rowChoice {
	found := rowChoice{ours: of(r.Idx, row, r.k)}
	first := row * r.Scores.Width()
	dropped := only(found.ours, theirs, r.Scores.Row(row))
	for i, key := range only(theirs, found.ours, r.Scores.Row(row)) {
		found.count(r.Scores.Tie(first+dropped[i], first+key), key)
	}
	return found
}

// keyErrors are an indexer's scores with the errors that they have end to end, which are those of each
// query's scores, and of rounding.
func (t *tracer) keyErrors(scores *model.Activation) *bounds.Value {
	return bounds.WithErrors(scores, func(i int) float64 {
		if bounds.Hidden(scores.Values[i]) {
			return 0
		}
		noise := float64(0x1p-22 * math.Abs(float64(scores.Values[i])))
		if row := i / scores.Width(); row < len(t.keysErr) {
			noise += t.keysErr[row]
		}
		return math.Sqrt2 * noise / bounds.Lambda
	})
}

// visibleScores returns copies of an indexer's scores, and of the golden's, in which those that the mask
// hides in both are 0: they are the lowest number, beside which no other counts.
func visibleScores(values, want []float32) (ours, golden []float32) {
	ours, golden = slices.Clone(values), slices.Clone(want)
	for i, g := range golden {
		if bounds.Hidden(g) && g == ours[i] {
			ours[i], golden[i] = 0, 0
		}
	}
	return ours, golden
}
