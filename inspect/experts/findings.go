package experts

// What sets an expert apart from the others of its layer.

import (
	"fmt"
	"math"
	"slices"
	"strings"

	"dsmoe/inspect"
	"dsmoe/model/table"
	"dsmoe/text"
)

// Limits of observations. All compare an expert with its layer: it must be beyond inspect.Peers.Limit, and differ by
// these. What differs by less does not matter, however narrow the layer's spread.
const (
	normFactor    = 2    // a typical magnitude so many times its layer's median, or that fraction of it
	channelFactor = 6    // a channel, or neuron, likewise: log-normal neurons reach 4
	coarseShare   = 0.25 // of MatrixNumbers.Distinct, below the median
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

// observe returns what is odd about single experts, in a model of so many layers, and drops their channels' sizes.
// initializer is the config's initializer_range.
func (r *Layer) observe(layers int, initializer float64) (found []inspect.Observation) {
	var neurons []float64 // that are zero, of each whole expert
	for i := range r.Experts {
		if r.Experts[i].facts.whole {
			neurons = append(neurons, float64(r.Experts[i].ZeroNeurons))
		}
	}
	zeros, peers := inspect.PeersOf(neurons, layers*len(neurons)), r.peers(layers)
	initial := r.untrained(layers, initializer)
	for _, e := range r.all() {
		for role, m := range present(&e.Matrices) {
			for _, x := range []struct {
				id, what string
				n        int64
			}{{"nan", "NaN", m.NaN}, {"infinite", "infinite", m.Infinite}} {
				if x.n > 0 {
					found = append(found, observation(r.Layer, e, x.id, role, inspect.Finite(float64(x.n)), inspect.Finite(0),
						"%s of %s numbers are %s", text.Grouped(x.n), text.Grouped(m.Shape[0]*m.Shape[1]), x.what))
				}
			}
			if bits := e.facts.matrices.Of(role).bits; bits > 0 {
				found = append(found, observation(r.Layer, e, "low-bits", role, inspect.Finite(float64(bits)), nil, "%s",
					inspect.CodedText(bits)))
			}
		}
		zeroed := r.zeroed(e, zeros)
		found = append(found, zeroed...)
		isNew := func(o inspect.Observation) bool { return o.Tensor == e.Module }
		if e.Expert < 0 || len(zeroed) > 0 || slices.ContainsFunc(initial, isNew) {
			continue
		}
		for role, m := range present(&e.Matrices) {
			found = append(found, r.apart(e, role, m, *peers.Of(role))...)
		}
	}
	for _, e := range r.all() {
		for role := range present(&e.Matrices) {
			e.facts.matrices.Of(role).channels = nil
		}
	}
	return append(found, initial...)
}

// zeroed finds an expert that adds nothing, or that has many more neurons that add nothing than the others. An expert
// with a missing matrix, or with NaN or infinities, which times 0 are not 0, is searched for matrices that are all
// zero.
func (r *Layer) zeroed(e *Expert, others *inspect.Peers) (found []inspect.Observation) {
	if !e.facts.whole || e.Gate.Norm == nil || e.Up.Norm == nil || e.Down.Norm == nil {
		for role, m := range present(&e.Matrices) {
			if m.Zeros == int64(m.Shape[0])*int64(m.Shape[1]) {
				found = append(found, observation(r.Layer, e, "zeroed", role, inspect.Finite(0), nil, "every number is zero"))
			}
		}
		return found
	}
	neurons, zero := e.Down.Shape[1], inspect.Finite(float64(e.ZeroNeurons))
	switch {
	case e.ZeroNeurons == neurons:
		var names []string
		for role, m := range present(&e.Matrices) {
			if *m.Norm == 0 {
				names = append(names, string(role))
			}
		}
		what := "all numbers of " + strings.Join(names, " and ")
		switch len(names) {
		case len(roles):
			what = "all weights"
		case 0:
			what = "a vector of every neuron, of gate_proj, up_proj or down_proj,"
		}
		return append(found, observation(r.Layer, e, "zeroed", "", zero, inspect.Finite(0),
			"%s are zero: it adds nothing to any token", what))
	case e.Expert < 0 || others == nil:
	case others.Odd(*zero, max(1, zeroShare*float64(neurons))) && *zero > others.Median:
		return append(found, observation(r.Layer, e, "zeroed-neurons", "", zero, &others.Median,
			"%d of %d neurons add nothing: their row of gate_proj or up_proj, or column of down_proj, is zero; "+
				"the layer's median is %g",
			e.ZeroNeurons, neurons, others.Median))
	}
	return nil
}

// peers is one matrix over the experts of a layer, to compare an expert with.
type peers struct {
	size, distinct, peak *inspect.Peers
	channels             []float64      // median over the experts
	channel              *inspect.Peers // of all channels of all experts, less those medians
}

// peers returns the peers of each matrix; nil if there are too few.
func (r *Layer) peers(layers int) (all Matrices[*peers]) {
	for _, role := range roles {
		var sizes, distinct, peaks []float64
		var channels [][]float64
		for i := range r.Experts {
			m := *r.Experts[i].Of(role)
			if m == nil || m.Norm == nil || *m.Norm == 0 {
				continue
			}
			x := r.Experts[i].facts.matrices.Of(role)
			sizes, distinct, peaks = append(sizes, x.size), append(distinct, inspect.OrNaN(m.Distinct)), append(peaks, x.peak)
			if channels == nil || len(x.channels) == len(channels[0]) {
				channels = append(channels, x.channels)
			}
		}
		if len(sizes) < inspect.LeastPeers {
			continue
		}
		tests := layers * len(roles) * len(sizes)
		p := &peers{size: inspect.PeersOf(sizes, tests), distinct: inspect.PeersOf(distinct, tests),
			peak: inspect.PeersOf(peaks, tests)}
		column, off := make([]float64, len(channels)), []float64{}
		for c := range channels[0] {
			for i, row := range channels {
				column[i] = row[c]
			}
			median := inspect.LowerMedian(column) // NaN sorts first
			p.channels = append(p.channels, median)
			for _, v := range column {
				off = append(off, v-median)
			}
		}
		p.channel = inspect.TailedPeersOf(off, layers*len(roles)*len(off))
		*all.Of(role) = p
	}
	return all
}

// ratio returns 2 to the power of a logarithm.
func ratio(log2 float64) *float64 { return inspect.Finite(math.Exp2(log2)) }

// apart returns how a matrix differs from the other experts' matrices: by input channels that are large in this expert
// alone, or else by a neuron or by its size; and by coarse numbers. Output channels, of down_proj, are no finding:
// healthy models have experts that write massive activations through a few of them (Z. Su et al., Unveiling Super
// Experts in Mixture-of-Experts Large Language Models, 2025).
func (r *Layer) apart(e *Expert, role table.Role, m *MatrixNumbers, others *peers) (found []inspect.Observation) {
	if others == nil || m.Norm == nil {
		return nil
	}
	add := func(id string, value, expected *float64, format string, args ...any) {
		found = append(found, observation(r.Layer, e, id, role, value, expected, format, args...))
	}
	x := e.facts.matrices.Of(role)
	if len(x.channels) == len(others.channels) && role != table.DownProj {
		var odd []int
		worst, most, also := 0, 0.0, ""
		for c, v := range x.channels {
			if over := v - others.channels[c]; over > 0 && others.channel.Odd(over, math.Log2(channelFactor)) {
				if odd = append(odd, c); over > most {
					worst, most = c, over
				}
			}
		}
		if len(odd) > 1 {
			also = fmt.Sprintf("; so are %s in all: %s", text.Plural(len(odd), "channel"), inspect.List(odd))
		}
		if odd != nil {
			own, usual := ratio(x.channels[worst]), ratio(others.channels[worst])
			add("channel", own, usual,
				"channel %d is %.3g times as large as the median channel, in the layer's median expert %.3g times%s",
				worst, *own, *usual, also)
		}
	}
	if p := others.peak; len(found) == 0 && p.Odd(x.peak, math.Log2(channelFactor)) && x.peak > p.Median {
		add("neuron", ratio(x.peak), ratio(p.Median),
			"neuron %d is %.3g times as large as the expert's median neuron; "+
				"the largest of the layer's experts are %.3g times in the median",
			x.neuron, *ratio(x.peak), *ratio(p.Median))
	}
	if p := others.size; len(found) == 0 && p.Odd(x.size, math.Log2(normFactor)) {
		add("norm", ratio(x.size), ratio(p.Median), "typical magnitude %.4g, the layer's median is %.4g",
			*ratio(x.size), *ratio(p.Median))
	}
	if d, p := inspect.OrNaN(m.Distinct), others.distinct; x.bits == 0 && p != nil && d < p.Median &&
		p.Odd(d, coarseShare*p.Median) {
		add("coarse", m.Distinct, &p.Median,
			"%.0f %% of magnitudes in short runs are different ones, %.0f %% in the layer's median expert: "+
				"as rounding to few bits leaves behind",
			100*d, 100*p.Median)
	}
	return found
}
