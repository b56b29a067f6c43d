package config

import (
	"slices"

	"github.com/go-json-experiment/json/jsontext"
)

// modelTypeVL2 is the model_type of DeepSeek-VL2 and DeepSeek-OCR, and here of their language models.
const modelTypeVL2 = "deepseek_vl_v2"

// wrappers lists every model_type that Parse reads the language model of.
var wrappers = []wrapper{
	{"kimi_k25", "", "text_config", "language_model.", ""},                         // Kimi-K2.5
	{modelTypeVL2, "DeepseekOCRForCausalLM", "language_config", "", modelTypeVL2},  // DeepSeek-OCR
	{modelTypeVL2, "DeepseekOCR2ForCausalLM", "language_config", "", modelTypeVL2}, // DeepSeek-OCR-2
	{modelTypeVL2, "", "language_config", "language.", modelTypeVL2},               // DeepSeek-VL2
	{"deepseek_v41", "", "text_config", "", "deepseek_v41"},                        // DeepSeek-V4.1
	{"glm5_next", "", "text_config", "", "glm5_next_text"},
	{"step3p7", "", "text_config", "", "step3p5"},
	{"qwen3_5_moe", "", "text_config", "", "qwen3_5_moe_text"},
	{"mistral_large4", "", "text_config", "", "mistral_large4_text"},
	{"minimax_m3_vl", "", "text_config", "", "minimax_m3_vl_text"},
	{"dots3_note", "", "text_config", "", "dots3_note_text"},
	{"hy_v4_vl", "", "text_config", "", "hy_v4"},
}

// wrapperOf returns the wrapper that model_type and architectures name; the zero value for a language model's document. A
// language model that is known by itself may have the model_type of the wrapper, without its object.
func wrapperOf(values map[string]jsontext.Value) wrapper {
	name, _ := parseString(values["model_type"])
	architectures, _ := parseNames(values["architectures"])
	for _, w := range wrappers {
		if w.modelType == name && (w.architecture == "" || slices.Contains(architectures, w.architecture)) {
			if f := w.inside(); f != nil && !f.within && values[w.key] == nil {
				w.key = ""
			}
			return w
		}
	}
	return wrapper{}
}

// inside returns the family of the language model; nil if that names it itself.
func (w wrapper) inside() *family {
	for _, f := range families {
		if f.modelType == w.family {
			return f
		}
	}
	return nil
}
