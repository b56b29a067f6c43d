package verify

import (
	"cmp"
	"fmt"
	"slices"

	"dsmoe/model/tensor"
	"dsmoe/verify/bounds"
	"dsmoe/verify/pack"
	"dsmoe/verify/report"
)

// topKeys compares the keys that an indexer chose for each query with the golden's, as sets, and puts the
// golden's in their place.
func (t *pass) topKeys(name string, ours *choice) error {
	j := t.job
	if has, err := t.evidence.golden(name); err != nil || !has {
		return err
	}
	c := j.check(name)
	c.Verdict = report.Fail
	rows := &keyRows{ours, len(ours.Idx) / ours.Scores.Rows(), j.in.Seq}
	padded := pack.PaddedTokens(j.rows, ours.Scores.Rows())
	want, reason, err := j.goldenKeys(name, rows.k, ours.Scores.Rows(), ours.Scores.Width())
	if err != nil {
		return err
	}
	if c.Reason, c.Padding = reason, padded.Count(); c.Reason == "" {
		c.Reason = rows.notVisible(want, padded)
	}
	if !j.scope.compares(name) {
		if c.Reason == "" {
			copy(ours.Idx, want)
		}
		return nil
	}
	if c.Reason == "" {
		t.compareKeys(&c, rows, want, padded)
		copy(ours.Idx, want)
	}
	return t.evidence.add(c)
}

// goldenKeys returns the golden choice of an indexer, k of so many keys for each query, or why it is none.
func (j *job) goldenKeys(name string, k, queries, all int) (keys []int, reason string, err error) {
	if reason = pack.Misfit(j.pack.Manifest.Tensors[name], []int{j.in.Batch, queries / j.in.Batch, k},
		tensor.I64); reason != "" {
		return nil, reason, nil
	}
	if keys, err = j.pack.Ints(name); err != nil {
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
	if j.pack.IsTrace() { // in any order; those that the mask hides go last
		for row := range slices.Chunk(keys, k) {
			slices.SortFunc(row, func(a, b int) int { return cmp.Compare(uint(a), uint(b)) })
		}
	}
	return keys, "", nil
}

// sharedKeys returns the golden choice of a layer's indexer that is not run.
func (j *job) sharedKeys(layer int) ([]int, error) {
	name, seq := pack.StageOf(layer, pack.IndexerTopK), j.in.Seq
	keys, reason, err := j.goldenKeys(name, min(j.model.Config.Indexer.IndexTopK, seq), len(j.in.InputIDs), seq)
	if err == nil && reason != "" {
		err = j.pack.Fault(name+", which later layers share", reason)
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
		visible, chosen := r.visible(row), keysOf(want, row, r.k)
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

// keysOf returns the keys of a query, without those that the mask hides.
func keysOf(idx []int, row, k int) []int {
	keys := idx[row*k : (row+1)*k]
	if hidden := slices.Index(keys, -1); hidden >= 0 {
		return keys[:hidden]
	}
	return keys
}

// compareKeys counts the golden's keys that are not ours by what excuses them: those that only we chose and those that
// only the golden chose are paired by score, best with best, and every pair has to tie. Padding does not count.
func (t *pass) compareKeys(c *report.Check, rows *keyRows, want []int, padded pack.Padding) {
	count, wrong, seq := &report.KeyChoices{}, 0, t.job.in.Seq
	var compared, failing []int
	t.evidence.keys[c.Layer()] = count
	for row := range rows.Scores.Rows() {
		if padded.Has(row) {
			continue
		}
		rows.countCut(count, row)
		theirs := keysOf(want, row, rows.k)
		found := rowChoice{ours: keysOf(rows.Idx, row, rows.k)}
		scores, first := rows.Scores.Row(row), row*rows.Scores.Width()
		dropped := without(found.ours, theirs, scores) // as many as those that only the golden chose
		for i, key := range without(theirs, found.ours, scores) {
			found.count(rows.Scores.Tie(first+dropped[i], first+key), key)
		}
		if len(found.wrong) > 0 && wrong == 0 {
			c.Index = []int{row / seq, row % seq, slices.Index(theirs, found.wrong[0])}
			c.Want, c.Got = fmt.Sprintf("key %d", found.wrong[0]), fmt.Sprintf("keys %v", found.ours)
		}
		if compared = append(compared, row); len(found.wrong) > 0 {
			failing = append(failing, row)
		}
		wrong += len(found.wrong)
		count.ExactTies += found.exactTies
		count.NearTies += found.nearTies
	}
	count.Mismatches += wrong
	skip := t.job.unjudged(c.Tensor)
	if t.job.options.Mode == report.Chained && t.job.pack.DType == tensor.F32 {
		if skip = ""; t.keysErr == nil {
			skip = "end to end, without " + pack.IndexerScores + " in the pack, how far scores are off is not known"
		}
	}
	if judgeChoices(c, rows.Scores.Rows()-c.Padding, wrong, skip, "key"); c.Verdict == report.Fail {
		c.Rows = t.failingRows(c.Tensor, rows.Scores.Shape, compared, failing)
	}
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
