package experts

// What sets an expert apart from the others of its layer.

import (
	"fmt"
	"math"
	"strings"

	"dsmoe/inspect"
	"dsmoe/model/table"
	"dsmoe/text"
)

// LeastPeers is the number of experts of a layer, or rows of a router, below which none of them is the odd one.
const LeastPeers = 3

// Limits of observations. All compare an expert with its layer. Experts of a layer are alike both at random and
// trained, and stay far from the limits.
const (
	normFactor    = 4    // a norm so many times its layer's median, or that fraction of it
	channelFactor = 6    // a channel, or neuron, likewise
	coarseShare   = 0.75 // of the median of MatrixNumbers.Distinct
	zeroShare     = 0.01 // of the neurons, more than the layer's median
	alike         = 0.9  // a cosine; a copy with noise of 0.48 of its RMS has it
	sameFunction  = 0.999
)

// fillSpreads fills in the numbers that are about the layer.
func (r *Layer) fillSpreads() {
	for _, role := range roles {
		var norms, ranks []*float64
		var shape []int
		for i := range r.Experts {
			if m := *r.Experts[i].Of(role); m != nil {
				norms, ranks, shape = append(norms, m.Norm), append(ranks, m.StableRank), m.Shape
			}
		}
		if shape == nil {
			continue
		}
		rows, cols := float64(shape[0]), float64(shape[1])
		edge := math.Sqrt(rows) + math.Sqrt(cols)
		s := &MatrixSpread{Norm: inspect.SpreadOf(norms), StableRank: inspect.SpreadOf(ranks),
			NullStableRank: float64(rows*cols) / float64(edge*edge)}
		*r.Of(role) = s
		for i := range r.Experts {
			if m := *r.Experts[i].Of(role); m != nil {
				m.NormZ = s.Norm.Z(m.Norm)
			}
		}
	}
}

// observe returns what is odd about single experts.
func (r *Layer) observe() (found []inspect.Observation) {
	zeros, peers := r.zeroNeurons(), r.peers()
	for _, e := range r.all() {
		found = append(found, r.notFinite(e)...)
		zeroed := r.zeroed(e, zeros)
		found = append(found, zeroed...)
		if e.Expert < 0 || len(zeroed) > 0 {
			continue
		}
		for role, m := range present(&e.Matrices) {
			found = append(found, r.apart(e, role, m, *peers.Of(role))...)
		}
	}
	return found
}

// notFinite finds NaN and infinities.
func (r *Layer) notFinite(e *Expert) (found []inspect.Observation) {
	add := func(role table.Role, m *MatrixNumbers, id, what string, n int64) {
		if n > 0 {
			found = append(found, observation(r.Layer, e, id, role, inspect.Finite(float64(n)), inspect.Finite(0),
				"%s of %s numbers are %s", text.Grouped(n), text.Grouped(m.Shape[0]*m.Shape[1]), what))
		}
	}
	for role, m := range present(&e.Matrices) {
		add(role, m, "nan", "NaN", m.NaN)
		add(role, m, "infinite", "infinite", m.Infinite)
	}
	return found
}

// zeroNeurons is the spread of ZeroNeurons over the layer.
func (r *Layer) zeroNeurons() *inspect.Spread {
	var all []*float64
	for i := range r.Experts {
		if r.Experts[i].facts.output != nil {
			all = append(all, inspect.Finite(float64(r.Experts[i].ZeroNeurons)))
		}
	}
	return inspect.SpreadOf(all)
}

// zeroed finds an expert that adds nothing, or that has many more neurons that add nothing than the others.
func (r *Layer) zeroed(e *Expert, others *inspect.Spread) []inspect.Observation {
	switch {
	case e.facts.output == nil:
		return r.zeroMatrices(e)
	case e.Gate.Norm == nil || e.Up.Norm == nil || e.Down.Norm == nil:
		return nil // 0 times what is not finite is not 0
	}
	neurons, zero := e.Down.Shape[1], inspect.Finite(float64(e.ZeroNeurons))
	switch {
	case e.ZeroNeurons == neurons:
		return []inspect.Observation{observation(r.Layer, e, "zeroed", "", zero, inspect.Finite(0),
			"%s are zero: it adds nothing to any token", e.zeroParts())}
	case e.Expert < 0 || others == nil:
		return nil
	case *zero-others.Median >= max(1, zeroShare*float64(neurons)):
		return []inspect.Observation{observation(r.Layer, e, "zeroed-neurons", "", zero, &others.Median,
			"%d of %d neurons add nothing: their row of gate_proj or up_proj, or column of down_proj, is zero; "+
				"the layer's median is %g",
			e.ZeroNeurons, neurons, others.Median)}
	}
	return nil
}

// zeroMatrices finds matrices that are all zero, of an expert that is not selected as a whole.
func (r *Layer) zeroMatrices(e *Expert) (found []inspect.Observation) {
	for role, m := range present(&e.Matrices) {
		if m.Zeros == int64(m.Shape[0])*int64(m.Shape[1]) {
			found = append(found, observation(r.Layer, e, "zeroed", role, inspect.Finite(0), nil, "every number is zero"))
		}
	}
	return found
}

// zeroParts names what of an expert without effect is zero.
func (e *Expert) zeroParts() string {
	var names []string
	for role, m := range present(&e.Matrices) {
		if *m.Norm == 0 {
			names = append(names, string(role))
		}
	}
	switch len(names) {
	case len(roles):
		return "all weights"
	case 0:
		return "a vector of every neuron, of gate_proj, up_proj or down_proj,"
	}
	return "all numbers of " + strings.Join(names, " and ")
}

// peers is one matrix over the experts of a layer, to compare an expert with.
type peers struct {
	norm, distinct, peak *inspect.Spread
	channels             []float64 // median over the experts
}

// peers returns the peers of each matrix; nil if there are too few.
func (r *Layer) peers() (all Matrices[*peers]) {
	for _, role := range roles {
		var norms, distinct, peaks []*float64
		var channels [][]float64
		for i := range r.Experts {
			m := *r.Experts[i].Of(role)
			if m == nil || m.Norm == nil || *m.Norm == 0 {
				continue
			}
			x := r.Experts[i].facts.matrices.Of(role)
			norms, distinct, peaks = append(norms, m.Norm), append(distinct, m.Distinct), append(peaks, inspect.Finite(x.peak))
			if x.channels != nil && (channels == nil || len(x.channels) == len(channels[0])) {
				channels = append(channels, x.channels)
			}
		}
		if len(norms) >= LeastPeers {
			*all.Of(role) = &peers{inspect.SpreadOf(norms), inspect.SpreadOf(distinct), inspect.SpreadOf(peaks),
				medians(channels)}
		}
	}
	return all
}

// medians returns the median of each column.
func medians(rows [][]float64) (all []float64) {
	if len(rows) < LeastPeers {
		return nil
	}
	column := make([]float64, len(rows))
	for c := range rows[0] {
		for i, row := range rows {
			column[i] = row[c]
		}
		all = append(all, inspect.LowerMedian(column))
	}
	return all
}

// apart returns how a matrix differs from those of the other experts. A norm that channels explain is left out.
func (r *Layer) apart(e *Expert, role table.Role, m *MatrixNumbers, others *peers) (found []inspect.Observation) {
	if others == nil || m.Norm == nil {
		return nil
	}
	add := func(id string, value, expected *float64, format string, args ...any) {
		found = append(found, observation(r.Layer, e, id, role, value, expected, format, args...))
	}
	x := e.facts.matrices.Of(role)
	found = r.channels(e, role, x, others)
	if len(found) == 0 && others.peak != nil && others.peak.Median > 0 && x.peak >= channelFactor*others.peak.Median {
		add("neuron", inspect.Finite(x.peak), &others.peak.Median,
			"neuron %d has %.3g times the norm of the expert's median neuron; "+
				"the largest of the layer's experts are %.3g in the median",
			x.neuron, x.peak, others.peak.Median)
	}
	if len(found) == 0 && others.norm.Far(m.Norm, normFactor) {
		add("norm", m.Norm, &others.norm.Median, "norm %.4g, the layer's median is %.4g", *m.Norm, others.norm.Median)
	}
	if d := m.Distinct; d != nil && others.distinct != nil && *d < coarseShare*others.distinct.Median {
		add("coarse", d, &others.distinct.Median,
			"%.0f %% of magnitudes in short runs are different ones, %.0f %% in the layer's median expert: "+
				"as rounding to few bits leaves behind",
			100**d, 100*others.distinct.Median)
	}
	return found
}

// channels finds channels, the inputs of gate_proj and up_proj and the outputs of down_proj, that are large in this
// expert and not in the others.
func (r *Layer) channels(e *Expert, role table.Role, x *matrixFacts, others *peers) []inspect.Observation {
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
		also = fmt.Sprintf("; above 6 times that are %s in all: %s", text.Plural(len(odd), "channel"), inspect.List(odd))
	}
	return []inspect.Observation{observation(r.Layer, e, "channel", role, &x.channels[worst], &others.channels[worst],
		"channel %d has %.3g times the norm of the median channel, in the layer's median expert %.3g times%s",
		worst, x.channels[worst], others.channels[worst], also)}
}
