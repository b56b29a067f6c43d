package table

// blockRows are the rows of the families whose attention is not computed: the first DeepSeekMoE's but for attention, and a
// router bias. Tensors of attention are known by their names alone: see Family.Opaque.
func blockRows(behind ...Row) (rows []Row) {
	for _, row := range familyV1.Rows {
		if row.GGUF = (gguf{}); row.Module != Attention {
			rows = append(rows, row)
		}
		switch row.Role {
		case Gate:
			rows = append(rows, routerBias(moe))
			rows[len(rows)-1].GGUF = gguf{}
		case PostAttentionLayernorm:
			rows = append(rows, behind...)
		}
	}
	return rows
}

// expertsOfMixtral are what some files call routed experts and their matrices.
var expertsOfMixtral = map[string]string{"mlp.gate.": "block_sparse_moe.gate.",
	"mlp.experts.{e}.gate_proj": "block_sparse_moe.experts.{e}.w1",
	"mlp.experts.{e}.up_proj":   "block_sparse_moe.experts.{e}.w3",
	"mlp.experts.{e}.down_proj": "block_sparse_moe.experts.{e}.w2"}
