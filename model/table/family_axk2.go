package table

// familyAXK2 is the table of A.X-K2. Before attention and mixtures stand norms with gates, which are not computed.
var familyAXK2 = Family{
	ModelTypes: []string{"axk2"},
	Rows: func() (rows []Row) {
		for _, row := range blockRows() {
			switch row.Role {
			case InputLayernorm:
				row.Name = "model.layers.{l}.input_layernorm.norm.weight"
			case PostAttentionLayernorm:
				row.When = dense
				rows = append(rows, Row{"model.layers.{l}.post_attention_layernorm.norm.weight", Norms, row.Role, moe,
					row.Shape, gguf{}})
			}
			rows = append(rows, row)
		}
		return rows
	}(),
	Ignored: familyV1.Ignored,
	Opaque:  []string{".self_attn.", ".W_down.", ".W_up."},
}
