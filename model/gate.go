package model

import (
	"math"
	"slices"

	"dsmoe/model/internal/kernel"
	"dsmoe/model/tensor"
)

// Routing is what the gate decided for each token: its experts and their weights,
// [tokens, k] each. The order within a token has no meaning.
type Routing struct {
	K      int
	Idx    []int
	Weight *Activation
}

// forward routes each row of x, mirroring MoEGate.forward and DeepseekV3TopkRouter:
//
//	logits      = x·weightᵀ                             [tokens, n_routed_experts]
//	scores      = softmax(logits), or sigmoid(logits)
//	topk_idx    = the num_experts_per_tok largest of choice(scores)
//	topk_weight = scores[topk_idx], normalised and scaled: config.TopKWeights
//	aux_loss    in training, see auxLoss
//
// Among equal scores the lowest expert id wins; the reference leaves that open. From
// DeepSeek-V2 on all of this is float32, whatever the compute dtype.
func (g *MoEGate) forward(p *pass, name string, x *Activation) Routing {
	if p.m.Config.RouterFloat32 {
		p = p.inFloat32()
	}
	logits := (&Linear{Weight: g.Weight}).forward(p, x.reshaped(x.Rows(), x.Width()))
	p.stage(name+".logits", logits)

	scores := p.scores(logits)
	k := p.m.Config.NumExpertsPerTok
	by, groups := g.choice(p, scores)
	r := Routing{K: k, Idx: TopK(by, k)}
	if p.Trace != nil {
		p.Trace.TopK(name+".topk_idx", &Choice{by, g.EScoreCorrectionBias.halfUnits(), r.Idx, groups})
	}
	if p.BiasLeak {
		scores = by
	}
	r.Weight = p.topKWeight(scores, r.Idx, k)
	p.stage(name+".topk_weight", r.Weight)
	p.auxLoss(name, scores, &r)
	return r
}

func (p *pass) scores(logits *Activation) *Activation {
	scores := p.activation(logits.Shape...)
	copy(scores.Values, logits.Values)
	if p.m.Config.ScoringFunc == "sigmoid" {
		for i, v := range scores.Values {
			scores.Values[i] = float32(1 / (1 + kernel.Exp(-float64(v))))
		}
	} else {
		for t := range scores.Rows() {
			kernel.Softmax(scores.Row(t))
		}
	}
	p.round(scores)
	scores.Weights = logits.Weights
	p.record(func() {
		for t := range scores.Rows() {
			n := scores.Width()
			softmaxBackward(logits.grad.values[t*n:(t+1)*n], scores.grad.values[t*n:(t+1)*n], scores.Row(t))
		}
	})
	return scores
}

// choice returns what the experts are chosen by. With a greedy method that is the
// scores. With the others a token may only choose from its topk_group best groups of
// experts; a group is as good as
//
//	group_limited_greedy  its best score; other groups' scores become 0
//	noaux_tc              the sum of its two best of scores + e_score_correction_bias;
//	                      other groups' become -inf
func (g *MoEGate) choice(p *pass, scores *Activation) (*Activation, *Groups) {
	method := p.m.Config.TopKMethod
	if method != "group_limited_greedy" && method != "noaux_tc" {
		return scores, nil
	}
	choice := &Activation{Shape: scores.Shape, Values: slices.Clone(scores.Values), DType: scores.DType}
	best, masked := 1, float32(0)
	if method == "noaux_tc" {
		best, masked = 2, float32(math.Inf(-1))
		bias := g.EScoreCorrectionBias.values() // float32 in any reference
		for t := range choice.Rows() {
			for e, b := range bias {
				choice.Row(t)[e] += b
			}
		}
		scores.Weights = p.union([]Weight{g.EScoreCorrectionBias}, scores)
	}
	return p.maskGroups(choice, best, masked)
}

// halfUnits returns half a unit in the last place of each of w's values in its dtype,
// nil if w is not there or is F32.
func (w *Weight) halfUnits() []float64 {
	relative := map[tensor.DType]float64{tensor.BF16: 0x1p-9, tensor.F16: 0x1p-12}[w.DType]
	if w.Name == "" || relative == 0 {
		return nil
	}
	units := make([]float64, w.Len())
	for i, v := range w.values() {
		units[i] = relative * math.Abs(float64(v))
	}
	return units
}

// maskGroups sets all but the topk_group best groups of each row to masked, a group's
// worth being the sum of its best values.
func (p *pass) maskGroups(scores *Activation, best int, masked float32) (*Activation, *Groups) {
	size, k := scores.Width()/p.m.Config.NGroup, p.m.Config.TopKGroup
	g := &Groups{Scores: scores, Worth: &Activation{Shape: []int{scores.Rows(), p.m.Config.NGroup}, DType: scores.DType}, masked: masked}
	for i := 0; i < len(scores.Values); i += size {
		sorted := slices.Sorted(slices.Values(scores.Values[i : i+size]))
		sum := float32(0)
		for _, v := range sorted[size-best:] {
			sum += v
		}
		g.Worth.Values = append(g.Worth.Values, sum)
	}
	g.Chosen = TopK(g.Worth, k)
	left := &Activation{Shape: scores.Shape, DType: scores.DType}
	for t := range scores.Rows() {
		left.Values = append(left.Values, g.mask(t, g.Chosen[t*k:(t+1)*k])...)
	}
	return left, g
}

// TopK returns the columns of the k largest values of each row, largest first, the
// lower column first among equals: [rows, k].
func TopK(scores *Activation, k int) []int {
	idx := make([]int, 0, scores.Rows()*k)
	order := make([]int, scores.Width())
	for t := range scores.Rows() {
		row := scores.Row(t)
		for e := range order {
			order[e] = e
		}
		slices.SortStableFunc(order, func(a, b int) int {
			switch {
			case row[a] > row[b]:
				return -1
			case row[a] < row[b]:
				return 1
			}
			return 0
		})
		idx = append(idx, order[:k]...)
	}
	return idx
}

// topKWeight gathers scores[idx], and normalises and scales them as config.TopKWeights
// says. With total their sum + 1e-20 and w the normalised ones, the gradients, which
// only a model without scaling needs, are
//
//	∂score[i] = ∂w[i]                              as gathered
//	∂score[i] = (∂w[i] - Σ_j ∂w[j]·w[j]) / total   normalised
func (p *pass) topKWeight(scores *Activation, idx []int, k int) *Activation {
	w := p.activation(scores.Rows(), k)
	w.Weights = scores.Weights
	totals := make([]float32, w.Rows()) // 0 where not normalised
	normalise, scale := p.m.Config.TopKWeights()
	for t := range w.Rows() {
		row := w.Row(t)
		for i, e := range idx[t*k : (t+1)*k] {
			row[i] = scores.Row(t)[e]
		}
		if normalise {
			totals[t] = p.normalise(row)
		}
		for i := range row {
			row[i] = p.rounded(float32(row[i] * float32(scale)))
		}
	}
	p.record(func() {
		for t := range w.Rows() {
			dw, ds := w.grad.values[t*k:(t+1)*k], scores.grad.values[t*scores.Width():]
			shift, total := 0.0, 1.0
			if totals[t] != 0 {
				total = float64(totals[t])
				for i, d := range dw {
					shift += float64(d) * float64(w.Row(t)[i])
				}
			}
			for i, e := range idx[t*k : (t+1)*k] {
				ds[e] += float32((float64(dw[i]) - shift) / total)
			}
		}
	})
	return w
}

// normalise divides w by its sum + 1e-20, which it returns.
func (p *pass) normalise(w []float32) float32 {
	sum := 0.0
	for _, v := range w {
		sum += float64(v)
	}
	total := p.rounded(p.rounded(float32(sum)) + 1e-20)
	for i, v := range w {
		w[i] = p.rounded(v / total)
	}
	return total
}

// Matters says whether the i-th of the top-k weights is more than a thousandth of its
// token's largest: with less, what the expert gives hardly shows in the sum.
func Matters(weights *Activation, i int) bool {
	largest := float32(0)
	for _, w := range weights.Row(i / weights.Width()) {
		largest = max(largest, w)
	}
	return weights.Values[i] > largest/1000
}

// counts says whether an expert matters in one of its slots.
func (r *Routing) counts(slots []int) bool {
	return slices.ContainsFunc(slots, func(slot int) bool { return Matters(r.Weight, slot) })
}

// byExpert returns, for each expert, the positions in r.Idx that chose it, ascending.
func (r *Routing) byExpert(experts int) [][]int {
	slots := make([][]int, experts)
	for i, e := range r.Idx {
		slots[e] = append(slots[e], i)
	}
	return slots
}
