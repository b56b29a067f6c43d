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

// The product of two matrices of a layer is the sum of the products of their chunks: a lane adds up those of a
// sixteenth of the matrix, in order, and then the lanes are added up.
const (
	gramLanes = 16
	gramBytes = 320 << 20 // of stored matrices side by side, in memory
	gramRead  = 2 << 20   // of a read of one of them: few experts take less memory
	gramAhead = 64        // chunks whose products are made before they are added in order
)

// similarities fills in the cosines of the matrices of a layer's experts.
func similarities(x *matrix.Reader, l *layerMLPs, r *Layer) error {
	routed := l.routed()
	if len(routed) < 2 {
		x.Done(l.bytes())
		return nil
	}
	for _, role := range roles {
		s := newRoleMatrices(routed, role)
		sums, err := s.compute(x, gramBytes)
		if err != nil {
			return err
		}
		if len(s.experts) > 1 {
			c := sums.Cosines(len(routed), s.experts)
			*r.Similarity.Of(role) = c
			numbers := r.numbers()
			for i := range r.Experts {
				if m := *r.Experts[i].Of(role); m != nil {
					m.Nearest = c.Nearest(i, numbers, inspect.Magnitude)
				}
			}
			(*r.Of(role)).Pairs = c.Pairs(numbers, 1/math.Sqrt(float64(s.list[0].Len())))
		}
	}
	if r.Shared != nil {
		x.Done(l.all[len(l.all)-1].bytes())
	}
	return nil
}

// roleMatrices are the matrices of one role and shape of the routed experts of a layer.
type roleMatrices struct {
	list    []*weights.Weight
	experts []int // indices of their experts
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

// compute returns the products of the matrices with each other. It has about so many bytes of them in memory.
func (s *roleMatrices) compute(x *matrix.Reader, memory int64) (*matrix.Gram, error) {
	sum, lane := matrix.NewGram(len(s.list)), matrix.NewGram(len(s.list))
	if len(s.list) < 2 {
		return sum, nil
	}
	chunks, ended := (s.list[0].Len()+matrix.ChunkTerms-1)/matrix.ChunkTerms, 0
	most := max(1, int(s.list[0].DType.Elements(min(memory/int64(len(s.list)), gramRead)))/matrix.ChunkTerms)
	reads := (chunks + most - 1) / most
	streams := make([]*weights.Stream, len(s.list))
	for i, w := range s.list {
		streams[i] = x.Stream(x.Reader, w)
		defer x.Release(streams[i])
	}
	for read := range reads {
		first, end := read*chunks/reads, (read+1)*chunks/reads
		for i, stream := range streams {
			at := first * matrix.ChunkTerms
			n := min(end*matrix.ChunkTerms, s.list[0].Len()) - at
			x.Go(func() error {
				err := stream.Load(int64(at), n)
				if err == nil {
					err = stream.LoadScales()
				}
				x.Done(s.list[i].DType.Bytes(int64(n)))
				return s.list[i].Failed(err)
			})
		}
		if err := x.Wait(); err != nil {
			return nil, err
		}
		for at := first; at < end; at += gramAhead {
			products, err := s.products(x, streams, first, at, min(gramAhead, end-at))
			if err != nil {
				return nil, err
			}
			for i, p := range products {
				for at+i >= (ended+1)*chunks/gramLanes {
					sum.Merge(lane)
					clear(lane.Sums)
					ended++
				}
				lane.Add(p)
			}
		}
	}
	sum.Merge(lane)
	return sum, nil
}

// products returns the products of n chunks from one on, of those that were loaded from first on.
func (s *roleMatrices) products(x *matrix.Reader, streams []*weights.Stream, first, at, n int) ([][][]float32, error) {
	all := make([][][]float32, n)
	for i := range all {
		x.Go(func() error {
			space, p := x.Spaces.Get().(*matrix.Space), matrix.Arithmetic()
			defer x.Spaces.Put(space)
			defer p.Close(nil)
			k := min(matrix.ChunkTerms, s.list[0].Len()-(at+i)*matrix.ChunkTerms)
			space.Stored = nil // a whole matrix, of examine
			space.First = slices.Grow(space.First[:0], k*len(streams))[:k*len(streams)]
			for m, stream := range streams {
				if err := stream.Decode(space.First[m*k:][:k], (at+i-first)*matrix.ChunkTerms); err != nil {
					return s.list[m].Failed(err)
				}
			}
			all[i] = matrix.Products(p, space.First, len(streams), k)
			return nil
		})
	}
	return all, x.Wait()
}

// functions fills in the cosines of the experts' outputs, and drops the outputs, which take as much memory as many reads of
// matrices.
func (r *Layer) functions() {
	all := r.all()
	var outputs [][]float32
	var experts []int
	for i, e := range all {
		if out := e.facts.output; out != nil && (outputs == nil || len(out) == len(outputs[0])) {
			outputs, experts = append(outputs, out), append(experts, i)
		}
		e.facts.output = nil
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
