package config

// Conditions of several families.

import "fmt"

// maxParameters bounds the number of weights, so that bytes and FLOPs of a whole
// model fit int64 with room to spare.
const maxParameters = 1 << 48

// maxTensors bounds the number of weight tensors, eleven times DeepSeek-V3's, so
// that a small config.json cannot ask for lists that fill the memory.
const maxTensors = 1 << 19

// sizeIsSane bounds an upper estimate of the number of tensors and, in float64, one
// of their parameters.
func sizeIsSane(c *Config) error {
	rows := 20
	if c.Windowed() {
		rows = 40
	}
	if n := c.NumHiddenLayers * (3*c.MoE.NRoutedExperts + rows); n > maxTensors {
		return fmt.Errorf("%d layers with %d routed experts have about %d tensors, more than %d",
			c.NumHiddenLayers, c.MoE.NRoutedExperts, n, maxTensors)
	}
	hidden, experts := float64(c.HiddenSize), float64(c.MoE.NRoutedExperts+c.MoE.NSharedExperts)
	width := max(float64(c.IntermediateSize), float64(c.MoE.MoEIntermediateSize)*experts)
	heads := float64(c.Attention.NumAttentionHeads) *
		float64(c.Attention.QKNopeHeadDim+c.Attention.QKRopeHeadDim+c.Attention.VHeadDim)
	latent := float64(max(c.HiddenSize, c.Attention.QLoraRank, c.Attention.KVLoraRank))
	streams := float64(c.HyperConnections.HCMult)
	layer := 4*hidden*hidden + 4*(heads+float64(c.Attention.QLoraRank+c.Attention.KVLoraRank))*latent + 3*hidden*width +
		hidden*experts +
		float64(c.Indexer.IndexNHeads)*(float64(c.Indexer.IndexHeadDim)*float64(c.Attention.QLoraRank)+hidden) +
		float64(c.Indexer.IndexHeadDim)*hidden +
		float64(c.Windows.OLoraRank)*(heads+float64(c.Windows.OGroups)*hidden) + 2*streams*(2+streams)*streams*hidden +
		float64(c.Windows.CompressRateCSA+c.Windows.CompressRateHCA)*2*(float64(c.Attention.VHeadDim)+float64(c.Indexer.IndexHeadDim)) +
		8*hidden*(float64(c.Indexer.IndexHeadDim)+float64(c.Attention.VHeadDim)) +
		float64(c.VocabSize)*float64(c.MoE.NumExpertsPerTok)
	total := 2*float64(c.VocabSize)*hidden + float64(c.NumHiddenLayers)*layer
	if total > maxParameters {
		return fmt.Errorf("%d layers of these widths have about %.1e parameters, more than %.1e",
			c.NumHiddenLayers, total, float64(maxParameters))
	}
	return nil
}

// topKFitsExperts: torch.topk in MoEGate.forward takes top_k of n_routed_experts.
var topKFitsExperts = rule{[]string{"num_experts_per_tok", "n_routed_experts"}, func(c *Config) error {
	switch {
	case c.MoE.NRoutedExperts == 0:
		return nil
	case c.MoE.NumExpertsPerTok == 0:
		return fmt.Errorf("null, but %s is %d", c.Key("n_routed_experts"), c.MoE.NRoutedExperts)
	}
	others := ""
	if c.MoE.ZeroExperts > 0 {
		others = fmt.Sprintf(" and zero_expert_num %d", c.MoE.ZeroExperts)
	}
	return errorIf(c.MoE.NumExpertsPerTok > c.Choices(), "%d is more than %s %d%s", c.MoE.NumExpertsPerTok,
		c.Key("n_routed_experts"), c.MoE.NRoutedExperts, others)
}}

// scoringIsSoftmax: MoEGate.forward raises NotImplementedError otherwise; a model
// without routed experts has no gate.
var scoringIsSoftmax = rule{[]string{"scoring_func", "n_routed_experts"}, func(c *Config) error {
	return errorIf(c.MoE.NRoutedExperts > 0 && c.Router.ScoringFunc != "softmax",
		`%s is not "softmax", the only scoring function of the reference's MoEGate`, quote(c.Router.ScoringFunc))
}}

// activationIsSiLU: the reference takes any name in ACT2FN; the published models
// use one.
var activationIsSiLU = rule{[]string{"hidden_act"}, func(c *Config) error {
	return errorIf(c.HiddenAct != "silu",
		`%s is not "silu", the activation of the published models and the only one computed here`, quote(c.HiddenAct))
}}
