package diagnose

import (
	"fmt"

	"dsmoe/config"
	"dsmoe/model/tensor"
)

// Mistakes in what the reference ran with: RoPE, heads, the pack's inputs, dtypes.

// attentionMistakes are first seen in RoPE's tables or in attention.
func attentionMistakes(f *Failure) []mistake {
	list := []mistake{
		{id: "rotary-dtype", kinds: ropeStages, undo: func(x *Trial) string {
			if x.failed.Pack.DType == tensor.F32 {
				return ""
			}
			to, flag := tensor.F32, "float32"
			if x.Options.RotaryDType == tensor.F32 {
				to, flag = x.failed.Pack.DType, "compute"
			}
			x.Options.RotaryDType = to
			return fmt.Sprintf("the reference kept RoPE's inv_freq in %s: verify with --rotary-dtype %s", to, flag)
		}},
		{id: "rope-layout", kinds: attendStages, undo: func(x *Trial) string {
			x.Config.RoPE.RopeInterleave = !x.Config.RoPE.RopeInterleave
			if x.Config.RoPE.RopeInterleave {
				return "the reference rotates interleaved pairs, here it is halves"
			}
			return "the reference rotates halves, here it is interleaved pairs"
		}},
		{id: "rope-scaling", kinds: ropeStages, undo: func(x *Trial) string {
			if x.Config.RoPE.RopeScaling == nil {
				return ""
			}
			x.Config.RoPE.RopeScaling = nil
			return "the reference ran without the rope_scaling of config.json"
		}},
		{id: "padding-mask", kinds: attendStages, undo: func(x *Trial) string {
			if x.In.AttentionMask == nil {
				return ""
			}
			x.In.AttentionMask = nil
			return "the reference ran without the attention_mask of the pack"
		}},
	}
	for _, mscale := range []float64{1, 0.707, 0} {
		list = append(list, mistake{id: "yarn-mscale", kinds: ropeStages, unless: "yarn-mscale",
			undo: func(x *Trial) string {
				was := x.Config.RoPE.RopeScaling
				if was == nil || was.Type != "yarn" {
					return ""
				}
				scaling := *was
				scaling.MScale, x.Config.RoPE.RopeScaling = mscale, &scaling
				return ran("mscale_all_dim", &scaling.MScaleAllDim, mscale)
			}})
	}
	for _, heads := range []int{2, 4, 8, 16, 32, 64, 128} { // that give projections of the same shapes
		list = append(list, mistake{id: "head-count", kinds: ropeStages, undo: func(x *Trial) string {
			a := &x.Config.Attention
			kv := a.NumKeyValueHeads * heads / a.NumAttentionHeads
			if a.VHeadDim > 0 || x.Config.HiddenSize%(2*heads) != 0 || kv < 1 ||
				kv*a.NumAttentionHeads != a.NumKeyValueHeads*heads {
				return ""
			}
			a.NumKeyValueHeads = kv
			return ran("num_attention_heads", &a.NumAttentionHeads, heads)
		}})
	}
	for _, s := range scalings(f.Model.Config) {
		list = append(list, mistake{id: "rope-scaling", kinds: ropeStages, guess: true, undo: func(x *Trial) string {
			if x.Config.RoPE.RopeScaling != nil {
				return ""
			}
			x.Config.RoPE.RopeScaling = &s
			return missingScaling(&s)
		}})
	}
	for i, m := range list {
		if m.id != "padding-mask" {
			list[i].undo = func(x *Trial) string {
				x.Causal = true
				return m.undo(x)
			}
		}
	}
	return list
}

// scalings are the rope_scaling entries of YaRN to try where config.json has none: those of DeepSeek models, and the
// same of lengths that max_position_embeddings may follow from.
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

// missingScaling describes a rope_scaling that config.json lacks.
func missingScaling(s *config.RopeScaling) string {
	what := fmt.Sprintf("%s, factor %g", s.Type, s.Factor)
	if s.Type == "yarn" {
		what += fmt.Sprintf(", original_max_position_embeddings %d, mscale and mscale_all_dim %g",
			s.OriginalMaxPositionEmbeddings, s.MScale)
	}
	return "config.json has no rope_scaling, and the reference ran as with " + what
}
