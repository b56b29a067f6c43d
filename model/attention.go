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
	kernel.Parallel(p.in.Batch*c.NumAttentionHeads, p.Parallelism, func(i int) {
		batch, head := i/c.NumAttentionHeads, i%c.NumAttentionHeads
		group := head / (c.NumAttentionHeads / c.NumKeyValueHeads)
		out := p.attendHead(batch, p.oneHead(q, batch, head), p.oneHead(k, batch, group), p.oneHead(v, batch, group))
		p.setHead(context, batch, head, out)
	})
	context.Weights = p.union(nil, q, k, v)
	return context
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

func (p *pass) setHead(x *Activation, batch, head int, values []float32) {
	dim := p.m.Config.HeadDim()
	for t := range p.in.Seq {
		copy(x.Row(batch*p.in.Seq + t)[head*dim:(head+1)*dim], values[t*dim:(t+1)*dim])
	}
}

// attendHead returns softmax(q·kᵀ/sqrt(head_dim) + mask)·v of one head; q, k and v
// are [seq, head_dim] and are overwritten.
func (p *pass) attendHead(batch int, q, k, v []float32) []float32 {
	seq, dim := p.in.Seq, p.m.Config.HeadDim()
	for t := range seq {
		p.rotate(q[t*dim:(t+1)*dim], t)
		p.rotate(k[t*dim:(t+1)*dim], t)
	}
	scores := make([]float32, seq*seq)
	kernel.MatMul(scores, q, kernel.Matrix{Rows: seq, Cols: dim, Values: k}, nil, p.Accumulate, 1)
	root := float32(math.Sqrt(float64(dim)))
	for t := range seq {
		row := scores[t*seq : (t+1)*seq]
		for s := range row {
			row[s] = p.rounded(p.rounded(p.rounded(row[s])/root) + p.mask.at(batch, t, s))
		}
		softmax(row)
	}
	kernel.RoundTo(scores, p.format)
	context := make([]float32, seq*dim)
	kernel.MatMul(context, scores, kernel.Matrix{Rows: dim, Cols: seq, Values: transposed(v, seq, dim)}, nil, p.Accumulate, 1)
	kernel.RoundTo(context, p.format)
	return context
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
