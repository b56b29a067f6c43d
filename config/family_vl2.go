package config

import (
	"fmt"

	"github.com/go-json-experiment/json/jsontext"
)

// vl2 is the configuration_deepseek.py that is published with DeepSeek-VL2, whose language model's model_type is
// deepseek_v2 too: DeepSeek-V2's keys, but use_mla chooses the attention, and of the keys of plain attention's widths
// there may be 0 or null. topk_method is as it stands there: the gate knows no such method. The gate normalises and scales
// as DeepSeek-V3's does.
var vl2 = v2.derive(modelTypeVL2, delta{
	missing: map[string]any{"num_hidden_layers": 30, "num_key_value_heads": 32, "n_shared_experts": 0,
		"n_routed_experts": 0, "topk_method": "gready"},
	fields: []field{
		oneOf("model_type", "deepseek_v2"),
		{"kv_lora_rank", nil, natural(func(c *Config) *int { return &c.Attention.KVLoraRank }, maxDim)},
		{"qk_nope_head_dim", nil, natural(func(c *Config) *int { return &c.Attention.QKNopeHeadDim }, maxDim)},
		{"qk_rope_head_dim", nil, natural(func(c *Config) *int { return &c.Attention.QKRopeHeadDim }, maxDim)},
		{"v_head_dim", nil, natural(func(c *Config) *int { return &c.Attention.VHeadDim }, maxDim)},
		{"use_mla", nil, readBy(readUseMLA)},
	},
	unread:    []string{"auto_map", "rope_interleave", "num_nextn_predict_layers", "mlp_bias"},
	reference: Remote,
	rules: []rule{
		{[]string{"scoring_func"}, func(c *Config) error {
			if c.Router.ScoringFunc == "sigmoid" {
				return nil
			}
			return scoringIsSoftmax.check(c)
		}},
		{groupKeys, methodOfVL2},
		{[]string{"kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim", "num_attention_heads",
			"num_key_value_heads", "hidden_size", "rope_scaling"}, attentionFits},
		latentSize,
		topKFitsExperts,
		activationIsSiLU,
	},
	references: map[Reference]Rules{Remote: {
		Router:    routerRules{RouterFloat32: true, ScalesNormalised: true},
		MoE:       moeRules{RoutedSum: ByChoice},
		Attention: attentionRules{AbsorbsKVB: true},
	}},
	within: true,
})

// readUseMLA: false means plain attention, transformers' LlamaAttention, whatever the widths of latent
// attention are.
func readUseMLA(d *decoding, key string, value jsontext.Value) {
	latent, err := parseBoolean(value)
	if err != nil {
		d.fail(key, err)
	} else if c := &d.config; !latent {
		c.Attention.KVLoraRank, c.Attention.QLoraRank, c.Attention.QKNopeHeadDim, c.Attention.QKRopeHeadDim,
			c.Attention.VHeadDim = 0, 0, 0, 0, 0
		c.RoPE.RopeInterleave = false
	}
}

// methodOfVL2: the gate has DeepSeek-V2's methods and DeepSeek-V3's.
func methodOfVL2(c *Config) error {
	switch {
	case c.MoE.NRoutedExperts == 0:
		return nil
	case c.Router.TopKMethod == "noaux_tc" && c.Router.TopKGroup < c.Router.NGroup:
		return fmt.Errorf("noaux_tc with topk_group %d of n_group %d: the published code gives the experts of other groups "+
			"the score 0, which a chosen one may be below; no published model has it", c.Router.TopKGroup, c.Router.NGroup)
	case c.Router.TopKMethod == "noaux_tc":
		return methodOfV3(c)
	}
	return methodOfV2(c)
}

// attentionFits: use_mla false is plain attention without scaling, else all widths of latent attention count.
func attentionFits(c *Config) error {
	if !c.RoPE.RopeInterleave {
		if c.RoPE.RopeScaling != nil {
			return fmt.Errorf("use_mla is false with rope_scaling %s: no published model has both", c.RoPE.RopeScaling)
		}
		if err := headsDivideHidden.check(c); err != nil {
			return err
		}
		return groupsDivideHeads.check(c)
	}
	if min(c.Attention.KVLoraRank, c.Attention.QKNopeHeadDim, c.Attention.QKRopeHeadDim, c.Attention.VHeadDim) == 0 {
		return fmt.Errorf("%d, qk_nope_head_dim %d, qk_rope_head_dim %d, v_head_dim %d: without use_mla false all of "+
			"them are 1 or more", c.Attention.KVLoraRank, c.Attention.QKNopeHeadDim, c.Attention.QKRopeHeadDim,
			c.Attention.VHeadDim)
	}
	if err := latentHeadsAreEqual.check(c); err != nil {
		return err
	}
	return rotaryIsEven.check(c)
}
