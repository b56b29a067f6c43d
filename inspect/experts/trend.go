package experts

import (
	"math"

	"dsmoe/inspect"
	"dsmoe/model/table"
)

// trends finds layers of which the median routed expert's matrix, or the shared experts', is far from that of the layers
// around: see inspect.Trend.
func trends(layers []Layer) (found []inspect.Observation) {
	matrices := 2 * len(roles) * len(layers)
	for _, role := range roles {
		var routed, shared []float64
		for i := range layers {
			routed, shared = append(routed, layers[i].size(role)), append(shared, layers[i].Shared.size(role))
		}
		usual, off := inspect.Trend(routed, matrices)
		for i := range layers {
			if off[i] {
				size, median := math.Exp2(routed[i]), math.Exp2(usual[i])
				o := observation(layers[i].Layer, &layers[i].Experts[0], "trend", role, &size, &median,
					"the layer's median expert has RMS %.4g, that of the layers around it %.4g", size, median)
				o.Experts = layers[i].numbers()
				found = append(found, o)
			}
		}
		usual, off = inspect.Trend(shared, matrices)
		for i := range layers {
			if off[i] {
				size, median := math.Exp2(shared[i]), math.Exp2(usual[i])
				found = append(found, observation(layers[i].Layer, layers[i].Shared, "trend", role, &size, &median,
					"RMS %.4g, %.4g in the layers around it", size, median))
			}
		}
	}
	return found
}

// size is log₂ of the RMS of the median expert's matrix; NaN if the layer has none or it is zero.
func (r *Layer) size(role table.Role) float64 {
	s := *r.Of(role)
	if s == nil || s.Norm == nil || !(s.Norm.Median > 0) {
		return math.NaN()
	}
	for i := range r.Experts {
		if m := *r.Experts[i].Of(role); m != nil {
			return math.Log2(s.Norm.Median / math.Sqrt(float64(m.Shape[0])*float64(m.Shape[1])))
		}
	}
	return math.NaN()
}

// size is log₂ of the RMS of a matrix of an expert; NaN if the expert is nil, or the matrix is missing or zero.
func (e *Expert) size(role table.Role) float64 {
	if e == nil {
		return math.NaN()
	}
	if m := *e.Of(role); m != nil && m.RMS != nil && *m.RMS > 0 {
		return math.Log2(*m.RMS)
	}
	return math.NaN()
}
