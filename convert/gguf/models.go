package gguf

// The models that files of llama.cpp hold, the names of their architectures, and what their keys say by a number.

import "dsmoe/config"

// The values of general.architecture.
const (
	deepseek   = "deepseek"   // the first DeepSeekMoE
	deepseek2  = "deepseek2"  // DeepSeek-V2, V3 and R1
	deepseek32 = "deepseek32" // DeepSeek-V3.2
	glmDSA     = "glm-dsa"    // GLM-5
	deepseek4  = "deepseek4"  // DeepSeek-V4

	glm4MoE    = "glm4moe"      // GLM-4.5, 4.6 and 4.7, Solar-Open
	dots1      = "dots1"        // dots.llm1
	hyV3       = "hy_v3"        // Tencent Hy3
	minimaxM2  = "minimax-m2"   // MiniMax-M2
	exaoneMoE  = "exaone-moe"   // K-EXAONE
	ernie45MoE = "ernie4_5-moe" // ERNIE-4.5
	bailing2   = "bailingmoe2"  // Ling 2, Sarvam-30B
)

// Scoring functions, as config.json names them.
const (
	softmax      = "softmax"
	sigmoid      = "sigmoid"
	sqrtSoftplus = "sqrtsoftplus"
)

// gatings are the values of expert_gating_func: LLAMA_EXPERT_GATING_FUNC_TYPE_SOFTMAX, _SIGMOID and _SQRT_SOFTPLUS.
var gatings = map[string]uint32{softmax: 1, sigmoid: 2, sqrtSoftplus: 4}

// Parts of a network that not every architecture has.
const (
	latent     = "latent attention"
	indexers   = "indexers"
	windows    = "windowed attention"
	sliding    = "layers with a window"
	streams    = "hyper-connections"
	tokenTable = "experts chosen by the token"
	normBehind = "norm behind the experts"
)

// latents are the architectures with latent attention.
var latents = []string{deepseek2, deepseek32, glmDSA}

// model is a model_type in files of llama.cpp.
type model struct {
	modelType string
	arch      string // general.architecture; "" for a model that no file holds
	class     string // in architectures of config.json; "" if files are read as another model_type's
	scoring   string // scoring_func, if files are read as the model_type's
	predicts  bool   // llama.cpp's converter writes the prediction layers, and llama.cpp runs them, or skips them
	glm       bool   // _set_vocab_glm of llama.cpp's converter reads the tokenizer
	cause     string // why no file holds the model
}

// models are the model_types with an architecture, and model_types with a known reason to lack one.
var models = []model{
	{modelType: "deepseek", arch: deepseek, class: "DeepseekForCausalLM", scoring: softmax},
	{modelType: "deepseek_v2", arch: deepseek2, class: "DeepseekV2ForCausalLM", scoring: softmax},
	{modelType: "deepseek_v3", arch: deepseek2, class: "DeepseekV3ForCausalLM", scoring: sigmoid},
	{modelType: "kimi_k2", arch: deepseek2},
	{modelType: "glm4_moe_lite", arch: deepseek2, predicts: true, glm: true},
	{modelType: "axk1", cause: "llama.cpp has no norm behind the experts"},
	{modelType: "deepseek_v32", arch: deepseek32, class: "DeepseekV32ForCausalLM", scoring: sigmoid, predicts: true},
	{modelType: "glm_moe_dsa", arch: glmDSA, class: "GlmMoeDsaForCausalLM", scoring: sigmoid, predicts: true, glm: true},
	{modelType: "deepseek_v4", arch: deepseek4, class: "DeepseekV4ForCausalLM", scoring: sqrtSoftplus},
	{modelType: "glm4_moe", arch: glm4MoE, class: "Glm4MoeForCausalLM", scoring: sigmoid, predicts: true, glm: true},
	{modelType: "solar_open", arch: glm4MoE},
	{modelType: "dots1", arch: dots1, class: "Dots1ForCausalLM", scoring: sigmoid},
	{modelType: "hy_v3", arch: hyV3, class: "HYV3ForCausalLM", scoring: sigmoid, predicts: true},
	{modelType: "minimax_m2", arch: minimaxM2, class: "MiniMaxM2ForCausalLM", scoring: sigmoid},
	{modelType: "exaone_moe", arch: exaoneMoE, class: "ExaoneMoeForCausalLM", scoring: sigmoid, predicts: true},
	{modelType: "ernie4_5_moe", arch: ernie45MoE, class: "Ernie4_5_MoeForCausalLM", scoring: softmax},
	{modelType: "bailing_moe_v2", arch: bailing2, class: "BailingMoeV2ForCausalLM", scoring: sigmoid, predicts: true},
	{modelType: "sarvam_moe", arch: bailing2},
	{modelType: "sarvam_mla", cause: "llama.cpp's converter has no Sarvam-105B"},
	{modelType: "deepseek_vl_v2", cause: "llama.cpp's converter has no DeepSeek-VL2, and deepseek2-ocr, its name for " +
		"DeepSeek-OCR's language model, is not written"},
}

// modelOf returns what files say of c's model_type.
func modelOf(c *config.Config) model {
	for _, m := range models {
		if m.modelType == c.ModelType {
			return m
		}
	}
	if c.BlockOnly() {
		return model{cause: "its attention is not computed, so that dsmoe does not know what llama.cpp's files call its tensors: " +
			"convert_hf_to_gguf.py of llama.cpp writes what it knows"}
	}
	return model{cause: "no architecture of llama.cpp is known for it"}
}

// predicts reports whether llama.cpp's converter writes the prediction layers of c.
func predicts(c *config.Config) bool { return modelOf(c).predicts }

// limited reports whether groups restrict the choice of experts: there are several, and not
// all of them are chosen from.
func limited(c *config.Config) bool {
	return c.LimitsGroups() && c.Router.NGroup > 1 && c.Router.TopKGroup < c.Router.NGroup
}
