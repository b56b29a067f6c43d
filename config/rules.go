package config

import "fmt"

// Reference names an implementation of a family in Python.
type Reference string

// The implementations. The first DeepSeekMoE has no native one.
const (
	Remote Reference = "remote" // the modeling_*.py published with the checkpoint
	Native Reference = "native" // transformers' models/deepseek_v2, models/deepseek_v3
)

// Rules are the differences between references, of one family or several, that config.json
// does not express. The zero value is the first
// DeepSeekMoE's modeling_deepseek.py.
//
//	                      V1 remote  V2 remote  V2 native  V3 remote  V3 native
//	RouterFloat32         no         yes        yes        yes        yes
//	IgnoresMoELayerFreq   no         no         yes        no         yes
//	NormTopK              if k > 1   if k > 1   never      if k > 1   for any k
//	ScalesNormalised      no         no         yes        yes        yes
//	RoutedSum             by expert  by choice  by expert  by choice  by expert
//	AnglesInFloat32       no         no         yes        no         yes
//	RotatesInFloat32      no         no         yes        no         no
type Rules struct {
	// RouterFloat32: the gate computes in float32, whatever the compute dtype.
	RouterFloat32 bool
	// IgnoresMoELayerFreq: moe_layer_freq does not count, see IsMoE.
	IgnoresMoELayerFreq bool
	// NormTopK is when norm_topk_prob normalises the top-k weights, see TopKWeights.
	NormTopK NormTopK
	// ScalesNormalised: top-k weights are scaled by routed_scaling_factor though they
	// were normalised; otherwise they are scaled only if they were not.
	ScalesNormalised bool
	// RoutedSum is the order in which the experts' outputs are added.
	RoutedSum RoutedSum
	// AnglesInFloat32: RoPE's positions and angles are float32, whatever inv_freq's
	// dtype; otherwise they have that.
	AnglesInFloat32 bool
	// RotatesInFloat32: the rotation is computed in float32, by cos and sin in float32,
	// and rounded once; otherwise cos, sin and each product are rounded to the compute
	// dtype.
	RotatesInFloat32 bool
	// CastsRotation: where RotatesInFloat32, cos and sin are cast to the compute dtype first.
	CastsRotation bool
	// IndexerInterleaves: RoPE rotates pairs (2i, 2i+1) of the indexer's channels, not halves.
	// GLM-5's does, DeepSeek-V3.2's does not; attention's own pairs are interleaved in both.
	IndexerInterleaves bool
	// NormsExperts: an RMSNorm stands behind the sum of routed and shared experts, A.X-K1's.
	NormsExperts bool
	// NormsOnce: RMSNorm multiplies with its weight in float32 and rounds once; otherwise it rounds before that, too.
	NormsOnce bool
	// UnbiasedChoice: noaux_tc chooses by the scores alone, for the files have no e_score_correction_bias.
	UnbiasedChoice bool
}

// ChoosesByBias reports whether experts are chosen by scores to which e_score_correction_bias is added.
func (c *Config) ChoosesByBias() bool {
	return c.TopKMethod == "noaux_tc" && !c.Rules().UnbiasedChoice
}

// NormTopK is the condition under which norm_topk_prob has an effect.
type NormTopK uint8

// The conditions under which norm_topk_prob normalises.
const (
	NormAboveOne NormTopK = iota // if num_experts_per_tok > 1
	NormAlways                   // for any num_experts_per_tok
	NormNever                    // not at all
)

// RoutedSum is the order in which the outputs of a token's experts are added.
type RoutedSum uint8

// The orders of the routed sum.
const (
	// ByExpert adds in the order of ascending experts in the compute dtype, rounding
	// each product and each partial sum: moe_infer's scatter_reduce_ or index_add_.
	ByExpert RoutedSum = iota
	// ByChoice sums in the order of topk_idx, rounding each product to the dtype of the
	// weights and the sum to the compute dtype once.
	ByChoice
)

// The rules of each reference: see Rules for the table.
var (
	v1References = map[Reference]Rules{Remote: {}}
	v2References = map[Reference]Rules{
		Remote: {RouterFloat32: true, RoutedSum: ByChoice},
		Native: {RouterFloat32: true, IgnoresMoELayerFreq: true, NormTopK: NormNever, ScalesNormalised: true,
			AnglesInFloat32: true, RotatesInFloat32: true},
	}
	v3References = map[Reference]Rules{
		Remote: {RouterFloat32: true, ScalesNormalised: true, RoutedSum: ByChoice},
		Native: {RouterFloat32: true, IgnoresMoELayerFreq: true, NormTopK: NormAlways, ScalesNormalised: true,
			AnglesInFloat32: true},
	}
	v4References = map[Reference]Rules{
		Native: {IgnoresMoELayerFreq: true, NormTopK: NormAlways, ScalesNormalised: true, AnglesInFloat32: true,
			RotatesInFloat32: true, CastsRotation: true, NormsOnce: true},
	}
)

// Rules returns the rules of c's family and reference.
func (c *Config) Rules() Rules {
	rules, _ := c.rulesOf(c.Reference)
	return rules
}

// HasReference reports whether c's family has the reference.
func (c *Config) HasReference(r Reference) bool {
	_, ok := c.rulesOf(r)
	return ok
}

func (c *Config) rulesOf(r Reference) (rules Rules, ok bool) {
	for i := range families {
		if families[i].defaults.ModelType == c.ModelType {
			rules, ok = families[i].references[r]
		}
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
	copied.Reference = r
	return &copied, nil
}

// TopKWeights returns how a gate scales the scores of the chosen experts: divide them
// by their sum + 1e-20 if normalise is set, then multiply them by scale.
//
//	V1         norm_topk_prob and num_experts_per_tok > 1, 1
//	V2 remote  the same; routed_scaling_factor if not normalised
//	V2 native  false, routed_scaling_factor
//	V3 remote  norm_topk_prob and num_experts_per_tok > 1, routed_scaling_factor
//	V3 native  norm_topk_prob, routed_scaling_factor
func (c *Config) TopKWeights() (normalise bool, scale float64) {
	rules := c.Rules()
	switch rules.NormTopK {
	case NormAboveOne:
		normalise = c.NormTopKProb && c.NumExpertsPerTok > 1
	case NormAlways:
		normalise = c.NormTopKProb
	}
	if normalise && !rules.ScalesNormalised {
		return true, 1
	}
	return normalise, c.RoutedScalingFactor
}

// IsMoE reports whether a layer, counted from 0, has a DeepseekMoE where a dense
// layer has a DeepseekMLP. It is the condition of DeepseekDecoderLayer.__init__:
//
//	n_routed_experts is not None and
//	layer_idx >= first_k_dense_replace and layer_idx % moe_layer_freq == 0
//
// transformers' own classes leave the last condition out.
func (c *Config) IsMoE(layer int) bool {
	return c.NRoutedExperts > 0 && layer >= c.FirstKDenseReplace &&
		(c.Rules().IgnoresMoELayerFreq || layer%c.MoELayerFreq == 0)
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
