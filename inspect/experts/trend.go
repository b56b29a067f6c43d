package experts

import (
	"math"

	"dsmoe/inspect"
	"dsmoe/model/table"
)

// trends finds layers of which the median expert's matrix is far from that of the layers around: see inspect.Neighbours.
func trends(layers []Layer) (found []inspect.Observation) {
	for _, role := range roles {
		var sizes []float64
		for i := range layers {
			sizes = append(sizes, layers[i].size(role))
		}
		usual, far := inspect.Neighbours(sizes)
		for i := range layers {
			if !far[i] {
				continue
			}
			size, median := math.Exp2(sizes[i]), math.Exp2(usual[i])
			o := observation(layers[i].Layer, &layers[i].Experts[0], "trend", role, &size, &median,
				"the layer's median expert has RMS %.4g, that of the layers around it %.4g", size, median)
			o.Experts = layers[i].numbers()
			found = append(found, o)
		}
	}
	return found
}

// size is log₂ of the RMS of the median expert's matrix; NaN if there is none.
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
