package model

import (
	"math"
	"slices"

	"dsmoe/config"
	"dsmoe/model/internal/kernel"
	"dsmoe/model/tensor"
)

// Rotary is the table of RoPE, mirroring DeepseekRotaryEmbedding and its scaled forms:
// row pos rotates the pairs of 2·Half values of a head by position pos, the last ones or the first.
//
//	x[a] = x[a]·cos - x[b]·sin
//	x[b] = x[b]·cos + x[a]·sin
//
// Each product and each sum is exact and a rounding point; with Whole the four products and
// two sums are float32, and only the results are rounded. The reference moves interleaved
// pairs to halves, in queries and keys alike; here they stay in place, and the product of
// query and key is the same.
type Rotary struct {
	Angles []float32 // [positions, Half], in float32 or the dtype of inv_freq
	// Others [positions, Half] are the angles with the other inv_freq that the reference may have:
	// see torchPower. Most are Angles.
	Others []float32
	// Cos and Sin [positions, Half] are cosine and sine of the angles, times Factor, each
	// rounded to float32 and then to DType.
	Cos, Sin   []float32
	Factor     float32      // YaRN's attention factor; else 1
	DType      tensor.DType // dtype to which the reference casts Cos and Sin
	Half       int          // pairs of a head
	Compressed bool         // of layers with entries, and of entries
	First      bool         // the first values of a head are rotated, not the last
	Interleave bool         // a pair is (2i, 2i+1), not (i, i+Half)
	Whole      bool         // config.Rules.RotatesInFloat32
}

// rope is how the heads of some layers are rotated, and the values of its tables.
type rope[V any] struct {
	*Rotary
	cos, sin V
}

// ropeParameters are what rotates the heads of some layers.
type ropeParameters struct {
	theta   float64
	scaling *config.RopeScaling
	factor  float64 // of cosines and sines
}

// mainRope returns the parameters of RoPE, but for layers with entries.
func mainRope(c *config.Config) ropeParameters {
	s, factor := c.RoPE.RopeScaling, 1.0
	if s != nil && s.Type == "yarn" {
		factor = yarnMScale(s.Factor, 1)
		if s.MScale != 0 && s.MScaleAllDim != 0 {
			factor = yarnMScale(s.Factor, s.MScale) / yarnMScale(s.Factor, s.MScaleAllDim)
		}
	}
	return ropeParameters{c.RoPE.RopeTheta, s, factor}
}

// compressRope returns the parameters of RoPE in layers with entries.
func compressRope(c *config.Config) ropeParameters {
	return ropeParameters{c.RoPE.CompressRopeTheta, c.RoPE.CompressRopeScaling, 1}
}

// newRotary returns the table for positions 0 … seq-1, computed in the reference's float32
// steps. compute is the reference's compute dtype, buffer the dtype of inv_freq: F32, BF16
// or F16.
//
//	inv_freq[i] = 1 / theta^(2i/head_dim)
//	angle       = position · inv_freq                        (linear: position/factor)
//	cos, sin    = cosine and sine of the angle               (yarn: · attention factor)
//	theta       = rope_theta, or past max_position_embeddings with dynamic NTK
//	              rope_theta · (factor·seq/max - (factor-1))^(head_dim/(head_dim-2))
//
// inv_freq is rounded to buffer. Positions and angles are rounded to buffer and cos and sin to
// compute, except where config.Rules keeps float32.
func newRotary(c *config.Config, by ropeParameters, seq int, compute, buffer tensor.DType) *Rotary {
	rules, n := c.Rules(), seq*c.HeadDim()/2
	r := &Rotary{
		Angles: make([]float32, 0, n), Others: make([]float32, 0, n), Cos: make([]float32, 0, n), Sin: make([]float32, 0, n),
		Factor: float32(by.factor), DType: compute,
		Half: c.HeadDim() / 2, First: c.RotaryFirst(), Interleave: c.RoPE.RopeInterleave, Whole: rules.RoPE.RotatesInFloat32,
	}
	if r.Whole && !rules.RoPE.CastsRotation {
		r.DType = tensor.F32
	}
	frequencies, _ := buffer.Format()
	angles := frequencies
	if rules.RoPE.AnglesInFloat32 {
		angles = kernel.F32
	}
	freq, other := by.inverseFrequencies(c, seq)
	kernel.RoundTo(freq, frequencies)
	kernel.RoundTo(other, frequencies)
	table, _ := r.DType.Format()
	for pos := range seq {
		position := kernel.Rounded(float32(pos), angles)
		if s := by.scaling; s != nil && s.Type == "linear" {
			position = kernel.Rounded(position/float32(s.Factor), angles)
		}
		for i, f := range freq {
			angle := kernel.Rounded(position*f, angles)
			sin, cos := math.Sincos(float64(angle))
			r.Angles = append(r.Angles, angle)
			r.Others = append(r.Others, kernel.Rounded(position*other[i], angles))
			r.Cos = append(r.Cos, kernel.Rounded(float32(cos)*r.Factor, table))
			r.Sin = append(r.Sin, kernel.Rounded(float32(sin)*r.Factor, table))
		}
	}
	return r
}

// inverseFrequencies returns inv_freq, and the other one that the reference may have.
func (by ropeParameters) inverseFrequencies(c *config.Config, seq int) (freq, other []float32) {
	dim := c.HeadDim()
	theta := by.theta
	if s := by.scaling; s != nil && s.Type == "dynamic" && seq > c.RoPE.MaxPositionEmbeddings {
		stretch := s.Factor*float64(seq)/float64(c.RoPE.MaxPositionEmbeddings) - (s.Factor - 1)
		theta *= math.Pow(stretch, float64(dim)/float64(dim-2))
	}
	freq, other = make([]float32, dim/2), make([]float32, dim/2)
	for i := range freq {
		freq[i], other[i] = torchPower(float32(theta), float32(2*i)/float32(dim))
	}
	by.invert(freq, theta)
	by.invert(other, theta)
	return freq, other
}

// invert turns theta^(2i/dim) into inv_freq. With YaRN it mirrors _compute_yarn_parameters: fast pairs
// keep their frequency, the frequency of slow pairs is divided by the factor, with a ramp between
// the pairs that turn beta_fast and beta_slow times over the original length:
//
//	pair(b)  = dim · ln(original/(b·2π)) / (2·ln theta)
//	ramp[i]  = clamp((i - low)/(high - low), 0, 1),  low = ⌊pair(beta_fast)⌋, high = ⌈pair(beta_slow)⌉
//	inv_freq = 1/(factor·p) · ramp + 1/p · (1 - ramp),  p = theta^(2i/dim)
func (by ropeParameters) invert(freq []float32, theta float64) {
	s := by.scaling
	if s == nil || s.Type != "yarn" {
		for i, f := range freq {
			freq[i] = 1 / f
		}
		return
	}
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

// torchPower returns base^x, correctly rounded, and the neighbour that torch.pow may give in its place on a CPU;
// mostly both are the same. torch computes whole vectors by Sleef, the rest of a tensor by the C library. All
// later steps of inv_freq are single operations, correctly rounded everywhere.
//
// Of 5.6 million powers (torch 2.3.1 and 2.8.0, 612 bases from 3 to 1e9, 131 dimensions), 1.6 % are not the
// correctly rounded ones. Each power is within 0.5016 units of the exact one, as the C library's are (glibc,
// with 0.0016), or within 0.50003 units of sleefPower. 1/256 of a unit leaves room beyond that, and makes 2.6 % of
// the powers uncertain.
func torchPower(base, x float32) (nearest, other float32) {
	exact := math.Pow(float64(base), float64(x))
	nearest = float32(exact)
	other = nearest
	reach := float64(math.Nextafter32(nearest, math.MaxFloat32)-nearest) / 256
	for _, p := range []float64{exact - reach, exact + reach, sleefPower(base, x) - reach, sleefPower(base, x) + reach} {
		if rounded := float32(p); rounded != nearest {
			other = rounded
		}
	}
	return nearest, other
}

// sleefPower returns base^x before its last rounding, as Sleef_powf_u10 computes it. The logarithm and the sums have
// twice float32's precision there; what errs is a polynomial in float32, by up to 0.09 units of the power:
//
//	base^x = 2^q · (1 + s + s²·polynomial(s)),  |s| ≤ ln(2)/2
func sleefPower(base, x float32) float64 {
	exponent := float64(x) * math.Log(float64(base))
	q := math.RoundToEven(exponent / math.Ln2)
	s := exponent - float64(q*math.Ln2)
	polynomial := float32(0.0013632465)
	for _, c := range []float32{0.008365969, 0.041671082, 0.16666552, 0.49999985} {
		polynomial = float32(float64(polynomial)*float64(float32(s)) + float64(c))
	}
	return math.Ldexp(1+s+float64(s*s*float64(polynomial)), int(q))
}

// yarnMScale mirrors yarn_get_mscale: 0.1·mscale·ln(factor) + 1.
func yarnMScale(factor, mscale float64) float64 {
	if factor <= 1 {
		return 1
	}
	return float64(0.1*mscale*math.Log(factor)) + 1
}

// SoftmaxScale returns the factor of attention's scores, 1/sqrt(qk_head_dim); mirroring
// DeepseekV2Attention.__init__, that of latent attention is times yarnMScale² with YaRN's
// mscale_all_dim.
func SoftmaxScale(c *config.Config) float32 {
	scale := 1 / math.Sqrt(float64(c.QKHeadDim()))
	if s := c.RoPE.RopeScaling; c.LatentAttention() && s != nil && s.MScaleAllDim != 0 {
		m := yarnMScale(s.Factor, s.MScaleAllDim)
		scale *= m * m
	}
	return float32(scale)
}

// RotatesAlike reports whether two configs give the same cosines and sines for seq tokens, in layers with entries if
// compressed is set, else in the others, and whether both scale scores alike, to the bit.
func RotatesAlike(a, b *config.Config, compressed bool, seq int, o *Options) bool {
	compute, angles := o.dtypes()
	of := func(c *config.Config) *Rotary {
		if compressed {
			return newRotary(c, compressRope(c), seq, compute, angles)
		}
		return newRotary(c, mainRope(c), seq, compute, angles)
	}
	x, y := of(a), of(b)
	return slices.Equal(x.Cos, y.Cos) && slices.Equal(x.Sin, y.Sin) && SoftmaxScale(a) == SoftmaxScale(b)
}

// Part returns where in a head of a width the rotated values begin and end.
func (r *Rotary) Part(width int) (from, to int) {
	if r.First {
		return 0, 2 * r.Half
	}
	return width - 2*r.Half, width
}

// Pair returns the positions of the i-th pair of the rotated values of a head.
func (r *Rotary) Pair(i int) (a, b int) {
	if r.Interleave {
		return 2 * i, 2*i + 1
	}
	return i, i + r.Half
}

// rotate rotates x, the rotated values of a head, in place by a row of the tables, rounding to
// format.
func (r *Rotary) rotate(x, cosines, sines []float32, format kernel.Format) {
	products := format
	if r.Whole {
		products = kernel.F32
	}
	for i := range r.Half {
		cos, sin := cosines[i], sines[i]
		ia, ib := r.Pair(i)
		a, b := x[ia], x[ib]
		ac, bs := kernel.Rounded(float32(a*cos), products), kernel.Rounded(float32(b*sin), products)
		bc, as := kernel.Rounded(float32(b*cos), products), kernel.Rounded(float32(a*sin), products)
		x[ia], x[ib] = kernel.Rounded(ac-bs, format), kernel.Rounded(bc+as, format)
	}
}
