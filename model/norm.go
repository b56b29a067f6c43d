package model

import (
	"math"

	"dsmoe/model/internal/kernel"
)

// forward normalises each row of x, mirroring DeepseekRMSNorm.forward:
//
//	n = x / sqrt(mean(x²) + rms_norm_eps)     in float32 or better,
//	                                          rounded to the compute dtype
//	y = weight · n                            rounded to the compute dtype
func (n *DeepseekRMSNorm) forward(p *pass, name string, x *Activation) *Activation {
	weight := p.vector(n.Weight)
	eps := n.eps(p)
	y := p.activation(x.Shape...)
	kernel.Parallel(x.Rows(), p.Parallelism, func(i int) {
		in, out := x.Row(i), y.Row(i)
		scale := 1 / math.Sqrt(kernel.Dot64(in, in)/float64(len(in))+eps)
		for k, v := range in {
			out[k] = float32(float64(v) * scale)
		}
		kernel.RoundTo(out, p.format)
		for k, w := range weight {
			out[k] *= w
		}
		kernel.RoundTo(out, p.format)
	})
	y.Weights = p.union([]Weight{n.Weight}, x)
	p.record(n.backward(p, x, y, weight, eps))
	return p.stage(name+".output", y)
}

func (n *DeepseekRMSNorm) eps(p *pass) float64 {
	if n.VarianceEpsilon != 0 {
		return float64(float32(n.VarianceEpsilon))
	}
	return float64(float32(p.m.Config.RMSNormEps))
}

// backward adds the gradients of y = weight · n, n = x·r, r = 1/sqrt(mean(x²) + eps):
//
//	∂weight = Σ_t ∂y[t] · n[t]
//	∂x      = r · (g - n · mean(g·n)),  g = ∂y · weight
func (n *DeepseekRMSNorm) backward(p *pass, x, y *Activation, weight []float32, eps float64) func() {
	grad := p.wanted(n.Weight)
	return func() {
		width := x.Width()
		sum := make([]float64, width) // ∂weight
		for t := range x.Rows() {
			in, dy, dx := x.Row(t), y.grad.values[t*width:], x.grad.values[t*width:]
			r := 1 / math.Sqrt(kernel.Dot64(in, in)/float64(width)+eps)
			mean := 0.0
			for k, v := range in {
				norm := float64(v) * r
				mean += float64(float64(dy[k]) * float64(weight[k]) * norm)
				sum[k] += float64(float64(dy[k]) * norm)
			}
			mean /= float64(width)
			for k, v := range in {
				g := float64(dy[k]) * float64(weight[k])
				dx[k] += float32(r * (g - float64(float64(v)*r*mean)))
			}
		}
		if grad != nil {
			for k, v := range sum {
				grad.values[k] += float32(v)
			}
			p.tape.done()
		}
	}
}
