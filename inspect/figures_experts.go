package inspect

// What there is to draw of experts: a cell for each routed expert of each layer. Experts that
// findings name are outlined.

import (
	"fmt"
	"math"

	"dsmoe/text/page"
)

// foundMark is what the legends of these drawings say of outlined cells.
const foundMark = "named by a finding"

// fromZero ends a scale that begins at 0, wherever the numbers end.
const fromZero = 1e-30

// experts draws a number of each routed expert.
func (r *ExpertsReport) experts(m page.Heatmap, of func(l *LayerExperts, e *ExpertNumbers) *float64) page.Figure {
	c := newCells()
	for i := range r.Layers {
		l := &r.Layers[i]
		for k := range l.Experts {
			c.set(layerLabel(l.Layer), expertLabel(l.Experts[k].Expert), of(l, &l.Experts[k]))
		}
	}
	c.markFound(r.Findings)
	m.RowName, m.ColName, m.MarkName = "layer", "expert", foundMark
	return c.heatmap(m)
}

// markFound marks the experts that findings name.
func (c *cells) markFound(found []Observation) {
	for _, o := range found {
		for _, e := range o.Experts {
			c.mark(layerLabel(o.Layer), expertLabel(e))
		}
	}
}

// Figure draws how like each expert is to the one that it is most like.
func (r *ExpertsReport) Figure() page.Figure { return r.likeness() }

func (r *ExpertsReport) likeness() page.Figure {
	return r.experts(page.Heatmap{Title: "how like each expert is to the one that it is most like", Name: "largest cosine with another expert",
		Min: 0, Max: 1, NoValue: "no other to compare it with"}, func(_ *LayerExperts, e *ExpertNumbers) *float64 {
		most := e.Function.of()
		for _, m := range e.matrices() {
			if m != nil {
				most = larger(most, m.Nearest.of())
			}
		}
		if most == nil {
			return nil
		}
		return finite(magnitude(*most))
	})
}

// of is the cosine; nil if there is none.
func (n *Neighbour) of() *float64 {
	if n == nil {
		return nil
	}
	return &n.Cosine
}

func (r *ExpertsReport) norms() page.Figure {
	return r.experts(page.Heatmap{Title: "norm of each expert", Name: "norm of all its weights", Max: fromZero, NoValue: "not finite"}, func(_ *LayerExperts, e *ExpertNumbers) *float64 {
		squares := 0.0
		for _, m := range e.matrices() {
			if m == nil {
				continue
			}
			if m.Norm == nil {
				return nil
			}
			squares += float64(*m.Norm * *m.Norm)
		}
		return finite(math.Sqrt(squares))
	})
}

func (r *ExpertsReport) normZ() page.Figure {
	return r.experts(page.Heatmap{Title: "how far each expert's norms are from its layer's", Name: "robust z-score of the norm furthest off",
		Scale: page.Diverging, Min: -farZ, Max: farZ, NoValue: "none: equal norms, or not finite"}, func(_ *LayerExperts, e *ExpertNumbers) (far *float64) {
		for _, m := range e.matrices() {
			if m != nil {
				far = larger(far, m.NormZ)
			}
		}
		return far
	})
}

func (r *ExpertsReport) ranks() page.Figure {
	return r.experts(page.Heatmap{Title: "stable rank of each expert", Name: "lowest stable rank, 1 for a random matrix", Max: 1,
		NoValue: "all zero, or not finite"}, func(l *LayerExperts, e *ExpertNumbers) (least *float64) {
		for p, m := range e.matrices() {
			if m == nil || m.StableRank == nil {
				continue
			}
			if v := *m.StableRank / []*MatrixSpread{l.Gate, l.Up, l.Down}[p].NullStableRank; least == nil || v < *least {
				least = finite(v)
			}
		}
		return least
	})
}

// Figure draws how far each expert is from its original.
func (r *ExpertsErrorReport) Figure() page.Figure {
	c := newCells()
	for _, l := range r.Layers {
		for i := range l.Experts {
			e := &l.Experts[i]
			var most *float64
			for _, m := range e.matrices() {
				if m != nil {
					most = larger(most, m.RelativeRMS)
				}
			}
			c.set(layerLabel(l.Layer), expertLabel(e.Expert), most)
		}
	}
	c.markFound(r.Findings)
	return c.heatmap(page.Heatmap{Title: "how far each expert is from its original", Name: "largest relative RMS error of its matrices",
		RowName: "layer", ColName: "expert", MarkName: foundMark, NoValue: "not finite"})
}

// pairSide is about how wide it is: as a telephone.
const pairSide = 320

// maxSide is how many rows and columns the drawing of a layer's pairs has.
const maxSide = 64

// pairs draws the pairs of a layer's experts: above the diagonal the largest cosine of their
// matrices, below it that of what they compute. Of more than maxSide experts, several share a cell, which has
// the largest of their pairs. Pairs that a finding names are outlined.
func (l *LayerExperts) pairs(found []Observation) page.Figure {
	n := len(l.Experts)
	by := max(1, (n+maxSide-1)/maxSide)
	side := (n + by - 1) / by
	m := page.Heatmap{Title: fmt.Sprintf("pairs of experts of layer %d", l.Layer), Name: "magnitude of cosines", ColName: fmt.Sprintf("layer %d", l.Layer),
		Max: 1, Side: pairSide, Quiet: true, NoValue: "none", MarkName: foundMark}
	for i := range side {
		label := expertLabel(l.Experts[i*by].Expert)
		if last := min((i+1)*by, n) - 1; last > i*by {
			label += "–" + expertLabel(l.Experts[last].Expert)
		}
		m.Rows, m.Columns = append(m.Rows, label), append(m.Columns, label)
		m.Values = append(m.Values, make([]float64, side))
		for k := range side {
			m.Values[i][k] = math.NaN()
		}
	}
	named := l.together(found, by)
	m.Marked = func(row, col int) bool { return named[[2]int{row, col}] }
	for i := range n {
		for k := range n {
			if v := l.likenessOf(i, k); i != k && !(v <= m.Values[i/by][k/by]) && v == v {
				m.Values[i/by][k/by] = v
			}
		}
	}
	return m
}

// together returns the cells of by experts each with a pair that a finding names together.
func (l *LayerExperts) together(found []Observation, by int) map[[2]int]bool {
	place := map[int]int{}
	for i := range l.Experts {
		place[l.Experts[i].Expert] = i
	}
	pairs := map[[2]int]bool{}
	for _, o := range found {
		for _, a := range o.Experts {
			for _, b := range o.Experts {
				if o.Layer == l.Layer && a != b {
					pairs[[2]int{place[a] / by, place[b] / by}] = true
				}
			}
		}
	}
	return pairs
}

// likenessOf is the magnitude of the cosine of what two experts compute, or with the first before
// the second the largest of their matrices'; NaN if there is none.
func (l *LayerExperts) likenessOf(i, k int) float64 {
	s := l.Similarity
	of := []Cosines{s.Function}
	if i < k {
		of = []Cosines{s.Gate, s.Up, s.Down}
	}
	most := math.NaN()
	for _, c := range of {
		if c != nil && !(magnitude(c[i][k]) <= most) && c[i][k] == c[i][k] {
			most = magnitude(c[i][k])
		}
	}
	return most
}
