package gguf

// DeepSeek-V4: the keys of llama.cpp's deepseek4, and what it cannot say. DeepseekV4Model of conversion/deepseek.py.

import (
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"dsmoe/config"
	"dsmoe/model/table"
	"dsmoe/model/tensor"
)

// Keys of deepseek4 that are no field of config.json, or more than one.
const (
	clampExperts   = "swiglu_clamp_exp"
	clampShared    = "swiglu_clamp_shexp"
	compressRatios = "attention.compress_ratios"
	streamsWidth   = "embedding_length_out"
)

// windowedRows are the keys of deepseek4 that equal a field.
var windowedRows = slices.Concat(only(rows, "context_length", "embedding_length", "attention.head_count",
	"rope.freq_base", "attention.layer_norm_rms_epsilon", expertCount, "expert_used_count",
	"expert_feed_forward_length"), []row{
	{headCountKV, u32, "num_key_value_heads", func(c *config.Config) any { return natural(c.NumKeyValueHeads) }},
	{keyLength, u32, "head_dim", func(c *config.Config) any { return natural(c.VHeadDim) }},
	{ropeDims, u32, "qk_rope_head_dim", func(c *config.Config) any { return natural(c.QKRopeHeadDim) }},
	{queryRank, u32, "q_lora_rank", func(c *config.Config) any { return natural(c.QLoraRank) }},
	{"attention.sliding_window", u32, "sliding_window", func(c *config.Config) any { return natural(c.SlidingWindow) }},
	{sharedCount, u32, "n_shared_experts", func(c *config.Config) any { return natural(c.NSharedExperts) }},
	{weightsScale, f32, "routed_scaling_factor", func(c *config.Config) any { return float32(c.RoutedScalingFactor) }},
	{indexerHeads, u32, "index_n_heads", func(c *config.Config) any { return natural(c.IndexNHeads) }},
	{indexerWidth, u32, "index_head_dim", func(c *config.Config) any { return natural(c.IndexHeadDim) }},
	{indexerTopK, u32, "index_topk", func(c *config.Config) any { return natural(c.IndexTopK) }},
	{"attention.output_group_count", u32, "o_groups", func(c *config.Config) any { return natural(c.OGroups) }},
	{"attention.output_lora_rank", u32, "o_lora_rank", func(c *config.Config) any { return natural(c.OLoraRank) }},
	{"attention.compress_rope_freq_base", f32, "compress_rope_theta",
		func(c *config.Config) any { return float32(c.CompressRopeTheta) }},
	{"hyper_connection.count", u32, "hc_mult", func(c *config.Config) any { return natural(c.HCMult) }},
	{"hyper_connection.sinkhorn_iterations", u32, "hc_sinkhorn_iters",
		func(c *config.Config) any { return natural(c.HCSinkhornIters) }},
	{"hyper_connection.epsilon", f32, "hc_eps", func(c *config.Config) any { return float32(c.HCEps) }},
	{"hash_layer_count", u32, "num_hash_layers", func(c *config.Config) any { return natural(hashLayers(c)) }},
})

// only returns the rows with these keys.
func only(rows []row, keys ...string) []row {
	return slices.DeleteFunc(slices.Clone(rows), func(r row) bool { return !slices.Contains(keys, r.key) })
}

// hashLayers returns how many layers, from the first on, choose experts by the token.
func hashLayers(c *config.Config) (n int) {
	for c.Hashes(n) {
		n++
	}
	return n
}

// windowed writes the keys of DeepSeek-V4.
func (w *keyWriter) windowed(c *config.Config) {
	w.of(blockCount, uint32(c.NumHiddenLayers))
	for _, row := range windowedRows {
		w.of(row.key, row.value(c))
	}
	w.of(vocabSize, uint32(c.VocabSize))
	w.of(valueLength, uint32(c.VHeadDim))
	w.of(gatingFunc, uint32(gatingSqrtSoftplus))
	w.of(weightsNorm, true)
	clamps := slices.Repeat([]float32{float32(c.SwiGLULimit)}, c.NumHiddenLayers)
	w.of(clampExperts, clamps)
	w.of(clampShared, clamps)
	w.of(compressRatios, ratios(c))
	w.of(streamsWidth, uint32(c.HiddenSize*c.HCMult))
	w.yarn(c.CompressRopeScaling)
}

// ratios returns the rates of the layers, and those that config.json has for prediction layers.
func ratios(c *config.Config) (list []int32) {
	for l := range c.NumHiddenLayers {
		list = append(list, int32(c.CompressRate(l)))
	}
	var said struct {
		Ratios []int32 `json:"compress_ratios"`
	}
	json.Unmarshal(c.JSON(), &said) // the config was parsed
	if n := len(list); len(said.Ratios) > n && slices.Equal(said.Ratios[:n], list) {
		return said.Ratios
	}
	return list
}

// windowed takes the keys of DeepSeek-V4 that windowedRows does not have.
func (r *keyReader) windowed() {
	layers := r.need(blockCount)
	r.putInt("num_hidden_layers", layers)
	r.putInt("num_nextn_predict_layers", 0)
	if n, _ := r.natural(nextnLayers); n > 0 {
		r.fail(r.arch+"."+nextnLayers, "%d: this reads no prediction layers of %s", n, r.arch)
	}
	width, _ := r.natural(keyLength)
	if n, ok := r.natural(valueLength); ok && width > 0 && n != width {
		r.fail(r.arch+"."+valueLength, "%d, but keys are values, and have %d", n, width)
	}
	if x, ok := r.real(clampExperts); ok {
		r.put("swiglu_limit", shortest(x))
	} else {
		r.need(clampExperts)
	}
	var list []string
	for _, x := range r.values[r.arch+"."+compressRatios].many {
		list = append(list, fmt.Sprint(x))
	}
	if list == nil {
		r.absent = append(r.absent, r.arch+"."+compressRatios)
	}
	r.put("compress_ratios", "["+strings.Join(list, ", ")+"]")
	r.put("norm_topk_prob", strconv.FormatBool(true))
	r.put("topk_method", `"noaux_tc"`)
}

// unsayableWindowed lists why llama.cpp would not load a DeepSeek-V4, or compute something else.
func unsayableWindowed(c *config.Config) (reasons []string) {
	refuse := func(is bool, reason string, args ...any) {
		if is {
			reasons = append(reasons, fmt.Sprintf("config.json: "+reason, args...))
		}
	}
	refuse(c.HCMult != 4, "hc_mult is %d: llama.cpp's deepseek4 has 4 streams", c.HCMult)
	for l := range c.NumHiddenLayers {
		rate := c.CompressRate(l)
		if known := map[bool]int{true: 4, false: 128}[c.Overlaps(l)]; rate != 0 && rate != known {
			refuse(true, "layer %d compresses %d tokens to a key: llama.cpp's deepseek4 has 4 in sparse layers, "+
				"128 in others", l, rate)
			break
		}
	}
	for l := hashLayers(c); l < c.NumHiddenLayers; l++ {
		refuse(c.Hashes(l), "layer %d chooses experts by the token, and a layer before it does not: llama.cpp has "+
			"a number of first layers", l)
	}
	refuse(c.TieWordEmbeddings, "tie_word_embeddings is true: llama.cpp's deepseek4 demands a head")
	refuse(c.NumNextNPredictLayers > 0, "prediction layers are not written: llama.cpp has DeepSeek-V4's in a file of "+
		"their own; leave out --mtp")
	return reasons
}

// asPublished is the type of a weight of DeepSeek-V4, stored in a dtype, in rows of so many elements: Invalid leaves
// it to the dtype asked for. In the mixture q8_0 it is what llama.cpp's converter writes: FP4 becomes MXFP4, and
// matrices that are published in FP8 become Q8_0.
func asPublished(p table.Place, stored tensor.DType, row int, mix *mixer) tensor.DType {
	modules := []table.Module{table.Attention, table.SharedExperts, table.RoutedExperts}
	published := slices.Contains(modules, p.Module()) || p.Is(table.Indexer, table.QBProj)
	switch {
	case mix == nil:
		return tensor.Invalid
	case stored == tensor.F4, stored == tensor.MXFP4:
		return tensor.MXFP4
	case published || stored == tensor.F8E4M3:
		return fitting(tensor.Q8_0, row)
	case stored.Casts():
		return stored
	}
	return tensor.BF16
}
