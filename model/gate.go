package model

import "slices"

// Routing is what the gate decided for each token: its experts and their weights,
// [tokens, k] each. The order within a token has no meaning.
type Routing struct {
	K      int
	Idx    []int
	Weight *Activation
}

// forward routes each row of x, mirroring MoEGate.forward:
//
//	logits      = x·weightᵀ                             [tokens, n_routed_experts]
//	scores      = softmax(logits)
//	topk_idx    = the num_experts_per_tok largest
//	topk_weight = scores[topk_idx], and if norm_topk_prob and num_experts_per_tok > 1
//	              divided by their sum + 1e-20
//	aux_loss    in training, see auxLoss
//
// Among equal scores the lowest expert id wins; the reference leaves that open.
func (g *MoEGate) forward(p *pass, name string, x *Activation) Routing {
	logits := (&Linear{Weight: g.Weight}).forward(p, x.reshaped(x.Rows(), x.Width()))
	p.stage(name+".logits", logits)

	scores := p.scores(logits)
	k := p.m.Config.NumExpertsPerTok
	r := Routing{K: k, Idx: TopK(scores, k)}
	if p.Trace != nil {
		p.Trace.TopK(name+".topk_idx", scores, r.Idx)
	}
	r.Weight = p.topKWeight(scores, r.Idx, k)
	p.stage(name+".topk_weight", r.Weight)
	p.auxLoss(name, scores, &r)
	return r
}

func (p *pass) scores(logits *Activation) *Activation {
	scores := p.activation(logits.Shape...)
	copy(scores.Values, logits.Values)
	for t := range scores.Rows() {
		softmax(scores.Row(t))
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

// topKWeight gathers scores[idx] and normalises them if the config says so. With
// total their sum + 1e-20 and w the result, the gradients are
//
//	∂score[i] = ∂w[i]                              as gathered
//	∂score[i] = (∂w[i] - Σ_j ∂w[j]·w[j]) / total   normalised
func (p *pass) topKWeight(scores *Activation, idx []int, k int) *Activation {
	w := p.activation(scores.Rows(), k)
	w.Weights = scores.Weights
	totals := make([]float32, w.Rows()) // 0 where not normalised
	for t := range w.Rows() {
		row := w.Row(t)
		for i, e := range idx[t*k : (t+1)*k] {
			row[i] = scores.Row(t)[e]
		}
		if k > 1 && p.m.Config.NormTopKProb {
			totals[t] = p.normalise(row)
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

// byExpert returns, for each expert, the positions in r.Idx that chose it, ascending.
func (r *Routing) byExpert(experts int) [][]int {
	slots := make([][]int, experts)
	for i, e := range r.Idx {
		slots[e] = append(slots[e], i)
	}
	return slots
}
