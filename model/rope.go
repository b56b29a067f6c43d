package model

import (
	"math"

	"dsmoe/config"
	"dsmoe/model/internal/kernel"
)

// rotaryTable holds cos and sin of position · inv_freq, [seq, head_dim/2] each, in
// the compute dtype.
type rotaryTable struct {
	cos, sin []float32
	half     int
}

// newRotaryTable mirrors DeepseekRotaryEmbedding and its two scaled forms for
// positions 0 … seq-1. The reference computes the angles in its inv_freq buffer's
// dtype, angles, and rounds at each of these steps:
//
//	inv_freq[i] = 1 / theta^(2i/head_dim)
//	angle       = position · inv_freq                        (linear: position/factor)
//	theta       = rope_theta, or past max_position_embeddings with dynamic NTK
//	              rope_theta · (factor·seq/max - (factor-1))^(head_dim/(head_dim-2))
func newRotaryTable(c *config.Config, seq int, format, angles kernel.Format) rotaryTable {
	t := rotaryTable{half: c.HeadDim() / 2}
	freq := inverseFrequencies(c, seq, angles)
	for pos := range seq {
		position := kernel.Rounded(float32(pos), angles)
		if c.RopeScaling != nil && c.RopeScaling.Type == "linear" {
			position = kernel.Rounded(position/float32(c.RopeScaling.Factor), angles)
		}
		for _, f := range freq {
			sin, cos := math.Sincos(float64(kernel.Rounded(position*f, angles)))
			t.cos = append(t.cos, kernel.Rounded(float32(cos), format))
			t.sin = append(t.sin, kernel.Rounded(float32(sin), format))
		}
	}
	return t
}

func inverseFrequencies(c *config.Config, seq int, angles kernel.Format) []float32 {
	dim := c.HeadDim()
	theta := c.RopeTheta
	if s := c.RopeScaling; s != nil && s.Type == "dynamic" && seq > c.MaxPositionEmbeddings {
		stretch := s.Factor*float64(seq)/float64(c.MaxPositionEmbeddings) - (s.Factor - 1)
		theta *= math.Pow(stretch, float64(dim)/float64(dim-2))
	}
	freq := make([]float32, dim/2)
	for i := range freq {
		exponent := float32(2*i) / float32(dim)
		freq[i] = kernel.Rounded(1/float32(math.Pow(float64(float32(theta)), float64(exponent))), angles)
	}
	return freq
}

// rotate applies the rotation of position pos to one head in place, mirroring
// apply_rotary_pos_emb with rotate_half: element i pairs with element i + head_dim/2.
//
//	x[i]      = x[i]·cos[i] - x[i+half]·sin[i]
//	x[i+half] = x[i+half]·cos[i] + x[i]·sin[i]
func (p *pass) rotate(x []float32, pos int) {
	t := &p.rotary
	cos, sin := t.cos[pos*t.half:(pos+1)*t.half], t.sin[pos*t.half:(pos+1)*t.half]
	for i := range t.half {
		a, b := x[i], x[i+t.half]
		x[i] = p.rounded(p.rounded(float32(a*cos[i])) - p.rounded(float32(b*sin[i])))
		x[i+t.half] = p.rounded(p.rounded(float32(b*cos[i])) + p.rounded(float32(a*sin[i])))
	}
}

// unrotate carries a gradient back through rotate, in place: the inverse rotation.
func (p *pass) unrotate(g []float32, pos int) {
	t := &p.rotary
	cos, sin := t.cos[pos*t.half:(pos+1)*t.half], t.sin[pos*t.half:(pos+1)*t.half]
	for i := range t.half {
		a, b := g[i], g[i+t.half]
		g[i] = float32(a*cos[i]) + float32(b*sin[i])
		g[i+t.half] = float32(b*cos[i]) - float32(a*sin[i])
	}
}
