package pack

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"dsmoe/model/table"
)

// Stages as a pack names them: those outside the layers, and behind "model.layers.N."
// the kinds of stages of a layer.
const (
	Embedded = "model.embed_tokens.output"
	LastNorm = "model.norm.output"
	Logits   = "lm_head.output"
	Loss     = "loss"
	Grad     = ".grad" // ends the names of gradients

	LayerOutput   = "output"
	Attended      = "self_attn.o_proj.input"
	GateLogits    = "mlp.gate.logits"
	TopKIdx       = "mlp.gate.topk_idx"
	TopKWeight    = "mlp.gate.topk_weight"
	AuxLoss       = "mlp.gate.aux_loss"
	ExpertsOutput = "mlp.experts.output" // the routed sum
	SharedOutput  = "mlp.shared_experts.output"

	IndexerQueries = "self_attn.indexer.q" // after RoPE, [batch, seq, index_n_heads, index_head_dim]
	IndexerKeys    = "self_attn.indexer.k" // after RoPE
	IndexerScores  = "self_attn.indexer.scores"
	IndexerTopK    = "self_attn.indexer.topk_idx"
	EntriesScores  = "self_attn.compressor.indexer.scores" // of DeepSeek-V4, whose indexers choose entries
	EntriesTopK    = "self_attn.compressor.indexer.topk_idx"

	CollapsedHead = "model.hc_head.output" // of DeepSeek-V4's streams, before LastNorm

	OwnInputKind = "input" // where the pack has no stage that is it
	AttnWeights  = "self_attn.attn_weights"
	RotaryCos    = "model.rotary_emb.cos" // and others: see IsTable
	ExpertOutput = "mlp.experts.*.output" // of one, before its weight

	AttentionNorm = "post_attention_layernorm.output"
	ProbeOutput   = "mlp.experts.*.probe.output" // of one on rows that did not choose it: see Probe

	PredictedFrom   = "eh_proj.output" // of prediction layers, as those below
	PredictedNorm   = "shared_head.norm.output"
	PredictedLogits = "shared_head.head.output"
)

// What transformers calls the implementations of attention whose rounding errors are known.
const (
	Eager = "eager"
	Sdpa  = "sdpa"
)

// CutLayer cuts "model.layers.3.mlp.output" into 3 and "mlp.output"; names outside the
// layers are kinds of their own, in layer -1.
func CutLayer(name string) (layer int, kind string) {
	rest, ok := strings.CutPrefix(name, "model.layers.")
	if !ok {
		return -1, name
	}
	number, kind, _ := strings.Cut(rest, ".")
	layer, err := strconv.Atoi(number)
	if err != nil {
		return -1, name
	}
	return layer, kind
}

// Inner are the kinds of stages that a pack need not have: where they are not, the stages
// behind them are bounded without them.
var Inner = inner()

func inner() map[string]bool {
	kinds := map[string]bool{OwnInputKind: true, AttnWeights: true, ExpertOutput: true}
	for _, table := range tables {
		kinds[table] = true
	}
	for _, mlp := range append(slices.Clip(mlps), "mlp.experts.*.probe") {
		for _, stage := range []string{InMLP(mlp, table.GateProj), InMLP(mlp, table.UpProj), mlp + ".down_proj.input"} {
			kinds[stage] = true
		}
	}
	return kinds
}

// mlps are the modules of a layer that are an MLP.
var mlps = []string{"mlp", "mlp.shared_experts", "mlp.experts.*"}

// InIndexer is the kind of stage that a module of an indexer gives.
func InIndexer(role table.Role) string { return "self_attn.indexer." + string(role) + ".output" }

// InMLPs are the kinds of stages that the projections of a role give, in every kind of MLP.
func InMLPs(role table.Role) (kinds []string) {
	for _, mlp := range mlps {
		kinds = append(kinds, InMLP(mlp, role))
	}
	return kinds
}

// InMLP is the kind of stage that a projection of an MLP gives.
func InMLP(mlp string, role table.Role) string { return mlp + "." + string(role) + ".output" }

// MLPOutputs are the outputs of a layer's MLPs, single experts aside, and their sum.
var MLPOutputs = []string{"mlp.output", ExpertsOutput, SharedOutput}

// InAttention is the kind of stage that a projection of the attention gives.
func InAttention(role table.Role) string { return "self_attn." + string(role) + ".output" }

// CutExpert is a kind of stage with * for a routed expert's number, as manifests name it, and
// the number, -1 without one.
func CutExpert(kind string) (kinds string, expert int) {
	kinds, expert = table.CutExpert(kind)
	return strings.Replace(kinds, "{e}", "*", 1), expert
}

// tables are RoPE's: of all layers or, in DeepSeek-V4, of layers without and with entries.
var tables = []string{RotaryCos, "model.rotary_emb.sin", "model.rotary_emb.main.cos", "model.rotary_emb.main.sin",
	"model.rotary_emb.compress.cos", "model.rotary_emb.compress.sin"}

// IsTable reports whether a stage is a table of RoPE.
func IsTable(name string) bool { return slices.Contains(tables, name) }

// tokenAxis returns which axis of a stage's shape counts the tokens of a sequence. The axes between it and the last are
// the rows that each token has, such as heads or streams: [batch, tokens, …, width]. Stages of two axes are
// [tokens, width], with the tokens of a batch in one axis. It is -1 for stages whose rows are not tokens.
func tokenAxis(name string, axes int) int {
	_, kind := CutLayer(name)
	switch {
	case IsLossOrGradient(name) || IsTable(name) || IsProbe(name):
		return -1
	case kind == AttnWeights: // [batch, heads, queries, keys]
		return 2
	}
	return min(1, axes-2)
}

// CutIndexer returns the stage of an indexer that a kind of stage is: IndexerScores or another one, as DeepSeek-V3.2
// names it, for DeepSeek-V4's indexer of entries, too. Other kinds are "".
func CutIndexer(kind string) string {
	kind = strings.Replace(kind, "self_attn.compressor.indexer.", indexer, 1)
	if !strings.HasPrefix(kind, indexer) {
		return ""
	}
	return kind
}

// indexer begins the kinds of stages of an indexer.
const indexer = "self_attn.indexer."

// OwnInput is the stage that layer l begins with, where a pack has it apart.
func OwnInput(l int) string { return StageOf(l, OwnInputKind) }

// InputStage is the stage that layer l, or the head behind the last layer, begins with.
func InputStage(l int) string {
	if l == 0 {
		return Embedded
	}
	return StageOf(l-1, LayerOutput)
}

// StageOf is the name of a kind of stage of layer l.
func StageOf(l int, kind string) string { return fmt.Sprintf("model.layers.%d.%s", l, kind) }

// IsStage reports whether a tensor of a pack is the output of a part of the model.
func IsStage(name string) bool {
	_, kind := CutLayer(name)
	return !IsInput(name) && kind != OwnInputKind
}

// IsInput reports whether a tensor of a pack is an input of the model.
func IsInput(name string) bool { return name == "input_ids" || name == "attention_mask" }

// IsLoss reports whether a tensor is the loss or a gradient.
func IsLoss(name string) bool { return name == Loss || strings.HasSuffix(name, Grad) }

// IsLossOrGradient reports whether a tensor is a gradient or any loss, auxiliary losses included.
func IsLossOrGradient(name string) bool {
	return strings.HasSuffix(name, Grad) || strings.HasSuffix(name, "loss")
}

// IsStageGradient reports whether a tensor of a pack is the gradient of a stage, not of a weight.
func IsStageGradient(name string) bool {
	of, ok := strings.CutSuffix(name, Grad)
	return ok && !strings.HasSuffix(of, ".weight") && !strings.HasSuffix(of, ".bias")
}

// IsProbe reports whether a stage is of a probe: what it gave, or what goes on inside.
func IsProbe(name string) bool {
	_, kind := CutLayer(name)
	kind, _ = CutExpert(kind)
	return strings.HasPrefix(kind, "mlp.experts.*.probe.")
}

// ProbeStage is the stage of a probe of expert e in layer l.
func ProbeStage(l, e int) string {
	return StageOf(l, fmt.Sprintf("mlp.experts.%d.probe.output", e))
}

// ProbedExpert is the expert that a stage of a probe is of.
func ProbedExpert(name string) int {
	_, kind := CutLayer(name)
	_, e := CutExpert(kind)
	return e
}

// The names of an input's tensors.
const (
	inputIDs      = "input_ids"
	attentionMask = "attention_mask"
)
