package model

import (
	"encoding/binary"
	"fmt"
	"math"
	"slices"

	"dsmoe/config"
	"dsmoe/model/tensor"
)

// moe is the mixture of experts of layer l, mirroring DeepseekMoE.forward:
//
//	topk_idx, topk_weight = gate(x)
//	y = moe_infer(x, topk_idx, topk_weight) + shared_experts(x)
//
// AXK1MoE has a norm of y. With the residual connection of the decoder layer around it, this is the paper's
// equation (9), u being a token's input to the block and h its output:
//
//	h = Σ_{i ≤ Ks} FFN_i(u) + Σ_{Ks < i ≤ mN} g_i · FFN_i(u) + u
//	g_i = s_i if s_i is among the mK-Ks largest, else 0;  s = softmax(u·eᵢ)
//
// Its shared experts FFN_1 … FFN_Ks are the one MLP shared_experts here, Ks =
// n_shared_experts; mN-Ks = n_routed_experts, mK-Ks = num_experts_per_tok, s is
// scores, g topk_weight and eᵢ row i of gate.weight. In the code u is the residual
// stream and FFN sees its norm.
func (p *pass[V]) moe(l int, name string, m *DeepseekMoE, x V) V {
	flat := p.Reshape(x, p.in.Batch*p.in.Seq, p.config.HiddenSize)
	idx, weight := p.gate(name+".gate", &m.Gate, flat)
	taken, width := flat, p.config.ExpertWidth()
	if p.config.MoE.LatentSize > 0 {
		taken = p.linear(name+".fc1_latent_proj", &m.Latent[0], flat)
	}
	routed := Section{l, name + ".experts.output", []int{p.in.Batch * p.in.Seq, width}, name + ".experts.", nil}
	y := p.section(routed, func() V {
		return p.stage(name+".experts.output", p.moeInfer(l, name+".experts", m, taken, idx, weight))
	})
	if scale := p.config.SumScale(); scale != 1 {
		y = p.Scale(y, float32(scale))
	}
	p.probe(l, name+".experts", m, taken)
	if p.config.MoE.LatentSize > 0 {
		y = p.linear(name+".fc2_latent_proj", &m.Latent[1], y)
	}
	y = p.Reshape(y, p.in.Batch, p.in.Seq, p.config.HiddenSize)
	if m.SharedExperts != nil {
		within := name + ".shared_experts"
		part := p.wholeOf(l, within)
		if p.rules.MoE.FlatShared {
			x, part.Shape = flat, []int{p.in.Batch * p.in.Seq, p.config.HiddenSize}
		}
		shared := p.section(part, func() V {
			return p.stage(within+".output", p.mlp(within, m.SharedExperts, x, p.config.Limit(l, false)))
		})
		if p.rules.MoE.GatesShared {
			shared = p.gatedShared(name, m, flat, shared)
		}
		y = p.Add(y, p.Reshape(shared, p.in.Batch, p.in.Seq, p.config.HiddenSize))
	}
	if m.PostMLPLayernorm != nil {
		y = p.normed(m.PostMLPLayernorm, y)
	}
	return p.stage(name+".output", y)
}

// gatedShared is sigmoid(shared_expert_gate(x)) · shared of each token, [tokens, hidden_size]: the weighted sum of one expert.
func (p *pass[V]) gatedShared(block string, m *DeepseekMoE, x, shared V) V {
	share := p.Sigmoid(p.linear(block+".shared_expert_gate", &m.SharedGate, x))
	slots := make([]int, p.in.Batch*p.in.Seq)
	for token := range slots {
		slots[token] = token
	}
	return p.Combine(share, []Part[V]{{0, slots, shared}}, config.ByExpert)
}

// moeInfer returns each token's routed sum [tokens, hidden_size], mirroring moe_infer:
// tokens are grouped by expert, and an expert runs once on its tokens.
//
//	y[t] = Σ_i topk_weight[t, i] · experts[topk_idx[t, i]](x[t])
//
// In training every reference sums in the order of topk_idx.
func (p *pass[V]) moeInfer(l int, name string, m *DeepseekMoE, x V, idx []int, weight V) V {
	order := p.rules.MoE.RoutedSum
	if p.o.Training {
		order = config.ByChoice
	}
	k := p.config.MoE.NumExpertsPerTok
	byExpert := make([][]int, p.config.Choices()) // slots of topk_idx [tokens, k], ascending
	for slot, e := range idx {
		byExpert[e] = append(byExpert[e], slot)
	}
	var used []int
	for e, slots := range byExpert[:len(m.Experts)] {
		if len(slots) > 0 {
			used = append(used, e)
		}
	}
	p.fetchExperts(l, used)
	var parts []Part[V]
	tokens := func(e int) (rows []int) {
		for _, slot := range byExpert[e] {
			rows = append(rows, slot/k)
		}
		return rows
	}
	for e := range p.experts(l, m, used, false) {
		out := p.expert(l, fmt.Sprintf("%s.%d", name, e), &m.Experts[e], x, tokens(e))
		parts = append(parts, Part[V]{e, byExpert[e], out})
	}
	for e := len(m.Experts); e < len(byExpert); e++ { // they give what they take
		if rows := tokens(e); rows != nil {
			parts = append(parts, Part[V]{e, byExpert[e], p.Move(takeRows(rows, p.config.ExpertWidth()), x)})
		}
	}
	if !p.rules.MoE.SumsInFloat32 {
		return p.Combine(weight, parts, order)
	}
	for i := range parts {
		parts[i].Out = p.Float32(parts[i].Out)
	}
	compute, _ := p.o.dtypes()
	return p.Cast(p.Combine(weight, parts, order), compute)
}

// expert runs a routed expert of layer l on rows of x [tokens, hidden_size]: [len(rows), hidden_size].
func (p *pass[V]) expert(l int, name string, m *DeepseekMLP, x V, rows []int) V {
	in := p.Move(takeRows(rows, p.config.ExpertWidth()), x)
	return p.stage(name+".output", p.Scope(in, func(in V) V {
		return p.mlp(name, m, in, p.config.Limit(l, true))
	}))
}

// gate routes each row of x, mirroring MoEGate.forward and DeepseekV3TopkRouter:
//
//	logits      = x·weightᵀ                             [tokens, n_routed_experts]
//	scores      = softmax(logits), sigmoid(logits) or sqrt(softplus(logits))
//	topk_idx    = the num_experts_per_tok largest of choice(scores), or tid2eid[token id]
//	topk_weight = scores[topk_idx], normalised and scaled: config.TopKWeights
//	aux_loss    in training with aux_loss_alpha > 0: see AuxLoss
//
// Among equal scores the lowest expert id wins; the reference leaves ties open. The order of
// a token's experts has no meaning. The auxiliary loss is per sequence if seq_aux is set,
// else over the batch as one sequence.
func (p *pass[V]) gate(name string, g *MoEGate, x V) (idx []int, weight V) {
	c, k := p.config, p.config.MoE.NumExpertsPerTok
	if p.rules.Router.RouterFloat32 {
		x = p.Float32(x)
	}
	logits := p.Linear(x, &Linear{Weight: g.Weight})
	if p.rules.Router.WidensLogits {
		logits = p.Float32(logits)
	}
	if limit := c.Router.LogitCap; limit > 0 {
		logits = p.SoftCap(logits, float32(limit))
	}
	logits = p.stage(name+".logits", logits)
	scores, choice := p.choose(g, logits)
	if p.trace != nil {
		p.stopIf(p.trace.TopK(name+".topk_idx", choice))
	}
	weight = p.Move(gather(choice.Idx, k, c.Choices()), scores)
	normalise, scale := c.TopKWeights()
	if normalise {
		eps, least := c.TopKDivisor()
		weight = p.Normalise(weight, Divisor{float32(eps), float32(least)})
	}
	if scale != 1 {
		weight = p.Scale(weight, float32(scale))
	}
	if p.rules.Router.CastsTopKWeights {
		compute, _ := p.o.dtypes()
		weight = p.Cast(weight, compute)
	}
	weight = p.stage(name+".topk_weight", weight)
	if p.o.Training && c.Router.AuxLossAlpha > 0 {
		sequences := 1
		if c.Router.SeqAux {
			sequences = p.in.Batch
		}
		p.stage(name+".aux_loss", p.AuxLoss(scores, choice.Idx, sequences, c.Router.AuxLossAlpha))
	}
	return choice.Idx, weight
}

// Keep has the gate choose as if it had the rows of these experts, of n, alone: the logits and the scores of the others
// are -inf, and others stand in for them in its table: see StandIns. experts are ascending.
func (g *MoEGate) Keep(experts []int, n int) {
	g.kept = experts
	g.Mask = Weight{Name: "mask", Tensor: tensor.Tensor{DType: tensor.F32, Shape: []int{n}}}
	for e := range n {
		bits := uint32(0)
		if !slices.Contains(experts, e) {
			bits = math.Float32bits(float32(math.Inf(-1)))
		}
		g.Mask.Data = binary.LittleEndian.AppendUint32(g.Mask.Data, bits)
	}
}

// masked adds the gate's mask.
func (p *pass[V]) masked(g *MoEGate, scores V) V {
	if g.Mask.Name == "" {
		return scores
	}
	return p.AddBias(scores, &g.Mask)
}

// choose returns the scores of a gate's logits, and its choice.
func (p *pass[V]) choose(g *MoEGate, logits V) (scores V, choice *Choice[V]) {
	logits = p.masked(g, logits)
	if p.rules.Router.ScoresInFloat32 {
		logits = p.Float32(logits)
	}
	if p.rules.Router.ChoosesByLogits { // the scores are made of these later, as what decides the choice has a weight in both
		choice = p.chosen(g, logits)
		return p.scores(logits), choice
	}
	if scores = p.scores(logits); g.TID2EID != nil {
		return scores, p.fromTable(g, scores)
	}
	return scores, p.chosen(g, scores)
}

// scores returns the scores of a gate's logits.
func (p *pass[V]) scores(logits V) V {
	switch p.config.Router.ScoringFunc {
	case "sigmoid":
		return p.Sigmoid(logits)
	case "sqrtsoftplus":
		return p.SqrtSoftplus(logits)
	}
	return p.Softmax(logits)
}

// chosen returns the choice of a gate without a table, by its scores or its logits.
func (p *pass[V]) chosen(g *MoEGate, by V) *Choice[V] {
	choice := p.choice(g, p.masked(g, by))
	choice.Scores = p.masked(g, choice.Scores) // scores of groups that are not chosen may have become 0
	choice.Idx = p.TopK(choice.Scores, p.config.MoE.NumExpertsPerTok)
	return choice
}

// fromTable returns the experts that a table has for the token ids.
func (p *pass[V]) fromTable(g *MoEGate, scores V) *Choice[V] {
	table := g.TID2EID
	idx := p.TableExperts(scores, table, p.in.InputIDs)
	for i, e := range idx {
		if n := p.config.MoE.NRoutedExperts; e < 0 || e >= n {
			token := p.in.InputIDs[i/p.config.MoE.NumExpertsPerTok]
			p.stopIf(fmt.Errorf("%s: token %d: expert %d is not one of %d", table.Name, token, e, n))
		}
	}
	for row := range slices.Chunk(idx, p.config.MoE.NumExpertsPerTok) {
		g.StandIns(row)
	}
	return &Choice[V]{Scores: scores, Idx: idx, Table: table}
}

// StandIns replaces the experts of a table's row that Keep does not list, from the first on: each by the next that Keep
// lists, cyclically, and the row does not have. It does nothing without Keep.
func (g *MoEGate) StandIns(row []int) {
	if g.kept == nil {
		return
	}
	entries := slices.Clone(row)
	for i, e := range row {
		if slices.Contains(g.kept, e) {
			continue
		}
		above, _ := slices.BinarySearch(g.kept, e)
		for _, other := range slices.Concat(g.kept[above:], g.kept[:above]) {
			if !slices.Contains(entries, other) {
				row[i], entries = other, append(entries, other)
				break
			}
		}
	}
}

// choice returns the scores by which experts are chosen. A greedy method chooses by the gate's
// scores. With other methods a token chooses only from its topk_group best groups of experts.
// The worth of a group, and the scores of other groups, are
//
//	group_limited_greedy  its best score; other groups' scores become 0
//	noaux_tc              the sum of its two best of scores + e_score_correction_bias;
//	                      other groups' scores become -inf, or 0 with Rules.MasksToZero
func (p *pass[V]) choice(g *MoEGate, scores V) *Choice[V] {
	switch p.config.Router.TopKMethod {
	case "group_limited_greedy":
		return p.limited(scores, 1, 0)
	case "noaux_tc":
		if p.config.ChoosesByBias() {
			scores = p.AddBias(scores, &g.EScoreCorrectionBias)
		}
		if p.config.LimitsGroups() {
			masked := float32(math.Inf(-1))
			if p.rules.Router.MasksToZero {
				masked = 0
			}
			return p.limited(scores, 2, masked)
		}
	}
	return &Choice[V]{Scores: scores}
}

// limited masks all groups except the topk_group best of each token. The worth of a group is the
// sum of its best scores.
func (p *pass[V]) limited(scores V, best int, masked float32) *Choice[V] {
	n := p.config.Router.NGroup
	worth := p.GroupWorth(scores, n, best)
	chosen := p.TopK(worth, p.config.Router.TopKGroup)
	return &Choice[V]{
		Scores: p.MaskGroups(scores, n, chosen, masked),
		Groups: &Groups[V]{Scores: scores, Worth: worth, Chosen: chosen, Masked: masked},
	}
}

// Choose returns the choice of a gate with these logits [tokens, n_routed_experts] under c, in
// the logits' dtype. Of g it uses only the mask and, with noaux_tc, the bias.
func Choose(c *config.Config, g *MoEGate, logits *Activation) *Choice[*Activation] {
	return ChooseBy[*Activation](NewPlain(Options{DType: logits.DType, Parallelism: 1}), c, g, logits)
}

// ChooseBy is Choose with the operations of an arithmetic.
func ChooseBy[V any](a Arithmetic[V], c *config.Config, g *MoEGate, logits V) *Choice[V] {
	p := &pass[V]{Arithmetic: a, config: c, rules: c.Rules()}
	scored := *g
	scored.TID2EID = nil
	_, choice := p.choose(&scored, logits)
	return choice
}

// probe runs the experts of layer l that Options.Probes lists on rows of x [tokens,
// hidden_size], one expert after the other. The output of each is a stage,
// name.E.probe.output [rows, hidden_size]; the pass does not use it.
func (p *pass[V]) probe(l int, name string, m *DeepseekMoE, x V) {
	probe := p.o.Probes[l]
	tokens, experts := p.in.Batch*p.in.Seq, len(m.Experts)
	if i := slices.IndexFunc(probe.Rows, func(row int) bool { return row < 0 || row >= tokens }); i >= 0 {
		p.stopIf(fmt.Errorf("probes of layer %d: row %d is not one of %d", l, probe.Rows[i], tokens))
	}
	if i := slices.IndexFunc(probe.Experts, func(e int) bool { return e < 0 || e >= experts }); i >= 0 {
		p.stopIf(fmt.Errorf("probes of layer %d: expert %d is not one of %d", l, probe.Experts[i], experts))
	}
	for e := range p.experts(l, m, probe.Experts, true) {
		p.Scope(x, func(x V) V {
			p.expert(l, fmt.Sprintf("%s.%d.probe", name, e), &m.Experts[e], x, probe.Rows)
			return x
		})
		for _, w := range m.Experts[e].weights() {
			p.o.dontNeed(w)
		}
	}
}
