package model

import (
	"math"
	"slices"
	"sync"

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
		h := p.newHead(i)
		h.group = h.head / (c.NumAttentionHeads / c.NumKeyValueHeads)
		h.q = p.oneHead(h.q, q, h.batch, h.head)
		h.k = p.oneHead(h.k, k, h.batch, h.group)
		h.v = p.oneHead(h.v, v, h.batch, h.group)
		p.setHead(context, h, h.attend(p))
		if p.tape != nil {
			heads[i] = h
		} else {
			unusedHeads.Put(h)
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
// v_head_dim], probs [seq, seq], kept for the gradient only. The last head_dim values of
// a row of q and k are rotated. The rest is buffers.
type attentionHead struct {
	batch, head, group       int
	q, k, v, probs           []float32
	scores, context, valuesT []float32
}

// unusedHeads keeps the memory of heads for the next ones.
var unusedHeads = sync.Pool{New: func() any { return new(attentionHead) }}

// newHead returns head i, counted over all sequences, without q, k and v.
func (p *pass) newHead(i int) *attentionHead {
	n := p.m.Config.NumAttentionHeads
	h := unusedHeads.Get().(*attentionHead)
	h.batch, h.head = i/n, i%n
	h.q, h.k, h.v, h.probs = h.q[:0], h.k[:0], h.v[:0], h.probs[:0]
	return h
}

// buffer returns n numbers, whatever they are, in buf's memory if that is enough.
func buffer(buf []float32, n int) []float32 { return slices.Grow(buf[:0], n)[:n] }

// oneHead appends one head of a sequence, [seq, head_dim], to out.
func (p *pass) oneHead(out []float32, x *Activation, batch, head int) []float32 {
	dim := p.m.Config.HeadDim()
	out = slices.Grow(out, p.in.Seq*dim)
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
	h.context = buffer(h.context, seq*vdim)
	h.valuesT = transposed(h.valuesT, h.v, seq, vdim)
	for t := 0; t < seq; t += queryBlock {
		n := min(queryBlock, seq-t)
		probs := h.probabilities(p, t, n)
		kernel.MatMul(h.context[t*vdim:(t+n)*vdim], probs, kernel.Matrix{Rows: vdim, Cols: seq, Values: h.valuesT}, nil, p.Accumulate, 1)
		if p.tape != nil {
			h.probs = append(h.probs, probs...)
		}
	}
	kernel.RoundTo(h.context, p.format)
	return h.context
}

// queryBlock is how many queries' scores are held at a time: memory grows with the
// length of a sequence, not with its square.
const queryBlock = 64

// probabilities returns softmax(q·kᵀ/sqrt(qk_head_dim) + mask) [n, seq] of the queries
// first … first+n-1.
func (h *attentionHead) probabilities(p *pass, first, n int) []float32 {
	seq, dim := p.in.Seq, p.m.Config.QKHeadDim()
	h.scores = buffer(h.scores, n*seq)
	kernel.MatMul(h.scores, h.q[first*dim:(first+n)*dim], kernel.Matrix{Rows: seq, Cols: dim, Values: h.k}, nil, p.Accumulate, 1)
	kernel.RoundTo(h.scores, p.format)
	p.scaleScores(h.scores)
	kernel.RoundTo(h.scores, p.format)
	for t := range n {
		row := h.scores[t*seq : (t+1)*seq]
		p.mask.add(row, h.batch, first+t)
		kernel.RoundTo(row, p.format)
		kernel.Softmax(row)
	}
	kernel.RoundTo(h.scores, p.format)
	return h.scores
}

func (p *pass) scaleScores(x []float32) {
	if p.m.Config.KVLoraRank > 0 {
		scale := softmaxScale(p.m.Config)
		for i := range x {
			x[i] *= scale
		}
		return
	}
	root := float32(math.Sqrt(float64(p.m.Config.HeadDim())))
	for i := range x {
		x[i] /= root
	}
}

// backward adds a head's gradients, P being its probabilities:
//
//	∂v = Pᵀ·∂context
//	∂P = ∂context·vᵀ
//	∂s = P·(∂P - Σ P·∂P) / sqrt(head_dim)      row by row
//	∂q = ∂s·k,  ∂k = ∂sᵀ·q                     both rotated back
func (h *attentionHead) backward(p *pass, q, k, v, context *Activation) {
	seq, dim := p.in.Seq, p.m.Config.HeadDim()
	dc := p.oneHead(nil, context.gradient(), h.batch, h.head)
	dv := p.product(transposed(nil, h.probs, seq, seq), transposed(nil, dc, seq, dim), seq)
	dp := p.product(dc, h.v, dim)
	ds := make([]float32, seq*seq)
	root := math.Sqrt(float64(dim))
	for t := range seq {
		softmaxBackward(ds[t*seq:(t+1)*seq], dp[t*seq:(t+1)*seq], h.probs[t*seq:(t+1)*seq])
	}
	for i := range ds {
		ds[i] = float32(float64(ds[i]) / root)
	}
	dq := p.product(ds, transposed(nil, h.k, seq, dim), seq)
	dk := p.product(transposed(nil, ds, seq, seq), transposed(nil, h.q, seq, dim), seq)
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

// transposed returns x [rows, cols] as [cols, rows], in buf's memory if that is enough.
func transposed(buf, x []float32, rows, cols int) []float32 {
	t := buffer(buf, len(x))
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

// add adds the mask to the scores of query position q, one for each key position.
func (m mask) add(scores []float32, batch, q int) {
	for k := q + 1; k < len(scores); k++ {
		scores[k] += m.lowest
	}
	if m.in.AttentionMask == nil {
		return
	}
	for k, attended := range m.in.AttentionMask[batch*m.in.Seq:][:q+1] {
		if attended == 0 {
			scores[k] += m.lowest
		}
	}
}
