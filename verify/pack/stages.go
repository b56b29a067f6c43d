package pack

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"dsmoe/config"
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
	behindMLP     = "post_mlp_layernorm.output"
	latentInput   = "mlp.fc1_latent_proj.output" // what experts in a latent space take
	ProbeOutput   = "mlp.experts.*.probe.output" // of one on rows that did not choose it: see Probe

	PredictedFrom   = "eh_proj.output" // of prediction layers, as those below
	PredictedNorm   = "shared_head.norm.output"
	PredictedLogits = "shared_head.head.output"
)

// What transformers calls the implementations of attention, and of experts, whose rounding errors are known.
const (
	Eager     = "eager" // of both
	Sdpa      = "sdpa"
	GroupedMM = "grouped_mm"
	BatchedMM = "batched_mm"
)

// Stage is what the name of a tensor of a pack says, such as "model.layers.3.mlp.experts.7.output".
type Stage struct {
	Name   string // the whole name
	Layer  int    // 3; -1 outside the layers
	Within string // "mlp.experts.7.output", what is behind the layer; outside the layers the whole name
	Kind   string // "mlp.experts.*.output": Within as manifests name it, with * for a routed expert's number
	Expert int    // 7; -1 without one
}

// Parse takes a name apart.
func Parse(name string) Stage {
	s := Stage{Name: name, Layer: -1, Within: name}
	if rest, ok := strings.CutPrefix(name, "model.layers."); ok {
		number, within, _ := strings.Cut(rest, ".")
		if layer, err := strconv.Atoi(number); err == nil {
			s.Layer, s.Within = layer, within
		}
	}
	s.Kind, s.Expert = table.CutExpert(s.Within)
	s.Kind = strings.Replace(s.Kind, "{e}", "*", 1)
	return s
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

// HasMLPsAlone reports whether all stages of the pack are of MLPs, or of the norms around them.
func (p *Pack) HasMLPsAlone() bool {
	for name := range p.Manifest.Tensors {
		if name != inputIDs && name != attentionMask && !Parse(name).AroundMLP() {
			return false
		}
	}
	return true
}

// AroundMLP reports whether s is of a layer's MLP, or of the norms around it.
func (s Stage) AroundMLP() bool {
	return s.Layer >= 0 && (strings.HasPrefix(s.Kind, "mlp.") || s.Kind == AttentionNorm || s.Kind == behindMLP)
}

// InAttention is the kind of stage that a projection of the attention gives.
func InAttention(role table.Role) string { return "self_attn." + string(role) + ".output" }

// tables are RoPE's: of all layers or, in DeepSeek-V4, of layers without and with entries.
var tables = []string{RotaryCos, "model.rotary_emb.sin", "model.rotary_emb.main.cos", "model.rotary_emb.main.sin",
	"model.rotary_emb.compress.cos", "model.rotary_emb.compress.sin"}

// IsTable reports whether s is a table of RoPE.
func (s Stage) IsTable() bool { return slices.Contains(tables, s.Name) }

// tokenAxis returns which axis of a stage's shape counts the tokens of a sequence. The axes between it and the last are
// the rows that each token has, such as heads or streams: [batch, tokens, …, width]. Stages of two axes are
// [tokens, width], with the tokens of a batch in one axis. It is -1 for stages whose rows are not tokens.
func (s Stage) tokenAxis(c *config.Config, axes int) int {
	switch {
	case s.IsLossOrGradient() || s.IsTable() || s.IsProbe():
		return -1
	case s.Within == AttnWeights, // [batch, heads, queries, keys]
		s.IsHeadNorm() && c.Rules().Attention.QKNorm == config.PerHeadTransposed: // [batch, heads, tokens, head_dim]
		return 2
	}
	return min(1, axes-2)
}

// IsHeadNorm reports whether s is what the norm of queries or keys gives.
func (s Stage) IsHeadNorm() bool {
	return s.Within == InAttention(table.QNorm) || s.Within == InAttention(table.KNorm)
}

// OfIndexer returns which stage of an indexer s is: IndexerScores or another one, as DeepSeek-V3.2
// names it, for DeepSeek-V4's indexer of entries, too. For other stages it is "".
func (s Stage) OfIndexer() string {
	kind := strings.Replace(s.Within, "self_attn.compressor.indexer.", indexer, 1)
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

// IsStage reports whether s is the output of a part of the model.
func (s Stage) IsStage() bool { return !s.IsInput() && s.Within != OwnInputKind }

// IsOwnInput reports whether s is what a layer began with.
func (s Stage) IsOwnInput() bool { return s.Layer >= 0 && s.Within == OwnInputKind }

// IsInput reports whether s is an input of the model.
func (s Stage) IsInput() bool { return s.Name == inputIDs || s.Name == attentionMask }

// IsGradient reports whether s is a gradient.
func (s Stage) IsGradient() bool { return strings.HasSuffix(s.Name, Grad) }

// IsLoss reports whether s is the loss or a gradient.
func (s Stage) IsLoss() bool { return s.Name == Loss || s.IsGradient() }

// IsLossOrGradient reports whether s is a gradient or any loss, auxiliary losses included.
func (s Stage) IsLossOrGradient() bool { return s.IsGradient() || strings.HasSuffix(s.Name, "loss") }

// IsStageGradient reports whether s is the gradient of a stage, not of a weight.
func (s Stage) IsStageGradient() bool {
	of, ok := strings.CutSuffix(s.Name, Grad)
	return ok && !strings.HasSuffix(of, ".weight") && !strings.HasSuffix(of, ".bias")
}

// IsProbe reports whether s is of a probe: what it gave, or what goes on inside.
func (s Stage) IsProbe() bool { return strings.HasPrefix(s.Kind, "mlp.experts.*.probe.") }

// ProbeStage is the stage of a probe of expert e in layer l.
func ProbeStage(l, e int) string {
	return StageOf(l, fmt.Sprintf("mlp.experts.%d.probe.output", e))
}

// The names of an input's tensors.
const (
	inputIDs      = "input_ids"
	attentionMask = "attention_mask"
)
