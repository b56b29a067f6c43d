package verify

import (
	"fmt"
	"math"
	"strings"

	"dsmoe/model"
	"dsmoe/model/tensor"
)

// Limits are what the metrics of a stage may be at most (the shares: at least). A
// zero share is not asked for.
type Limits struct {
	RelRMS   float64 `json:"rel_rms"`
	RowRMS   float64 `json:"row_rms"`
	MaxRMS   float64 `json:"max_rms"`
	BitEqual float64 `json:"bit_equal,omitzero"`
	OneULP   float64 `json:"one_ulp,omitzero"`
	From     string  `json:"from"` // why these
}

// Limits of local mode against a float32 pack with float64 sums: each stage is then
// within half a unit of the exact answer and the rest is the reference's own
// rounding. Measured at most 6.0e-7, 9e-7 and 4.2e-6 over tiny models and the
// full widths of DeepSeekMoE-16B; the smallest effect of a known mistake is 8e-6.
const (
	localRelRMS = 2e-6
	localRowRMS = 4e-6
	localMaxRMS = 2e-5
)

// gradRelRMS is the limit of losses and gradients: a gradient has passed backward
// through every layer above it and carries the noise of all of them. A row of it may
// rest on a single token, hence ten times that; measured up to 3.4 times.
const gradRelRMS = 1e-5

// limitsFor returns the limits of a stage: an override by the longest suffix of its
// name, or the default of the mode, the pack's dtype and the accumulator.
func limitsFor(name string, layer int, d tensor.DType, o *Options) Limits {
	l := defaultLimits(name, layer, d, o)
	best := ""
	for suffix := range o.Limits {
		if strings.HasSuffix(name, suffix) && len(suffix) > len(best) {
			best = suffix
		}
	}
	if best != "" {
		l = l.scaledTo(o.Limits[best])
		l.From = fmt.Sprintf("--limit %s=%g", best, o.Limits[best])
	}
	return l
}

// scaledTo returns l with RelRMS set to rel and the other maxima in proportion. The
// shares no longer apply.
func (l Limits) scaledTo(rel float64) Limits {
	f := rel / l.RelRMS
	return Limits{RelRMS: rel, RowRMS: l.RowRMS * f, MaxRMS: l.MaxRMS * f}
}

func defaultLimits(name string, layer int, d tensor.DType, o *Options) Limits {
	switch {
	case strings.HasSuffix(name, grad), strings.HasSuffix(name, "loss"):
		return Limits{RelRMS: gradRelRMS, RowRMS: 10 * gradRelRMS, MaxRMS: 20 * gradRelRMS,
			From: "loss, auxiliary losses and gradients"}
	case d != tensor.F32:
		return reducedLimits(name, d)
	case o.Mode == Chained:
		return chainedLimits(layer)
	case o.Accumulate == model.Float32:
		return Limits{RelRMS: 2 * localRelRMS, RowRMS: 2 * localRowRMS, MaxRMS: 2 * localMaxRMS,
			From: "float32 pack, stage by stage, float32 sums (as noisy as the reference's)"}
	}
	return Limits{RelRMS: localRelRMS, RowRMS: localRowRMS, MaxRMS: localMaxRMS,
		From: "float32 pack, stage by stage, float64 sums"}
}

// chainedCeiling is the relative RMS that no layer may exceed end to end, in float32.
const chainedCeiling = 2e-5

// chainedLimits let the reference's noise grow as it was measured to, with the root
// of the number of layers, ten times above it; logits (layer -1) get the ceiling.
func chainedLimits(layer int) Limits {
	rel := chainedCeiling
	if layer >= 0 {
		rel = min(4e-6*math.Sqrt(float64(layer+1)), chainedCeiling)
	}
	return Limits{RelRMS: rel, RowRMS: 4 * rel, MaxRMS: 10 * rel, From: "float32 pack, end to end: 4e-6·√layers, at most 2e-5"}
}

// reducedLimits are those of BF16 and F16 packs, whose rounding points the model
// reproduces: nearly all elements must be equal to the bit. The rest are sums that
// fall within the reference's noise of a rounding boundary.
func reducedLimits(name string, d tensor.DType) Limits {
	l := Limits{RelRMS: 5e-3, BitEqual: 0.99, OneULP: 0.995}
	switch {
	case hasSuffix(name, "layernorm.output", "norm.output", "embed_tokens.output", "q_proj.output", "k_proj.output", "v_proj.output"):
		l = Limits{RelRMS: 1.5e-3, BitEqual: 0.999, OneULP: 0.999}
	case hasSuffix(name, "self_attn.o_proj.input", "o_proj.output", "self_attn.output", "gate.logits"):
		l.RelRMS = 1.5e-3
	case hasSuffix(name, "gate.topk_weight"):
		l.RelRMS = 3e-3
	}
	l.RowRMS, l.MaxRMS = 4*l.RelRMS, 0.1
	if d == tensor.F16 { // three bits more than BF16; a third is on the safe side
		l.RelRMS, l.RowRMS, l.MaxRMS = l.RelRMS/3, l.RowRMS/3, l.MaxRMS/8
	}
	l.From = fmt.Sprintf("%s pack, stage by stage, its rounding points reproduced", d)
	return l
}

func hasSuffix(name string, suffixes ...string) bool {
	for _, s := range suffixes {
		if strings.HasSuffix(name, s) {
			return true
		}
	}
	return false
}

// margin returns how close m comes to l: the largest of metric/limit. Up to 1 is
// within. BitEqual and OneULP count as the share missing over the share that may
// be, one element being allowed in any case.
func (l Limits) margin(m Metrics, elements int) float64 {
	worst := max(m.RelRMS/l.RelRMS, m.RowRMS/l.RowRMS, m.MaxRMS/l.MaxRMS)
	return max(worst, missing(m.BitEqual, l.BitEqual, elements), missing(m.OneULP, l.OneULP, elements))
}

func missing(share, due float64, elements int) float64 {
	if due == 0 {
		return 0
	}
	allowed := max(1-due, 1/float64(elements))
	// The shares are quotients of counts: forgive their last bits, not an element.
	return max(0, (1-share)/allowed-1e-9)
}
