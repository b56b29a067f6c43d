package experts

// Experts and layers that look like random numbers among trained ones.

import (
	"fmt"
	"math"
	"slices"

	"dsmoe/inspect"
)

// Random numbers have the stable rank MatrixSpread.NullStableRank; training lowers it. An expert looks random if the
// geometric mean of its matrices' ranks is at least randomRank times that, and the others' median below trainedRank.
const (
	randomRank  = 0.85 // the smallest matrices of random numbers have 0.9
	trainedRank = 0.6
)

// rank returns the geometric mean of the stable ranks of an expert's matrices over those of random numbers; NaN if a
// matrix is missing or has none.
func (r *Layer) rank(e *Expert) float64 {
	sum := 0.0
	for _, role := range roles {
		m, s := *e.Of(role), *r.Of(role)
		if m == nil || m.StableRank == nil || s == nil {
			return math.NaN()
		}
		sum += math.Log(*m.StableRank / s.NullStableRank)
	}
	return math.Exp(sum / float64(len(roles)))
}

// ranks returns the rank of each routed expert that has one.
func (r *Layer) ranks() (all []float64) {
	for i := range r.Experts {
		if v := r.rank(&r.Experts[i]); v == v {
			all = append(all, v)
		}
	}
	return all
}

// An expert is drawn from the initial distribution if each of its matrices has that distribution's RMS and kurtosis,
// within drawnErrors standard errors of n numbers and, for the rounding to a dtype, drawnRMS of the RMS and drawnKurtosis.
const (
	drawnErrors   = 6
	drawnRMS      = 0.01
	drawnKurtosis = 0.05
)

// drawn reports whether an expert is drawn from a normal distribution with the standard deviation initializer, or from
// the uniform one up to it.
func (e *Expert) drawn(initializer float64) bool {
	from := func(rms, kurtosis float64) bool {
		for _, role := range roles {
			m := *e.Of(role)
			if m == nil || m.RMS == nil || !(rms > 0) {
				return false
			}
			n := float64(m.Shape[0]) * float64(m.Shape[1])
			mean := *m.RMS * *m.RMS
			k := e.facts.matrices.Of(role).fourth / n / float64(mean*mean)
			if !(inspect.Magnitude(*m.RMS/rms-1) <= drawnRMS+drawnErrors*math.Sqrt((kurtosis-1)/4/n)) ||
				!(inspect.Magnitude(k-kurtosis) <= drawnKurtosis+drawnErrors*math.Sqrt(24/n)) {
				return false
			}
		}
		return true
	}
	return from(initializer, 3) || from(initializer/math.Sqrt(3), 1.8)
}

// untrained finds experts that look random in a layer where most do not, in a model of so many layers: because their
// ranks are beyond the spread of the others', or they are drawn from the initial distribution, and no more than a quarter
// of the experts is. In the latter case it is enough that the layer's median expert does not look random.
func (r *Layer) untrained(layers int, initializer float64) (found []inspect.Observation) {
	var logs []float64
	for _, v := range r.ranks() {
		logs = append(logs, math.Log(v))
	}
	p := inspect.PeersOf(logs, layers*len(logs))
	if p == nil || math.Exp(p.Median) >= randomRank {
		return nil
	}
	drawn := 0
	for i := range r.Experts {
		if r.Experts[i].drawn(initializer) {
			drawn++
		}
	}
	usual := math.Exp(p.Median)
	for i := range r.Experts {
		e := &r.Experts[i]
		v, isDrawn := r.rank(e), r.Experts[i].drawn(initializer)
		if !(v >= randomRank) || !(usual < trainedRank && p.Odd(math.Log(v), 0)) && !(isDrawn && 4*drawn <= len(r.Experts)) {
			continue
		}
		as := ""
		if isDrawn {
			as = fmt.Sprintf("; RMS and kurtosis are those of numbers drawn with initializer_range %g", initializer)
		}
		found = append(found, observation(r.Layer, e, "untrained", "", &v, &usual,
			"its matrices have %.2f of the stable rank of random numbers, those of the layer's median expert %.2f: "+
				"as at initialisation%s", v, usual, as))
	}
	return found
}

// untrainedLayers finds layers in which every expert looks random, if no expert of another layer does.
func untrainedLayers(layers []Layer) (found []inspect.Observation) {
	const leastOthers = 2
	for i := range layers {
		own, others, alone := layers[i].ranks(), []float64{}, len(layers) > leastOthers
		for k := range layers {
			if ranks := layers[k].ranks(); k != i {
				others = append(others, ranks...)
				alone = alone && len(ranks) > 0 && slices.Max(ranks) < randomRank
			}
		}
		if !alone || len(own) < inspect.LeastPeers || slices.Min(own) < randomRank {
			continue
		}
		least, usual := slices.Min(own), inspect.LowerMedian(others)
		if usual >= trainedRank {
			continue
		}
		o := observation(layers[i].Layer, &layers[i].Experts[0], "untrained-layer", "", &least, &usual,
			"all %d experts have at least %.2f of the stable rank of random numbers, those of other layers %.2f in the "+
				"median: as at initialisation", len(own), least, usual)
		o.Experts = layers[i].numbers()
		found = append(found, o)
	}
	return found
}
