package model

import "dsmoe/config"

// families is the list of all tables; a new family is a file and a line here.
var families = []*Family{&familyV1, &familyV2, &familyV3}

// Conditions of the table.

func dense(c *config.Config, layer int) bool { return !c.IsMoE(layer) }

func moe(c *config.Config, layer int) bool { return c.IsMoE(layer) }

func shared(c *config.Config, layer int) bool { return c.IsMoE(layer) && c.NSharedExperts > 0 }

func bias(c *config.Config, _ int) bool { return c.AttentionBias }

func tied(c *config.Config, _ int) bool { return c.TieWordEmbeddings }

func untied(c *config.Config, _ int) bool { return !c.TieWordEmbeddings }

func wholeQ(c *config.Config, _ int) bool { return c.QLoraRank == 0 }

func loraQ(c *config.Config, _ int) bool { return c.QLoraRank > 0 }

func loraQBias(c *config.Config, _ int) bool { return c.QLoraRank > 0 && c.AttentionBias }

// Dimensions of the table.

func vocab(c *config.Config) int { return c.VocabSize }

func hidden(c *config.Config) int { return c.HiddenSize }

func denseFF(c *config.Config) int { return c.IntermediateSize }

func expertFF(c *config.Config) int { return c.MoEIntermediateSize }

func sharedFF(c *config.Config) int { return c.MoEIntermediateSize * c.NSharedExperts }

func queries(c *config.Config) int { return c.NumAttentionHeads * c.HeadDim() }

func keys(c *config.Config) int { return c.NumKeyValueHeads * c.HeadDim() }

func qRank(c *config.Config) int { return c.QLoraRank }

func kvRank(c *config.Config) int { return c.KVLoraRank }

func kvRankRope(c *config.Config) int { return c.KVLoraRank + c.QKRopeHeadDim }

func latentQueries(c *config.Config) int { return c.NumAttentionHeads * c.QKHeadDim() }

func latentKeysValues(c *config.Config) int {
	return c.NumAttentionHeads * (c.QKNopeHeadDim + c.VHeadDim)
}

func latentContext(c *config.Config) int { return c.NumAttentionHeads * c.VHeadDim }

func twoHidden(c *config.Config) int { return 2 * c.HiddenSize }

func rotary(c *config.Config) int { return c.HeadDim() / 2 }

func routed(c *config.Config) int { return c.NRoutedExperts }

// Places of the table.

func top(f func(*DeepseekForCausalLM) *Weight) place {
	return func(m *DeepseekForCausalLM, _, _ int) *Weight { return f(m) }
}

func layer(f func(*DeepseekDecoderLayer) *Weight) place {
	return func(m *DeepseekForCausalLM, l, _ int) *Weight { return f(&m.Model.Layers[l]) }
}

func expert(f func(*DeepseekMLP) *Weight) place {
	return func(m *DeepseekForCausalLM, l, e int) *Weight { return f(&m.Model.Layers[l].MoE.Experts[e]) }
}
