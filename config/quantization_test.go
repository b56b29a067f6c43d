package config

import (
	"fmt"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// parseRead is Parse, with the error of what is not read.
func parseRead(document string) (*Config, error) {
	c, err := Parse(strings.NewReader(document))
	if err == nil {
		err = c.Computable()
	}
	return c, err
}

// TestQuantizationKeys: keys that change no weight are known, and any other key is refused by name, wherever it stands.
func TestQuantizationKeys(t *testing.T) {
	const (
		rounding = `"sym":true,"iters":1000,"lr":0.001,"minmax_lr":0.001,"nsamples":512,"seqlen":512,"amp":true,` +
			`"enable_quanted_input":true,"low_gpu_mem_usage":true,"gradient_accumulate_steps":4,"autoround_version":"0.4.5",` +
			`"scale_dtype":"torch.float16","act_bits":16,"dataset":"NeelNanda/pile-10k","rotation_config":null`
		fp8 = `"quant_method":"fp8","weight_block_size":[128,128],"activation_scheme":"dynamic","fmt":"e4m3","scale_fmt":"ue8m0"`
		awq = `"quant_method":"awq","bits":4,"group_size":128,"zero_point":true,"version":"GEMM","do_fuse":false,"modules_to_fuse":null,` + rounding
		gpt = `"quant_method":"gptq","bits":4,"group_size":128,"desc_act":false,"lm_head":false,"true_sequential":true,` +
			`"damp_percent":0.01,"static_groups":false,"model_name_or_path":null,"use_exllama":true,"meta":{"quantizer":["gptqmodel:5.6.12"],"mse":0},` +
			`"pack_impl":"cpu",` + rounding
		round = `"quant_method":"auto-round","bits":4,"group_size":128,"packing_format":"auto_round:auto_gptq","block_name_to_quantize":"model.layers",` + rounding
		opt   = `"quant_method":"modelopt","quant_algo":"NVFP4","group_size":16,"kv_cache_quant_algo":"FP8","producer":{"name":"modelopt"},` +
			`"config_groups":{"group_0":{"input_activations":{"dynamic":false,"num_bits":4},"weights":{"dynamic":false,"num_bits":4,"type":"float","group_size":16}%s,"targets":["Linear"]}}`
		packed = `"quant_method":"compressed-tensors","format":"pack-quantized","ignore":[],"kv_cache_scheme":null,"version":"0.15.1",` +
			`"quantization_status":"compressed","global_compression_ratio":1.4,"sparsity_config":{},"transform_config":{},"config_groups":{"group_0":` +
			`{"targets":["Linear"],"format":"pack-quantized","input_activations":null,"output_activations":null,"weights":{"num_bits":4,"type":"int",` +
			`"strategy":"group","group_size":32,"symmetric":true,"actorder":"static","block_structure":null,"dynamic":false,"observer":"mse",` +
			`"observer_kwargs":{},"scale_dtype":null,"zp_dtype":null%s}}}`
		online = `"transform_config":{"config_groups":{"R4":{"type":"hadamard","apply":[{"targets":["re:.*down_proj$"],"location":"weight_input"},` +
			`{"targets":["re:.*down_proj$"],"location":"%s","inverse":true}],"randomize":false,"head_dim":null}}}`
	)
	plain, opened := fmt.Sprintf(packed, ""), fmt.Sprintf(opt, "")
	offline := fmt.Sprintf(online, "weight_output")
	for _, c := range []struct{ config, problem string }{
		{fp8, ""}, {awq, ""}, {gpt, ""}, {round, ""}, {opened, ""}, {plain, ""},
		{strings.Replace(plain, `"sparsity_config":{}`, `"sparsity_config":{"format":"dense","global_sparsity":0.1}`, 1), ""},
		{strings.Replace(plain, `"transform_config":{}`, offline, 1), ""},
		{strings.Replace(plain, `"transform_config":{}`, `"transform_config":null`, 1), ""},
		{strings.Replace(plain, `"sparsity_config":{}`, `"sparsity_config":{"format":"sparse-24-bitmask"}`, 1),
			`quantization_config.sparsity_config: sparse weights (format "sparse-24-bitmask") are not read`},
		{strings.Replace(plain, `"transform_config":{}`, `"transform_config":{"config_groups":{"R1":{"apply":[]}},"more":1}`, 1),
			`quantization_config.transform_config: not transforms as compressed-tensors writes them, at "/more"`},
		{strings.Replace(plain, `"format":"pack-quantized","input`, `"format":"nvfp4-pack-quantized","input`, 1), "config_groups.group_0.format: unknown key"},
		{strings.Replace(plain, `"dynamic":false`, `"dynamic":true`, 1), "config_groups.group_0.weights.dynamic: unknown key"},
		{fmt.Sprintf(packed, `,"rotate":true`), "quantization_config.config_groups.group_0.weights.rotate: unknown key"},
		{fmt.Sprintf(opt, `,"pre_quant_scale":false,"has_zero_point":false`), ""},
		{fmt.Sprintf(opt, `,"pre_quant_scale":true`), "quantization_config.config_groups.group_0.pre_quant_scale: unknown key"},
		{fmt.Sprintf(opt, `,"lora_rank":32`), "quantization_config.config_groups.group_0.lora_rank: unknown key"},
		{strings.Replace(opened, `"group_size":16,"kv`, `"group_size":32,"kv`, 1), "quantization_config.group_size: 32 is not that of NVFP4, 16"},
		{strings.Replace(opened, `"type":"float","group_size":16`, `"type":"float","group_size":32`, 1), "config_groups.group_0.weights.group_size: 32 is not that of NVFP4, 16"},
		{strings.Replace(opened, `"num_bits":4,"type":"float"`, `"num_bits":8,"type":"float"`, 1), "config_groups.group_0.weights.num_bits: 8 is not that of NVFP4, 4"},
		{opened + `,"pre_quant_scale":false,"has_zero_point":false`, ""},
		{opened + `,"pre_quant_scale":true`, "quantization_config.pre_quant_scale: unknown key"},
		{strings.Replace(awq, `"act_bits":16`, `"act_bits":8`, 1), "quantization_config.act_bits: 8 is not in 16..32"},
		{strings.Replace(gpt, `"act_bits":16`, `"act_bits":8`, 1), "quantization_config.act_bits: 8 is not in 16..32"},
		{awq + `,"backend":"llm-awq"`, "quantization_config.backend: weights of llm-awq are not read"},
		{awq + `,"backend":"autoawq"`, ""},
		{gpt + `,"dynamic":{"-:lm_head":{"damp_percent":0.1},"+:x":{"bits":4,"mse":2.4}}`, ""},
		{gpt + `,"dynamic":{"+:x":{"bits":4,"rotation":"hadamard"}}`, `dynamic: "+:x" is quantised in another way than the rest: dequantise the weights with GPTQModel ("rotation")`},
		{round + `,"extra_config":{"lm_head":{"bits":16,"data_type":"float","act_data_type":"float"}}`, ""},
		{round + `,"extra_config":{"x":{"bits":16,"rotation_config":{}}}`, `extra_config: "x" is quantised in another way than the rest: dequantise the weights with AutoRound ("rotation_config")`},
		{round + `,"extra_config":{"x":{"act_bits":8}}`, `("act_bits")`},
	} {
		_, err := parseRead(`{"model_type":"deepseek_v3","quantization_config":{` + c.config + `}}`)
		if c.problem == "" {
			require.NoError(t, err, c.config)
			continue
		}
		require.ErrorContains(t, err, c.problem, c.config)
	}
	for _, location := range []string{"input", "output", "k_cache", "q_attn", "weight", ""} {
		config := strings.Replace(plain, `"transform_config":{}`, fmt.Sprintf(online, location), 1)
		_, err := parseRead(`{"model_type":"deepseek_v3","quantization_config":{` + config + `}}`)
		require.ErrorContains(t, err, `quantization_config.transform_config: "R4" rotates at "`+location+`" while the model runs, `+
			`which its weights do not hold; save the model without that transform`)
	}
	for _, method := range []string{fp8, awq, gpt, round, opened, plain} {
		for _, key := range []string{"rotation_config", "spinquant_config", "rotation", "moe_sparsity_config", "adapter", "anything"} {
			method := strings.Replace(method, `,"rotation_config":null`, "", 1)
			config := func(value string) string {
				return `{"model_type":"deepseek_v3","quantization_config":{` + method + `,"` + key + `":` + value + `}}`
			}
			_, err := parseRead(config("{}"))
			require.ErrorContains(t, err, "quantization_config."+key+": unknown key, which may change what the model computes; "+
				"dequantise the weights with the library that wrote them", method)
			_, err = parseRead(config("null"))
			require.NoError(t, err, method)
		}
	}
}

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
		{packed("pack-quantized", int4, group("8", "int", "group", "32")), "", "config_groups: groups of the same modules that are quantised in several ways are not read"},
		{packed("pack-quantized", group("8", "int", "group", "32")), "pack-quantized, 8 bits [1 32]", ""},
		{packed("pack-quantized", group("1", "int", "group", "32")), "", `config_groups: "group_0": weights of 1 bits, type "int", strategy "group" and group_size 32 are not read as pack-quantized: dequantise them with compressed-tensors`},
		{packed("pack-quantized", group("4", "int", "group", "0")), "", `group_size 0 are not read`},
		{packed("nvfp4-pack-quantized", group("4", "float", "tensor_group", "32")), "", `group_size 32 are not read as nvfp4-pack-quantized`},
		{packed("int-quantized", int4), "", `config_groups: "group_0": weights of 4 bits, type "int", strategy "group" and group_size 32 are not read as int-quantized`},
		{packed("marlin-24", int4), "", `format "marlin-24" is not read; dequantise the weights with compressed-tensors`},
		{packed("pack-quantized", `{"weights":null}`), " [0 0]", ""},
		{packed("float-quantized", group("8", "float", "channel", "null")), "float-quantized [1 0]", ""},
		{packed("float-quantized", group("8", "float", "tensor", "null")), "float-quantized [0 0]", ""},
		{packed("naive-quantized", strings.Replace(group("8", "float", "block", "null"), `"type"`, `"block_structure":[128,64],"type"`, 1)), "float-quantized [128 64]", ""},
		{packed("float-quantized", group("8", "float", "block", "null")), "", `block_structure [] is not two integers`},
		{packed("int-quantized", group("8", "int", "channel", "null")), "int-quantized [1 0]", ""},
		{packed("mxfp8-quantized", group("8", "float", "group", "32")), "mxfp8-quantized [1 32]", ""},
		{packed("mxfp6-pack-quantized", group("6", "float", "group", "32")), "mxfp6-pack-quantized [1 32]", ""},
		{`{"quant_method":"fp8","fmt":"float8_e4m3fn","activation_scheme":"static","weight_block_size":null,"ignored_layers":["lm_head","self_attn.o_proj"]}`, "float-quantized [0 0]", ""},
		{`{"quant_method":"blockwise_int8","weight_block_size":[128,128],"ignored_layers":["lm_head","self_attn.o_proj"]}`, "blockwise_int8 [128 128]", ""},
		{`{"quant_method":"w8a8_int8","ignored_layers":["lm_head","self_attn.o_proj"]}`, "int-quantized [1 0]", ""},
		{`{"quant_method":"modelopt","quant_algo":"FP8","exclude_modules":["lm_head","*self_attn*"]}`, "float-quantized [0 0]", ""},
		{`{"quant_method":"modelopt","quant_algo":"W4A8_NVFP4_FP8","exclude_modules":["lm_head","*self_attn*"]}`, "nvfp4 [1 16]", ""},
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
		{`{"quant_method":"modelopt","quant_algo":"W4A8_AWQ"}`, "", `quant_algo: "W4A8_AWQ" is not one of FP8, `},
		{`{"quant_method":"bitsandbytes"}`, "", `quant_method: "bitsandbytes" is not read, but fp8, compressed-tensors, modelopt, awq, gptq, auto-round, blockwise_int8 and w8a8_int8 are; load it with transformers, call dequantize(), and save it`},
		{`{"quant_method":"w4afp8"}`, "", `; convert the FP8 checkpoint that it was made from`},
		{`{"quant_method":"hqq"}`, "", `; convert the checkpoint that it was made from`},
		{`null,"quantization":{"group_size":64,"bits":4}`, "", "quantization: weights of MLX are not read; dequantise them with mlx_lm.convert --dequantize"},
		{`null,"rotation_config":{"algorithm":"hadamard"}`, "", "rotation_config: rotates while the model runs, which its weights do not hold"},
		{`null,"spinquant_config":{"r4":true}`, "", "spinquant_config: rotates while the model runs"},
		{`{"quant_method":"fp8","weight_block_size":[128,128],"modules_to_not_convert":["lm_head"],"ignored_layers":["re:.*self_attn.*"],"dequantize":false}`, "fp8 [128 128]", ""},
		{`{"quant_method":"compressed-tensors","format":"float-quantized","config_groups":{}}`, "", "config_groups: not an object of groups with weights"},
		{`{"quant_method":"compressed-tensors","format":"dense","config_groups":{},"kv_cache_scheme":null}`, "", "config_groups: not an object of groups with weights"},
	} {
		got, err := parseRead(`{"model_type":"deepseek_v3","quantization_config":` + c.config + `}`)
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

// TestCacheAlone: where the cache alone is quantised, the weights are plain.
func TestCacheAlone(t *testing.T) {
	for _, q := range []string{`"quant_method":"modelopt","quant_algo":null,"kv_cache_quant_algo":"FP8"`,
		`"quant_method":"compressed-tensors","format":"dense","config_groups":{},"kv_cache_scheme":{"num_bits":8,"type":"float"}`} {
		got, err := parseRead(`{"model_type":"deepseek_v3","quantization_config":{` + q + `}}`)
		require.NoError(t, err, q)
		require.False(t, got.Quantization.Announced(), q)
	}
}

// TestGroups: modules of several schemes, by names, patterns and what the rest has; targets that name experts leave the
// rest plain.
func TestGroups(t *testing.T) {
	const nvfp4 = `{"weights":{"num_bits":4,"type":"float","strategy":"tensor_group","group_size":16},"targets":["re:.*experts.*"]}`
	for _, c := range []struct{ config, attention, expert string }{
		{`"quant_method":"fp8","weight_block_size":[128,128],"quant_algo":"MIXED_PRECISION","ignore":["*.attn.*"],` +
			`"quantized_layers":{"model.layers.3.mlp.experts":{"quant_algo":"NVFP4","group_size":16}}`, "{fp8 [128 128]}", "{nvfp4 [1 16]}"},
		{`"quant_method":"modelopt","quant_algo":"MIXED_PRECISION","quantized_layers":{"model.layers.3.self_attn.o_proj":{"quant_algo":"FP8"},` +
			`"model.layers.3.mlp.experts.*":{"quant_algo":"MXFP8","group_size":32}}`, "{float-quantized [0 0]}", "{mxfp8-quantized [1 32]}"},
		{`"quant_method":"compressed-tensors","format":"nvfp4-pack-quantized","config_groups":{"a":` + nvfp4 + `}`, "{ [0 0]}", "{nvfp4-pack-quantized [1 16]}"},
		{`"quant_method":"compressed-tensors","format":"mixed-precision","config_groups":{"a":` +
			strings.Replace(nvfp4, `{"weights"`, `{"format":"nvfp4-pack-quantized","weights"`, 1) + `,"b":{"format":"int-quantized",` +
			`"weights":{"num_bits":8,"type":"int","strategy":"channel"},"targets":["Linear"]}}`, "{int-quantized [1 0]}", "{nvfp4-pack-quantized [1 16]}"},
	} {
		got, err := parseRead(`{"model_type":"deepseek_v3","quantization_config":{` + c.config + `}}`)
		require.NoError(t, err, c.config)
		require.True(t, got.Quantization.Announced())
		require.Equal(t, c.attention, fmt.Sprint(got.SchemeOf("model.layers.3.self_attn.o_proj")), c.config)
		require.Equal(t, c.expert, fmt.Sprint(got.SchemeOf("no such name", "model.layers.3.mlp.experts.1.up_proj")), c.config)
		require.False(t, got.StaysUnquantised("model.layers.3.self_attn.o_proj"))
	}
	_, err := parseRead(`{"model_type":"deepseek_v3","quantization_config":{"quant_method":"modelopt","quant_algo":"MIXED_PRECISION",` +
		`"quantized_layers":{"a":{"quant_algo":"NVFP4_SVD"},"b":{"quant_algo":"NVFP4","group_size":32}}}}`)
	require.ErrorContains(t, err, `quantization_config.quantized_layers.b.group_size: 32 is not that of NVFP4, 16`)
	require.ErrorContains(t, err, `quantization_config.quantized_layers.a: "NVFP4_SVD" is not one of FP8,`)
}

// TestFirstGroupOfAModule: of the groups that name a module, its beginning, its end or a pattern of it the first counts.
func TestFirstGroupOfAModule(t *testing.T) {
	var c Config
	q := &c.Quantization
	q.Method = "rest"
	for i, targets := range [][]string{{"model.layers.3"}, {"model.layers.4.mlp", "lm_head"}, {"re:.*layers\\.[45]\\."}, {"model.layers.4.mlp"},
		{"down_proj"}} {
		q.add(Scheme{Method: strconv.Itoa(i)}, targets)
	}
	for module, method := range map[string]string{"model.layers.3.mlp.down_proj": "0", "model.layers.3": "0",
		"model.layers.30.q": "rest", "model.layers.4.mlp.gate_proj": "1", "model.lm_head": "1", "model.layers.4.mlps": "2",
		"model.layers.6.mlp.down_proj": "4", "model.layers.6.mlp.updown_proj": "rest", "model.layers.5.mlp.down_proj": "2"} {
		require.Equal(t, method, c.SchemeOf(module).Method, module)
		require.Equal(t, method, c.SchemeOf("another", module).Method, module)
	}
}
