package model

import (
	"math"

	"dsmoe/config"
	"dsmoe/model/internal/kernel"
)

// rotaryTable holds cos and sin of position · inv_freq, [seq, half] each, half being
// head_dim/2, and how they are applied.
type rotaryTable struct {
	cos, sin   []float32
	half       int
	interleave bool // pairs are (2i, 2i+1), not (i, i+half)
	whole      bool // the rotation is computed in float32 and rounded once
}

// rotaryRounding says where the reference rounds on its way to cos and sin.
type rotaryRounding struct {
	frequencies kernel.Format // inv_freq, a buffer
	angles      kernel.Format // position · inv_freq
	table       kernel.Format // cos and sin
}

// roundingOf returns the rounding points of a reference that computes in format and
// keeps inv_freq in buffer. The published code has angles in the buffer's dtype and
// casts cos and sin. transformers' own classes have angles in float32; DeepseekV2's
// rotates by complex numbers in float32 too.
func roundingOf(c *config.Config, format, buffer kernel.Format) (r rotaryRounding, whole bool) {
	switch {
	case c.Reference != config.Native:
		return rotaryRounding{buffer, buffer, format}, false
	case c.ScoringFunc == "sigmoid":
		return rotaryRounding{buffer, kernel.F32, format}, false
	}
	return rotaryRounding{buffer, kernel.F32, kernel.F32}, true
}

// newRotaryTable mirrors DeepseekRotaryEmbedding and its scaled forms for positions 0 …
// seq-1, with the reference's float32 steps:
//
//	inv_freq[i] = 1 / theta^(2i/head_dim)
//	angle       = position · inv_freq                        (linear: position/factor)
//	cos, sin    = of the angle                               (yarn: · attention factor)
//	theta       = rope_theta, or past max_position_embeddings with dynamic NTK
//	              rope_theta · (factor·seq/max - (factor-1))^(head_dim/(head_dim-2))
func newRotaryTable(c *config.Config, seq int, format, buffer kernel.Format) rotaryTable {
	t := rotaryTable{half: c.HeadDim() / 2, interleave: c.RopeInterleave}
	var r rotaryRounding
	r, t.whole = roundingOf(c, format, buffer)
	scale := float32(1)
	if s := c.RopeScaling; s != nil && s.Type == "yarn" {
		scale = float32(yarnAttentionFactor(s))
	}
	freq := inverseFrequencies(c, seq)
	kernel.RoundTo(freq, r.frequencies)
	for pos := range seq {
		position := kernel.Rounded(float32(pos), r.angles)
		if c.RopeScaling != nil && c.RopeScaling.Type == "linear" {
			position = kernel.Rounded(position/float32(c.RopeScaling.Factor), r.angles)
		}
		for _, f := range freq {
			sin, cos := math.Sincos(float64(kernel.Rounded(position*f, r.angles)))
			t.cos = append(t.cos, kernel.Rounded(float32(cos)*scale, r.table))
			t.sin = append(t.sin, kernel.Rounded(float32(sin)*scale, r.table))
		}
	}
	return t
}

func inverseFrequencies(c *config.Config, seq int) []float32 {
	dim := c.HeadDim()
	theta := c.RopeTheta
	if s := c.RopeScaling; s != nil && s.Type == "dynamic" && seq > c.MaxPositionEmbeddings {
		stretch := s.Factor*float64(seq)/float64(c.MaxPositionEmbeddings) - (s.Factor - 1)
		theta *= math.Pow(stretch, float64(dim)/float64(dim-2))
	}
	freq := make([]float32, dim/2)
	for i := range freq {
		exponent := float32(2*i) / float32(dim)
		freq[i] = float32(math.Pow(float64(float32(theta)), float64(exponent)))
	}
	if s := c.RopeScaling; s != nil && s.Type == "yarn" {
		yarn(freq, s, theta)
		return freq
	}
	for i, f := range freq {
		freq[i] = 1 / f
	}
	return freq
}

// yarn turns theta^(2i/dim) into YaRN's inv_freq, mirroring _compute_yarn_parameters:
// fast pairs keep their frequency, slow ones are slowed down by the factor, with a
// ramp between the pairs that turn beta_fast and beta_slow times over the original
// length:
//
//	pair(b)  = dim · ln(original/(b·2π)) / (2·ln theta)
//	ramp[i]  = clamp((i - low)/(high - low), 0, 1),  low = ⌊pair(beta_fast)⌋, high = ⌈pair(beta_slow)⌉
//	inv_freq = 1/(factor·p) · ramp + 1/p · (1 - ramp),  p = theta^(2i/dim)
func yarn(freq []float32, s *config.RopeScaling, theta float64) {
	dim := float64(2 * len(freq))
	pair := func(rotations float64) float64 {
		return dim * math.Log(float64(s.OriginalMaxPositionEmbeddings)/(rotations*2*math.Pi)) / (2 * math.Log(theta))
	}
	low, high := max(math.Floor(pair(s.BetaFast)), 0), min(math.Ceil(pair(s.BetaSlow)), dim-1)
	if low == high {
		high += 0.001
	}
	for i, p := range freq {
		ramp := min(max((float32(i)-float32(low))/float32(high-low), 0), 1)
		keep := 1 - ramp
		freq[i] = float32(1/float32(float32(s.Factor)*p)*(1-keep)) + float32(1/p*keep)
	}
}

// yarnMScale mirrors yarn_get_mscale: 0.1·mscale·ln(factor) + 1.
func yarnMScale(factor, mscale float64) float64 {
	if factor <= 1 {
		return 1
	}
	return float64(0.1*mscale*math.Log(factor)) + 1
}

// yarnAttentionFactor is what cos and sin are multiplied by.
func yarnAttentionFactor(s *config.RopeScaling) float64 {
	if s.MScale != 0 && s.MScaleAllDim != 0 {
		return yarnMScale(s.Factor, s.MScale) / yarnMScale(s.Factor, s.MScaleAllDim)
	}
	return yarnMScale(s.Factor, 1)
}

// softmaxScale is what latent attention multiplies its scores by, mirroring
// DeepseekV2Attention.__init__: 1/sqrt(qk_head_dim), and with YaRN's mscale_all_dim
// times yarnMScale².
func softmaxScale(c *config.Config) float32 {
	scale := 1 / math.Sqrt(float64(c.QKHeadDim()))
	if s := c.RopeScaling; s != nil && s.MScaleAllDim != 0 {
		m := yarnMScale(s.Factor, s.MScaleAllDim)
		scale *= m * m
	}
	return float32(scale)
}

// pair returns where the i-th rotated pair of a head lies.
func (t *rotaryTable) pair(i int) (a, b int) {
	if t.interleave {
		return 2 * i, 2*i + 1
	}
	return i, i + t.half
}

// rotate applies the rotation of position pos to one head in place, mirroring
// apply_rotary_pos_emb:
//
//	x[a] = x[a]·cos - x[b]·sin
//	x[b] = x[b]·cos + x[a]·sin
//
// The reference moves interleaved pairs to halves, in queries and keys alike; here
// they stay, which leaves their product the same.
func (p *pass) rotate(x []float32, pos int) {
	t := &p.rotary
	format := p.format
	if t.whole {
		format = kernel.F32
	}
	for i := range t.half {
		cos, sin := t.cos[pos*t.half+i], t.sin[pos*t.half+i]
		ia, ib := t.pair(i)
		a, b := x[ia], x[ib]
		ac, bs := kernel.Rounded(float32(a*cos), format), kernel.Rounded(float32(b*sin), format)
		bc, as := kernel.Rounded(float32(b*cos), format), kernel.Rounded(float32(a*sin), format)
		x[ia], x[ib] = p.rounded(ac-bs), p.rounded(bc+as)
	}
}

// unrotate carries a gradient back through rotate, in place: the inverse rotation.
func (p *pass) unrotate(g []float32, pos int) {
	t := &p.rotary
	for i := range t.half {
		cos, sin := t.cos[pos*t.half+i], t.sin[pos*t.half+i]
		ia, ib := t.pair(i)
		a, b := g[ia], g[ib]
		g[ia] = float32(a*cos) + float32(b*sin)
		g[ib] = float32(b*cos) - float32(a*sin)
	}
}
