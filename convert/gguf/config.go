package gguf

// The config.json that the keys of a file say.

import (
	"bytes"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"dsmoe/config"
	"dsmoe/text"
)

// config makes config.json; has reports whether the files hold a tensor.
func (r *keyReader) config(dtype string, has func(name string) bool) ([]byte, *config.Config) {
	r.family(has)
	if dtype != "" {
		r.put("torch_dtype", strconv.Quote(dtype))
	}
	for _, row := range architectureNamed(r.arch).rows {
		if row.field != "" {
			r.row(row)
		}
	}
	r.vocabulary()
	switch {
	case architectureNamed(r.arch).grouped != nil:
		r.grouped(architectureNamed(r.arch).grouped, has)
	case r.arch == deepseek4:
		r.windowed()
	case r.arch == deepseek:
		r.layers()
		r.plainAttention(has)
	default:
		r.layers()
		r.latent()
	}
	r.scaling()
	r.implied()
	r.put("tie_word_embeddings", strconv.FormatBool(!has("output.weight")))
	if r.absent != nil {
		r.add("keys are missing: " + strings.Join(r.absent, ", "))
	}
	if r.wrong != nil {
		return nil, nil
	}
	document := []byte("{\n  " + strings.Join(r.doc, ",\n  ") + "\n}\n")
	c, err := config.Parse(bytes.NewReader(document))
	if err != nil {
		r.add("its keys make no config: " + err.Error())
		return nil, nil
	}
	return document, c
}

// row adds a field that equals its key.
func (r *keyReader) row(row row) {
	if row.kind == f32 {
		if x, ok := r.real(row.key); ok {
			r.put(row.field, shortest(x))
		} else if _, present := r.values[r.arch+"."+row.key]; !present && row.field != "rope_theta" {
			r.absent = append(r.absent, r.arch+"."+row.key)
		}
		return
	}
	optional := row.key == expertCount || row.key == "expert_used_count" || row.key == "expert_feed_forward_length"
	n, ok := r.natural(row.key)
	switch {
	case ok && n == 0 && optional:
		r.put(row.field, "null")
	case ok:
		r.putInt(row.field, n)
	case !optional:
		r.need(row.key)
	}
}

// family tells DeepSeek-V2 from V3 by the gating function or, in files from before V3, which
// have no such key, by the bias of V3's gate.
func (r *keyReader) family(has func(name string) bool) {
	gating, present := r.natural(gatingFunc)
	scoring := architectureNamed(r.arch).scoring
	if (present || r.arch == deepseek4) && !slices.ContainsFunc(scoring, func(s string) bool { return int(gatings[s]) == gating }) {
		r.fail(r.arch+"."+gatingFunc, "%d is a gating function that this architecture does not have", gating)
	}
	corrected := r.arch == deepseek2 && gating == int(gatings[sigmoid])
	if r.arch == deepseek2 && !present {
		blocks, _ := r.natural(blockCount)
		for l := range min(blocks, maxList) {
			corrected = corrected || has(fmt.Sprintf("blk.%d.exp_probs_b.bias", l))
		}
	}
	r.model = models[slices.IndexFunc(models, func(m model) bool {
		return m.arch == r.arch && m.class != "" && (r.arch != deepseek2 || (m.scoring == sigmoid) == corrected)
	})]
	r.put("architectures", `["`+r.model.class+`"]`)
	r.put("model_type", strconv.Quote(r.model.modelType))
	r.put("scoring_func", strconv.Quote(r.model.scoring))
}

// vocabulary takes vocab_size, or counts the tokens.
func (r *keyReader) vocabulary() {
	if n, ok := r.natural(vocabSize); ok {
		r.putInt("vocab_size", n)
		if tokens, is := r.values[tokensKey]; is && tokens.kind == array && tokens.n != uint64(n) {
			r.fail(r.arch+"."+vocabSize, "%d, but the vocabulary has %d tokens", n, tokens.n)
		}
	} else if tokens, ok := r.values[tokensKey]; ok && tokens.kind == array {
		r.putInt("vocab_size", int(tokens.n))
	} else {
		r.need(vocabSize)
	}
	for _, id := range []string{"bos", "eos"} {
		if n, ok := r.values["tokenizer.ggml."+id+"_token_id"].one.(uint64); ok {
			r.put(id+"_token_id", strconv.FormatUint(n, 10))
		}
	}
}

// layers takes the numbers of layers.
func (r *keyReader) layers() {
	blocks, predicting := r.need(blockCount), 0
	if n, ok := r.natural(nextnLayers); ok && r.arch != deepseek {
		predicting = n
		if n > blocks {
			r.fail(r.arch+"."+nextnLayers, "%d of %d blocks", n, blocks)
		}
	}
	r.putInt("num_hidden_layers", blocks-predicting)
	if r.arch != deepseek {
		r.putInt("num_nextn_predict_layers", predicting)
	}
	dense, _ := r.natural(denseCount)
	if n, _ := r.natural(expertCount); n == 0 {
		dense = 0 // all are dense without
	}
	r.putInt("first_k_dense_replace", dense)
	if n, ok := r.natural(sharedCount); ok && n > 0 {
		r.putInt("n_shared_experts", n)
	} else {
		r.put("n_shared_experts", "null")
	}
}

// plainAttention adds the attention fields of the first DeepSeekMoE.
func (r *keyReader) plainAttention(has func(name string) bool) {
	heads := r.need("attention.head_count")
	if n, ok := r.natural(headCountKV); ok {
		r.putInt("num_key_value_heads", n)
	} else {
		r.putInt("num_key_value_heads", heads)
	}
	width := r.need("embedding_length")
	for _, key := range []string{ropeDims, keyLength, valueLength} {
		if n, ok := r.natural(key); ok && (heads == 0 || n*heads != width) {
			r.fail(r.arch+"."+key, "%d, but each of %d heads has a share of embedding_length %d", n, heads, width)
		}
	}
	r.put("attention_bias", strconv.FormatBool(has("blk.0.attn_q.bias")))
	r.put("norm_topk_prob", "false")
}

// latent adds the fields of models with latent attention that rows do not have: the widths of heads, what V2 and V3 do
// with the gate's scores, and the indexers. Files store the widths in two ways: files with kv_b in one piece have the
// widths of keys and values in products; later files also those in the cache.
func (r *keyReader) latent() {
	r.putInt("num_key_value_heads", r.need("attention.head_count"))
	key, value := keyMLA, valueMLA
	if _, split := r.values[r.arch+"."+keyMLA]; !split {
		key, value = keyLength, valueLength
	}
	keys, rope := r.need(key), r.need(ropeDims)
	r.putInt("qk_nope_head_dim", keys-rope)
	r.putInt("qk_rope_head_dim", rope)
	r.putInt("v_head_dim", r.need(value))
	if n, ok := r.natural(queryRank); ok && n > 0 {
		r.putInt("q_lora_rank", n)
	} else {
		r.put("q_lora_rank", "null")
	}
	norm, _, present := r.find(weightsNorm)
	if _, is := norm.(bool); present && !is {
		r.fail(r.arch+"."+weightsNorm, "%v is not a boolean", norm)
	}
	r.put("norm_topk_prob", strconv.FormatBool(norm == true))
	if x, ok := r.real(weightsScale); ok && x != 0 {
		r.put("routed_scaling_factor", shortest(x))
	} else {
		r.put("routed_scaling_factor", "1.0")
	}
	method := "greedy"
	switch several := r.groups(); {
	case r.model.scoring == sigmoid: // the gates are DeepSeek-V3's
		method = "noaux_tc"
	case several:
		method = "group_limited_greedy"
	}
	r.put("topk_method", strconv.Quote(method))
	if r.arch == deepseek2 {
		return
	}
	r.putInt("index_n_heads", r.need(indexerHeads))
	r.putInt("index_head_dim", r.need(indexerWidth))
	r.putInt("index_topk", r.need(indexerTopK))
	v, ok := r.values[r.arch+"."+indexerTypes] // which layers share an indexer
	if !ok {
		return
	}
	var types []string
	for _, full := range v.many {
		name := `"shared"`
		if full == true {
			name = `"full"`
		}
		types = append(types, name)
	}
	r.put("indexer_types", "["+strings.Join(types, ",")+"]")
}

// implied compares keys that llama.cpp sizes its memory or computes by, and that other keys imply, with what these say.
// Of latent attention the cache has one head: the compressed keys and values, and RoPE's dimensions. In files with kv_b
// in one piece it has all heads.
func (r *keyReader) implied() {
	number := func(key string) int { n, _ := r.natural(key); return n }
	want := map[string]int{}
	switch _, split := r.values[r.arch+"."+keyMLA]; {
	case r.arch == deepseek4:
		want[streamsWidth] = number("embedding_length") * number("hyper_connection.count")
	case r.arch == deepseek, architectureNamed(r.arch).grouped != nil:
	case split:
		rank := number("attention.kv_lora_rank")
		want[headCountKV], want[keyLength], want[valueLength] = 1, rank+number(ropeDims), rank
	default:
		want[headCountKV] = number("attention.head_count")
	}
	for _, key := range slices.Sorted(maps.Keys(want)) {
		if n, ok := r.natural(key); ok && n != want[key] {
			r.fail(r.arch+"."+key, "%d, but the other keys make it %d", n, want[key])
		}
	}
	if x, ok := r.real(weightsScale); ok && r.arch == deepseek && x != 0 && x != 1 {
		r.fail(r.arch+"."+weightsScale, "%v, but this architecture scales by 1", x)
	}
	if r.arch != deepseek4 {
		return
	}
	if norm, full, ok := r.find(weightsNorm); ok && norm != true {
		r.fail(full, "%v, but this architecture normalises the weights of experts", norm)
	}
	experts, has := r.real(clampExperts)
	if shared, ok := r.real(clampShared); ok && has && shared != experts {
		r.fail(r.arch+"."+clampShared, "%v, but that of routed experts is %v, and config.json has one", shared, experts)
	}
}

// scaling takes RoPE's scaling. The multiplier of YaRN's logarithm is a tenth of mscale_all_dim, and llama.cpp takes
// mscale to be the same.
func (r *keyReader) scaling() {
	kind, full, present := r.find(scalingType)
	factor, _ := r.real(scalingFactor)
	switch {
	case !present || kind == "none" || kind == "":
		r.put("rope_scaling", "null")
	case kind == "linear" && r.arch == deepseek:
		r.put("rope_scaling", fmt.Sprintf(`{"type": "linear", "factor": %s}`, shortest(factor)))
	case kind == "yarn" && r.arch != deepseek:
		yarn := fmt.Sprintf(`{"type": "yarn", "factor": %s, "original_max_position_embeddings": %d`, shortest(factor),
			r.need(scalingContext))
		for _, x := range []struct{ key, field string }{{yarnFast, "beta_fast"}, {yarnSlow, "beta_slow"}} {
			if v, ok := r.real(x.key); ok {
				yarn += fmt.Sprintf(`, %q: %s`, x.field, shortest(v))
			}
		}
		if !slices.Contains(latents, r.arch) {
		} else if log, ok := r.real(yarnLog); ok && log != 0 {
			tenth, _ := strconv.ParseFloat(shortest(log), 64) // the decimal that was rounded to float32
			all := shortest(10 * tenth)
			yarn += fmt.Sprintf(`, "mscale": %s, "mscale_all_dim": %s`, all, all)
		} else {
			r.fail(r.arch+"."+yarnLog,
				"is missing or 0: llama.cpp then scales the scores of attention as no config.json can say")
		}
		r.put("rope_scaling", yarn+"}")
	default:
		r.fail(full, "%s cannot be read with architecture %s", text.Quote(fmt.Sprint(kind)), r.arch)
	}
}
