package table

import "slices"

// familyLongcatFlash is the table of LongCat-Flash. A layer has two of attention, of MLPs and of norms; the mixture is beside the
// first. Files that transformers saved have gate_proj and up_proj of the experts that give what they take, too, unused.
var familyLongcatFlash = otherNames(Family{
	ModelTypes: []string{"longcat_flash"},
	Rows: func() []Row {
		rows := slices.DeleteFunc(blockRows(), func(r Row) bool { return r.Module == DenseMLP || r.Module == SharedExperts })
		for i, row := range rows {
			if row.Role.CountsExperts() {
				rows[i].Shape = append([]dim{choices}, row.Shape[1:]...)
			}
		}
		return rows
	}(),
	Ignored: append([]Row{{Name: "model.layers.{l}.mlp.experts.{e}.gate_proj.weight"},
		{Name: "model.layers.{l}.mlp.experts.{e}.up_proj.weight"}}, familyV1.Ignored...),
	Opaque: []string{".self_attn.", ".mlps.", ".input_layernorm.1.", ".post_attention_layernorm.1.", ".router.classifier.bias",
		"model.mtp"},
}, map[string]string{"mlp.gate.weight": "mlp.router.classifier.weight", "input_layernorm": "input_layernorm.0",
	"mlp.gate.e_score_correction_bias": "mlp.router.e_score_correction_bias",
	"post_attention_layernorm":         "post_attention_layernorm.0"}, nil)
