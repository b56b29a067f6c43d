package table

import "dsmoe/config"

// familyV4 is the table of DeepSeek-V4. Its names are transformers'; published files have others, see Naming.
var familyV4 = Family{
	ModelTypes: []string{"deepseek_v4"},
	Rows:       rowsOf(v4Rows),
	MTP:        rowsOf(v4MTP),
	CarriesMTP: true,
	Namings:    v4Namings(),
	spelled:    spellings(v4Namings()),
}

// published is a row, the name that published files have for its weight, and that of llama.cpp's in its layer, if any.
type published struct {
	Row
	as   string
	gguf string
}

func rowsOf(list []published) (rows []Row) {
	for _, p := range list {
		if p.PerLayer() && p.gguf != "" {
			p.gguf = "blk." + layerHole + "." + p.gguf
		}
		p.GGUF = stored(p.gguf)
		rows = append(rows, p.Row)
	}
	return rows
}

const v4Layer, v4Attn = "model.layers.{l}.", "model.layers.{l}.self_attn."

// v4Rows are DeepseekV4ForCausalLM.
var v4Rows = []published{
	{Row{"model.embed_tokens.weight", Embedding, EmbedTokens, nil, []dim{vocab, hidden}, gguf{}},
		"embed.weight", "token_embd.weight"},

	{Row{v4Attn + "q_a_proj.weight", Attention, QAProj, nil, []dim{qRank, hidden}, gguf{}},
		"attn.wq_a.weight", "attn_q_a.weight"},
	{Row{v4Attn + "q_a_norm.weight", Norms, QANorm, nil, []dim{qRank}, gguf{}},
		"attn.q_norm.weight", "attn_q_a_norm.weight"},
	{Row{v4Attn + "q_b_proj.weight", Attention, QBProj, nil, []dim{sharedQueries, qRank}, gguf{}},
		"attn.wq_b.weight", "attn_q_b.weight"},
	{Row{v4Attn + "kv_proj.weight", Attention, KVProj, nil, []dim{headWidth, hidden}, gguf{}},
		"attn.wkv.weight", "attn_kv.weight"},
	{Row{v4Attn + "kv_norm.weight", Norms, KVNorm, nil, []dim{headWidth}, gguf{}},
		"attn.kv_norm.weight", "attn_kv_a_norm.weight"},
	{Row{v4Attn + "o_a_proj.weight", Attention, OAProj, nil, []dim{groupedRanks, groupQueries}, gguf{}},
		"attn.wo_a.weight", "attn_output_a.weight"},
	{Row{v4Attn + "o_b_proj.weight", Attention, OBProj, nil, []dim{hidden, groupedRanks}, gguf{}},
		"attn.wo_b.weight", "attn_output_b.weight"},
	{Row{v4Attn + "sinks", Attention, Sinks, nil, []dim{queryHeads}, gguf{}}, "attn.attn_sink", "attn_sinks.weight"},

	{Row{v4Attn + "compressor.kv_proj.weight", Compressor, KVProj, entries, []dim{entryWidths, hidden}, gguf{}},
		"attn.compressor.wkv.weight", "attn_compressor_kv.weight"},
	{Row{v4Attn + "compressor.gate_proj.weight", Compressor, GateProj, entries, []dim{entryWidths, hidden}, gguf{}},
		"attn.compressor.wgate.weight", "attn_compressor_gate.weight"},
	{Row{v4Attn + "compressor.position_bias", Compressor, PositionBias, entries, []dim{rate, entryWidths}, gguf{}},
		"attn.compressor.ape", "attn_compressor_ape.weight"},
	{Row{v4Attn + "compressor.kv_norm.weight", Compressor, KVNorm, entries, []dim{headWidth}, gguf{}},
		"attn.compressor.norm.weight", "attn_compressor_norm.weight"},

	{Row{v4Attn + "compressor.indexer.q_b_proj.weight", Indexer, QBProj, sparse, []dim{indexQueries, qRank}, gguf{}},
		"attn.indexer.wq_b.weight", "indexer.attn_q_b.weight"},
	{Row{v4Attn + "compressor.indexer.scorer.weights_proj.weight", Indexer, WeightsProj, sparse, []dim{indexHeads, hidden},
		gguf{}}, "attn.indexer.weights_proj.weight", "indexer.proj.weight"},
	{Row{v4Attn + "compressor.indexer.kv_proj.weight", Indexer, KVProj, sparse, []dim{twoIndexWidths, hidden},
		gguf{}}, "attn.indexer.compressor.wkv.weight", "indexer_compressor_kv.weight"},
	{Row{v4Attn + "compressor.indexer.gate_proj.weight", Indexer, GateProj, sparse, []dim{twoIndexWidths, hidden},
		gguf{}}, "attn.indexer.compressor.wgate.weight", "indexer_compressor_gate.weight"},
	{Row{v4Attn + "compressor.indexer.position_bias", Indexer, PositionBias, sparse, []dim{sparseRate, twoIndexWidths},
		gguf{}}, "attn.indexer.compressor.ape", "indexer_compressor_ape.weight"},
	{Row{v4Attn + "compressor.indexer.kv_norm.weight", Indexer, KVNorm, sparse, []dim{indexWidth}, gguf{}},
		"attn.indexer.compressor.norm.weight", "indexer_compressor_norm.weight"},

	{Row{v4Layer + "mlp.experts.{e}.gate_proj.weight", RoutedExperts, GateProj, nil, []dim{expertFF, hidden}, gguf{}},
		"ffn.experts.{e}.w1.weight", "ffn_gate_exps.weight"},
	{Row{v4Layer + "mlp.experts.{e}.up_proj.weight", RoutedExperts, UpProj, nil, []dim{expertFF, hidden}, gguf{}},
		"ffn.experts.{e}.w3.weight", "ffn_up_exps.weight"},
	{Row{v4Layer + "mlp.experts.{e}.down_proj.weight", RoutedExperts, DownProj, nil, []dim{hidden, expertFF}, gguf{}},
		"ffn.experts.{e}.w2.weight", "ffn_down_exps.weight"},

	{Row{v4Layer + "mlp.gate.weight", Router, Gate, nil, []dim{routed, hidden}, gguf{}},
		"ffn.gate.weight", "ffn_gate_inp.weight"},
	{Row{v4Layer + "mlp.gate.e_score_correction_bias", Router, EScoreCorrectionBias, scored, []dim{routed}, gguf{}},
		"ffn.gate.bias", "exp_probs_b.bias"},
	{Row{v4Layer + "mlp.gate.tid2eid", Router, TID2EID, hashed, []dim{vocab, chosenExperts}, gguf{}},
		"ffn.gate.tid2eid", "ffn_gate_tid2eid.weight"},

	{Row{v4Layer + "mlp.shared_experts.gate_proj.weight", SharedExperts, GateProj, nil, []dim{sharedFF, hidden},
		gguf{}}, "ffn.shared_experts.w1.weight", "ffn_gate_shexp.weight"},
	{Row{v4Layer + "mlp.shared_experts.up_proj.weight", SharedExperts, UpProj, nil, []dim{sharedFF, hidden}, gguf{}},
		"ffn.shared_experts.w3.weight", "ffn_up_shexp.weight"},
	{Row{v4Layer + "mlp.shared_experts.down_proj.weight", SharedExperts, DownProj, nil, []dim{hidden, sharedFF},
		gguf{}}, "ffn.shared_experts.w2.weight", "ffn_down_shexp.weight"},

	{Row{v4Layer + "input_layernorm.weight", Norms, InputLayernorm, nil, []dim{hidden}, gguf{}},
		"attn_norm.weight", "attn_norm.weight"},
	{Row{v4Layer + "post_attention_layernorm.weight", Norms, PostAttentionLayernorm, nil, []dim{hidden}, gguf{}},
		"ffn_norm.weight", "ffn_norm.weight"},

	{Row{v4Layer + "attn_hc.fn", AttnHC, HCFn, nil, []dim{mixings, allStreams}, gguf{}},
		"hc_attn_fn", "hc_attn_fn.weight"},
	{Row{v4Layer + "attn_hc.base", AttnHC, HCBase, nil, []dim{mixings}, gguf{}},
		"hc_attn_base", "hc_attn_base.weight"},
	{Row{v4Layer + "attn_hc.scale", AttnHC, HCScale, nil, []dim{three}, gguf{}},
		"hc_attn_scale", "hc_attn_scale.weight"},
	{Row{v4Layer + "ffn_hc.fn", FFNHC, HCFn, nil, []dim{mixings, allStreams}, gguf{}},
		"hc_ffn_fn", "hc_ffn_fn.weight"},
	{Row{v4Layer + "ffn_hc.base", FFNHC, HCBase, nil, []dim{mixings}, gguf{}}, "hc_ffn_base", "hc_ffn_base.weight"},
	{Row{v4Layer + "ffn_hc.scale", FFNHC, HCScale, nil, []dim{three}, gguf{}}, "hc_ffn_scale", "hc_ffn_scale.weight"},

	{Row{"model.norm.weight", Norms, Norm, nil, []dim{hidden}, gguf{}}, "norm.weight", "output_norm.weight"},
	{Row{"model.hc_head.hc_fn", HCHead, HCFn, nil, []dim{streams, allStreams}, gguf{}},
		"hc_head_fn", "output_hc_fn.weight"},
	{Row{"model.hc_head.hc_base", HCHead, HCBase, nil, []dim{streams}, gguf{}},
		"hc_head_base", "output_hc_base.weight"},
	{Row{"model.hc_head.hc_scale", HCHead, HCScale, nil, []dim{one}, gguf{}},
		"hc_head_scale", "output_hc_scale.weight"},
	{Row{"lm_head.weight", Head, LMHead, untied, []dim{vocab, hidden}, gguf{}}, "head.weight", "output.weight"},
}

// v4MTP are a prediction layer's beside those of a decoder layer without entries and tid2eid. Its embedding and head
// are the model's. The reference leaves it out.
var v4MTP = []published{
	{Row{v4Layer + "e_proj.weight", MTP, EProj, nil, []dim{hidden, hidden}, gguf{}}, "e_proj.weight", ""},
	{Row{v4Layer + "h_proj.weight", MTP, HProj, nil, []dim{hidden, hidden}, gguf{}}, "h_proj.weight", ""},
	{Row{v4Layer + "enorm.weight", MTP, ENorm, nil, []dim{hidden}, gguf{}}, "enorm.weight", ""},
	{Row{v4Layer + "hnorm.weight", MTP, HNorm, nil, []dim{hidden}, gguf{}}, "hnorm.weight", ""},
	{Row{v4Layer + "norm.weight", MTP, Norm, nil, []dim{hidden}, gguf{}}, "norm.weight", ""},
	{Row{v4Layer + "hc_head.hc_fn", MTP, HCFn, nil, []dim{streams, allStreams}, gguf{}}, "hc_head_fn", ""},
	{Row{v4Layer + "hc_head.hc_base", MTP, HCBase, nil, []dim{streams}, gguf{}}, "hc_head_base", ""},
	{Row{v4Layer + "hc_head.hc_scale", MTP, HCScale, nil, []dim{one}, gguf{}}, "hc_head_scale", ""},
}

// v4Namings are the names of published files, transformers' own, and the mixture that save_pretrained writes: those of
// published files behind "model.", with some of transformers'. Other tools write the published ones behind "model.".
// Prediction layers, which transformers does not have, keep their published names.
func v4Namings() []Naming {
	plain, own, saved, prefixed := map[string]string{}, map[string]string{}, map[string]string{}, map[string]string{}
	for _, p := range v4Rows {
		name, of := p.Name, p.as
		if p.PerLayer() {
			of = "layers.{l}." + of
		}
		plain[name], own[name], saved[name], prefixed[name] = of, name, "model."+of, "model."+of
		switch {
		case p.Module == Embedding || p.Module == HCHead:
			saved[name] = name
		case p.Module == Head:
			saved[name] = of
		case p.Module == Norms && p.Role == KVNorm:
			saved[name] = "model.layers.{l}.attn.norm.weight"
		}
	}
	predicted := map[string]string{}
	for _, p := range append(append([]published{}, v4Rows...), v4MTP...) {
		if p.PerLayer() {
			predicted[p.Name] = predictions + "{l}." + p.as
		}
	}
	behind := map[string]string{}
	for name, of := range predicted {
		behind[name] = "model." + of
	}
	return []Naming{
		{Name: "published", Whose: "a published name", names: plain, predicted: predicted, published: true},
		{Name: "transformers", Whose: "a name of transformers' modules", names: own, predicted: predicted, Fuses: true},
		{Whose: "a name of save_pretrained", names: saved, predicted: predicted, published: true},
		{Whose: "a published name behind model.", names: prefixed, predicted: behind, published: true},
	}
}

// Conditions of the table: what entries a layer has.
var (
	attentionTypes = []string{"layer_types"}

	entries = &when{attentionTypes, func(c *config.Config, l int) bool { return c.CompressRate(l) > 0 }}
	sparse  = &when{attentionTypes, (*config.Config).Overlaps}
)

// Dimensions of windowed attention and of hyper-connections.
var (
	headWidth   = dim{[]string{"head_dim"}, func(c *config.Config, _ int) int { return c.VHeadDim }}
	entryWidths = dim{[]string{"layer_types", "head_dim"}, func(c *config.Config, l int) int {
		if c.Overlaps(l) {
			return 2 * c.VHeadDim
		}
		return c.VHeadDim
	}}
	sharedQueries = dim{[]string{"num_attention_heads", "head_dim"},
		func(c *config.Config, _ int) int { return c.NumAttentionHeads * c.VHeadDim }}
	groupedRanks = dim{[]string{"o_groups", "o_lora_rank"}, func(c *config.Config, _ int) int { return c.OGroups * c.OLoraRank }}
	groupQueries = dim{[]string{"num_attention_heads", "head_dim", "o_groups"},
		func(c *config.Config, _ int) int { return c.NumAttentionHeads * c.VHeadDim / c.OGroups }}
	rate           = dim{[]string{"layer_types", "compress_rate_csa", "compress_rate_hca"}, (*config.Config).CompressRate}
	sparseRate     = dim{[]string{"compress_rate_csa"}, func(c *config.Config, _ int) int { return c.CompressRateCSA }}
	twoIndexWidths = dim{[]string{"index_head_dim"}, func(c *config.Config, _ int) int { return 2 * c.IndexHeadDim }}
	chosenExperts  = dim{[]string{"num_experts_per_tok"}, func(c *config.Config, _ int) int { return c.NumExpertsPerTok }}

	streams    = dim{[]string{"hc_mult"}, func(c *config.Config, _ int) int { return c.HCMult }}
	mixings    = dim{[]string{"hc_mult"}, func(c *config.Config, _ int) int { return (2 + c.HCMult) * c.HCMult }}
	allStreams = dim{[]string{"hc_mult", "hidden_size"}, func(c *config.Config, _ int) int { return c.HCMult * c.HiddenSize }}
	one        = dim{nil, func(*config.Config, int) int { return 1 }}
	three      = dim{nil, func(*config.Config, int) int { return 3 }}
)
