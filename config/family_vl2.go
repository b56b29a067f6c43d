package config

import (
	"fmt"

	"github.com/go-json-experiment/json/jsontext"
)

// vl2Defaults are those of the configuration_deepseek.py that is published with DeepSeek-VL2, whose language
// model's model_type is deepseek_v2 too. topk_method is as it stands there: the gate knows no such method.
var vl2Defaults = languageDefaults(v2Defaults)

func languageDefaults(c Config) Config {
	c.ModelType, c.Reference, c.NumHiddenLayers, c.NumKeyValueHeads = vl2, Remote, 30, 32
	c.NSharedExperts, c.NRoutedExperts, c.TopKMethod = 0, 0, "gready"
	return c
}

// vl2 is the model_type of DeepSeek-VL2 and DeepSeek-OCR, and here of their language models.
const vl2 = "deepseek_vl_v2"

// vl2References: its gate normalises and scales as DeepSeek-V3's does.
var vl2References = map[Reference]Rules{Remote: {RouterFloat32: true, ScalesNormalised: true, RoutedSum: ByChoice}}

// vl2Fields are DeepSeek-V2's, but use_mla chooses the attention, and of the keys of plain attention's widths
// there may be 0 or null.
var vl2Fields = plainOrLatent(mlaFields)

// plainOrLatent returns the fields of a family in which use_mla chooses between latent attention and plain one.
func plainOrLatent(fields []field) (all []field) {
	for _, f := range fields {
		switch f.key {
		case "model_type":
			f.read = readLanguageType
		case "kv_lora_rank":
			f.reader = natural(func(c *Config) *int { return &c.KVLoraRank }, maxDim)
		case "qk_nope_head_dim":
			f.reader = natural(func(c *Config) *int { return &c.QKNopeHeadDim }, maxDim)
		case "qk_rope_head_dim":
			f.reader = natural(func(c *Config) *int { return &c.QKRopeHeadDim }, maxDim)
		case "v_head_dim":
			f.reader = natural(func(c *Config) *int { return &c.VHeadDim }, maxDim)
		case "auto_map", "rope_interleave", "num_nextn_predict_layers", "mlp_bias":
			continue // the published class has none of them
		}
		all = append(all, f)
	}
	return append(all, field{"use_mla", reader{read: readUseMLA}})
}

var vl2Rules = []rule{
	{[]string{"scoring_func"}, scoringIsKnown},
	{[]string{"topk_method", "n_group", "topk_group", "n_routed_experts", "num_experts_per_tok"}, methodOfVL2},
	{[]string{"kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim", "num_attention_heads",
		"num_key_value_heads", "hidden_size", "rope_scaling"}, attentionFits},
	sharedMLARules[0], // sizeIsSane
	{[]string{"num_experts_per_tok", "n_routed_experts"}, topKFitsExperts},
	{[]string{"hidden_act"}, activationIsSiLU},
}

// readLanguageType accepts the one model_type that the language model's configuration has.
func readLanguageType(d *decoding, key string, value jsontext.Value) {
	_, err := parseOneOf(value, "deepseek_v2")
	d.fail(key, err)
}

// readUseMLA: false means plain attention, transformers' LlamaAttention, whatever the widths of latent
// attention are.
func readUseMLA(d *decoding, key string, value jsontext.Value) {
	latent, err := parseBoolean(value)
	if err != nil {
		d.fail(key, err)
	} else if c := &d.config; !latent {
		c.KVLoraRank, c.QLoraRank, c.QKNopeHeadDim, c.QKRopeHeadDim, c.VHeadDim = 0, 0, 0, 0, 0
		c.RopeInterleave = false
	}
}

// scoringIsKnown: MoEGate.forward raises NotImplementedError otherwise.
func scoringIsKnown(c *Config) error {
	if c.ScoringFunc != "sigmoid" {
		return scoringIsSoftmax(c)
	}
	return nil
}

// methodOfVL2: the gate has DeepSeek-V2's methods and DeepSeek-V3's.
func methodOfVL2(c *Config) error {
	switch {
	case c.NRoutedExperts == 0:
		return nil
	case c.TopKMethod == "noaux_tc" && c.TopKGroup < c.NGroup:
		return fmt.Errorf("noaux_tc with topk_group %d of n_group %d: the published code gives the experts of other groups "+
			"the score 0, which a chosen one may be below; no published model has it", c.TopKGroup, c.NGroup)
	case c.TopKMethod == "noaux_tc":
		return methodOfV3(c)
	}
	return methodOfV2(c)
}

// attentionFits: use_mla false is plain attention without scaling, else all widths of latent attention count.
func attentionFits(c *Config) error {
	if !c.RopeInterleave {
		if c.RopeScaling != nil {
			return fmt.Errorf("use_mla is false with rope_scaling %s: no published model has both", c.RopeScaling)
		}
		if err := headsDivideHidden(c); err != nil {
			return err
		}
		return groupsDivideHeads(c)
	}
	if min(c.KVLoraRank, c.QKNopeHeadDim, c.QKRopeHeadDim, c.VHeadDim) == 0 {
		return fmt.Errorf("%d, qk_nope_head_dim %d, qk_rope_head_dim %d, v_head_dim %d: without use_mla false all of "+
			"them are 1 or more", c.KVLoraRank, c.QKNopeHeadDim, c.QKRopeHeadDim, c.VHeadDim)
	}
	if err := latentHeadsAreEqual(c); err != nil {
		return err
	}
	return rotaryIsEven(c)
}
