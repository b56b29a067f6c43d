package model

import (
	"context"
	"fmt"
	"math"

	"dsmoe/model/internal/kernel"
	"dsmoe/model/tensor"
)

// Train runs the decoder in training mode on in, computes the loss and carries it
// back to the weights for which wants is true. The trace sees the stages of the
// forward pass, each gate's "aux_loss" among them, then "loss", then the gradients
// as "NAME.grad", in the order of the table.
//
// The loss is the next-token cross entropy over all positions, padding included:
//
//	loss = mean over b, t < seq-1 of -log softmax(logits[b, t])[input_ids[b, t+1]]
//
// The gradients are those of loss + Σ aux_loss: AddAuxiliaryLoss hands each gate's
// auxiliary loss a gradient of 1 without adding it to the output. There is no
// dropout. Gradients are float32, whatever the compute dtype.
func (m *DeepseekForCausalLM) Train(ctx context.Context, in *Input, o Options, wants func(weight string) bool) (loss float64, err error) {
	p, err := m.newPass(in, o)
	if err != nil {
		return 0, err
	}
	if in.Seq < 2 {
		return 0, fmt.Errorf("input: sequences of %d token have no next token to learn", in.Seq)
	}
	if m.Config.KVLoraRank > 0 {
		return 0, fmt.Errorf("model_type %s: the gradient of latent attention is not computed", m.Config.ModelType)
	}
	p.Training = true
	p.tape = &tape{wants: wants, grads: map[string]*gradient{}}
	logits, err := p.decode(ctx)
	if err != nil {
		return 0, err
	}
	loss = p.crossEntropy(logits)
	p.stage("loss", &Activation{Shape: []int{1}, Values: []float32{float32(loss)}, DType: tensor.F32})
	p.tape.rewind()
	for s := range FamilyOf(m.Config).Slots(m.Config) {
		if g := p.tape.gradientOf(s); g != nil {
			p.stage(s.Name+".grad", &Activation{Shape: s.Shape, Values: g, DType: tensor.F32})
		}
	}
	return loss, ctx.Err()
}

// gradientOf returns a wanted weight's gradient, zeros if nothing flowed to it (an
// expert that no token reached), nil if it is not wanted.
func (t *tape) gradientOf(s Slot) []float32 {
	if !t.wants(s.Name) {
		return nil
	}
	if g := t.grads[s.Name]; g != nil {
		return g.values
	}
	return make([]float32, s.Info(tensor.F32).Len())
}

// crossEntropy returns the loss and sets the logits' gradient:
//
//	∂logits[b, t] = (softmax(logits[b, t]) - onehot(input_ids[b, t+1])) / n
func (p *pass) crossEntropy(logits *Activation) float64 {
	n := p.in.Batch * (p.in.Seq - 1)
	sum := 0.0
	for b := range p.in.Batch {
		for t := range p.in.Seq - 1 {
			row := b*p.in.Seq + t
			label := p.in.InputIDs[row+1]
			prob, logSum := probabilities(logits.Row(row))
			sum += logSum - float64(logits.Row(row)[label])
			prob[label]--
			grad := logits.grad.values[row*logits.Width():]
			for v, q := range prob {
				grad[v] = float32(q / float64(n))
			}
		}
	}
	return sum / float64(n)
}

// probabilities returns softmax(x) and log Σ exp(x), in float64.
func probabilities(x []float32) (prob []float64, logSum float64) {
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

// auxLoss computes a gate's auxiliary loss from its scores [tokens, n] and choices,
// as MoEGate.forward does in training with aux_loss_alpha α > 0. With k choices of
// n experts per token, it is per sequence of T tokens if seq_aux is set:
//
//	ce[b, e] = count of e among sequence b's choices / (T·k/n)
//	aux_loss = α · mean_b Σ_e ce[b, e] · mean_t scores[b, t, e]
//
// and over all tokens of the batch otherwise:
//
//	f[e]     = n · count of e among all choices / (tokens·k)
//	aux_loss = α · Σ_e f[e] · mean scores[e]
//
// Which is the same with the batch as one sequence. The counts are constants of the
// loss, and its own gradient is 1 (AddAuxiliaryLoss), so that
//
//	∂scores[b, t, e] = α · ce[b, e] / tokens
func (p *pass) auxLoss(name string, scores *Activation, r *Routing) {
	alpha := p.m.Config.AuxLossAlpha
	if !p.Training || alpha <= 0 {
		return
	}
	sequences := 1
	if p.m.Config.SeqAux {
		sequences = p.in.Batch
	}
	n := scores.Width()
	perSequence := scores.Rows() / sequences
	ce := r.load(n, perSequence)
	loss := 0.0
	for i, s := range scores.Values {
		loss += float64(ce[i/n/perSequence*n+i%n] * float64(s))
	}
	loss *= alpha / float64(scores.Rows())
	p.stage(name+".aux_loss", &Activation{Shape: []int{1}, Values: []float32{p.rounded(float32(loss))}, DType: p.DType, Weights: scores.Weights})
	p.record(func() {
		for i := range scores.Values {
			scores.grad.values[i] += float32(alpha * ce[i/n/perSequence*n+i%n] / float64(scores.Rows()))
		}
	})
}

// load returns ce [sequences, n]: how often each expert was chosen in a sequence of
// the given number of tokens, over its fair share.
func (r *Routing) load(n, tokens int) []float64 {
	ce := make([]float64, len(r.Idx)/r.K/tokens*n)
	for i, e := range r.Idx {
		ce[i/r.K/tokens*n+e]++
	}
	for i := range ce {
		ce[i] /= float64(tokens*r.K) / float64(n)
	}
	return ce
}
