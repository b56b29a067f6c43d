package config

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestQuantization: the methods that are read, what they except, and why others are refused.
func TestQuantization(t *testing.T) {
	group := func(bits, kind, strategy, size string) string {
		return `{"targets":["Linear"],"weights":{"num_bits":` + bits + `,"type":"` + kind + `","strategy":"` + strategy +
			`","group_size":` + size + `,"symmetric":true,"observer":"minmax"}}`
	}
	packed := func(format string, groups ...string) string {
		for i, g := range groups {
			groups[i] = `"group_` + string(rune('0'+i)) + `":` + g
		}
		return `{"quant_method":"compressed-tensors","format":"` + format + `","config_groups":{` + strings.Join(groups, ",") +
			`},"ignore":["lm_head","re:.*self_attn.*","re:^(?!x).*"]}`
	}
	int4 := group("4", "int", "group", "32")
	for _, c := range []struct{ config, method, problem string }{
		{packed("pack-quantized", int4), "pack-quantized [1 32]", ""},
		{packed("pack-quantized", int4, int4), "pack-quantized [1 32]", ""},
		{packed("pack-quantized", group("4", "int", "channel", "null")), "pack-quantized [1 0]", ""},
		{strings.Replace(packed("pack-quantized", int4), `"symmetric":true`, `"symmetric":false`, 1), "pack-quantized, asymmetric [1 32]", ""},
		{packed("pack-quantized", int4, strings.Replace(int4, `"symmetric":true`, `"symmetric":false`, 1)), "", "quantised in several ways"},
		{packed("nvfp4-pack-quantized", group("4", "float", "tensor_group", "16")), "nvfp4-pack-quantized [1 16]", ""},
		{packed("mxfp4-pack-quantized", group("4", "float", "group", "32")), "mxfp4-pack-quantized [1 32]", ""},
		{`{"quant_method":"modelopt","quant_algo":"NVFP4","exclude_modules":["lm_head","*self_attn*"]}`, "nvfp4 [1 16]", ""},
		{packed("pack-quantized", int4, group("8", "int", "group", "32")), "", "config_groups: groups of weights that are quantised in several ways are not read"},
		{packed("pack-quantized", group("8", "int", "group", "32")), "", `config_groups: weights of 8 bits, type "int", strategy "group" and group_size 32 are not read as pack-quantized: dequantise them with compressed-tensors`},
		{packed("pack-quantized", group("4", "int", "group", "0")), "", `group_size 0 are not read`},
		{packed("nvfp4-pack-quantized", group("4", "float", "tensor_group", "32")), "", `group_size 32 are not read as nvfp4-pack-quantized`},
		{packed("int-quantized", int4), "", `format: "int-quantized" is not one of pack-quantized, nvfp4-pack-quantized, mxfp4-pack-quantized`},
		{packed("pack-quantized", `{"weights":null}`), "", "config_groups: groups of weights"},
		{packed("pack-quantized"), "", "config_groups: not an object of groups with weights"},
		{`{"quant_method":"awq","bits":4,"group_size":128,"zero_point":true,"version":"GEMM","modules_to_not_convert":["lm_head","self_attn"]}`, "awq [1 128]", ""},
		{`{"quant_method":"awq","bits":4,"group_size":-1,"modules_to_not_convert":["lm_head","model.layers.3.self_attn."]}`, "awq [1 0]", ""},
		{`{"quant_method":"gptq","bits":4,"group_size":32,"dynamic":{"-:.*self_attn":{},"-:lm_head":{},"+:.*up_proj":{"bits":4}}}`, "gptq [1 32]", ""},
		{`{"quant_method":"gptq","bits":4,"group_size":32,"desc_act":true,"checkpoint_format":"gptq_v2","dynamic":{"-:.*self_attn|lm_head":{}},"pack_dtype":"int32"}`, "gptq_v2, desc_act [1 32]", ""},
		{`{"quant_method":"gptq","bits":4,"group_size":-1,"desc_act":true,"dynamic":{"-:.*self_attn|lm_head":{}}}`, "gptq [1 0]", ""},
		{`{"quant_method":"auto-round","bits":4,"group_size":128,"packing_format":"auto_round:auto_gptq","extra_config":{"lm_head":{"bits":16,"data_type":"fp"},".*self_attn.*":{"bits":16}}}`, "gptq [1 128]", ""},
		{`{"quant_method":"intel/auto-round","bits":4,"group_size":128,"data_type":"int","backend":"auto_round:exllamav2","extra_config":{"lm_head":{"bits":16},"model.layers.3.self_attn":{"bits":16}}}`, "gptq_v2 [1 128]", ""},
		{`{"quant_method":"auto-round","bits":4,"group_size":128,"packing_format":"auto_round:auto_awq","extra_config":{"lm_head":{"bits":16},"self_attn.o_proj":{"bits":16}}}`, "awq [1 128]", ""},
		{`{"quant_method":"awq","bits":8,"group_size":128}`, "", "bits: weights of 8 bits are not read: dequantise them with AutoAWQ"},
		{`{"quant_method":"awq","bits":4,"group_size":128,"version":"gemv"}`, "", `version: "gemv" is not one of gemm`},
		{`{"quant_method":"gptq","bits":3,"group_size":128}`, "", "bits: weights of 3 bits are not read: dequantise them with GPTQModel"},
		{`{"quant_method":"gptq","bits":4}`, "", "group_size: missing"},
		{`{"quant_method":"gptq","bits":4,"group_size":0}`, "", "group_size: 0 is not in 1"},
		{`{"quant_method":"gptq","bits":4,"group_size":128,"checkpoint_format":"marlin"}`, "", `checkpoint_format: "marlin" is not one of gptq, gptq_v2`},
		{`{"quant_method":"gptq","bits":4,"group_size":128,"is_marlin_format":true}`, "", "is_marlin_format: weights of Marlin are not read: dequantise them with AutoGPTQ"},
		{`{"quant_method":"gptq","bits":4,"group_size":128,"pack_dtype":"int64"}`, "", `pack_dtype: "int64" is not one of int32`},
		{`{"quant_method":"gptq","bits":4,"group_size":128,"dynamic":{"+:.*down_proj":{"bits":8}}}`, "", `dynamic: "+:.*down_proj" is quantised in another way than the rest: dequantise the weights with GPTQModel`},
		{`{"quant_method":"auto-round","bits":2,"group_size":128}`, "", "weights of 2 bits are not read: dequantise them with AutoRound"},
		{`{"quant_method":"auto-round","bits":4,"group_size":32,"data_type":"mx_fp"}`, "", `data_type: "mx_fp" is not one of int`},
		{`{"quant_method":"auto-round","bits":4,"group_size":32,"act_bits":8}`, "", "act_bits: 8 is not in 16..32"},
		{`{"quant_method":"auto-round","bits":4,"group_size":32,"extra_config":{"model.layers.0.mlp.up_proj":{"bits":8}}}`, "", `extra_config: "model.layers.0.mlp.up_proj" is quantised in another way`},
		{`{"quant_method":"modelopt","quant_algo":"W4A8_AWQ"}`, "", `quant_algo: "W4A8_AWQ" is not one of NVFP4`},
		{`{"quant_method":"bitsandbytes"}`, "", `quant_method: "bitsandbytes" is not read, but fp8, compressed-tensors, modelopt, awq, gptq and auto-round are; load it with transformers, call dequantize(), and save it`},
		{`{"quant_method":"w4afp8"}`, "", `; convert the FP8 checkpoint that it was made from`},
		{`{"quant_method":"hqq"}`, "", `; convert the checkpoint that it was made from`},
		{`null,"quantization":{"group_size":64,"bits":4}`, "", "quantization: weights of MLX are not read; dequantise them with mlx_lm.convert --dequantize"},
		{`{"quant_method":"compressed-tensors","format":"float-quantized","config_groups":{}}`, "", "; dequantise the weights with compressed-tensors"},
	} {
		got, err := Parse(strings.NewReader(`{"model_type":"deepseek_v3","quantization_config":` + c.config + `}`))
		if c.problem != "" {
			require.ErrorContains(t, err, c.problem, c.config)
			continue
		}
		require.NoError(t, err, c.config)
		q := got.Quantization
		require.Equal(t, c.method, fmt.Sprint(q.Method, " ", q.Block))
		require.Equal(t, strings.Contains(c.config, "compressed-tensors") || strings.Contains(c.config, "auto-round"), q.Unclear)
		for module, stays := range map[string]bool{"lm_head": true, "model.layers.3.self_attn.o_proj": true,
			"model.layers.3.mlp.experts.1.up_proj": false} {
			require.Equal(t, stays, got.StaysUnquantised(module), module)
		}
	}
}
