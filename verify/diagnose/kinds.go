package diagnose

import (
	"slices"

	"dsmoe/model/table"
	"dsmoe/verify/pack"
)

// What the mistakes of a kind of module are first seen at.
var (
	normStages = []string{"input_layernorm.output", "post_attention_layernorm.output", "self_attn.q_a_layernorm.output",
		"self_attn.kv_a_layernorm.output", pack.LastNorm}

	// Stages that RoPE, and other choices of who attends to whom, change.
	ropeStages   = []string{pack.RotaryCos, pack.IndexerQueries, pack.AttnWeights, pack.Attended}
	attendStages = []string{pack.AttnWeights, pack.Attended}
	// Where a pack has them, of MLPs.
	gateStages = pack.InMLPs(table.GateProj)
	upStages   = pack.InMLPs(table.UpProj)
	expertGate = pack.InMLP(routedMLP, table.GateProj)
)

// projections are the projections of either kind of attention.
var projections = []table.Role{table.QProj, table.QAProj, table.QBProj, table.KVAProjWithMQA, table.KVBProj,
	table.KProj, table.VProj, table.OProj}

// rowStages are computed row by row: those of MLPs, and of the attention's projections.
var rowStages = slices.Concat(pack.MLPOutputs, stagesOf(projections...))

// stagesOf are the stages of projections of the attention.
func stagesOf(projections ...table.Role) (kinds []string) {
	for _, p := range projections {
		kinds = append(kinds, pack.InAttention(p))
	}
	return kinds
}

// The kinds of MLPs that a layer with experts has.
const (
	routedMLP = "mlp.experts.*"
	sharedMLP = "mlp.shared_experts"
)
