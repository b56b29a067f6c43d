package verify

import (
	"context"
	"maps"
	"slices"
	"strings"

	"dsmoe/model/tensor"
	"dsmoe/text"
	"dsmoe/verify/pack"
	"dsmoe/verify/report"
)

// usual are the roundings of the input of a product by engines that declare none, by the form of the weight.
func usual(form string) []string {
	d, _ := tensor.ParseDType(form)
	switch {
	case d == tensor.BF16:
		return []string{"bf16"}
	case d == tensor.F16:
		return []string{"f16", "bf16"}
	case strings.HasSuffix(form, "_K") || strings.HasPrefix(form, "IQ"):
		return []string{"q8_k"}
	case d == tensor.Q5_1:
		return []string{"q8_1", "bf16"}
	case d.Blocked():
		return []string{"q8_0", "bf16"}
	case d.Scaled():
		return []string{"fp8-1x128", "fp8-tensor", "bf16"}
	}
	return []string{"bf16", "f16"}
}

// observe looks for roundings that an engine does not declare, in the first layer with a stage that fails, and in others
// that fail with what was found. It returns the run with these roundings reproduced.
func (t outcome) observe(ctx context.Context, r *report.Report) (outcome, *report.Report, error) {
	if !t.pack.IsTrace() {
		return t, r, nil
	}
	for looked := map[int]bool{}; r.Verdict == report.Fail; {
		layer := pack.Parse(*r.FirstDivergence).Layer
		if looked[layer] {
			break
		}
		looked[layer] = true
		how, err := t.observeIn(ctx, layer, r)
		if err != nil || how == t.how {
			return t, r, err
		}
		again := *t.run
		again.how = how
		if t, err = again.verify(ctx); err != nil {
			return t, r, err
		}
		r = t.report()
	}
	return t, r, nil
}

// observeIn returns the arithmetic with which fewest stages of a layer, -1 for the head, fail.
func (t outcome) observeIn(ctx context.Context, layer int, r *report.Report) (*pack.Arithmetic, error) {
	o := *t.o
	o.Progress, o.FailFast, o.Part = nil, false, nil
	failing, forms := map[string]bool{}, []string{}
	for _, c := range r.Checks {
		if c.Verdict != report.Fail || c.Layer() != layer {
			continue
		}
		failing[c.Tensor] = true
		for _, w := range t.behind[c.Tensor] {
			forms = append(forms, t.forms(w)...)
		}
	}
	slices.Sort(forms)
	if o.Layers = (text.Spans{{layer, layer}}); layer < 0 {
		o.Layers, o.Stages = nil, slices.Sorted(maps.Keys(failing))
	}
	s, err := newScope(t.m.Config, t.pack, &o)
	if err != nil {
		return nil, err
	}
	part := *t.run
	part.o, part.scope = &o, s
	best, least := t.how, len(failing)
	for improved := true; improved && least > 0; {
		improved = false
		for _, part.how = range candidates(best, slices.Compact(forms)) {
			found, err := part.verify(ctx)
			if err != nil {
				return nil, err
			}
			n := 0
			for _, c := range found.checks {
				if c.Verdict == report.Fail {
					n++
				}
			}
			if n < least {
				best, least, improved = part.how, n, true
			}
		}
	}
	return best, nil
}

// candidates are other arithmetics of an engine, each with one more rounding that it does not declare: of products with
// weights of one form, or of the cache.
func candidates(how *pack.Arithmetic, forms []string) (list []*pack.Arithmetic) {
	for _, form := range forms {
		if _, declared := how.Activations[form]; declared {
			continue
		}
		for _, to := range usual(form) {
			other := *how
			other.Activations = maps.Clone(how.Activations)
			if other.Activations == nil {
				other.Activations = map[string]string{}
			}
			other.Activations[form] = to
			list = append(list, &other)
		}
	}
	if how.Sums == "" {
		other := *how
		other.Sums = pack.SerialSums
		list = append(list, &other)
	}
	attentions := [][]string{how.Attention}
	if how.Attention == nil {
		attentions = [][]string{{pack.Eager}, {pack.Eager, pack.Absorbed}, {pack.Flash}, {pack.Flash, pack.Absorbed}}
	}
	caches := []string{how.Cache}
	if how.Cache == "" {
		caches = []string{"f16", "bf16"}
	}
	for _, cache := range caches {
		for _, attention := range attentions {
			if how.Cache == "" || how.Attention == nil {
				other := *how
				other.Cache, other.Attention = cache, attention
				if other.Sums == "" && attention != nil && attention[0] == pack.Flash && cache == "f16" {
					other.Sums = pack.F16Sums
				}
				list = append(list, &other)
			}
		}
	}
	return list
}
