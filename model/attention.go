package model

import (
	"math"

	"dsmoe/model/internal/kernel"
)

// forward is causal self-attention, mirroring DeepseekAttention.forward:
//
//	q, k, v = q_proj(x), k_proj(x), v_proj(x); q and k rotated by their position
//	scores  = q·kᵀ / sqrt(head_dim) + mask
//	context = softmax(scores)·v                softmax in float32 or better
//	y       = o_proj(context)
func (a *DeepseekAttention) forward(p *pass, name string, x *Activation) *Activation {
	q := a.QProj.stage(p, name+".q_proj", x)
	k := a.KProj.stage(p, name+".k_proj", x)
	v := a.VProj.stage(p, name+".v_proj", x)
	context := p.stage(name+".o_proj.input", p.attend(q, k, v))
	y := a.OProj.stage(p, name+".o_proj", context)
	return p.stage(name+".output", y)
}

// attend returns the context [batch, seq, heads·head_dim] of all heads; heads of a
// group of num_attention_heads/num_key_value_heads share k and v (repeat_kv).
func (p *pass) attend(q, k, v *Activation) *Activation {
	c := p.m.Config
	context := p.activation(p.in.Batch, p.in.Seq, c.NumAttentionHeads*c.HeadDim())
	context.Weights = p.union(nil, q, k, v)
	heads := make([]*attentionHead, p.in.Batch*c.NumAttentionHeads)
	kernel.Parallel(len(heads), p.Parallelism, func(i int) {
		h := &attentionHead{batch: i / c.NumAttentionHeads, head: i % c.NumAttentionHeads}
		h.group = h.head / (c.NumAttentionHeads / c.NumKeyValueHeads)
		h.q, h.k, h.v = p.oneHead(q, h.batch, h.head), p.oneHead(k, h.batch, h.group), p.oneHead(v, h.batch, h.group)
		p.setHead(context, h, h.attend(p))
		if p.tape != nil {
			heads[i] = h
		}
	})
	p.record(func() {
		for _, h := range heads { // in order: heads of a group add to the same k and v
			h.backward(p, q, k, v, context)
		}
	})
	return context
}

// attentionHead is one head of one sequence: q and k are [seq, qk_head_dim], v [seq,
// v_head_dim], probs [seq, seq]. The last head_dim values of a row of q and k are
// rotated.
type attentionHead struct {
	batch, head, group int
	q, k, v, probs     []float32
}

// oneHead copies one head of a sequence: [seq, head_dim].
func (p *pass) oneHead(x *Activation, batch, head int) []float32 {
	dim := p.m.Config.HeadDim()
	out := make([]float32, 0, p.in.Seq*dim)
	for t := range p.in.Seq {
		out = append(out, x.Row(batch*p.in.Seq + t)[head*dim:(head+1)*dim]...)
	}
	return out
}

func (p *pass) setHead(x *Activation, h *attentionHead, values []float32) {
	dim := p.m.Config.ValueHeadDim()
	for t := range p.in.Seq {
		copy(x.Row(h.batch*p.in.Seq + t)[h.head*dim:(h.head+1)*dim], values[t*dim:(t+1)*dim])
	}
}

// attend rotates q and k in place, keeps the probabilities, and returns the head's
// context: softmax(q·kᵀ/sqrt(qk_head_dim) + mask)·v. Plain attention divides by the
// root, latent attention multiplies by softmaxScale.
func (h *attentionHead) attend(p *pass) []float32 {
	c, seq := p.m.Config, p.in.Seq
	dim, nope, vdim := c.QKHeadDim(), c.QKNopeHeadDim, c.ValueHeadDim()
	for t := range seq {
		p.rotate(h.q[t*dim+nope:(t+1)*dim], t)
		p.rotate(h.k[t*dim+nope:(t+1)*dim], t)
	}
	context, values := make([]float32, seq*vdim), transposed(h.v, seq, vdim)
	for t := 0; t < seq; t += queryBlock {
		n := min(queryBlock, seq-t)
		probs := h.probabilities(p, t, n)
		kernel.MatMul(context[t*vdim:(t+n)*vdim], probs, kernel.Matrix{Rows: vdim, Cols: seq, Values: values}, nil, p.Accumulate, 1)
		if p.tape != nil {
			h.probs = append(h.probs, probs...)
		}
	}
	kernel.RoundTo(context, p.format)
	return context
}

// queryBlock is how many queries' scores are held at a time: memory grows with the
// length of a sequence, not with its square.
const queryBlock = 64

// probabilities returns softmax(q·kᵀ/sqrt(qk_head_dim) + mask) [n, seq] of the queries
// first … first+n-1.
func (h *attentionHead) probabilities(p *pass, first, n int) []float32 {
	seq, dim := p.in.Seq, p.m.Config.QKHeadDim()
	scores := make([]float32, n*seq)
	kernel.MatMul(scores, h.q[first*dim:(first+n)*dim], kernel.Matrix{Rows: seq, Cols: dim, Values: h.k}, nil, p.Accumulate, 1)
	scale := p.scoreScale()
	for t := range n {
		row := scores[t*seq : (t+1)*seq]
		for s := range row {
			row[s] = p.rounded(p.rounded(scale(p.rounded(row[s]))) + p.mask.at(h.batch, first+t, s))
		}
		softmax(row)
	}
	kernel.RoundTo(scores, p.format)
	return scores
}

func (p *pass) scoreScale() func(score float32) float32 {
	if p.m.Config.KVLoraRank > 0 {
		scale := softmaxScale(p.m.Config)
		return func(score float32) float32 { return float32(score * scale) }
	}
	root := float32(math.Sqrt(float64(p.m.Config.HeadDim())))
	return func(score float32) float32 { return score / root }
}

// backward adds a head's gradients, P being its probabilities:
//
//	∂v = Pᵀ·∂context
//	∂P = ∂context·vᵀ
//	∂s = P·(∂P - Σ P·∂P) / sqrt(head_dim)      row by row
//	∂q = ∂s·k,  ∂k = ∂sᵀ·q                     both rotated back
func (h *attentionHead) backward(p *pass, q, k, v, context *Activation) {
	seq, dim := p.in.Seq, p.m.Config.HeadDim()
	dc := p.oneHead(context.gradient(), h.batch, h.head)
	dv := p.product(transposed(h.probs, seq, seq), transposed(dc, seq, dim), seq)
	dp := p.product(dc, h.v, dim)
	ds := make([]float32, seq*seq)
	root := math.Sqrt(float64(dim))
	for t := range seq {
		softmaxBackward(ds[t*seq:(t+1)*seq], dp[t*seq:(t+1)*seq], h.probs[t*seq:(t+1)*seq])
	}
	for i := range ds {
		ds[i] = float32(float64(ds[i]) / root)
	}
	dq := p.product(ds, transposed(h.k, seq, dim), seq)
	dk := p.product(transposed(ds, seq, seq), transposed(h.q, seq, dim), seq)
	for t := range seq {
		p.unrotate(dq[t*dim:(t+1)*dim], t)
		p.unrotate(dk[t*dim:(t+1)*dim], t)
	}
	p.addHead(q.gradient(), h.batch, h.head, dq)
	p.addHead(k.gradient(), h.batch, h.group, dk)
	p.addHead(v.gradient(), h.batch, h.group, dv)
}

// gradient returns ∂a as an activation.
func (a *Activation) gradient() *Activation {
	return &Activation{Shape: a.Shape, Values: a.grad.values}
}

// addHead adds values [seq, head_dim] to one head of x.
func (p *pass) addHead(x *Activation, batch, head int, values []float32) {
	dim := p.m.Config.HeadDim()
	for t := range p.in.Seq {
		row := gradient{x.Row(batch*p.in.Seq + t)[head*dim : (head+1)*dim]}
		row.add(values[t*dim : (t+1)*dim])
	}
}

// softmax replaces x by exp(x - max) / sum, computed in float64 and rounded once.
func softmax(x []float32) {
	top := float32(math.Inf(-1))
	for _, v := range x {
		top = max(top, v)
	}
	e := make([]float64, len(x))
	sum := 0.0
	for i, v := range x {
		e[i] = kernel.Exp(float64(v) - float64(top))
		sum += e[i]
	}
	for i := range x {
		x[i] = float32(e[i] / sum)
	}
}

// softmaxBackward adds to dx the gradient of y = softmax(x): y·(dy - Σ y·dy).
func softmaxBackward(dx, dy, y []float32) {
	sum := 0.0
	for i, v := range y {
		sum += float64(v) * float64(dy[i])
	}
	for i, v := range y {
		dx[i] += float32(float64(v) * (float64(dy[i]) - sum))
	}
}

func transposed(x []float32, rows, cols int) []float32 {
	t := make([]float32, len(x))
	for r := range rows {
		for c := range cols {
			t[c*rows+r] = x[r*cols+c]
		}
	}
	return t
}

// mask is the causal mask with padding, mirroring _prepare_4d_causal_attention_mask:
// 0 where a query may look, the compute dtype's lowest finite value where it may
// not. Adding that makes every masked score the same, so that a query with all its
// keys masked attends to all keys alike, later ones too.
type mask struct {
	in     *Input
	lowest float32
}

func newMask(in *Input, format kernel.Format) mask {
	lowest := map[kernel.Format]float32{
		kernel.F32:  -math.MaxFloat32,
		kernel.F16:  -65504,
		kernel.BF16: -0x1.fep127,
	}
	return mask{in, lowest[format]}
}

// at returns what is added to the score of query position q and key position k.
func (m mask) at(batch, q, k int) float32 {
	if k > q || m.in.AttentionMask != nil && m.in.AttentionMask[batch*m.in.Seq+k] == 0 {
		return m.lowest
	}
	return 0
}
