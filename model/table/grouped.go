package table

import (
	"cmp"
	"slices"
	"strings"

	"dsmoe/config"
)

// groupedRows are the rows of the families that have DeepSeek-V3's mixture of experts behind plain attention with head_dim:
// the first DeepSeekMoE's, with norms of queries and keys, and a router bias of some shape.
func groupedRows(routerBias Row) (rows []Row) {
	heads := map[Role][]dim{QProj: {queryWidths, hidden}, qProjBias: {queryWidths}, KProj: {keyWidths, hidden},
		kProjBias: {keyWidths}, VProj: {valueWidths, hidden}, vProjBias: {valueWidths}, OProj: {hidden, contextWidths}}
	for _, row := range familyV1.Rows {
		if shape, ok := heads[row.Role]; ok {
			row.Shape = shape
		}
		if len(row.GGUF.Pieces) > 0 { // llama.cpp rotates halves, too
			row.GGUF = stored(row.GGUF.Pieces[0].Name)
		}
		if rows = append(rows, row); row.Role == oProjBias {
			rows[len(rows)-1].When = outputBias
			rows = append(rows, headNorms...)
		}
	}
	return behind(rows, Gate, routerBias)
}

// namedInGGUF returns rows, those of a role with the tensor of another name in llama.cpp's files.
func namedInGGUF(rows []Row, role Role, name string) []Row {
	for i := range rows {
		if rows[i].Role == role {
			rows[i].GGUF = stored(name)
		}
	}
	return rows
}

// fusedQKV returns rows with queries, keys and values of attention in one matrix, which llama.cpp's files have as weight.
func fusedQKV(rows []Row, weight gguf) (all []Row) {
	for _, row := range rows {
		switch row.Role {
		case QProj:
			all = append(all, Row{"model.layers.{l}.self_attn.qkv_proj.weight", Attention, QKVProj, nil,
				[]dim{fusedWidths, hidden}, weight})
		case qProjBias:
			all = append(all, Row{"model.layers.{l}.self_attn.qkv_proj.bias", Attention, qkvProjBias, bias,
				[]dim{fusedWidths}, stored("blk.{l}.attn_qkv.bias")})
		case KProj, kProjBias, VProj, vProjBias:
		default:
			all = append(all, row)
		}
	}
	return all
}

// headNorms are the norms of queries and keys.
var headNorms = []Row{
	{"model.layers.{l}.self_attn.q_norm.weight", Norms, QNorm, headsNormed, []dim{normedQueries},
		stored("blk.{l}.attn_q_norm.weight")},
	{"model.layers.{l}.self_attn.k_norm.weight", Norms, KNorm, headsNormed, []dim{normedKeys},
		stored("blk.{l}.attn_k_norm.weight")},
}

// otherNames returns f with the names of its published files, and of transformers' modules: what the longest part of each of
// the table's names that has another one is called there. own is nil if transformers has no names of its own, empty if it has the table's.
func otherNames(f Family, published, own map[string]string) Family {
	naming := func(name, whose string, called map[string]string) Naming {
		rows := slices.Concat(f.Rows, f.MTP)
		names := make(map[string]string, len(rows))
		for _, row := range rows {
			longest := ""
			for part := range called {
				if strings.Contains(row.Name, part) && len(part) > len(longest) {
					longest = part
				}
			}
			names[row.Name] = strings.Replace(row.Name, longest, called[longest], 1)
		}
		for _, f := range fused {
			if name := called[f.Name]; name != "" {
				names[f.Name] = layerPrefix + name
			}
		}
		return Naming{Name: name, Whose: whose, Fuses: name != "published", names: names}
	}
	f.Namings = []Naming{naming("published", "a published name", published)}
	if own != nil {
		f.Namings = append(f.Namings, naming("transformers", "a name of transformers' modules", own))
	}
	f.spelled = spellings(f.Namings)
	return f
}

// predicting returns f with the names of the weights of its one prediction layer: called has some of them, by the part of
// the table's name behind the layer. The others are called mtp.layers.0. and that part.
func (f Family) predicting(called map[string]string) Family {
	for i := range f.Namings {
		n := &f.Namings[i]
		n.predicted = make(map[string]string, len(n.names))
		for row, name := range n.names {
			if within, ok := strings.CutPrefix(name, layerPrefix); ok {
				n.predicted[row] = cmp.Or(called[within], predictions+"layers."+layerHole+"."+within)
			}
		}
	}
	return f
}

// Conditions and dimensions of plain attention with head_dim.
var (
	headsNormed = &when{[]string{"use_qk_norm"}, func(c *config.Config, _ int) bool { return c.Attention.UseQKNorm }}
	outputBias  = &when{[]string{"attention_bias"},
		func(c *config.Config, _ int) bool {
			return c.Attention.AttentionBias && !c.Rules().Attention.OutputUnbiased
		}}

	queryWidths = dim{[]string{"num_attention_heads", "head_dim"},
		func(c *config.Config, _ int) int { return c.Attention.NumAttentionHeads * c.QKHeadDim() }}
	keyWidths = dim{[]string{"num_key_value_heads", "head_dim"},
		func(c *config.Config, _ int) int { return c.Attention.NumKeyValueHeads * c.QKHeadDim() }}
	valueWidths = dim{[]string{"num_key_value_heads", "head_dim"},
		func(c *config.Config, _ int) int { return c.Attention.NumKeyValueHeads * c.ValueHeadDim() }}
	fusedWidths = dim{[]string{"num_attention_heads", "num_key_value_heads", "head_dim"},
		func(c *config.Config, _ int) int {
			return (c.Attention.NumAttentionHeads+c.Attention.NumKeyValueHeads)*c.QKHeadDim() +
				c.Attention.NumKeyValueHeads*c.ValueHeadDim()
		}}
	contextWidths = dim{[]string{"num_attention_heads", "head_dim"},
		func(c *config.Config, _ int) int { return c.Attention.NumAttentionHeads * c.ValueHeadDim() }}
	normedQueries = dim{[]string{"num_attention_heads", "head_dim"}, func(c *config.Config, _ int) int {
		if c.Rules().Attention.QKNorm == config.AllHeads {
			return c.Attention.NumAttentionHeads * c.QKHeadDim()
		}
		return c.QKHeadDim()
	}}
	normedKeys = dim{[]string{"num_key_value_heads", "head_dim"}, func(c *config.Config, _ int) int {
		if c.Rules().Attention.QKNorm == config.AllHeads {
			return c.Attention.NumKeyValueHeads * c.QKHeadDim()
		}
		return c.QKHeadDim()
	}}
)
