package router

// What a router's rows and biases allow, whatever the token.
//
// A router reads x = w∘n, where n = h/√(mean h² + ε) is the hidden state of a token, normalised, and
// w the weight of post_attention_layernorm. Since ε ≥ 0, ‖n‖₂ ≤ √d. The logit of expert e is
// r_e·x = (r_e∘w)·n, so that by Cauchy and Schwarz
//
//	|logit_e| ≤ L_e = √d·‖r_e∘w‖₂,
//
// and no smaller bound holds for all n. It is raised by roundingShare for the rounding of n and x to
// BF16. With sigmoid scores, the number that experts are chosen by lies in
//
//	[σ(-L_e) + b_e, σ(L_e) + b_e],   b = e_score_correction_bias;
//
// with √softplus, √ln(1 + e^x), in the place of σ where the scores are that: roundingShare is taken twice for logits and
// once for scores, which the reference rounds to BF16, too. With softmax scores it is [b_e, 1 + b_e].
//
// Without a bias nothing follows from these bounds: if n may occur, so may -n, which turns all
// logits round. What follows from rows that depend on each other, such as one between two others
// where the best alone is chosen, is not looked for.

import (
	"math"
	"slices"

	"dsmoe/config"
)

// roundingShare covers two roundings to BF16, each within 2⁻⁹ of a number; choiceSlack covers the
// roundings of scores and sums in float32.
const (
	roundingShare = 1 + 1.0/128
	choiceSlack   = 1e-4
)

// limits bound the number that an expert, or a group, is chosen by.
type limits struct{ low, high float64 }

// above reports whether l is above o, whatever the token.
func (l limits) above(o limits) bool { return l.low > o.high+choiceSlack }

// gatePlan is how experts are chosen: topk_group of the groups, then k among their experts.
type gatePlan struct {
	k, groups, chosen int
	experts           []limits
}

// prove fills in which experts are never chosen, or always: by the table of a layer that has one.
func (r *router) prove(c *config.Config) {
	p, t := r.plan(c), r.Table
	for e := range r.Rows {
		switch row := &r.Rows[e]; {
		case t != nil && *row.Tokens == 0, t == nil && p != nil && p.never(e):
			row.Proven = "never"
		case t != nil && *row.Tokens == int64(t.Tokens), t == nil && p != nil && p.always(e):
			row.Proven = "always"
		}
	}
}

// plan returns the bounds of all experts; nil if nothing can follow from them.
func (r *router) plan(c *config.Config) *gatePlan {
	if c == nil || c.Router.TopKMethod != "noaux_tc" || r.bias == nil || c.MoE.NumExpertsPerTok < 1 ||
		c.MoE.NumExpertsPerTok >= len(r.Rows) {
		return nil
	}
	p := &gatePlan{k: c.MoE.NumExpertsPerTok, groups: 1, chosen: 1}
	if c.Router.NGroup > 1 && len(r.Rows)%c.Router.NGroup == 0 && c.Router.TopKGroup < c.Router.NGroup {
		p.groups, p.chosen = c.Router.NGroup, c.Router.TopKGroup
	}
	for e := range r.Rows {
		row := &r.Rows[e]
		if row.Bias == nil || row.Norm == nil {
			return nil
		}
		l := limits{0, 1}
		switch {
		case c.Router.ScoringFunc == "sigmoid" && row.MaxLogit != nil:
			l.low = 1 / (1 + math.Exp(roundingShare**row.MaxLogit))
			l.high = 1 - l.low
		case c.Router.ScoringFunc == "sqrtsoftplus" && row.MaxLogit != nil:
			most := roundingShare * roundingShare * *row.MaxLogit
			l.low = math.Sqrt(math.Log1p(math.Exp(-most))) / roundingShare
			l.high = math.Sqrt(most+math.Log1p(math.Exp(-most))) * roundingShare
		case c.Router.ScoringFunc == "sqrtsoftplus":
			l.high = math.Inf(1)
		}
		p.experts = append(p.experts, limits{l.low + *row.Bias, l.high + *row.Bias})
	}
	return p
}

// group returns the group of an expert.
func (p *gatePlan) group(e int) int { return e / (len(p.experts) / p.groups) }

// groupScore bounds the sum of the two best of a group.
func (p *gatePlan) groupScore(g int) limits {
	var low, high []float64
	size := len(p.experts) / p.groups
	for _, l := range p.experts[g*size : (g+1)*size] {
		low, high = append(low, l.low), append(high, l.high)
	}
	return limits{bestTwo(low), bestTwo(high)}
}

func bestTwo(values []float64) (sum float64) {
	slices.Sort(values)
	for _, v := range values[max(0, len(values)-2):] {
		sum += v
	}
	return sum
}

// groupAlways reports whether fewer groups than are chosen may be above g.
func (p *gatePlan) groupAlways(g int) bool {
	return p.groups == 1 || p.count(func(h int) bool { return !p.groupScore(g).above(p.groupScore(h)) }, g) < p.chosen
}

// count counts the groups h other than g with f(h).
func (p *gatePlan) count(f func(h int) bool, g int) (n int) {
	for h := range p.groups {
		if h != g && f(h) {
			n++
		}
	}
	return n
}

// never reports whether e's group is never chosen, or k others are above e and chosen from whenever e is: those of
// its group, and of whichever other groups are chosen with it.
func (p *gatePlan) never(e int) bool {
	own := p.group(e)
	groupAbove := func(h int) bool { return p.groupScore(h).above(p.groupScore(own)) }
	if p.groups > 1 && p.count(groupAbove, own) >= p.chosen {
		return true
	}
	above := make([]int, p.groups)
	for f, l := range p.experts {
		if f != e && l.above(p.experts[e]) {
			above[p.group(f)]++
		}
	}
	sum, otherGroups := above[own], p.chosen-1
	var others []int
	for g, n := range above {
		switch {
		case g == own:
		case p.groupAlways(g):
			sum, otherGroups = sum+n, otherGroups-1
		default:
			others = append(others, n)
		}
	}
	slices.Sort(others)
	for _, n := range others[:max(0, min(otherGroups, len(others)))] {
		sum += n
	}
	return sum >= p.k
}

// always reports whether e's group is always chosen, and fewer than k others may be above e.
func (p *gatePlan) always(e int) bool {
	if !p.groupAlways(p.group(e)) {
		return false
	}
	others := 0
	for f, l := range p.experts {
		if f != e && !p.experts[e].above(l) {
			others++
		}
	}
	return others < p.k
}
