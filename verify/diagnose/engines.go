package diagnose

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"dsmoe/model"
	"dsmoe/model/table"
	"dsmoe/verify/bounds"
	"dsmoe/verify/pack"
	"dsmoe/verify/report"
)

// Mistakes that engines make: in the rules of the gate, in norms' eps, and in what they round.

// engineMistakes are first seen in a choice of experts, in an indexer's norm, or in any product.
func engineMistakes(f *Failure) []mistake {
	list := []mistake{{id: "group-worth", kinds: []string{pack.TopKIdx}, undo: func(x *Trial) string {
		if c := &x.Config; !hasGroups(c) || c.MoE.NRoutedExperts < 2*c.Router.NGroup {
			return ""
		}
		x.change(func(a bounds.Arithmetic, o *operations) {
			o.groupWorth = func(scores *bounds.Value, groups, best int) *bounds.Value {
				return a.GroupWorth(scores, groups, 3-best) // two scores in the place of one, and one in the place of two
			}
		})
		if x.Config.Router.TopKMethod == "noaux_tc" {
			return "the reference chose groups by their best expert, here it is by their two best experts"
		}
		return "the reference chose groups by their two best experts, here it is by their best expert"
	}}}
	for _, scoring := range []string{"softmax", "sigmoid", "sqrtsoftplus"} {
		list = append(list, mistake{id: "scoring-func", kinds: []string{pack.TopKIdx, pack.TopKWeight},
			unless: "scoring-func", undo: func(x *Trial) string { return ran("scoring_func", &x.Config.Router.ScoringFunc, scoring) }})
	}
	for _, eps := range []float64{f.Model.Config.RMSNormEps, 1e-5, 1e-12} {
		list = append(list, mistake{id: "indexer-eps", kinds: []string{pack.InIndexer(table.KNorm)}, unless: "indexer-eps",
			undo: func(x *Trial) string {
				if !x.Config.HasIndexer() {
					return ""
				}
				x.change(func(a bounds.Arithmetic, o *operations) {
					o.layerNorm = func(x *bounds.Value, n *model.LayerNorm, _ float64) *bounds.Value {
						return a.LayerNorm(x, n, float64(float32(eps)))
					}
				})
				return fmt.Sprintf("the reference computed the norm of the indexer's keys with eps %g; here it is 1e-06, "+
					"whatever config.json says, as in DeepSeek's code", eps)
			}})
	}
	if f.How == nil {
		return list
	}
	list = append(list, mistake{id: "replay-zeros", kinds: []string{pack.TopKWeight}, undo: undoReplayedZeros})
	for _, form := range f.Forms {
		for _, to := range pack.Roundings(form) {
			list = append(list, mistake{id: "products-rounded", kinds: productStages, unless: "products-rounded",
				undo: func(x *Trial) string {
					how := *x.How
					how.Activations = maps.Clone(x.How.Activations)
					if how.Activations == nil {
						how.Activations = map[string]string{}
					}
					how.Activations[form], x.How = to, &how
					return rounded("the inputs of products with "+form+" weights", to, f.How.Activations[form])
				}})
		}
	}
	return append(list, cacheMistakes(f)...)
}

// undoReplayedZeros takes scores that are 0 but for the experts that the router chooses by itself, whatever experts it
// then has to give weights for.
func undoReplayedZeros(x *Trial) string {
	x.change(func(a bounds.Arithmetic, o *operations) {
		var own []int
		o.topK = func(scores *bounds.Value, k int) []int {
			chosen := a.TopK(scores, k)
			own = slices.Clone(chosen)
			return chosen
		}
		o.move = func(m *model.Move, operands ...*bounds.Value) *bounds.Value {
			scores, k := operands[0], x.Config.MoE.NumExpertsPerTok
			if width := scores.Width(); len(own) == k*scores.Rows() && width == x.Config.Choices() {
				zeroed := a.Move(model.OrderColumns(scores.Shape, indices(width)), scores)
				for i := range zeroed.Values {
					if row := i / width; !slices.Contains(own[row*k:(row+1)*k], i%width) {
						zeroed.Set(i, 0, 0)
					}
				}
				operands, own = []*bounds.Value{zeroed}, nil
			}
			return a.Move(m, operands...)
		}
	})
	return "the engine replays choices, and the weights of experts that its router does not choose by itself are 0: their " +
		"scores were taken from those of its own choice"
}

// rounded says that the engine rounded numbers to another dtype than it declares; "" if it declares that dtype.
func rounded(what, to, declared string) string {
	if to == declared || to == "f32" && declared == "" {
		return ""
	}
	return fmt.Sprintf("the reference rounded %s to %s, and declares %s", what, to, cmp.Or(declared, "nothing"))
}

// ofEngine speaks of an engine in the place of a reference.
func ofEngine(causes []report.Cause) []report.Cause {
	said := slices.Clone(causes)
	for i := range said {
		said[i].Text = strings.ReplaceAll(said[i].Text, "the reference", "the engine")
	}
	return said
}
