package verify

import (
	"fmt"
	"math"
	"strings"

	"dsmoe/model"
	"dsmoe/model/tensor"
	"dsmoe/text"
)

// Limits are what the metrics of a stage may be at most (the shares: at least). A
// zero share is not asked for.
type Limits struct {
	RelRMS   float64 `json:"rel_rms"`            // of Metrics.RelRMS
	RowRMS   float64 `json:"row_rms"`            // of Metrics.RowRMS
	MaxRMS   float64 `json:"max_rms"`            // of Metrics.MaxRMS
	BitEqual float64 `json:"bit_equal,omitzero"` // of Metrics.BitEqual, at least
	OneULP   float64 `json:"one_ulp,omitzero"`   // of Metrics.OneULP, at least
	From     string  `json:"from"`               // why these
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

// limits returns the limits of a stage: an override by the longest suffix of its
// name, or the default of the mode, the pack's dtype and the accumulator.
func (t *tracer) limits(name string, d tensor.DType) Limits {
	l := t.defaultLimits(name, d)
	best := ""
	for suffix := range t.o.Limits {
		if strings.HasSuffix(name, suffix) && len(suffix) > len(best) {
			best = suffix
		}
	}
	if best != "" {
		l = l.scaledTo(t.o.Limits[best])
		l.From = fmt.Sprintf("--limit %s=%g", text.Quote(best), t.o.Limits[best])
	}
	return l
}

// scaledTo returns l with RelRMS set to rel and the other maxima in proportion. The
// shares no longer apply.
func (l Limits) scaledTo(rel float64) Limits {
	f := rel / l.RelRMS
	return Limits{RelRMS: rel, RowRMS: l.RowRMS * f, MaxRMS: l.MaxRMS * f}
}

func (t *tracer) defaultLimits(name string, d tensor.DType) Limits {
	layer, kind := split(name)
	switch {
	case strings.HasSuffix(name, grad), strings.HasSuffix(name, "loss"):
		return Limits{RelRMS: gradRelRMS, RowRMS: 10 * gradRelRMS, MaxRMS: 20 * gradRelRMS,
			From: "loss, auxiliary losses and gradients"}
	case d != tensor.F32:
		return t.reducedLimits(kind, d)
	case t.o.Mode == Chained:
		return chainedLimits(layer)
	case t.o.Accumulate == model.Float32:
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
func (t *tracer) reducedLimits(kind string, d tensor.DType) Limits {
	l := t.noiseOf(kind)
	l.RowRMS, l.MaxRMS = 4*l.RelRMS, 0.1
	if d == tensor.F16 { // three bits more than BF16; a third is on the safe side
		l.RelRMS, l.RowRMS, l.MaxRMS = l.RelRMS/3, l.RowRMS/3, l.MaxRMS/8
	}
	l.From = fmt.Sprintf("%s pack, stage by stage, its rounding points reproduced", d)
	return l
}

// noiseOf returns the noise of a kind of stage in BF16: by the module whose weight, a row
// of the table, gives the stage, and by name where a stage is noisier or quieter than
// its module's others.
func (t *tracer) noiseOf(kind string) Limits {
	quiet := Limits{RelRMS: 1.5e-3, BitEqual: 0.999, OneULP: 0.999}
	usual := func(rel float64) Limits { return Limits{RelRMS: rel, BitEqual: 0.99, OneULP: 0.995} }
	switch kind {
	case "self_attn.q_proj.output", "self_attn.k_proj.output", "self_attn.v_proj.output":
		return quiet
	case attended, "self_attn.o_proj.output", "self_attn.output":
		return usual(1.5e-3)
	case topKWeight:
		return usual(3e-3)
	}
	switch model.FamilyOf(t.m.Config).StageModule(kind) {
	case model.Embedding, model.Norms:
		return quiet
	case model.Router:
		return usual(1.5e-3)
	}
	return usual(5e-3)
}

// margin returns how close m comes to l: the largest of metric/limit. Up to 1 is
// within. BitEqual and OneULP count as the share missing over the share that may
// be, one element being allowed in any case.
func (l Limits) margin(m Metrics, elements int) float64 {
	worst := max(m.RelRMS/l.RelRMS, m.RowRMS/l.RowRMS, m.MaxRMS/l.MaxRMS)
	return max(worst, missing(m.BitEqual, l.BitEqual, elements), missing(m.OneULP, l.OneULP, elements))
}

func missing(share, least float64, elements int) float64 {
	if least == 0 {
		return 0
	}
	allowed := max(1-least, 1/float64(elements))
	// The shares are quotients of counts: forgive their last bits, not an element.
	return max(0, (1-share)/allowed-1e-9)
}
