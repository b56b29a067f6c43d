package inspect

// How the experts of a layer are like each other: cosines of all pairs.

import (
	"math"
	"slices"

	"dsmoe/model"
	"dsmoe/model/weights"
)

// How sums of products are cut. Terms of a chunk are added in float32 in 16 lanes, so that Σab is off
// by at most (chunkTerms/16 + 4)·2⁻²⁴·‖a‖‖b‖, and a cosine by twice that, 3.2·10⁻⁵; chunks are added
// in float64. Lanes of
// chunks are computed at once; their number is fixed, so that that of threads does not show.
const (
	chunkTerms = 4096
	gramLanes  = 16
	gramBlock  = 64          // rows of a block of the matrix; of those below the diagonal none is computed
	gramFloats = 8 << 20 / 4 // of a goroutine's memory
)

// gram is the products of n vectors with each other.
type gram struct {
	n    int
	sums []float64 // [n][n], where the column is at least the row
}

func newGram(n int) *gram { return &gram{n, make([]float64, n*n)} }

// add adds the products of k numbers of each vector, [n][k].
func (g *gram) add(p *model.Plain, values []float32, k int) {
	for first := 0; first < g.n; first += gramBlock {
		last, width := min(first+gramBlock, g.n), g.n-first
		products := p.Product(values[first*k:last*k], values[first*k:g.n*k], k)
		for r := range last - first {
			for c := r; c < width; c++ {
				g.sums[(first+r)*g.n+first+c] += float64(products[r*width+c])
			}
		}
	}
}

// merge adds the sums of another.
func (g *gram) merge(o *gram) {
	for i, v := range o.sums {
		g.sums[i] += v
	}
}

// cosines returns the cosines of the vectors at places, among all; NaN where a vector is none,
// all zero, or not finite.
func (g *gram) cosines(all int, places []int) Cosines {
	c := make(Cosines, all)
	for i := range c {
		c[i] = make([]float64, all)
		for k := range c[i] {
			c[i][k] = math.NaN()
		}
	}
	for i, a := range places {
		for k := i; k < g.n; k++ {
			b := places[k]
			v := g.sums[i*g.n+k] / (math.Sqrt(g.sums[i*g.n+i]) * math.Sqrt(g.sums[k*g.n+k]))
			if v == v {
				v = min(max(v, -1), 1)
			}
			c[a][b], c[b][a] = v, v
		}
	}
	return c
}

// similarities fills in the cosines of a layer's experts.
func (x *examination) similarities(l *layerMLPs, r *LayerExperts) error {
	routed := l.routed()
	if len(routed) < 2 {
		x.Done(l.bytes())
		return nil
	}
	var sides [projections]*side
	for i := range projections {
		sides[i] = newSide(routed, i)
		for lane := range gramLanes {
			x.Go(func() error { return x.lane(sides[i], lane) })
		}
	}
	if err := x.Wait(); err != nil {
		return err
	}
	for i, to := range []*Cosines{&r.Similarity.Gate, &r.Similarity.Up, &r.Similarity.Down} {
		if len(sides[i].places) > 1 {
			*to = sides[i].cosines(len(routed))
			r.nearest(i, *to)
		}
	}
	if r.Shared != nil {
		x.Done(l.all[len(l.all)-1].bytes())
	}
	r.functions()
	return nil
}

// side is one matrix of each routed expert of a layer: those of one shape.
type side struct {
	list   []*weights.Weight
	places []int // of the experts among all
	lanes  [gramLanes]*gram
}

// newSide collects the matrices of the shape of the first.
func newSide(routed []*mlp, projection int) *side {
	s := &side{}
	for i, m := range routed {
		if w := m.weights[projection]; w != nil && (s.list == nil || slices.Equal(w.Shape, s.list[0].Shape)) {
			s.list, s.places = append(s.list, w), append(s.places, i)
		}
	}
	return s
}

// lane computes the products of a part of the matrices' elements.
func (x *examination) lane(s *side, lane int) (err error) {
	g := newGram(len(s.list))
	s.lanes[lane] = g
	if len(s.list) < 2 {
		return nil
	}
	p := arithmetic()
	defer p.Close(nil)
	total := s.list[0].Len()
	chunks := (total + chunkTerms - 1) / chunkTerms
	at, end := lane*chunks/gramLanes*chunkTerms, min((lane+1)*chunks/gramLanes*chunkTerms, total)
	batch := max(1, gramFloats/chunkTerms/len(s.list)) * chunkTerms
	streams := make([]*weights.Stream, len(s.list))
	for i, w := range s.list {
		streams[i] = weights.NewStream(x.Reader, w)
	}
	var values []float32
	for ; at < end && !x.Ended(); at += batch {
		n := min(batch, end-at)
		if values, err = gather(values, streams, s.list, at, n); err != nil {
			return err
		}
		for from := 0; from < n; from += chunkTerms {
			k := min(chunkTerms, n-from)
			g.add(p, values[from*len(s.list):][:k*len(s.list)], k)
		}
		for _, w := range s.list {
			x.Done(w.DType.Bytes(int64(n)))
		}
	}
	return nil
}

// gather reads n numbers of each matrix from at on, chunk by chunk: [chunk][matrix][chunkTerms].
func gather(dst []float32, streams []*weights.Stream, list []*weights.Weight, at, n int) ([]float32, error) {
	dst = slices.Grow(dst[:0], n*len(list))[:n*len(list)]
	for i, s := range streams {
		if err := s.Load(int64(at), n); err != nil {
			return nil, list[i].Failed(err)
		}
		values, err := s.Values()
		if err != nil {
			return nil, list[i].Failed(err)
		}
		for from := 0; from < n; from += chunkTerms {
			k := min(chunkTerms, n-from)
			copy(dst[from*len(list)+i*k:], values[from:from+k])
		}
	}
	return dst, nil
}

// cosines adds up the lanes.
func (s *side) cosines(all int) Cosines {
	sum := newGram(len(s.list))
	for _, lane := range s.lanes {
		sum.merge(lane)
	}
	return sum.cosines(all, s.places)
}

// nearest fills in what the cosines of one matrix say.
func (r *LayerExperts) nearest(projection int, c Cosines) {
	spread := []*MatrixSpread{r.Gate, r.Up, r.Down}[projection]
	for i := range r.Experts {
		if m := r.Experts[i].matrices()[projection]; m != nil {
			m.Nearest = r.neighbour(c[i], i, magnitude)
			spread.Pairs = pairSpread(c, r.numbers(), 1/math.Sqrt(float64(m.Shape[0])*float64(m.Shape[1])))
		}
	}
}

// numbers are those of the routed experts.
func (r *LayerExperts) numbers() (all []int) {
	for i := range r.Experts {
		all = append(all, r.Experts[i].Expert)
	}
	return all
}

func magnitude(v float64) float64 { return max(v, -v) }
func itself(v float64) float64    { return v }

// neighbour returns the routed expert with the largest of a row of cosines, by a measure; nil if
// there is none.
func (r *LayerExperts) neighbour(row []float64, self int, measure func(float64) float64) (best *Neighbour) {
	for k := range r.Experts {
		if v := row[k]; k != self && v == v && (best == nil || measure(v) > measure(best.Cosine)) {
			best = &Neighbour{r.Experts[k].Expert, v}
		}
	}
	return best
}

// pairSpread sums up the cosines of pairs of experts of these numbers; nil if there are none.
func pairSpread(c Cosines, numbers []int, null float64) *PairSpread {
	s := &PairSpread{NullStd: null}
	for i := range numbers {
		for k := i + 1; k < len(numbers); k++ {
			v := c[i][k]
			if v != v {
				continue
			}
			s.Pairs++
			s.Mean += v
			s.MeanAbs += magnitude(v)
			if s.Pairs == 1 || magnitude(v) > magnitude(s.Largest) {
				s.Largest, s.A, s.B = v, numbers[i], numbers[k]
			}
		}
	}
	if s.Pairs == 0 {
		return nil
	}
	s.Mean /= float64(s.Pairs)
	s.MeanAbs /= float64(s.Pairs)
	return s
}

// functions fills in the cosines of what the experts compute.
func (r *LayerExperts) functions() {
	all := make([]*ExpertNumbers, 0, len(r.Experts)+1)
	for i := range r.Experts {
		all = append(all, &r.Experts[i])
	}
	if r.Shared != nil {
		all = append(all, r.Shared)
	}
	var outputs [][]float32
	var places []int
	for i, e := range all {
		if out := e.facts.output; out != nil && (outputs == nil || len(out) == len(outputs[0])) {
			outputs, places = append(outputs, out), append(places, i)
		}
	}
	if len(outputs) < 2 {
		return
	}
	c := gramOf(outputs).cosines(len(all), places)
	r.Similarity.Function = c
	for i, e := range all {
		e.Function = r.neighbour(c[i], i, itself)
	}
	r.Function = pairSpread(c, r.numbers(), 1/math.Sqrt(float64(len(outputs[0]))))
}

// gramOf returns the products of vectors in memory.
func gramOf(vectors [][]float32) *gram {
	p, g := arithmetic(), newGram(len(vectors))
	defer p.Close(nil)
	values := make([]float32, 0, chunkTerms*len(vectors))
	for at := 0; at < len(vectors[0]); at += chunkTerms {
		k := min(chunkTerms, len(vectors[0])-at)
		values = values[:0]
		for _, v := range vectors {
			values = append(values, v[at:at+k]...)
		}
		g.add(p, values, k)
	}
	return g
}
