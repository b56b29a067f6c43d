package verify

import (
	"strconv"
	"strings"
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

	predictedFrom   = "eh_proj.output" // of prediction layers, as those below
	predictedNorm   = "shared_head.norm.output"
	predictedLogits = "shared_head.head.output"
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
