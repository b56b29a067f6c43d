package diagnose

import (
	"slices"

	"dsmoe/verify/bounds"
	"dsmoe/verify/pack"
	"dsmoe/verify/report"
)

// culprits returns experts that account for all wrong tokens, unless all tokens are wrong. They do so together, or one
// of them does: an expert whose tokens are all wrong, else an expert that the wrong tokens have in common, else as few
// suspects as possible.
func (f *Failure) culprits() (together, oneOf []int) {
	if f.Kind != pack.ExpertsOutput || f.Idx == nil || !slices.Contains(f.Beyond, false) {
		return nil, nil
	}
	suspects := f.suspects()
	together = f.covering(suspects)
	k, common := len(f.Idx)/f.Got.Rows(), []int(nil)
	for i, token := range bounds.Marked(f.Beyond) {
		chosen := f.Idx[token*k : (token+1)*k]
		if i == 0 {
			common = slices.Clone(chosen)
		}
		common = slices.DeleteFunc(common, func(e int) bool { return !slices.Contains(chosen, e) })
	}
	if len(together) == 1 { // all of whose tokens are wrong
		common = slices.DeleteFunc(common, func(e int) bool { return !slices.Contains(suspects, e) })
	}
	if len(common) == 0 || len(common) == 1 && len(together) == 1 {
		return together, nil
	}
	slices.Sort(common)
	return nil, common
}

// covering returns as few suspects as account for all wrong tokens; nil if they do not.
func (f *Failure) covering(suspects []int) (culprits []int) {
	k, open := len(f.Idx)/f.Got.Rows(), bounds.Marked(f.Beyond)
	has := func(token, e int) bool { return slices.Contains(f.Idx[token*k:(token+1)*k], e) }
	for len(open) > 0 {
		best, left := -1, open
		for _, e := range suspects {
			rest := slices.DeleteFunc(slices.Clone(open), func(token int) bool { return has(token, e) })
			if len(rest) < len(left) {
				best, left = e, rest
			}
		}
		if best < 0 {
			return nil
		}
		culprits, open = append(culprits, best), left
	}
	slices.Sort(culprits)
	return culprits
}

// suspects returns the experts whose tokens are all wrong, or with a failed inner stage.
func (f *Failure) suspects() (suspects []int) {
	if f.kind() == expertGate {
		return f.failedExperts(expertGate)
	}
	if f.Kind != pack.ExpertsOutput || f.Idx == nil {
		return nil
	}
	k := len(f.Idx) / f.Got.Rows()
	right, seen := map[int]bool{}, map[int]bool{}
	for i, e := range f.Idx {
		seen[e] = true
		right[e] = right[e] || i/k >= len(f.Beyond) || !f.Beyond[i/k]
	}
	for e := range f.Model.Config.MoE.NRoutedExperts {
		if seen[e] && !right[e] {
			suspects = append(suspects, e)
		}
	}
	return suspects
}

// failedExperts returns the experts of the layer with a failed stage of this kind.
func (f *Failure) failedExperts(kind string) (experts []int) {
	for _, c := range f.Checks {
		if s := c.Stage(); s.Kind == kind && s.Layer == f.Layer && c.Verdict == report.Fail {
			experts = append(experts, s.Expert)
		}
	}
	return experts
}

// Locate notes in the check of the failure the experts, and the rows of the weight, that account for it, if these are
// few.
func (f *Failure) Locate(c *report.Check) {
	if together, oneOf := f.culprits(); len(together)+len(oneOf) <= bounds.Few {
		c.Experts, c.ExpertOneOf = together, oneOf
	}
	if rows := bounds.Marked(f.BeyondColumns); len(rows) > 0 && len(rows) <= bounds.Few && f.isProduct() {
		c.WeightRows, c.Weights = rows, f.Weights
	}
}
