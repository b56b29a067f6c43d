package table

import "slices"

// familyNemotronH is the table of Nemotron 3, whose MLPs have no gate_proj, and whose layers have one norm each.
var familyNemotronH = otherNames(Family{
	ModelTypes: []string{"nemotron_h"},
	Rows: namedInGGUF(slices.DeleteFunc(inLatent(sharedOfOneWidth(blockRows())), func(r Row) bool {
		return r.Role == GateProj || r.Role == InputLayernorm
	}), PostAttentionLayernorm, "blk.{l}.attn_norm.weight"),
	Ignored: familyV1.Ignored,
	Opaque: []string{".mixer.in_proj.", ".mixer.out_proj.", ".mixer.conv1d.", ".mixer.norm.", ".mixer.A_log", ".mixer.D",
		".mixer.dt_bias", ".mixer.q_proj.", ".mixer.k_proj.", ".mixer.v_proj.", ".mixer.o_proj.", "mtp."},
}, map[string]string{"model.embed_tokens": "backbone.embeddings", "model.norm.": "backbone.norm_f.",
	"post_attention_layernorm": "norm", "mlp.": "mixer."}, nil).under("backbone.")
