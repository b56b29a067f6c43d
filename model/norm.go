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
	eps := float64(float32(p.m.Config.RMSNormEps))
	y := p.activation(x.Shape...)
	kernel.Parallel(x.Rows(), p.Parallelism, func(i int) {
		in, out := x.Row(i), y.Row(i)
		scale := 1 / math.Sqrt(kernel.Dot64(in, in)/float64(len(in))+eps)
		for k, v := range in {
			out[k] = p.rounded(weight[k] * p.rounded(float32(float64(v)*scale)))
		}
	})
	y.Weights = p.union([]Weight{n.Weight}, x)
	return p.stage(name+".output", y)
}
