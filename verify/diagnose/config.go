package diagnose

import (
	"fmt"

	"dsmoe/config"
	"dsmoe/model/tensor"
)

// Mistakes in what the reference ran with: config.json, the pack's inputs, dtypes.

func undoRopeScaling(x *Trial) string {
	if x.Config.RoPE.RopeScaling == nil {
		return ""
	}
	x.Config.RoPE.RopeScaling = nil
	return "the reference ran without the rope_scaling of config.json"
}

// scalings are the rope_scaling entries of YaRN to try where config.json has none: those of DeepSeek models, and the same
// of lengths that max_position_embeddings may follow from.
func scalings(c *config.Config) (list []config.RopeScaling) {
	lengths := []int{4096}
	for n := c.RoPE.MaxPositionEmbeddings; n >= 16 && n >= c.RoPE.MaxPositionEmbeddings/64; n /= 2 {
		if n != 4096 {
			lengths = append(lengths, n)
		}
	}
	for _, f := range []float64{40, 2, 4, 8, 16, 32} {
		for _, length := range lengths {
			for _, mscale := range []float64{1, 0.707, 0} {
				list = append(list, config.RopeScaling{Type: "yarn", Factor: f, OriginalMaxPositionEmbeddings: length,
					BetaFast: 32, BetaSlow: 1, MScale: mscale, MScaleAllDim: mscale})
			}
		}
	}
	return list
}

func undoMissingScaling(s config.RopeScaling) func(x *Trial) string {
	return func(x *Trial) string {
		if x.Config.RoPE.RopeScaling != nil {
			return ""
		}
		x.Config.RoPE.RopeScaling = &s
		return missingScaling(&s)
	}
}

// missingScaling describes a rope_scaling that config.json lacks.
func missingScaling(s *config.RopeScaling) string {
	what := fmt.Sprintf("%s, factor %g", s.Type, s.Factor)
	if s.Type == "yarn" {
		what += fmt.Sprintf(", original_max_position_embeddings %d, mscale and mscale_all_dim %g",
			s.OriginalMaxPositionEmbeddings, s.MScale)
	}
	return "config.json has no rope_scaling, and the reference ran as with " + what
}

// undoHeads sets the number of heads to another that gives projections of the same shapes.
func undoHeads(heads int) func(x *Trial) string {
	return func(x *Trial) string {
		c := &x.Config
		was, kv := c.Attention.NumAttentionHeads, c.Attention.NumKeyValueHeads*heads/c.Attention.NumAttentionHeads
		if c.Attention.VHeadDim > 0 || heads == was || c.HiddenSize%(2*heads) != 0 || kv < 1 ||
			kv*was != c.Attention.NumKeyValueHeads*heads {
			return ""
		}
		c.Attention.NumAttentionHeads, c.Attention.NumKeyValueHeads = heads, kv
		return fmt.Sprintf("the reference ran with num_attention_heads %d, here it is %d", heads, was)
	}
}

func undoPaddingMask(x *Trial) string {
	if x.In.AttentionMask == nil {
		return ""
	}
	x.In.AttentionMask = nil
	return "the reference ran without the attention_mask of the pack"
}

func undoRotaryDType(x *Trial) string {
	if x.failed.Pack.DType == tensor.F32 {
		return ""
	}
	to, flag := tensor.F32, "float32"
	if x.Options.RotaryDType == tensor.F32 {
		to, flag = x.failed.Pack.DType, "compute"
	}
	x.Options.RotaryDType = to
	return fmt.Sprintf("the reference kept RoPE's inv_freq in %s: verify with --rotary-dtype %s", to, flag)
}

func undoLayout(x *Trial) string {
	x.Config.RoPE.RopeInterleave = !x.Config.RoPE.RopeInterleave
	return fmt.Sprintf("the reference rotates %s, here it is %s", layoutOf(x.Config.RoPE.RopeInterleave),
		layoutOf(!x.Config.RoPE.RopeInterleave))
}

// layoutOf says what RoPE rotates.
func layoutOf(interleaved bool) string {
	if interleaved {
		return "interleaved pairs"
	}
	return "halves"
}

func undoMScale(mscale float64) func(x *Trial) string {
	return func(x *Trial) string {
		was := x.Config.RoPE.RopeScaling
		if was == nil || was.Type != "yarn" || was.MScaleAllDim == mscale {
			return ""
		}
		scaling := *was
		scaling.MScale, scaling.MScaleAllDim = mscale, mscale
		x.Config.RoPE.RopeScaling = &scaling
		return fmt.Sprintf("the reference ran with mscale_all_dim %g, here it is %g", mscale, was.MScaleAllDim)
	}
}
