package table

import "dsmoe/config"

// familyV4 is the table of DeepSeek-V4. Its names are transformers'; published files have others, see Naming.
var familyV4 = Family{
	ModelTypes: []string{"deepseek_v4"},
	Rows:       rowsOf(v4Rows),
	MTP:        rowsOf(v4MTP),
	CarriesMTP: true,
	Joined:     true,
	Namings:    v4Names,
	spelled:    spellings(v4Names),
}

// published is a row, and the name that published files have for its weight in its layer.
type published struct {
	Row
	as string
}

// row makes a row; ggufName is the name of llama.cpp's tensor in its layer, if any.
func row(name string, module Module, role Role, when *when, shape []dim, as, ggufName string) published {
	r := Row{Name: name, Module: module, Role: role, When: when, Shape: shape}
	if r.PerLayer() && ggufName != "" {
		ggufName = "blk." + layerHole + "." + ggufName
	}
	r.GGUF = stored(ggufName)
	return published{r, as}
}

func rowsOf(list []published) (rows []Row) {
	for _, p := range list {
		rows = append(rows, p.Row)
	}
	return rows
}

const v4Layer, v4Attn = "model.layers.{l}.", "model.layers.{l}.self_attn."

// v4Rows are DeepseekV4ForCausalLM.
var v4Rows = []published{
	row("model.embed_tokens.weight", Embedding, EmbedTokens, nil, []dim{vocab, hidden},
		"embed.weight", "token_embd.weight"),

	row(v4Attn+"q_a_proj.weight", Attention, QAProj, nil, []dim{qRank, hidden}, "attn.wq_a.weight", "attn_q_a.weight"),
	row(v4Attn+"q_a_norm.weight", Norms, QANorm, nil, []dim{qRank}, "attn.q_norm.weight", "attn_q_a_norm.weight"),
	row(v4Attn+"q_b_proj.weight", Attention, QBProj, nil, []dim{sharedQueries, qRank},
		"attn.wq_b.weight", "attn_q_b.weight"),
	row(v4Attn+"kv_proj.weight", Attention, KVProj, nil, []dim{headWidth, hidden}, "attn.wkv.weight", "attn_kv.weight"),
	row(v4Attn+"kv_norm.weight", Norms, KVNorm, nil, []dim{headWidth}, "attn.kv_norm.weight", "attn_kv_a_norm.weight"),
	row(v4Attn+"o_a_proj.weight", Attention, OAProj, nil, []dim{groupedRanks, groupQueries},
		"attn.wo_a.weight", "attn_output_a.weight"),
	row(v4Attn+"o_b_proj.weight", Attention, OBProj, nil, []dim{hidden, groupedRanks},
		"attn.wo_b.weight", "attn_output_b.weight"),
	row(v4Attn+"sinks", Attention, Sinks, nil, []dim{queryHeads}, "attn.attn_sink", "attn_sinks.weight"),

	row(v4Attn+"compressor.kv_proj.weight", Compressor, KVProj, entries, []dim{entryWidths, hidden},
		"attn.compressor.wkv.weight", "attn_compressor_kv.weight"),
	row(v4Attn+"compressor.gate_proj.weight", Compressor, GateProj, entries, []dim{entryWidths, hidden},
		"attn.compressor.wgate.weight", "attn_compressor_gate.weight"),
	row(v4Attn+"compressor.position_bias", Compressor, PositionBias, entries, []dim{rate, entryWidths},
		"attn.compressor.ape", "attn_compressor_ape.weight"),
	row(v4Attn+"compressor.kv_norm.weight", Compressor, KVNorm, entries, []dim{headWidth},
		"attn.compressor.norm.weight", "attn_compressor_norm.weight"),

	row(v4Attn+"compressor.indexer.q_b_proj.weight", Indexer, QBProj, sparse, []dim{indexQueries, qRank},
		"attn.indexer.wq_b.weight", "indexer.attn_q_b.weight"),
	row(v4Attn+"compressor.indexer.scorer.weights_proj.weight", Indexer, WeightsProj, sparse, []dim{indexHeads, hidden},
		"attn.indexer.weights_proj.weight", "indexer.proj.weight"),
	row(v4Attn+"compressor.indexer.kv_proj.weight", Indexer, KVProj, sparse, []dim{twoIndexWidths, hidden},
		"attn.indexer.compressor.wkv.weight", "indexer_compressor_kv.weight"),
	row(v4Attn+"compressor.indexer.gate_proj.weight", Indexer, GateProj, sparse, []dim{twoIndexWidths, hidden},
		"attn.indexer.compressor.wgate.weight", "indexer_compressor_gate.weight"),
	row(v4Attn+"compressor.indexer.position_bias", Indexer, PositionBias, sparse, []dim{sparseRate, twoIndexWidths},
		"attn.indexer.compressor.ape", "indexer_compressor_ape.weight"),
	row(v4Attn+"compressor.indexer.kv_norm.weight", Indexer, KVNorm, sparse, []dim{indexWidth},
		"attn.indexer.compressor.norm.weight", "indexer_compressor_norm.weight"),

	row(v4Layer+"mlp.experts.{e}.gate_proj.weight", RoutedExperts, GateProj, nil, []dim{expertFF, hidden},
		"ffn.experts.{e}.w1.weight", "ffn_gate_exps.weight"),
	row(v4Layer+"mlp.experts.{e}.up_proj.weight", RoutedExperts, UpProj, nil, []dim{expertFF, hidden},
		"ffn.experts.{e}.w3.weight", "ffn_up_exps.weight"),
	row(v4Layer+"mlp.experts.{e}.down_proj.weight", RoutedExperts, DownProj, nil, []dim{hidden, expertFF},
		"ffn.experts.{e}.w2.weight", "ffn_down_exps.weight"),

	row(v4Layer+"mlp.gate.weight", Router, Gate, nil, []dim{routed, hidden}, "ffn.gate.weight", "ffn_gate_inp.weight"),
	row(v4Layer+"mlp.gate.e_score_correction_bias", Router, EScoreCorrectionBias, scored, []dim{routed},
		"ffn.gate.bias", "exp_probs_b.bias"),
	row(v4Layer+"mlp.gate.tid2eid", Router, TID2EID, hashed, []dim{vocab, chosenExperts},
		"ffn.gate.tid2eid", "ffn_gate_tid2eid.weight"),

	row(v4Layer+"mlp.shared_experts.gate_proj.weight", SharedExperts, GateProj, shared, []dim{sharedFF, hidden},
		"ffn.shared_experts.w1.weight", "ffn_gate_shexp.weight"),
	row(v4Layer+"mlp.shared_experts.up_proj.weight", SharedExperts, UpProj, shared, []dim{sharedFF, hidden},
		"ffn.shared_experts.w3.weight", "ffn_up_shexp.weight"),
	row(v4Layer+"mlp.shared_experts.down_proj.weight", SharedExperts, DownProj, shared, []dim{hidden, sharedFF},
		"ffn.shared_experts.w2.weight", "ffn_down_shexp.weight"),

	row(v4Layer+"input_layernorm.weight", Norms, InputLayernorm, nil, []dim{hidden},
		"attn_norm.weight", "attn_norm.weight"),
	row(v4Layer+"post_attention_layernorm.weight", Norms, PostAttentionLayernorm, nil, []dim{hidden},
		"ffn_norm.weight", "ffn_norm.weight"),

	row(v4Layer+"attn_hc.fn", AttnHC, HCFn, nil, []dim{mixings, allStreams}, "hc_attn_fn", "hc_attn_fn.weight"),
	row(v4Layer+"attn_hc.base", AttnHC, HCBase, nil, []dim{mixings}, "hc_attn_base", "hc_attn_base.weight"),
	row(v4Layer+"attn_hc.scale", AttnHC, HCScale, nil, []dim{three}, "hc_attn_scale", "hc_attn_scale.weight"),
	row(v4Layer+"ffn_hc.fn", FFNHC, HCFn, nil, []dim{mixings, allStreams}, "hc_ffn_fn", "hc_ffn_fn.weight"),
	row(v4Layer+"ffn_hc.base", FFNHC, HCBase, nil, []dim{mixings}, "hc_ffn_base", "hc_ffn_base.weight"),
	row(v4Layer+"ffn_hc.scale", FFNHC, HCScale, nil, []dim{three}, "hc_ffn_scale", "hc_ffn_scale.weight"),

	row("model.norm.weight", Norms, normRole, nil, []dim{hidden}, "norm.weight", "output_norm.weight"),
	row("model.hc_head.hc_fn", HCHead, HCFn, nil, []dim{streams, allStreams}, "hc_head_fn", "output_hc_fn.weight"),
	row("model.hc_head.hc_base", HCHead, HCBase, nil, []dim{streams}, "hc_head_base", "output_hc_base.weight"),
	row("model.hc_head.hc_scale", HCHead, HCScale, nil, []dim{one}, "hc_head_scale", "output_hc_scale.weight"),
	row("lm_head.weight", Head, LMHead, untied, []dim{vocab, hidden}, "head.weight", "output.weight"),
}

// v4MTP are a prediction layer's beside those of a decoder layer without entries and tid2eid. Its embedding and head
// are the model's. The reference leaves it out.
var v4MTP = []published{
	row(v4Layer+"e_proj.weight", MTP, eProj, nil, []dim{hidden, hidden}, "e_proj.weight", ""),
	row(v4Layer+"h_proj.weight", MTP, hProj, nil, []dim{hidden, hidden}, "h_proj.weight", ""),
	row(v4Layer+"enorm.weight", MTP, ENorm, nil, []dim{hidden}, "enorm.weight", ""),
	row(v4Layer+"hnorm.weight", MTP, HNorm, nil, []dim{hidden}, "hnorm.weight", ""),
	row(v4Layer+"norm.weight", MTP, normRole, nil, []dim{hidden}, "norm.weight", ""),
	row(v4Layer+"hc_head.hc_fn", MTP, HCFn, nil, []dim{streams, allStreams}, "hc_head_fn", ""),
	row(v4Layer+"hc_head.hc_base", MTP, HCBase, nil, []dim{streams}, "hc_head_base", ""),
	row(v4Layer+"hc_head.hc_scale", MTP, HCScale, nil, []dim{one}, "hc_head_scale", ""),
}

// v4Names are the names of published files, transformers' own, and the mixture that save_pretrained writes: published
// names behind "model.", and some of transformers'. Other tools write the published ones behind "model.".
// Prediction layers, which transformers does not have, keep their published names.
var v4Names = v4Namings()

func v4Namings() []Naming {
	names := func() map[string]string { return make(map[string]string, len(v4Rows)+len(v4MTP)) }
	plain, own, saved, prefixed, predicted, behind := names(), names(), names(), names(), names(), names()
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
	for _, p := range append(append([]published{}, v4Rows...), v4MTP...) {
		if p.PerLayer() {
			predicted[p.Name] = predictions + "{l}." + p.as
		}
	}
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
	headWidth   = dim{[]string{"head_dim"}, func(c *config.Config, _ int) int { return c.Attention.VHeadDim }}
	entryWidths = dim{[]string{"layer_types", "head_dim"}, func(c *config.Config, l int) int {
		if c.Overlaps(l) {
			return 2 * c.Attention.VHeadDim
		}
		return c.Attention.VHeadDim
	}}
	sharedQueries = dim{[]string{"num_attention_heads", "head_dim"},
		func(c *config.Config, _ int) int { return c.Attention.NumAttentionHeads * c.Attention.VHeadDim }}
	groupedRanks = dim{[]string{"o_groups", "o_lora_rank"}, func(c *config.Config,
		_ int) int {
		return c.Windows.OGroups * c.Windows.OLoraRank
	}}
	groupQueries = dim{[]string{"num_attention_heads", "head_dim", "o_groups"},
		func(c *config.Config, _ int) int {
			return c.Attention.NumAttentionHeads * c.Attention.VHeadDim / c.Windows.OGroups
		}}
	rate       = dim{[]string{"layer_types", "compress_rate_csa", "compress_rate_hca"}, (*config.Config).CompressRate}
	sparseRate = dim{[]string{"compress_rate_csa"}, func(c *config.Config,
		_ int) int {
		return c.Windows.CompressRateCSA
	}}
	twoIndexWidths = dim{[]string{"index_head_dim"}, func(c *config.Config, _ int) int {
		return 2 *
			c.Indexer.IndexHeadDim
	}}
	chosenExperts = dim{[]string{"num_experts_per_tok"}, func(c *config.Config,
		_ int) int {
		return c.MoE.NumExpertsPerTok
	}}

	streams = dim{[]string{"hc_mult"}, func(c *config.Config, _ int) int { return c.HyperConnections.HCMult }}
	mixings = dim{[]string{"hc_mult"}, func(c *config.Config, _ int) int {
		return (2 + c.HyperConnections.HCMult) *
			c.HyperConnections.HCMult
	}}
	allStreams = dim{[]string{"hc_mult", "hidden_size"}, func(c *config.Config,
		_ int) int {
		return c.HyperConnections.HCMult * c.HiddenSize
	}}
	one   = dim{nil, func(*config.Config, int) int { return 1 }}
	three = dim{nil, func(*config.Config, int) int { return 3 }}
)
