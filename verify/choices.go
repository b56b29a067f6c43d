package verify

import (
	"cmp"
	"fmt"
	"slices"

	"dsmoe/model"
	"dsmoe/model/tensor"
	"dsmoe/text"
	"dsmoe/verify/bounds"
	"dsmoe/verify/report"
)

// Choices of experts, and of keys, compared with the golden's row by row.

// What local mode runs, and what its trace sees.
type (
	network = model.Network[*bounds.Value]
	choice  = model.Choice[*bounds.Value]
)

// rowChoice is how the golden's choice of a token's experts differs from ours.
type rowChoice struct {
	ours                []int // with the golden's groups, if those tie with ours
	exactTies, nearTies int
	wrong               []int // golden experts that no tie excuses
}

func (r *rowChoice) count(kind bounds.TieKind, expert int) {
	switch kind {
	case bounds.ExactTie:
		r.exactTies++
	case bounds.NearTie:
		r.nearTies++
	case bounds.NoTie:
		r.wrong = append(r.wrong, expert)
	}
}

// compareRow compares one token's experts. Those that only we chose and those that only
// the golden chose are paired by score, best with best: every pair has to tie. Those of a table have to be equal.
func compareRow(ours *choice, theirs []int, row int) rowChoice {
	k := len(theirs)
	r := rowChoice{ours: ours.Idx[row*k : (row+1)*k]}
	for i, e := range theirs {
		if ours.Table != nil && e != r.ours[i] {
			r.wrong = append(r.wrong, e)
		}
	}
	if ours.Table != nil {
		return r
	}
	scores := ours.Scores
	if groups, kind := otherGroups(ours, theirs, row); kind != bounds.NoTie {
		g := ours.Groups
		masked := model.MaskGroups(g.Scores.Row(row), g.Worth.Width(), groups, g.Masked)
		r.ours, scores = model.TopK(masked, k), g.Scores
		r.count(kind, -1)
	}
	first := row * scores.Width()
	dropped := without(r.ours, theirs, scores.Row(row))
	for i, e := range without(theirs, r.ours, scores.Row(row)) {
		r.count(scores.Tie(first+dropped[i], first+e), e)
	}
	return r
}

// without returns the experts of a that are not in b, best score first.
func without(a, b []int, scores []float32) []int {
	var list []int
	for _, e := range a {
		if !slices.Contains(b, e) {
			list = append(list, e)
		}
	}
	slices.SortStableFunc(list, func(x, y int) int { return cmp.Compare(scores[y], scores[x]) })
	return list
}

// otherGroups returns the groups that the golden's experts come from, filled up with the
// best of ours, if they are others than ours and tie with those they stand for: paired
// by worth, best with best. noTie means that there is nothing to excuse.
func otherGroups(ours *choice, theirs []int, row int) ([]int, bounds.TieKind) {
	g := ours.Groups
	if g == nil {
		return nil, bounds.NoTie
	}
	count := len(g.Chosen) / g.Worth.Rows()
	chosen, worth := g.Chosen[row*count:(row+1)*count], g.Worth.Row(row)
	size := ours.Scores.Width() / g.Worth.Width()
	var golden []int
	for _, e := range theirs {
		if !slices.Contains(golden, e/size) {
			golden = append(golden, e/size)
		}
	}
	added := without(golden, chosen, worth)
	if len(added) == 0 || len(golden) > count {
		return nil, bounds.NoTie
	}
	dropped := without(chosen, golden, worth)
	kept := dropped[:len(dropped)-len(added)]
	kind, first := bounds.ExactTie, row*g.Worth.Width()
	for i, group := range added {
		switch g.Worth.Tie(first+dropped[len(kept)+i], first+group) {
		case bounds.NoTie:
			return nil, bounds.NoTie
		case bounds.NearTie:
			kind = bounds.NearTie
		}
	}
	return append(golden, kept...), kind
}

// gapOf says how far expert e, which the golden chose for a token, was from being chosen: its
// score from that of the worst which only we chose or, if its group was not chosen, the
// group's worth from that of the worst which was.
func gapOf(ours *choice, theirs []int, row, e int) *report.Gap {
	if ours.Table != nil {
		return nil
	}
	k := len(theirs)
	scores, of, instead := ours.Scores, "expert", without(ours.Idx[row*k:(row+1)*k], theirs, ours.Scores.Row(row))
	if g := ours.Groups; g != nil {
		count, size := len(g.Chosen)/g.Worth.Rows(), ours.Scores.Width()/g.Worth.Width()
		if chosen := g.Chosen[row*count : (row+1)*count]; !slices.Contains(chosen, e/size) {
			scores, of, e = g.Worth, "group", e/size
			instead = without(chosen, nil, g.Worth.Row(row))
		}
	}
	if len(instead) == 0 {
		return nil
	}
	other, first := instead[len(instead)-1], row*scores.Width()
	gap := float64(scores.Row(row)[other]) - float64(scores.Row(row)[e])
	if !tensor.IsFinite(gap) {
		return nil
	}
	return &report.Gap{Of: of, Golden: e, Ours: other, Score: gap,
		Z: report.JSONFloat(scores.Excess(first+other, first+e))}
}

// pinned counts the choices of a row that no rounding could change: whose score exceeds
// that of every expert not chosen, and whose group's worth that of every group not chosen,
// by more than Lambda. What a table lists is.
func pinned(ours *choice, row, k int) (n int) {
	if ours.Table != nil {
		return k
	}
	chosen, g := ours.Idx[row*k:(row+1)*k], ours.Groups
	firm := func(x *bounds.Value, i int, chosen []int) bool {
		first := row * x.Width()
		for j := range x.Width() {
			if !slices.Contains(chosen, j) && !(x.Excess(first+i, first+j) > bounds.Lambda) {
				return false
			}
		}
		return true
	}
	for _, e := range chosen {
		if !firm(ours.Scores, e, chosen) {
			continue
		}
		if g != nil {
			count, size := len(g.Chosen)/g.Worth.Rows(), ours.Scores.Width()/g.Worth.Width()
			if !firm(g.Worth, e/size, g.Chosen[row*count:(row+1)*count]) {
				continue
			}
		}
		n++
	}
	return n
}

// judgeChoices sets the verdict of choices of experts or keys; skip, unless empty, is the reason not to judge.
func judgeChoices(c *report.Check, rows, wrong int, skip, chosen string) {
	switch {
	case rows == 0:
		c.Verdict, c.Reason = report.Skipped, allPadding
	case skip != "":
		c.Verdict, c.Reason = report.Skipped, skip
	case wrong > 0:
		c.Reason = fmt.Sprintf("%s of another %s, where rounding does not explain it", text.Plural(wrong, "choice"), chosen)
		c.Failed = []report.Measure{{Name: "choices", Value: report.JSONFloat(float64(wrong))}}
	default:
		c.Verdict = report.Pass
	}
}
