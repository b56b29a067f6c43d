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

// windowed writes the keys of DeepSeek-V4.
func (w *keyWriter) windowed(c *config.Config) {
	w.of(blockCount, uint32(c.NumHiddenLayers))
	for _, row := range windowedRows {
		w.of(row.key, row.value(c))
	}
	w.of(vocabSize, uint32(c.VocabSize))
	w.of(valueLength, uint32(c.Attention.VHeadDim))
	w.of(gatingFunc, gatings[sqrtSoftplus])
	w.of(weightsNorm, true)
	clamps := slices.Repeat([]float32{float32(c.SwiGLULimit)}, c.NumHiddenLayers)
	w.of(clampExperts, clamps)
	w.of(clampShared, clamps)
	var rates []int32
	for l := range c.NumHiddenLayers {
		rates = append(rates, int32(c.CompressRate(l)))
	}
	var stated struct { // it may go on with prediction layers
		Ratios []int32 `json:"compress_ratios"`
	}
	json.Unmarshal(c.JSON(), &stated) // the config was parsed
	if n := len(rates); len(stated.Ratios) > n && slices.Equal(stated.Ratios[:n], rates) {
		rates = stated.Ratios
	}
	w.of(compressRatios, rates)
	w.of(streamsWidth, uint32(c.HiddenSize*c.HyperConnections.HCMult))
	w.yarn(c.RoPE.CompressRopeScaling)
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
