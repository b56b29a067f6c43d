package model_test

import (
	"context"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"dsmoe/config/configtest"
	"dsmoe/model"
)

// latentFields are what makes a DeepSeek-V2 or V3 of five tokens' length: the norms'
// epsilons are far apart, and YaRN's ramp covers several pairs.
const latentFields = `"vocab_size":11,"hidden_size":8,"intermediate_size":12,"moe_intermediate_size":4,
"num_hidden_layers":2,"num_attention_heads":2,"num_key_value_heads":2,"n_shared_experts":1,"n_routed_experts":8,
"num_experts_per_tok":3,"first_k_dense_replace":1,"n_group":4,"topk_group":2,"kv_lora_rank":6,"qk_nope_head_dim":4,
"qk_rope_head_dim":8,"v_head_dim":3,"rms_norm_eps":0.01,`

const yarnFields = `"rope_parameters":{"rope_type":"yarn","rope_theta":10.0,"factor":4.0,
"original_max_position_embeddings":32,"beta_fast":4,"beta_slow":0.1,"mscale":1,"mscale_all_dim":0.5}`

// TestForwardIsTheFormula compares the logits, and every choice of experts, with the formulas in
// float64.
func TestForwardIsTheFormula(t *testing.T) {
	v1 := func(fields string) string { return strings.Replace(tinyConfig, "{", "{"+fields, 1) }
	for name, text := range map[string]string{
		"V1":                     tinyConfig,
		"V1, top-k normalised":   v1(`"norm_topk_prob":true,`),
		"V1, biases":             v1(`"attention_bias":true,`),
		"V1, linear scaling":     v1(`"rope_scaling":{"type":"linear","factor":3.0},`),
		"V1, dynamic scaling":    v1(`"rope_scaling":{"type":"dynamic","factor":3.0},"max_position_embeddings":4,`),
		"V1, dynamic, short":     v1(`"rope_scaling":{"type":"dynamic","factor":3.0},"max_position_embeddings":5,`),
		"V1, sliced matmuls":     strings.NewReplacer(`"vocab_size":11`, `"pretraining_tp":2,"vocab_size":12`, `"num_key_value_heads":1`, `"num_key_value_heads":2`).Replace(tinyConfig),
		"V2, greedy":             `{"model_type":"deepseek_v2",` + latentFields + `"q_lora_rank":null,"topk_method":"greedy"}`,
		"V2, groups, YaRN":       `{"model_type":"deepseek_v2",` + latentFields + `"q_lora_rank":5,"topk_method":"group_limited_greedy","routed_scaling_factor":2.0,` + yarnFields + `}`,
		"V2, published, scaled":  `{"model_type":"deepseek_v2","auto_map":{},` + latentFields + `"q_lora_rank":5,"routed_scaling_factor":2.0}`,
		"V2, published, divided": `{"model_type":"deepseek_v2","auto_map":{},` + latentFields + `"q_lora_rank":5,"norm_topk_prob":true,"routed_scaling_factor":2.0}`,
		"V3, halves":             `{"model_type":"deepseek_v3",` + latentFields + `"q_lora_rank":5,"rope_interleave":false}`,
		"V3, biases, YaRN":       `{"model_type":"deepseek_v3",` + latentFields + `"q_lora_rank":5,"attention_bias":true,` + yarnFields + `}`,
		"V3, YaRN, no mscale":    `{"model_type":"deepseek_v3",` + latentFields + `"q_lora_rank":5,` + strings.Replace(yarnFields, `,"mscale":1,"mscale_all_dim":0.5`, "", 1) + `}`,
		"V3, published":          `{"model_type":"deepseek_v3","auto_map":{},` + latentFields + `"q_lora_rank":5}`,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := configtest.Parse(t, text)
			src := synthetic(t, c)
			m, err := model.Load(c, src)
			require.NoError(t, err)
			o := ask(t, c, src)
			o.t = t
			heard := &listener{idx: map[int][]int{}}
			plain := model.NewPlain(model.Options{})
			defer plain.Close(nil)
			net := &model.Network[*model.Activation]{Model: m, Input: o.input(), Arithmetic: plain, Trace: heard}
			logits, err := net.Forward(context.Background())
			require.NoError(t, err)
			o.idx = heard.idx
			hidden, _ := o.hidden()
			for row, x := range hidden {
				if o.mask[row] == 0 {
					continue // padding is not read
				}
				for id, want := range o.logits(x) {
					require.InDelta(t, want, logits.Row(row)[id], 1e-5)
				}
			}
		})
	}
}
