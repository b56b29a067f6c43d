package inspect

// What sets an expert apart from the others of its layer.

import (
	"fmt"
	"math"
	"slices"

	"dsmoe/text"
)

// Limits of observations. All hold an expert against its layer, whose experts are alike both at
// random and trained, and are far from what either gives.
const (
	leastPeers    = 3    // experts of a layer below which none of them is the odd one
	normFactor    = 4    // a norm so many times its layer's median, or that fraction of it
	channelFactor = 6    // a channel, or neuron, likewise
	coarseShare   = 0.75 // of the median of MatrixNumbers.Distinct
	zeroShare     = 0.01 // of the neurons, more than the layer's median
	alike         = 0.9  // a cosine; a copy with noise of 0.48 of its RMS has it
	sameFunction  = 0.999
)

// spread fills in the numbers that are about the layer.
func (r *LayerExperts) spread() {
	for p, to := range []**MatrixSpread{&r.Gate, &r.Up, &r.Down} {
		var norms, ranks []*float64
		var shape []int
		for i := range r.Experts {
			if m := r.Experts[i].matrices()[p]; m != nil {
				norms, ranks, shape = append(norms, m.Norm), append(ranks, m.StableRank), m.Shape
			}
		}
		if shape == nil {
			continue
		}
		rows, cols := float64(shape[0]), float64(shape[1])
		edge := math.Sqrt(rows) + math.Sqrt(cols)
		s := &MatrixSpread{Norm: spreadOf(norms), StableRank: spreadOf(ranks), NullStableRank: float64(rows*cols) / float64(edge*edge)}
		*to = s
		for i := range r.Experts {
			if m := r.Experts[i].matrices()[p]; m != nil {
				m.NormZ = s.Norm.z(m.Norm)
			}
		}
	}
}

// observe says what is odd about single experts.
func (r *LayerExperts) observe() (found []Observation) {
	zeros, peers := r.zeroNeurons(), r.peers()
	all := r.Experts
	if r.Shared != nil {
		all = append(slices.Clone(all), *r.Shared)
	}
	for i := range all {
		e := &all[i]
		found = append(found, r.notFinite(e)...)
		zeroed := r.zeroed(e, zeros)
		found = append(found, zeroed...)
		if e.Expert < 0 || len(zeroed) > 0 {
			continue
		}
		for p, m := range e.matrices() {
			if m != nil {
				found = append(found, r.apart(e, p, m, peers[p])...)
			}
		}
	}
	return found
}

// observation returns one about an expert, or a matrix of it.
func (r *LayerExperts) observation(e *ExpertNumbers, id string, projection int, value, expected *float64, format string, args ...any) Observation {
	o := Observation{ID: id, Layer: r.Layer, Experts: []int{}, Tensor: e.Module, Text: fmt.Sprintf(format, args...), Value: value, Expected: expected}
	if e.Expert >= 0 {
		o.Experts = append(o.Experts, e.Expert)
	}
	if projection >= 0 {
		o.Tensor += "." + projectionNames[projection] + ".weight"
	}
	return o
}

// notFinite tells of numbers that are none.
func (r *LayerExperts) notFinite(e *ExpertNumbers) (found []Observation) {
	for p, m := range e.matrices() {
		for _, kind := range []struct {
			id string
			n  func(m *MatrixNumbers) int64
		}{{"nan", func(m *MatrixNumbers) int64 { return m.NaN }}, {"infinite", func(m *MatrixNumbers) int64 { return m.Infinite }}} {
			if m != nil && kind.n(m) > 0 {
				found = append(found, r.observation(e, kind.id, p, finite(float64(kind.n(m))), finite(0), "%s of %s numbers are %s",
					text.Grouped(kind.n(m)), text.Grouped(m.Shape[0]*m.Shape[1]), map[string]string{"nan": "NaN", "infinite": "infinite"}[kind.id]))
			}
		}
	}
	return found
}

// zeroNeurons is the spread of ZeroNeurons over the layer.
func (r *LayerExperts) zeroNeurons() *Spread {
	var all []*float64
	for i := range r.Experts {
		if r.Experts[i].facts.output != nil {
			all = append(all, finite(float64(r.Experts[i].ZeroNeurons)))
		}
	}
	return spreadOf(all)
}

// zeroed tells of an expert that adds nothing, or has many more neurons that do than the others.
func (r *LayerExperts) zeroed(e *ExpertNumbers, others *Spread) []Observation {
	switch {
	case e.facts.output == nil:
		return r.zeroMatrices(e)
	case e.Gate.Norm == nil || e.Up.Norm == nil || e.Down.Norm == nil:
		return nil // 0 times what is not finite is not 0
	}
	neurons, zero := e.Down.Shape[1], finite(float64(e.ZeroNeurons))
	switch {
	case e.ZeroNeurons == neurons:
		return []Observation{r.observation(e, "zeroed", -1, zero, finite(0), "%s are zero: it adds nothing to any token", e.zeroParts())}
	case e.Expert < 0 || others == nil:
		return nil
	case *zero-others.Median >= max(1, zeroShare*float64(neurons)):
		return []Observation{r.observation(e, "zeroed-neurons", -1, zero, &others.Median, "%d of %d neurons add nothing: their row of gate_proj or up_proj, or column of down_proj, is zero; the layer's median is %g", e.ZeroNeurons, neurons, others.Median)}
	}
	return nil
}

// zeroMatrices tells of matrices that are all zero, of an expert that is not there as a whole.
func (r *LayerExperts) zeroMatrices(e *ExpertNumbers) (found []Observation) {
	for p, m := range e.matrices() {
		if m != nil && m.Zeros == int64(m.Shape[0])*int64(m.Shape[1]) {
			found = append(found, r.observation(e, "zeroed", p, finite(0), nil, "every number is zero"))
		}
	}
	return found
}

// zeroParts names what of an expert without effect is zero.
func (e *ExpertNumbers) zeroParts() string {
	var names []string
	for p, m := range e.matrices() {
		if *m.Norm == 0 {
			names = append(names, projectionNames[p])
		}
	}
	switch len(names) {
	case projections:
		return "all weights"
	case 0:
		return "a vector of every neuron, of gate_proj, up_proj or down_proj,"
	case 1:
		return "all numbers of " + names[0]
	}
	return "all numbers of " + names[0] + " and " + names[1]
}

// peers is what an expert's matrix is held against: that of the others of its layer.
type peers struct {
	norm     *Spread
	distinct *Spread
	peak     *Spread
	channels []float64 // median over the experts
}

func (r *LayerExperts) peers() (all [projections]*peers) {
	for p := range projections {
		var norms, distinct, peaks []*float64
		var channels [][]float64
		for i := range r.Experts {
			e := &r.Experts[i]
			m := e.matrices()[p]
			if m == nil || m.Norm == nil || *m.Norm == 0 {
				continue
			}
			x := &e.facts.matrices[p]
			norms, distinct, peaks = append(norms, m.Norm), append(distinct, m.Distinct), append(peaks, finite(x.peak))
			if x.channels != nil && (channels == nil || len(x.channels) == len(channels[0])) {
				channels = append(channels, x.channels)
			}
		}
		if len(norms) >= leastPeers {
			all[p] = &peers{spreadOf(norms), spreadOf(distinct), spreadOf(peaks), medians(channels)}
		}
	}
	return all
}

// medians returns the median of each column.
func medians(rows [][]float64) (all []float64) {
	if len(rows) < leastPeers {
		return nil
	}
	column := make([]float64, len(rows))
	for c := range rows[0] {
		for i, row := range rows {
			column[i] = row[c]
		}
		all = append(all, lowerMedian(column))
	}
	return all
}

// apart tells how a matrix differs from those of the other experts. A norm that channels explain
// is not told of.
func (r *LayerExperts) apart(e *ExpertNumbers, p int, m *MatrixNumbers, others *peers) (found []Observation) {
	if others == nil || m.Norm == nil {
		return nil
	}
	x := &e.facts.matrices[p]
	found = append(found, r.channels(e, p, x, others)...)
	if peak := finite(x.peak); len(found) == 0 && others.peak != nil && others.peak.Median > 0 && x.peak >= channelFactor*others.peak.Median {
		found = append(found, r.observation(e, "neuron", p, peak, &others.peak.Median,
			"neuron %d has %.3g times the norm of the expert's median neuron; the largest of the layer's experts are %.3g in the median", x.neuron, x.peak, others.peak.Median))
	}
	if len(found) == 0 && others.norm.far(m.Norm, normFactor) {
		found = append(found, r.observation(e, "norm", p, m.Norm, &others.norm.Median, "norm %.4g, the layer's median is %.4g", *m.Norm, others.norm.Median))
	}
	if d := m.Distinct; d != nil && others.distinct != nil && *d < coarseShare*others.distinct.Median {
		found = append(found, r.observation(e, "coarse", p, d, &others.distinct.Median,
			"%.0f %% of magnitudes in short runs are different ones, %.0f %% in the layer's median expert: as rounding to few bits leaves behind", 100**d, 100*others.distinct.Median))
	}
	return found
}

// maxChannels is how many channels a sentence names.
const maxChannels = 8

// channels tells of channels, the inputs of gate_proj and up_proj and the outputs of down_proj,
// that are large in this expert and not in the others.
func (r *LayerExperts) channels(e *ExpertNumbers, p int, x *examinedMatrix, others *peers) []Observation {
	if len(x.channels) != len(others.channels) {
		return nil
	}
	var odd []int
	worst := 0
	for c, v := range x.channels {
		if median := others.channels[c]; median > 0 && v >= channelFactor*median {
			if odd = append(odd, c); v/median > x.channels[worst]/others.channels[worst] || len(odd) == 1 {
				worst = c
			}
		}
	}
	if odd == nil {
		return nil
	}
	also := ""
	if len(odd) > 1 {
		also = fmt.Sprintf("; above 6 times that are %s in all: %s", text.Plural(len(odd), "channel"), list(odd))
	}
	return []Observation{r.observation(e, "channel", p, &x.channels[worst], &others.channels[worst],
		"channel %d has %.3g times the norm of the median channel, in the layer's median expert %.3g times%s", worst, x.channels[worst], others.channels[worst], also)}
}
