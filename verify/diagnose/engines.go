package diagnose

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"dsmoe/model"
	"dsmoe/model/table"
	"dsmoe/model/tensor"
	"dsmoe/verify/bounds"
	"dsmoe/verify/pack"
	"dsmoe/verify/report"
)

// Mistakes that engines make: in the rules of the gate, in norms' eps, and in what they round.

// engineMistakes are first seen in a choice of experts, in an indexer's norm, or in any product.
func engineMistakes(f *Failure) []mistake {
	list := []mistake{{id: "group-worth", kinds: []string{pack.TopKIdx}, undo: undoGroupWorth}}
	for _, scoring := range []string{"softmax", "sigmoid", "sqrtsoftplus"} {
		list = append(list, mistake{id: "scoring-func", kinds: []string{pack.TopKIdx, pack.TopKWeight}, unless: "scoring-func",
			undo: undoScoring(scoring)})
	}
	for _, eps := range []float64{f.Model.Config.RMSNormEps, 1e-5, 1e-12} {
		list = append(list, mistake{id: "indexer-eps", kinds: []string{pack.InIndexer(table.KNorm)}, unless: "indexer-eps",
			undo: undoIndexerEps(eps)})
	}
	if f.How == nil {
		return list
	}
	for _, form := range f.Forms {
		for _, to := range pack.Roundings(form) {
			list = append(list, mistake{id: "products-rounded", kinds: productStages, unless: "products-rounded",
				undo: undoProductRounding(form, to)})
		}
	}
	for _, cache := range pack.Roundings("") {
		list = append(list, mistake{id: "cache-rounded", kinds: attendStages, unless: "cache-rounded",
			undo: undoCacheRounding(cache)})
	}
	return list
}

// undoScoring makes scores of logits in another way.
func undoScoring(scoring string) func(x *Trial) string {
	return func(x *Trial) string {
		was := x.Config.Router.ScoringFunc
		if was == scoring {
			return ""
		}
		x.Config.Router.ScoringFunc = scoring
		return fmt.Sprintf("the reference ran with scoring_func %s, here it is %s", scoring, was)
	}
}

// undoGroupWorth compares groups by their best expert, or by their two best.
func undoGroupWorth(x *Trial) string {
	if c := &x.Config; !c.LimitsGroups() || c.Router.TopKGroup >= c.Router.NGroup ||
		c.MoE.NRoutedExperts < 2*c.Router.NGroup {
		return ""
	}
	theirs, ours := "two best experts", "best expert"
	if x.Config.Router.TopKMethod == "noaux_tc" {
		theirs, ours = ours, theirs
	}
	x.Around = func(a bounds.Arithmetic) bounds.Arithmetic { return &otherGroups{a} }
	return fmt.Sprintf("the reference chose groups by their %s, here it is by their %s", theirs, ours)
}

// otherGroups is an arithmetic with a mistake in the choice of groups.
type otherGroups struct{ bounds.Arithmetic }

// GroupWorth adds up two scores in the place of one, and one in that of two.
func (o *otherGroups) GroupWorth(scores *bounds.Value, groups, best int) *bounds.Value {
	return o.Arithmetic.GroupWorth(scores, groups, 3-best)
}

// undoIndexerEps gives the norm of an indexer another eps.
func undoIndexerEps(eps float64) func(x *Trial) string {
	return func(x *Trial) string {
		if !x.Config.HasIndexer() {
			return ""
		}
		x.Around = func(a bounds.Arithmetic) bounds.Arithmetic { return &otherEps{a, eps} }
		return fmt.Sprintf("the reference computed the norm of the indexer's keys with eps %g; here it is 1e-06, whatever "+
			"config.json says, as in DeepSeek's code", eps)
	}
}

// otherEps is an arithmetic whose LayerNorm has another eps.
type otherEps struct {
	bounds.Arithmetic
	eps float64
}

// LayerNorm implements model.Arithmetic.
func (o *otherEps) LayerNorm(x *bounds.Value, n *model.LayerNorm, _ float64) *bounds.Value {
	return o.Arithmetic.LayerNorm(x, n, float64(float32(o.eps)))
}

// biasInBF16 is an arithmetic that adds the router's bias in BF16.
type biasInBF16 struct{ bounds.Arithmetic }

// AddBias rounds scores, biases and sums.
func (b *biasInBF16) AddBias(scores *bounds.Value, bias *model.Weight) *bounds.Value {
	narrow := func(x *bounds.Value) *bounds.Value { return b.Float32(b.Cast(x, tensor.BF16)) }
	return narrow(b.Arithmetic.AddBias(narrow(scores), bias))
}

// undoProductRounding rounds the inputs of products with weights of a form to something else than is declared or seen.
func undoProductRounding(form, to string) func(x *Trial) string {
	return func(x *Trial) string {
		was := x.How.Activations[form]
		if was == to || was == "" && to == "f32" {
			return ""
		}
		how := *x.How
		how.Activations = map[string]string{}
		maps.Copy(how.Activations, x.How.Activations)
		how.Activations[form], x.How = to, &how
		return fmt.Sprintf("the reference rounded the inputs of products with %s weights to %s, and declares %s", form, to,
			declared(was))
	}
}

// undoCacheRounding rounds keys and values to something else than is declared or seen.
func undoCacheRounding(cache string) func(x *Trial) string {
	return func(x *Trial) string {
		was := x.How.Cache
		if was == cache || was == "" && cache == "f32" {
			return ""
		}
		how := *x.How
		how.Cache, x.How = cache, &how
		return fmt.Sprintf("the reference rounded keys and values to %s, and declares %s", cache, declared(was))
	}
}

// declared is what is declared, in words.
func declared(what string) string {
	if what == "" {
		return "nothing"
	}
	return what
}

// ofEngine speaks of an engine in the place of a reference.
func ofEngine(causes []report.Cause) []report.Cause {
	said := slices.Clone(causes)
	for i := range said {
		said[i].Text = strings.ReplaceAll(said[i].Text, "the reference", "the engine")
	}
	return said
}
