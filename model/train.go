package model

import (
	"context"
	"fmt"
	"math"

	"dsmoe/config"
	"dsmoe/model/internal/kernel"
	"dsmoe/model/table"
	"dsmoe/model/tensor"
)

// Train runs n in training mode, computes the loss, and carries its gradient back to the
// weights that tape wants. The arithmetic of n is tape, or one that embeds tape. The trace sees
// the stages of the forward pass, each gate's "aux_loss" among them, then "loss", then the
// gradients as "NAME.grad", in the order of the table.
//
// The loss is the next-token cross entropy over all positions, padding included:
//
//	loss = mean over b, t < seq-1 of -log softmax(logits[b, t])[input_ids[b, t+1]]
//
// The gradients are those of loss + Σ aux_loss: AddAuxiliaryLoss hands each gate's
// auxiliary loss a gradient of 1 without adding it to the output. There is no
// dropout. Gradients are float32, whatever the compute dtype. Models with latent attention
// are refused: no reference has confirmed their gradients.
func Train(ctx context.Context, n *Network[*Activation], tape *Tape) (loss float64, err error) {
	in := n.Input
	if err := Learns(n.Model.Config, in); err != nil {
		return 0, err
	}
	training := *n
	training.Options.Training = true
	logits, err := training.Forward(ctx)
	if err != nil {
		return 0, err
	}
	loss = tape.crossEntropy(logits, in)
	tape.rewind()
	if n.Trace == nil {
		return loss, nil
	}
	shown := &Activation{Shape: []int{1}, Values: []float32{float32(loss)}, DType: tensor.F32}
	if err := n.Trace.Stage("loss", shown); err != nil {
		return loss, err
	}
	for s := range table.FamilyOf(n.Model.Config).Slots(n.Model.Config) {
		if !tape.wants(s.Name) {
			continue
		}
		values := tape.weights[s.Name]
		if values == nil { // an expert that no token reached
			values = make(gradient, s.Info(tensor.F32).Len())
		}
		grad := &Activation{Shape: s.Shape, Values: values, DType: tensor.F32}
		if err := n.Trace.Stage(s.Name+".grad", grad); err != nil {
			return loss, err
		}
	}
	return loss, nil
}

// Learns returns an error if a model of config c cannot be trained on in.
func Learns(c *config.Config, in *Input) error {
	if in.Seq < 2 {
		return fmt.Errorf("input: sequences of %d token have no next token to learn", in.Seq)
	}
	if c.HyperConnections.HCMult > 0 {
		return untrained(c)
	}
	if c.LatentAttention() || c.Reference == config.Native {
		why := "the gradients of latent attention are not confirmed by a reference"
		if !c.LatentAttention() {
			why = "no reference has confirmed its gradients"
		}
		return fmt.Errorf("model_type %s: %s", c.ModelType, why)
	}
	return nil
}

// crossEntropy returns the loss and sets the logits' gradient:
//
//	∂logits[b, t] = (softmax(logits[b, t]) - onehot(input_ids[b, t+1])) / n
func (t *Tape) crossEntropy(logits *Activation, in *Input) float64 {
	n := in.Batch * (in.Seq - 1)
	sum := 0.0
	for b := range in.Batch {
		for pos := range in.Seq - 1 {
			row := b*in.Seq + pos
			label := in.InputIDs[row+1]
			prob, logSum := Probabilities(logits.Row(row))
			sum += logSum - float64(logits.Row(row)[label])
			prob[label]--
			grad := t.of(logits).row(row, logits)
			for v, q := range prob {
				grad[v] = float32(q / float64(n))
			}
		}
	}
	return sum / float64(n)
}

// Probabilities returns softmax(x) and log Σ exp(x), in float64.
func Probabilities(x []float32) (prob []float64, logSum float64) {
	top := math.Inf(-1)
	for _, v := range x {
		top = max(top, float64(v))
	}
	prob = make([]float64, len(x))
	sum := 0.0
	for i, v := range x {
		prob[i] = kernel.Exp(float64(v) - top)
		sum += prob[i]
	}
	for i := range prob {
		prob[i] /= sum
	}
	return prob, top + math.Log(sum)
}
