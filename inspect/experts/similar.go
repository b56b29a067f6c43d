package experts

// How the experts of a layer are like each other: cosines of all pairs.

import (
	"math"
	"slices"

	"dsmoe/inspect"
	"dsmoe/inspect/matrix"
	"dsmoe/model/table"
	"dsmoe/model/weights"
)

// The elements of a layer's matrices are divided among lanes, which run at once. Their number is fixed, so that the
// number of threads does not show.
const (
	gramLanes = 16
	gramBytes = 64 << 20 // of stored matrices, in a worker's memory: reads of a matrix are few
)

// similarities fills in the cosines of a layer's experts.
func similarities(x *matrix.Reader, l *layerMLPs, r *Layer) error {
	routed := l.routed()
	if len(routed) < 2 {
		x.Done(l.bytes())
		return nil
	}
	var all Matrices[*roleMatrices]
	for _, role := range roles {
		s := newRoleMatrices(routed, role)
		*all.Of(role) = s
		for lane := range gramLanes {
			x.Go(func() error { return s.compute(x, lane) })
		}
	}
	if err := x.Wait(); err != nil {
		return err
	}
	for role, s := range all.All() {
		if len(s.experts) > 1 {
			c := s.cosines(len(routed))
			*r.Similarity.Of(role) = c
			r.nearest(role, c)
		}
	}
	if r.Shared != nil {
		x.Done(l.all[len(l.all)-1].bytes())
	}
	r.functions()
	return nil
}

// roleMatrices are the matrices of one role and shape of the routed experts of a layer.
type roleMatrices struct {
	list    []*weights.Weight
	experts []int // indices of their experts
	lanes   [gramLanes]*matrix.Gram
}

// newRoleMatrices collects the matrices of the shape of the first.
func newRoleMatrices(routed []*mlp, role table.Role) *roleMatrices {
	s := &roleMatrices{}
	for i, m := range routed {
		if w := *m.weights.Of(role); w != nil && (s.list == nil || slices.Equal(w.Shape, s.list[0].Shape)) {
			s.list, s.experts = append(s.list, w), append(s.experts, i)
		}
	}
	return s
}

// compute computes the products of a lane of the matrices' elements.
func (s *roleMatrices) compute(x *matrix.Reader, lane int) error {
	g := matrix.NewGram(len(s.list))
	s.lanes[lane] = g
	if len(s.list) < 2 {
		return nil
	}
	p := matrix.Arithmetic()
	defer p.Close(nil)
	total := s.list[0].Len()
	chunks := (total + matrix.ChunkTerms - 1) / matrix.ChunkTerms
	at, end := lane*chunks/gramLanes*matrix.ChunkTerms, min((lane+1)*chunks/gramLanes*matrix.ChunkTerms, total)
	batch := max(1, int(s.list[0].DType.Elements(gramBytes))/matrix.ChunkTerms/len(s.list)) * matrix.ChunkTerms
	streams := make([]*weights.Stream, len(s.list))
	for i, w := range s.list {
		streams[i] = x.Stream(x.Reader, w)
		defer x.Release(streams[i])
	}
	values := make([]float32, matrix.ChunkTerms*len(s.list))
	for ; at < end && !x.Ended(); at += batch {
		n := min(batch, end-at)
		for i, stream := range streams {
			if err := stream.Load(int64(at), n); err != nil {
				return s.list[i].Failed(err)
			}
			x.Done(s.list[i].DType.Bytes(int64(n)))
		}
		for from := 0; from < n; from += matrix.ChunkTerms {
			k := min(matrix.ChunkTerms, n-from)
			for i, stream := range streams {
				if err := stream.Decode(values[i*k:(i+1)*k], from); err != nil {
					return s.list[i].Failed(err)
				}
			}
			g.Add(p, values[:k*len(s.list)], k)
		}
	}
	return nil
}

// cosines adds up the lanes.
func (s *roleMatrices) cosines(all int) matrix.Cosines {
	sum := matrix.NewGram(len(s.list))
	for _, lane := range s.lanes {
		sum.Merge(lane)
	}
	return sum.Cosines(all, s.experts)
}

// nearest fills in what the cosines of one matrix say.
func (r *Layer) nearest(role table.Role, c matrix.Cosines) {
	numbers := r.numbers()
	var shape []int
	for i := range r.Experts {
		if m := *r.Experts[i].Of(role); m != nil {
			m.Nearest, shape = c.Nearest(i, numbers, inspect.Magnitude), m.Shape
		}
	}
	(*r.Of(role)).Pairs = c.Pairs(numbers, 1/math.Sqrt(float64(shape[0])*float64(shape[1])))
}

// functions fills in the cosines of what the experts compute.
func (r *Layer) functions() {
	all := r.all()
	var outputs [][]float32
	var experts []int
	for i, e := range all {
		if out := e.facts.output; out != nil && (outputs == nil || len(out) == len(outputs[0])) {
			outputs, experts = append(outputs, out), append(experts, i)
		}
	}
	if len(outputs) < 2 {
		return
	}
	c, numbers := matrix.GramOf(outputs).Cosines(len(all), experts), r.numbers()
	r.Similarity.Function = c
	for i, e := range all {
		e.Function = c.Nearest(i, numbers, func(v float64) float64 { return v })
	}
	r.Function = c.Pairs(numbers, 1/math.Sqrt(float64(len(outputs[0]))))
}
