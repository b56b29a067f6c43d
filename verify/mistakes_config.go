package verify

import (
	"fmt"

	"dsmoe/config"
	"dsmoe/model/tensor"
)

// Mistakes in what the reference ran with: config.json, the pack's inputs, dtypes.

// undoNumber sets a number of config.json to one that others run with.
func undoNumber(key string, at func(*config.Config) *float64, ran float64) func(x *trial) string {
	return func(x *trial) string {
		number := at(&x.config)
		was := *number
		*number = ran
		if was == ran {
			return ""
		}
		return fmt.Sprintf("the reference ran with %s %g, here it is %g", key, ran, was)
	}
}

func undoEps(eps float64) func(x *trial) string {
	return undoNumber("rms_norm_eps", func(c *config.Config) *float64 { return &c.RMSNormEps }, eps)
}

func undoTheta(theta float64) func(x *trial) string {
	return undoNumber("rope_theta", func(c *config.Config) *float64 { return &c.RopeTheta }, theta)
}

func undoRopeScaling(x *trial) string {
	if x.config.RopeScaling == nil {
		return ""
	}
	x.config.RopeScaling = nil
	return "the reference ran without the rope_scaling of config.json"
}

func undoPaddingMask(x *trial) string {
	if x.in.AttentionMask == nil {
		return ""
	}
	x.in.AttentionMask = nil
	return "the reference ran without the attention_mask of the pack"
}

func undoRotaryDType(x *trial) string {
	if x.failed.tracer.pack.DType == tensor.F32 {
		return ""
	}
	to, flag := tensor.F32, "float32"
	if x.options.RotaryDType == tensor.F32 {
		to, flag = x.failed.tracer.pack.DType, "compute"
	}
	x.options.RotaryDType = to
	return fmt.Sprintf("the reference kept RoPE's inv_freq in %s: verify with --rotary-dtype %s", to, flag)
}

func undoLayout(x *trial) string {
	x.config.RopeInterleave = !x.config.RopeInterleave
	layouts := map[bool]string{true: "interleaved pairs", false: "halves"}
	return fmt.Sprintf("the reference rotates %s, here it is %s", layouts[x.config.RopeInterleave], layouts[!x.config.RopeInterleave])
}

func undoMScale(mscale float64) func(x *trial) string {
	return func(x *trial) string {
		was := x.config.RopeScaling
		if was == nil || was.Type != "yarn" || was.MScaleAllDim == mscale {
			return ""
		}
		scaling := *was
		scaling.MScale, scaling.MScaleAllDim = mscale, mscale
		x.config.RopeScaling = &scaling
		return fmt.Sprintf("the reference ran with mscale_all_dim %g, here it is %g", mscale, was.MScaleAllDim)
	}
}
