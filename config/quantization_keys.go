package config

// The keys of quantization_config that are known. compressed-tensors 0.20, transformers 5.23, GPTQModel 7.7,
// AutoAWQ 0.2, AutoRound 0.16 and ModelOpt 0.47 write them, and older versions of these. A key that is not known
// may say that the model computes something that its weights do not hold, such as a rotation of activations: it is
// refused by name.

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
)

// Keys that change no weight: how the codes were found, where they were packed, and how activations and caches are
// rounded while the model runs.
const (
	// of AutoRound, which also writes the methods gptq and awq
	roundingKeys = " sym amp batch_size train_bs enable_minmax_tuning enable_norm_bias_tuning enable_quanted_input" +
		" use_quant_input not_use_best_mse gradient_accumulate_steps iters lr minmax_lr low_gpu_mem_usage" +
		" low_cpu_mem_usage nsamples n_samples seqlen seed sampler dataset quant_block_list scale_dtype supported_types" +
		" to_quant_block_names block_name_to_quantize autoround_version provider model_free act_group_size act_sym" +
		" act_data_type act_dynamic static_kv_dtype static_kv_granularity static_attention_dtype" +
		" static_attention_granularity "
	// of the schemes of compressed-tensors and ModelOpt
	schemeKeys = " targets input_activations output_activations "
	// of weights there
	weightKeys = " num_bits type symmetric group_size strategy block_structure actorder observer observer_kwargs" +
		" scale_dtype zp_dtype "
	// of ModelOpt
	modelOptKeys = " quant_algo quantized_layers ignore exclude_modules config_groups group_size kv_cache_scheme" +
		" kv_cache_quant_algo producer" + schemeKeys
	int8Keys = " modules_to_not_convert ignored_layers weight_block_size activation_scheme is_checkpoint_int8_serialized "
	// of weights in groups
	groupedKeys = " bits group_size pack_dtype data_type format checkpoint_format act_bits "
)

// knownKeys lists the keys of each quant_method, those that change no weight and those that its reader reads.
var knownKeys = map[string]string{
	"fp8": " fmt expert_dtype scale_fmt modules_to_not_convert ignored_layers weight_block_size activation_scheme" +
		" modules_to_convert dequantize kv_cache_scheme kv_cache_quant_algo ",
	"blockwise_int8": int8Keys, "w8a8_int8": int8Keys,
	"compressed-tensors": " format ignore config_groups sparsity_config transform_config quantization_status" +
		" kv_cache_scheme global_compression_ratio version run_compressed dequantize use_optimized_inference provider ",
	"modelopt": modelOptKeys,
	"awq": groupedKeys + "zero_point version backend modules_to_not_convert ignore modules_to_fuse do_fuse" +
		" fuse_max_seq_len exllama_config method lm_head desc_act meta" + roundingKeys,
	"gptq": groupedKeys + "desc_act is_marlin_format dynamic modules_in_block_to_quantize backend method lm_head meta" +
		" damp_percent damp_auto_increment static_groups true_sequential mse act_group_aware hyb_act gptaq gptaq_alpha v2" +
		" v2_alpha v2_memory_device tokenizer model_seqlen module_name_preceding_first_block pad_token_id" +
		" max_input_length cache_block_outputs use_cuda_fp16 use_exllama disable_exllama exllama_config" +
		" model_name_or_path model_file_base_name quantizer pack_impl offload_to_disk offload_to_disk_path" + roundingKeys,
	"auto-round": groupedKeys + "extra_config packing_format backend" + roundingKeys,
}

// differentKeys lists what a table of modules that are quantised otherwise may hold: see readDifferent.
const differentKeys = "damp_percent damp_auto_increment static_groups true_sequential mse act_group_aware" + roundingKeys

// has reports whether a list of keys, between spaces, has the key.
func has(keys, key string) bool { return strings.Contains(" "+keys+" ", " "+key+" ") }

// refuseUnknown refuses the keys of an object that a list of keys lacks. null is as if the key were not there.
func refuseUnknown(d *decoding, place string, o map[string]jsontext.Value, known string) {
	for _, key := range slices.Sorted(maps.Keys(o)) {
		if o[key].Kind() != 'n' && !has(known, key) {
			d.fail(place+"."+key, unread(errors.New("unknown key, which may change what the model computes; "+
				"dequantise the weights with the library that wrote them")))
		}
	}
}

// refuseSchemes refuses what the groups of config_groups have beyond codes and scales, and returns what they say of
// weights, by their places; format is the config's.
func refuseSchemes(d *decoding, key string, o map[string]jsontext.Value, format string) map[string]map[string]jsontext.Value {
	var groups map[string]map[string]jsontext.Value
	v, ok := o["config_groups"]
	if !ok || json.Unmarshal(v, &groups) != nil {
		return nil // readers that need them say so
	}
	places := map[string]map[string]jsontext.Value{}
	for _, name := range slices.Sorted(maps.Keys(groups)) {
		place, group, known := key+".config_groups."+name, groups[name], schemeKeys+"weights "
		if v, ok := group["format"]; ok && (format == "mixed-precision" || string(v) == `"`+format+`"`) {
			known += "format "
		}
		refuseUnknown(d, place, group, known+denied(group))
		var weights map[string]jsontext.Value
		if v, ok := group["weights"]; !ok || json.Unmarshal(v, &weights) != nil {
			continue // its reader says so
		}
		if v := weights["dynamic"]; v.Kind() == 'f' {
			delete(weights, "dynamic")
		}
		refuseUnknown(d, place+".weights", weights, weightKeys)
		places[place] = weights
	}
	return places
}

// denied lists what ModelOpt says of weights and is not so: factors of their inputs, and zeros.
func denied(o map[string]jsontext.Value) (keys string) {
	for _, name := range []string{"has_zero_point", "pre_quant_scale"} {
		if v, ok := o[name]; ok && v.Kind() == 'f' {
			keys += name + " "
		}
	}
	return keys
}

// refuseSparsity refuses a sparsity_config but {} and the format dense: bitmasks leave out what is zero.
func refuseSparsity(v jsontext.Value) error {
	var sparsity map[string]jsontext.Value
	if v.Kind() == 'n' || json.Unmarshal(v, &sparsity) == nil && (len(sparsity) == 0 || string(sparsity["format"]) == `"dense"`) {
		return nil
	}
	return unread(fmt.Errorf("sparse weights (format %s) are not read; decompress them with compressed-tensors",
		show(sparsity["format"])))
}

// refuseOnline refuses a transform_config that rotates activations while the model runs. What it applies to weights
// alone lies in them.
func refuseOnline(v jsontext.Value) error {
	var transforms struct {
		Groups map[string]struct {
			Apply []struct {
				Location string `json:"location"`
				// where, and what the weights have by now
				Targets jsontext.Value `json:"targets"`
				Inverse jsontext.Value `json:"inverse"`
				Ignore  jsontext.Value `json:"ignore"`
			} `json:"apply"`
			Type         jsontext.Value `json:"type"`
			Randomize    jsontext.Value `json:"randomize"`
			RequiresGrad jsontext.Value `json:"requires_grad"`
			HeadDim      jsontext.Value `json:"head_dim"`
			Precision    jsontext.Value `json:"precision"`
		} `json:"config_groups"`
	}
	if err := json.Unmarshal(v, &transforms, json.RejectUnknownMembers(true)); err != nil {
		var semantic *json.SemanticError
		place := ""
		if errors.As(err, &semantic) { // whose own words change from process to process
			place = ", at " + quote(string(semantic.JSONPointer))
		}
		return unread(errors.New("not transforms as compressed-tensors writes them" + place))
	}
	for _, name := range slices.Sorted(maps.Keys(transforms.Groups)) {
		for _, a := range transforms.Groups[name].Apply {
			if a.Location != "weight_input" && a.Location != "weight_output" {
				return unread(fmt.Errorf("%s rotates at %s while the model runs, which its weights do not hold; "+
					"save the model without that transform", quote(name), quote(a.Location)))
			}
		}
	}
	return nil
}
