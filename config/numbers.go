package config

// Numbers of config.json in whose place others can be tried.

// Number is a number of a Config.
type Number struct {
	Key     string // "rms_norm_eps"; of a scaling "rope_scaling.factor"
	real    func(c *Config) *float64
	integer func(c *Config) *int // nil if it is not an integer
}

// Value returns the number of c.
func (n Number) Value(c *Config) float64 {
	if n.integer != nil {
		return float64(*n.integer(c))
	}
	return *n.real(c)
}

// With returns c with the number set to v; an integer is at least 1.
func (n Number) With(c *Config, v float64) *Config {
	other := *c
	for _, s := range []**RopeScaling{&other.RoPE.RopeScaling, &other.RoPE.CompressRopeScaling} {
		if *s != nil {
			scaling := **s
			*s = &scaling
		}
	}
	if n.integer != nil {
		*n.integer(&other) = max(1, int(v))
	} else {
		*n.real(&other) = v
	}
	return &other
}

// NormEps is rms_norm_eps.
var NormEps = Number{Key: "rms_norm_eps", real: func(c *Config) *float64 { return &c.RMSNormEps }}

// RotationNumbers returns the numbers that RoPE's tables and the scale of scores are made of, in layers without entries,
// or in those with entries.
func RotationNumbers(c *Config, compressed bool) []Number {
	theta := Number{Key: "rope_theta", real: func(c *Config) *float64 { return &c.RoPE.RopeTheta }}
	scaling := func(c *Config) *RopeScaling { return c.RoPE.RopeScaling }
	if compressed {
		theta = Number{Key: "compress_rope_theta", real: func(c *Config) *float64 { return &c.RoPE.CompressRopeTheta }}
		scaling = func(c *Config) *RopeScaling { return c.RoPE.CompressRopeScaling }
	}
	real := func(key string, of func(s *RopeScaling) *float64) Number {
		return Number{Key: "rope_scaling." + key, real: func(c *Config) *float64 { return of(scaling(c)) }}
	}
	list := []Number{theta}
	s := scaling(c)
	if s == nil {
		return list
	}
	list = append(list, real("factor", func(s *RopeScaling) *float64 { return &s.Factor }))
	if s.Type != "yarn" {
		return list
	}
	list = append(list, Number{Key: "rope_scaling.original_max_position_embeddings",
		integer: func(c *Config) *int { return &scaling(c).OriginalMaxPositionEmbeddings }})
	for _, x := range yarnNumbers {
		if *x.of(s) != 0 && s.MScaleAllDim != 0 || x.missing != 0 { // mscale has no effect without mscale_all_dim
			list = append(list, real(x.key, x.of))
		}
	}
	return list
}
