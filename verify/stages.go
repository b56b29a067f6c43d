package verify

import (
	"fmt"
	"strconv"
	"strings"

	"dsmoe/model/weights"
)

// Stages as a pack names them: those outside the layers, and behind "model.layers.N."
// the kinds of stages of a layer.
const (
	embedded = "model.embed_tokens.output"
	lastNorm = "model.norm.output"
	logits   = "lm_head.output"
	loss     = "loss"
	grad     = ".grad" // ends the names of gradients

	layerOutput   = "output"
	attended      = "self_attn.o_proj.input"
	gateLogits    = "mlp.gate.logits"
	topKIdx       = "mlp.gate.topk_idx"
	topKWeight    = "mlp.gate.topk_weight"
	auxLoss       = "mlp.gate.aux_loss"
	expertsOutput = "mlp.experts.output" // the routed sum
	sharedOutput  = "mlp.shared_experts.output"

	layerInput   = "input" // where the pack has no stage that is it
	attnWeights  = "self_attn.attn_weights"
	rotaryCos    = "model.rotary_emb.cos"
	rotarySin    = "model.rotary_emb.sin"
	expertOutput = "mlp.experts.*.output" // of one, before its weight

	attentionNorm = "post_attention_layernorm.output"
	probeOutput   = "mlp.experts.*.probe.output" // of one on rows that did not choose it: see Probe

	predictedFrom   = "eh_proj.output" // of prediction layers, as those below
	predictedNorm   = "shared_head.norm.output"
	predictedLogits = "shared_head.head.output"
)

// What transformers calls the implementations of attention whose rounding errors are known.
const (
	eager = "eager"
	sdpa  = "sdpa"
)

// split cuts "model.layers.3.mlp.output" into 3 and "mlp.output"; names outside the
// layers are kinds of their own, in layer -1.
func split(name string) (layer int, kind string) {
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

// inner are the kinds of stages that a pack need not have: where they are not, the stages
// behind them are bounded without them.
var inner = map[string]bool{
	layerInput: true, attnWeights: true, rotaryCos: true, rotarySin: true,
	"mlp.gate_proj.output": true, "mlp.up_proj.output": true, "mlp.down_proj.input": true,
	"mlp.shared_experts.gate_proj.output": true, "mlp.shared_experts.up_proj.output": true, "mlp.shared_experts.down_proj.input": true,
	"mlp.experts.*.gate_proj.output": true, "mlp.experts.*.up_proj.output": true, "mlp.experts.*.down_proj.input": true,
	expertOutput:                           true,
	"mlp.experts.*.probe.gate_proj.output": true, "mlp.experts.*.probe.up_proj.output": true, "mlp.experts.*.probe.down_proj.input": true,
}

// starred is a kind of stage with * for a routed expert's number, as manifests name it, and
// the number, -1 without one.
func starred(kind string) (kinds string, expert int) {
	before, expert, after, ok := weights.CutExpert("." + kind)
	if !ok {
		return kind, -1
	}
	return before[1:] + "*" + after, expert
}

// isTable says whether a stage is one of RoPE's tables.
func isTable(name string) bool { return name == rotaryCos || name == rotarySin }

// inputOf is the stage that layer l begins with, where a pack has it apart.
func inputOf(l int) string { return stageOfLayer(l, layerInput) }

// before is the stage that layer l, or the head behind the last layer, begins with.
func before(l int) string {
	if l == 0 {
		return embedded
	}
	return stageOfLayer(l-1, layerOutput)
}

// stageOfLayer is the name of a kind of stage of layer l.
func stageOfLayer(l int, kind string) string { return fmt.Sprintf("model.layers.%d.%s", l, kind) }
