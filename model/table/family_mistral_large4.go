package table

// familyMistralLarge4 is the table of Mistral Large 4's text.
var familyMistralLarge4 = otherNames(Family{
	ModelTypes: []string{"mistral_large4_text"},
	Rows:       blockRows(),
	Ignored:    familyV1.Ignored,
	Opaque:     []string{".attention.", "mtp_dspark.", "lerope."},
}, mistralNames, nil)

// mistralNames are what files of Mistral's own format call parts of the table's names.
var mistralNames = map[string]string{"model.embed_tokens": "tok_embeddings", "lm_head": "output", "model.norm": "norm",
	"model.layers.{l}.input_layernorm": "layers.{l}.attention_norm", "model.layers.{l}.post_attention_layernorm": "layers.{l}.ffn_norm",
	"model.layers.{l}.mlp.gate.weight":              "layers.{l}.gate.weight",
	"model.layers.{l}.mlp.gate_proj":                "layers.{l}.feed_forward.w1",
	"model.layers.{l}.mlp.up_proj":                  "layers.{l}.feed_forward.w3",
	"model.layers.{l}.mlp.down_proj":                "layers.{l}.feed_forward.w2",
	"model.layers.{l}.mlp.experts.{e}.gate_proj":    "layers.{l}.experts.{e}.w1",
	"model.layers.{l}.mlp.experts.{e}.up_proj":      "layers.{l}.experts.{e}.w3",
	"model.layers.{l}.mlp.experts.{e}.down_proj":    "layers.{l}.experts.{e}.w2",
	"model.layers.{l}.mlp.shared_experts.gate_proj": "layers.{l}.shared_experts.w1",
	"model.layers.{l}.mlp.shared_experts.up_proj":   "layers.{l}.shared_experts.w3",
	"model.layers.{l}.mlp.shared_experts.down_proj": "layers.{l}.shared_experts.w2"}
