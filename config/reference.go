package config

// What a Config says by its family and reference.

import (
	"cmp"
	"fmt"
)

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
	if normalise && !rules.Router.ScalesNormalised || rules.MoE.ScalesSum {
		return normalise, 1
	}
	return normalise, c.Router.RoutedScalingFactor
}

// SumScale returns the factor of the routed sum: see Rules.ScalesSum.
func (c *Config) SumScale() float64 {
	if c.Rules().MoE.ScalesSum {
		return c.Router.RoutedScalingFactor
	}
	return 1
}

// TopKDivisor returns what a gate does to the sum of the weights of the chosen experts before it divides them by it: it
// adds eps, and takes least if that is more.
func (c *Config) TopKDivisor() (eps, least float64) {
	if !c.Rules().Router.NormsBare {
		eps = 1e-20
	}
	return eps, c.Router.MoENormMin
}

// Limit returns the limit of the routed experts of layer l, or of its other MLPs; 0 sets none.
func (c *Config) Limit(l int, routed bool) float64 {
	limits := c.SharedSwiGLULimits
	if routed {
		limits = c.SwiGLULimits
	}
	switch {
	case l >= 0 && l < len(limits):
		return limits[l]
	case !routed && c.Rules().MoE.LimitsRouted:
		return 0
	}
	return c.SwiGLULimit
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
		c.mlpType(layer) != denseMLP && c.HasMLP(layer) &&
		!(layer >= c.NumHiddenLayers && c.Rules().MoE.DensePredictions)
}

// mlpType is "" where no list has the layer.
func (c *Config) mlpType(layer int) string {
	if layer >= 0 && layer < len(c.Layers.MLPLayerTypes) {
		return c.Layers.MLPLayerTypes[layer]
	}
	return ""
}

// HasMLP reports whether a layer has an MLP or a mixture of experts. In some models others have attention alone.
func (c *Config) HasMLP(layer int) bool { return c.mlpType(layer) != noMLP }

// Choices returns the number of experts that a gate chooses from.
func (c *Config) Choices() int { return c.MoE.NRoutedExperts + c.MoE.ZeroExperts }

// ExpertWidth returns the width of what routed experts take and give.
func (c *Config) ExpertWidth() int { return cmp.Or(c.MoE.LatentSize, c.HiddenSize) }

// MoELayers lists the layers of the decoder that have a DeepseekMoE.
func (c *Config) MoELayers() (layers []int) {
	for l := range c.NumHiddenLayers {
		if c.IsMoE(l) {
			layers = append(layers, l)
		}
	}
	return layers
}
