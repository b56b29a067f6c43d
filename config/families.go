package config

import (
	"fmt"
	"slices"
	"strings"

	"github.com/go-json-experiment/json/jsontext"

	"dsmoe/text/problem"
)

// families lists every model_type that Parse accepts, in the order in which errors name them.
var families = []*family{&v1, &v2, &v3, &kimiK2, &glm4MoELite, &axk1, &vl2, &v32, &glmMoEDsa, &v4, &v41,
	&glm4MoE, &dots1, &solarOpen, &hyV3, &minimaxM2, &exaoneMoE, &ernie45MoE, &sarvamMLA, &sarvamMoE, &ling2,
	&kimiLinear, &bailingHybrid, &mimoV2Flash, &afmoe, &qwen3Next, &flint, &ling1,
	&mistral4, &axk2, &laguna, &kolibri1, &laraMini, &dots3Note,
	&beam, &step3p5, &minimaxM3, &glm5Next, &qwen35MoE, &hyV4, &mistralLarge3, &mistralLarge4, &nemotronH, &longcatFlash}

// Defaults returns the Config of a config.json that names a family and says no more. No rule is checked.
func Defaults(modelType string) *Config {
	for _, f := range families {
		if f.modelType == modelType {
			c := f.defaults()
			return &c
		}
	}
	return &Config{ModelType: modelType}
}

// OfClass lists the model_types whose reference is a class of that name, such as "DeepseekV3ForCausalLM"; the first is the
// one that the class is of.
func OfClass(class string) (modelTypes []string) {
	for _, f := range families {
		if f.class == class && class != "" {
			modelTypes = append(modelTypes, f.modelType)
		}
	}
	return modelTypes
}

// familyOf finds the family of a language model: the wrapper's, or the one that model_type names.
func familyOf(w wrapper, values map[string]jsontext.Value) (*family, error) {
	if f := w.inside(); f != nil {
		return f, nil
	}
	v, ok := values["model_type"]
	if !ok {
		return nil, unsupported("missing")
	}
	name, err := parseString(v)
	if err != nil {
		return nil, unsupported(err.Error())
	}
	architectures, _ := parseNames(values["architectures"])
	for _, f := range families {
		if f.also == name && slices.Contains(architectures, f.class) {
			return f, nil
		}
	}
	for _, f := range families {
		if f.modelType == name && !f.within {
			return f, nil
		}
	}
	return nil, unsupported(quote(name))
}

// otherMixtures are model_types whose mixture of experts is like DeepSeek-V3's at first sight, and why it is not that.
var otherMixtures = map[string]string{
	"kimi_k3":     "its routed experts have a hidden size of their own, and the activation situ",
	"muse_spark":  "its experts have a norm behind each, and stand between two projections",
	"inkling":     "its gate weighs the shared experts, too",
	"zaya":        "its gate is an MLP that sees the gate of the layer before",
	"cohere2_moe": "its weights are those of the chosen logits alone",
	"gemma4":      "its gate has a norm, and a factor of each expert",
	"llama4":      "it multiplies what its experts take with the weights, not what they give",
	"youtu":       "it has none, all layers are dense",
	"minicpm3":    "it has none, all layers are dense",
}

// aroundOthers are model_types of models around a language model that is read alone, and what that is.
var aroundOthers = map[string]string{"nemotron_h_omni": nemotronH.modelType, "bailing_moe_v3_vl": bailingHybrid.modelType}

// unsupported is the *problem.Error for a model_type that no family has.
func unsupported(cause string) error {
	var names []string
	for _, f := range families {
		if !f.within {
			names = append(names, f.modelType)
		}
	}
	for _, w := range wrappers {
		if !slices.Contains(names, w.modelType) {
			names = append(names, w.modelType)
		}
	}
	if why := otherMixtures[strings.Trim(cause, `"`)]; why != "" {
		cause += ", whose mixture is another: " + why
	} else if text := aroundOthers[strings.Trim(cause, `"`)]; text != "" {
		cause += ": what its files call the weights of its language model, " + text + ", is not known; a checkpoint of that alone is read"
	}
	cause = fmt.Sprintf("%s; supported: %s", cause, strings.Join(names, ", "))
	return problem.In("", problem.Problem{Field: "model_type", Cause: cause, Hint: "dsmoe does not know other models: " +
		"convert_hf_to_gguf.py of llama.cpp makes GGUF files of them, transformers loads them"})
}
