package config

// What a Config says by its family and reference.

import "fmt"

// ChoosesByBias reports whether experts are chosen by scores to which e_score_correction_bias is added.
func (c *Config) ChoosesByBias() bool {
	return c.Router.TopKMethod == "noaux_tc" && !c.Rules().Router.UnbiasedChoice
}

// Rules returns the rules of c's family and reference.
func (c *Config) Rules() Rules {
	if c.changed != nil {
		return *c.changed
	}
	rules, _ := c.rulesOf(c.Reference)
	return rules
}

// HasReference reports whether c's family has the reference.
func (c *Config) HasReference(r Reference) bool {
	_, ok := c.rulesOf(r)
	return ok
}

func (c *Config) rulesOf(r Reference) (rules Rules, ok bool) {
	if c.family != nil {
		rules, ok = c.family.references[r]
	}
	return rules, ok
}

// As returns c with another reference of its family: see Rules. It fails if the family does not
// have the reference.
func (c *Config) As(r Reference) (*Config, error) {
	if !c.HasReference(r) {
		return nil, fmt.Errorf("model_type %s has no %s reference", c.ModelType, r)
	}
	copied := *c
	copied.Reference, copied.changed = r, nil
	return &copied, nil
}

// WithRules returns c under other rules than those of its reference.
func (c *Config) WithRules(change func(r *Rules)) *Config {
	copied, rules := *c, c.Rules()
	change(&rules)
	copied.changed = &rules
	return &copied
}

// TopKWeights returns how a gate scales the scores of the chosen experts: divide them
// by their sum, as TopKDivisor has it, if normalise is set, then multiply them by scale.
// Rules.NormTopK and Rules.ScalesNormalised decide what norm_topk_prob and routed_scaling_factor do.
func (c *Config) TopKWeights() (normalise bool, scale float64) {
	rules := c.Rules()
	switch rules.Router.NormTopK {
	case normAboveOne:
		normalise = c.Router.NormTopKProb && c.MoE.NumExpertsPerTok > 1
	case normAlways:
		normalise = c.Router.NormTopKProb
	}
	if normalise && !rules.Router.ScalesNormalised {
		return true, 1
	}
	return normalise, c.Router.RoutedScalingFactor
}

// TopKDivisor returns what a gate does to the sum of the weights of the chosen experts before it divides them by it: it
// adds eps, and takes least if that is more.
func (c *Config) TopKDivisor() (eps, least float64) {
	if !c.Rules().Router.NormsBare {
		eps = 1e-20
	}
	return eps, c.Router.MoENormMin
}

// IsMoE reports whether a layer, counted from 0, has a DeepseekMoE where a dense
// layer has a DeepseekMLP. It is the condition of DeepseekDecoderLayer.__init__:
//
//	n_routed_experts is not None and
//	layer_idx >= first_k_dense_replace and layer_idx % moe_layer_freq == 0
//
// transformers' own classes leave the last condition out. Some have a list of layers, in which this one is not "dense".
func (c *Config) IsMoE(layer int) bool {
	return c.MoE.NRoutedExperts > 0 && layer >= c.Layers.FirstKDenseReplace &&
		(c.Rules().MoE.IgnoresMoELayerFreq || layer%c.Layers.MoELayerFreq == 0) &&
		!(layer >= 0 && layer < len(c.Layers.MLPLayerTypes) && c.Layers.MLPLayerTypes[layer] == denseMLP) &&
		!(layer >= c.NumHiddenLayers && c.Rules().MoE.DensePredictions)
}

// MoELayers lists the layers of the decoder that have a DeepseekMoE.
func (c *Config) MoELayers() (layers []int) {
	for l := range c.NumHiddenLayers {
		if c.IsMoE(l) {
			layers = append(layers, l)
		}
	}
	return layers
}
