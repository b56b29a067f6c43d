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

// usualRoundings are the roundings of the input of a product by engines that declare none, by the form of the weight.
func usualRoundings(form string) []string {
	d, _ := tensor.ParseDType(form)
	switch {
	case d == tensor.BF16:
		return []string{"bf16"}
	case d == tensor.F16:
		return []string{"f16", "bf16"}
	case strings.HasSuffix(form, "_K") || d == tensor.IQ4_XS:
		return []string{"q8_k"}
	case d.HasMinimum():
		return []string{"q8_1", "bf16"}
	case d.Blocked():
		return []string{"q8_0", "bf16"}
	case d.Scaled():
		return []string{"fp8-1x128", "fp8-tensor", "bf16"}
	}
	return []string{"bf16", "f16"}
}

// observe looks for roundings that an engine does not declare, in the first layer with a stage that fails, and in
// others that fail with what was found. It returns the run with these roundings reproduced.
func observe(ctx context.Context, e *evidence, r *report.Report) (*evidence, *report.Report, error) {
	if !e.job.pack.IsTrace() || e.job.pack.Routing {
		return e, r, nil
	}
	for observed := map[int]bool{}; r.Verdict == report.Fail; {
		layer := pack.Parse(*r.FirstDivergence).Layer
		if observed[layer] {
			break
		}
		observed[layer] = true
		engine, err := observeLayer(ctx, e, layer, r)
		if err != nil || engine == e.job.engine {
			return e, r, err
		}
		again := *e.job
		again.engine = engine
		if e, err = again.gather(ctx); err != nil {
			return e, r, err
		}
		r = conclude(e.project())
	}
	return e, r, nil
}

// observeLayer returns the arithmetic with which fewest stages of a layer, -1 for the head, fail.
func observeLayer(ctx context.Context, e *evidence, layer int, r *report.Report) (*pack.Arithmetic, error) {
	o := *e.job.options
	o.Progress, o.FailFast, o.Part = nil, false, nil
	failing, forms := map[string]bool{}, []string{}
	for _, c := range r.Checks {
		if c.Verdict != report.Fail || c.Layer() != layer {
			continue
		}
		failing[c.Tensor] = true
		for _, w := range e.behind[c.Tensor] {
			forms = append(forms, e.job.weights.forms(w)...)
		}
	}
	slices.Sort(forms)
	forms = slices.Compact(forms)
	if o.Layers = (text.Spans{{layer, layer}}); layer < 0 {
		o.Layers, o.Stages = nil, slices.Sorted(maps.Keys(failing))
	}
	s, err := newScope(e.job.model.Config, e.job.pack, &o)
	if err != nil {
		return nil, err
	}
	part := *e.job
	part.options, part.scope = &o, s
	best, least := e.job.engine, len(failing)
	for improved := true; improved && least > 0; {
		improved = false
		for _, part.engine = range candidates(best, forms, e.job.recognises) {
			found, err := part.gather(ctx)
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
				best, least, improved = part.engine, n, true
			}
		}
	}
	return best, nil
}

// candidates are other arithmetics of an engine, each with one more rounding that it does not declare: of products with
// weights of one form, of norms' sums, or of attention, unless that is recognised.
func candidates(how *pack.Arithmetic, forms []string, recognised bool) (list []*pack.Arithmetic) {
	for _, form := range forms {
		if _, declared := how.Activations[form]; declared {
			continue
		}
		for _, to := range usualRoundings(form) {
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
	if recognised {
		return list
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
