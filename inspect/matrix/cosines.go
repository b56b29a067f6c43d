package matrix

import (
	"fmt"
	"math"

	"dsmoe/inspect"
	"dsmoe/model"
	"dsmoe/text"
)

// ChunkTerms is how many products are added in float32, in 16 lanes, so that Σab is off by at most
// (ChunkTerms/16 + 4)·2⁻²⁴·‖a‖‖b‖, and a cosine by twice that, 3.2·10⁻⁵. Chunks are added in float64.
const ChunkTerms = 4096

// gramBlock is the rows of a block of a Gram matrix, a multiple of the rows that a kernel multiplies at once. Blocks below the
// diagonal are not computed.
const gramBlock = 48

// Gram is the products of n vectors with each other.
type Gram struct {
	N    int
	Sums []float64 // [N, N]; defined where the column is at least the row
}

// NewGram returns the products of n vectors of zeros.
func NewGram(n int) *Gram { return &Gram{n, make([]float64, n*n)} }

// Products returns for Gram.Add the products of n vectors with each other, of k numbers of each, [n, k]: one block of rows
// after the other.
func Products(p *model.Plain, values []float32, n, k int) (blocks [][]float32) {
	for first := 0; first < n; first += gramBlock {
		last := min(first+gramBlock, n)
		blocks = append(blocks, p.Product(values[first*k:last*k], values[first*k:n*k], k))
	}
	return blocks
}

// Add adds Products of the vectors' next numbers.
func (g *Gram) Add(blocks [][]float32) {
	for i, products := range blocks {
		first := i * gramBlock
		width := g.N - first
		for r := range len(products) / width {
			sums := g.Sums[(first+r)*g.N+first:][:width]
			for c := r; c < width; c++ {
				sums[c] += float64(products[r*width+c])
			}
		}
	}
}

// Merge adds the sums of another.
func (g *Gram) Merge(o *Gram) {
	for i, v := range o.Sums {
		g.Sums[i] += v
	}
}

// GramOf returns the products of vectors in memory.
func GramOf(vectors [][]float32) *Gram {
	p, g := Arithmetic(), NewGram(len(vectors))
	defer p.Close(nil)
	values := make([]float32, 0, ChunkTerms*len(vectors))
	for at := 0; at < len(vectors[0]); at += ChunkTerms {
		k := min(ChunkTerms, len(vectors[0])-at)
		values = values[:0]
		for _, v := range vectors {
			values = append(values, v[at:at+k]...)
		}
		g.Add(Products(p, values, g.N, k))
	}
	return g
}

// Dot is Σab in float64, in the order of the elements.
func Dot(a, b []float32) (sum float64) {
	for i, v := range a {
		sum += float64(v) * float64(b[i]) // the product of two float32 is exact
	}
	return sum
}

// Cosines is a row of cosines for each expert.
type Cosines [][]float64

// Cosines returns the cosines of the vectors, which belong to some experts among all. A pair without both
// vectors, or with one that is zero or not finite, has NaN.
func (g *Gram) Cosines(all int, experts []int) Cosines {
	c := make(Cosines, all)
	for i := range c {
		c[i] = make([]float64, all)
		for k := range c[i] {
			c[i][k] = math.NaN()
		}
	}
	for i, a := range experts {
		for k := i; k < g.N; k++ {
			b := experts[k]
			v := g.Sums[i*g.N+k] / (math.Sqrt(g.Sums[i*g.N+i]) * math.Sqrt(g.Sums[k*g.N+k]))
			if v == v {
				v = min(max(v, -1), 1)
			}
			c[a][b], c[b][a] = v, v
		}
	}
	return c
}

// MarshalJSON writes null for NaN.
func (c Cosines) MarshalJSON() ([]byte, error) {
	b := []byte{'['}
	for i, row := range c {
		if i > 0 {
			b = append(b, ',')
		}
		b = append(b, '[')
		for k, v := range row {
			if k > 0 {
				b = append(b, ',')
			}
			if v == v {
				b = fmt.Append(b, v)
			} else {
				b = append(b, "null"...)
			}
		}
		b = append(b, ']')
	}
	return append(b, ']'), nil
}

// Neighbour is the expert of a layer that is most like another in something.
type Neighbour struct {
	Expert int     `json:"expert"` // its number; -1 for the shared ones
	Cosine float64 `json:"cosine"` // of the two; for matrices the cosine of the largest magnitude
}

// Nearest returns the expert with the largest cosine in row self, by a measure, among the numbered ones; nil if
// there is none.
func (c Cosines) Nearest(self int, numbers []int, measure func(float64) float64) (best *Neighbour) {
	for k, number := range numbers {
		if v := c[self][k]; k != self && v == v && (best == nil || measure(v) > measure(best.Cosine)) {
			best = &Neighbour{number, v}
		}
	}
	return best
}

// Value returns the cosine; nil if n is nil.
func (n *Neighbour) Value() *float64 {
	if n == nil {
		return nil
	}
	return &n.Cosine
}

// Name is a cell of the expert's number.
func (n *Neighbour) Name() text.Cell {
	if n == nil {
		return text.Plain("")
	}
	return text.Whole(n.Expert)
}

// PairSpread is the cosines of all pairs of experts of a layer.
type PairSpread struct {
	Pairs   int     `json:"pairs"`    // number of pairs that have a cosine
	Mean    float64 `json:"mean"`     // of the cosines
	MeanAbs float64 `json:"mean_abs"` // of their magnitudes; √(2/π)·NullStd for random weights
	Largest float64 `json:"largest"`  // the cosine of the largest magnitude
	A       int     `json:"a"`        // the pair of experts with that cosine
	B       int     `json:"b"`
	NullStd float64 `json:"null_std"` // standard deviation for independent random weights, whose mean is 0
}

// Pairs sums up the cosines of pairs of experts with these numbers; nil if there are none.
func (c Cosines) Pairs(numbers []int, nullStd float64) *PairSpread {
	s := &PairSpread{NullStd: nullStd}
	for i := range numbers {
		for k := i + 1; k < len(numbers); k++ {
			v := c[i][k]
			if v != v {
				continue
			}
			s.Pairs++
			s.Mean += v
			s.MeanAbs += inspect.Magnitude(v)
			if s.Pairs == 1 || inspect.Magnitude(v) > inspect.Magnitude(s.Largest) {
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

// Cells are the numbers of a row; s may be nil.
func (s *PairSpread) Cells() []text.Cell {
	if s == nil {
		return []text.Cell{text.Real(nil), text.Real(nil), text.Plain(""), text.Real(nil)}
	}
	return []text.Cell{text.Real(&s.MeanAbs), text.Real(&s.Largest), text.Plain(fmt.Sprintf("%d, %d", s.A, s.B)),
		text.Real(&s.NullStd)}
}
