package table

import "slices"

// familyV2 is the table of DeepSeek-V2 and V2-Lite (model_type "deepseek_v2"): the first DeepSeekMoE's with other
// attention.
var familyV2 = Family{
	ModelTypes: []string{"deepseek_v2"},
	Rows: behind(slices.DeleteFunc(slices.Clone(familyV1.Rows), func(r Row) bool { return r.Module == Attention }),
		EmbedTokens, latentAttention...),
	Ignored: familyV1.Ignored,
}

// behind returns rows with others behind the last one of a role.
func behind(rows []Row, role Role, others ...Row) []Row {
	for i, row := range slices.Backward(rows) {
		if row.Role == role {
			return slices.Concat(rows[:i+1], others, rows[i+1:])
		}
	}
	panic("table: no row is a " + string(role))
}

// latentAttention is DeepseekV2Attention.
var latentAttention = []Row{
	{"model.layers.{l}.self_attn.q_proj.weight", Attention, QProj, wholeQ, []dim{latentQueries, hidden},
		stored("blk.{l}.attn_q.weight")},
	{"model.layers.{l}.self_attn.q_a_proj.weight", Attention, QAProj, loraQ, []dim{qRank, hidden},
		stored("blk.{l}.attn_q_a.weight")},
	{"model.layers.{l}.self_attn.q_a_proj.bias", Attention, qaProjBias, loraQBias, []dim{qRank},
		stored("blk.{l}.attn_q_a.bias")},
	{"model.layers.{l}.self_attn.q_a_layernorm.weight", Norms, QALayernorm, loraQ, []dim{qRank},
		stored("blk.{l}.attn_q_a_norm.weight")},
	{"model.layers.{l}.self_attn.q_b_proj.weight", Attention, QBProj, loraQ, []dim{latentQueries, qRank},
		stored("blk.{l}.attn_q_b.weight")},
	{"model.layers.{l}.self_attn.kv_a_proj_with_mqa.weight", Attention, KVAProjWithMQA, nil, []dim{kvRankRope, hidden},
		stored("blk.{l}.attn_kv_a_mqa.weight")},
	{"model.layers.{l}.self_attn.kv_a_proj_with_mqa.bias", Attention, kvaProjWithMQABias, bias, []dim{kvRankRope},
		stored("blk.{l}.attn_kv_a_mqa.bias")},
	{"model.layers.{l}.self_attn.kv_a_layernorm.weight", Norms, KVALayernorm, nil, []dim{kvRank},
		stored("blk.{l}.attn_kv_a_norm.weight")},
	{"model.layers.{l}.self_attn.kv_b_proj.weight", Attention, KVBProj, nil, []dim{latentKeysValues, kvRank},
		gguf{"blk.{l}.attn_kv_b.weight", // in older files; split since
			[]ggufPiece{latentKeys("blk.{l}.attn_k_b.weight"), latentValues("blk.{l}.attn_v_b.weight")}}},
	{"model.layers.{l}.self_attn.o_proj.weight", Attention, OProj, nil, []dim{hidden, latentContext},
		stored("blk.{l}.attn_output.weight")},
	{"model.layers.{l}.self_attn.o_proj.bias", Attention, oProjBias, bias, []dim{hidden},
		stored("blk.{l}.attn_output.bias")},
}
