package config

import (
	"slices"

	"github.com/go-json-experiment/json/jsontext"

	"dsmoe/text/problem"
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
}

// wrapperOf returns the wrapper that model_type and architectures name; the zero value for a language model's document.
func wrapperOf(values map[string]jsontext.Value) wrapper {
	name, _ := parseString(values["model_type"])
	architectures, _ := parseNames(values["architectures"])
	for _, w := range wrappers {
		if w.modelType == name && (w.architecture == "" || slices.Contains(architectures, w.architecture)) {
			return w
		}
	}
	return wrapper{}
}

// inner returns a copy of the language model's document: the object that holds it, or doc itself.
func (w wrapper) inner(doc document) (document, error) {
	if w.key == "" {
		return slices.Clone(doc), nil
	}
	value := doc.values()[w.key]
	if value.Kind() != '{' {
		return nil, problem.In("", problem.Problem{Field: w.key,
			Cause: "is not an object with the language model's configuration"})
	}
	return readDocument(value)
}
