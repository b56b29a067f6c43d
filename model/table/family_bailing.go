package table

import "slices"

// familySarvamMoE is the table of Sarvam-30B. Transformers' modules have queries, keys and values apart, so that no file
// has names of its own.
var familySarvamMoE = otherNames(Family{
	ModelTypes: []string{"sarvam_moe"},
	Rows:       fusedQKV(groupedRows(routerBias(moe)), stored("blk.{l}.attn_qkv.weight")),
	Ignored:    familyV1.Ignored,
}, bailingNames, nil)

// familyLing2 is the table of Ling 2 and Ring 2, whose prediction layers are not computed.
var familyLing2 = otherNames(Family{
	ModelTypes: []string{"bailing_moe_v2"},
	Rows:       familySarvamMoE.Rows,
	Ignored:    familyV1.Ignored,
	MTP: namedInGGUF(slices.Clone(familyV3.MTP), SharedHeadNorm,
		"blk.{l}.layer_output_norm.weight"),
	CarriesMTP: true,
}, bailingNames, nil)

// familyLing1 is the table of Ling-lite and Ling-plus, whose attention is not computed.
var familyLing1 = otherNames(Family{
	ModelTypes: []string{"bailing_moe"},
	Rows:       blockRows(),
	Ignored:    familyV1.Ignored,
	Opaque:     []string{".attention."},
}, bailingNames, nil)

// bailingNames are what files of Ling and Sarvam call parts of the table's names.
var bailingNames = map[string]string{"model.embed_tokens": "model.word_embeddings",
	"self_attn.qkv_proj": "attention.query_key_value", "self_attn.o_proj": "attention.dense",
	"self_attn.q_norm": "attention.query_layernorm", "self_attn.k_norm": "attention.key_layernorm",
	"mlp.gate.e_score_correction_bias": "mlp.gate.expert_bias", "shared_head.norm": "final_layernorm"}
