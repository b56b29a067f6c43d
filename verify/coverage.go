package verify

import (
	"maps"
	"slices"
	"strconv"

	"dsmoe/model/table"
	"dsmoe/verify/pack"
	"dsmoe/verify/report"
)

// notLookedAt says why stages behind the first that fails are not checked.
const notLookedAt = "not looked at: the run stopped at the first failing stage"

// coverage counts what the checks cover.
func (t outcome) coverage(checks []report.Check) report.Coverage {
	c := report.Coverage{GoldenUnchecked: []string{}, WeightsUnchecked: []string{}, Unreached: []report.LayerExperts{}, VocabSize: t.m.Config.VocabSize}
	if course := &t.scope.course; course.Embedding || course.Predictions > 0 {
		ids := []int{}
		for i, id := range t.in.InputIDs {
			if !t.in.IsPadding(i) {
				ids = append(ids, id)
			}
		}
		slices.Sort(ids)
		c.EmbeddingRows = len(slices.Compact(ids))
	}
	c.Padding = pack.PaddedTokens(t.in, len(t.in.InputIDs)).Count()
	for name := range t.pack.Manifest.Tensors {
		if pack.IsStage(name) || !pack.IsInput(name) && t.scope.compares(name) {
			c.GoldenTensors++
		}
	}
	for _, check := range checks {
		if !t.pack.Has(check.Tensor) {
			continue
		}
		if check.Verdict == report.Skipped {
			c.GoldenUnchecked = append(c.GoldenUnchecked, check.Tensor)
		} else {
			c.GoldenChecked++
		}
	}
	unreached, experts := map[int][]int{}, map[int]map[int]bool{} // by layer; experts that may show in what is checked
	for s := range table.FamilyOf(t.m.Config).Required(t.m.Config, t.set.Has) {
		if s.Layer >= t.layers() {
			c.OutsideForward++
			continue
		}
		if !t.scope.runs(s) {
			continue
		}
		c.Weights++
		if s.Row.LookedUp() && s.Row.Copied() {
			c.EmbeddingCopies++
		}
		_, used := t.used[s.Name]
		if _, aside := t.aside[s.Name]; aside && !used {
			continue
		}
		if s.Expert >= 0 {
			if experts[s.Layer] == nil {
				experts[s.Layer] = map[int]bool{}
			}
			experts[s.Layer][s.Expert] = t.reached[s.Layer][s.Expert]
		}
		if used {
			c.WeightsChecked++
		} else if s.Expert < 0 || t.reached[s.Layer][s.Expert] || t.stopped {
			c.WeightsUnchecked = append(c.WeightsUnchecked, s.Name)
		} else if n := len(unreached[s.Layer]); n == 0 || unreached[s.Layer][n-1] != s.Expert {
			unreached[s.Layer] = append(unreached[s.Layer], s.Expert)
		}
	}
	for _, l := range slices.Sorted(maps.Keys(unreached)) {
		c.Unreached = append(c.Unreached, report.LayerExperts{Layer: "model.layers." + strconv.Itoa(l), Experts: unreached[l]})
	}
	for _, l := range t.ran() {
		reached, probed := 0, 0
		for e, shows := range experts[l] {
			if shows {
				reached++
			} else if t.probed[l][e] {
				probed++
			}
		}
		if reached+probed > 0 || len(experts[l]) == t.m.Config.NRoutedExperts {
			c.Experts += t.m.Config.NRoutedExperts
			c.ExpertsReached += reached
			c.ExpertsProbed += probed
		}
	}
	return c
}
