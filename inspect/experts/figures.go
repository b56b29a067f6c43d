package experts

// What there is to draw of experts: a cell for each routed expert of each layer, and the pairs of a layer. Experts that
// findings name are outlined.

import (
	"fmt"
	"math"

	"dsmoe/inspect"
	"dsmoe/inspect/matrix"
	"dsmoe/text/page"
)

// draw draws a number of each routed expert.
func (r *Report) draw(m page.Heatmap, number func(l *Layer, e *Expert) *float64) page.Figure {
	c := inspect.NewCells()
	for i := range r.Layers {
		l := &r.Layers[i]
		for k := range l.Experts {
			c.SetExpert(l.Layer, l.Experts[k].Expert, number(l, &l.Experts[k]), false)
		}
	}
	return c.Experts(m, r.Findings)
}

// Figure draws how like each expert is to the one that it is most like.
func (r *Report) Figure() page.Figure {
	return r.draw(page.Heatmap{Title: "how like each expert is to the one that it is most like",
		Name: "largest cosine with another expert",
		Max:  1, NoValue: "no other to compare it with"}, func(_ *Layer, e *Expert) *float64 {
		most := e.Function.Value()
		for _, m := range present(&e.Matrices) {
			most = inspect.Larger(most, m.Nearest.Value())
		}
		if most == nil {
			return nil
		}
		return inspect.Finite(inspect.Magnitude(*most))
	})
}

// Norms draws the norm of each expert.
func (r *Report) Norms() page.Figure {
	return r.draw(page.Heatmap{Title: "norm of each expert", Name: "norm of all its weights", Max: inspect.FromZero,
		NoValue: "not finite"}, func(_ *Layer, e *Expert) *float64 {
		squares := 0.0
		for _, m := range present(&e.Matrices) {
			if m.Norm == nil {
				return nil
			}
			squares += float64(*m.Norm * *m.Norm)
		}
		return inspect.Finite(math.Sqrt(squares))
	})
}

// farZ is the z-score at the ends of the scale of NormZ.
const farZ = 8

// NormZ draws how far each expert's norms are from its layer's.
func (r *Report) NormZ() page.Figure {
	return r.draw(page.Heatmap{Title: "how far each expert's norms are from its layer's",
		Name: "robust z-score of the norm furthest off", Scale: page.Diverging, Min: -farZ, Max: farZ,
		NoValue: "none: equal norms, or not finite"}, func(_ *Layer, e *Expert) (far *float64) {
		for _, m := range present(&e.Matrices) {
			far = inspect.Larger(far, m.NormZ)
		}
		return far
	})
}

// Ranks draws the lowest stable rank of each expert's matrices.
func (r *Report) Ranks() page.Figure {
	return r.draw(page.Heatmap{Title: "stable rank of each expert", Name: "lowest stable rank, 1 for a random matrix",
		Max:     1,
		NoValue: "all zero, or not finite"}, func(l *Layer, e *Expert) (least *float64) {
		for role, m := range present(&e.Matrices) {
			if m.StableRank == nil {
				continue
			}
			if v := *m.StableRank / (*l.Of(role)).NullStableRank; least == nil || v < *least {
				least = inspect.Finite(v)
			}
		}
		return least
	})
}

// MostAlike is the largest magnitude of all cosines of a layer.
func (l *Layer) MostAlike() (most float64) {
	if l.Function != nil {
		most = inspect.Magnitude(l.Function.Largest)
	}
	for _, m := range present(&l.Matrices) {
		if m.Pairs != nil {
			most = max(most, inspect.Magnitude(m.Pairs.Largest))
		}
	}
	return most
}

// pairSide is about how many pixels wide the drawing of a layer's pairs is: as a telephone.
const pairSide = 320

// MaxSide is how many rows and columns that drawing has.
const MaxSide = 64

// Pairs draws the pairs of a layer's experts: above the diagonal the largest cosine of their matrices, below it that
// of what they compute. If there are more than MaxSide experts, several share a cell, which has the largest of their
// pairs. Pairs that a finding names are outlined.
func (l *Layer) Pairs(found []inspect.Observation) page.Figure {
	n := len(l.Experts)
	by := max(1, (n+MaxSide-1)/MaxSide)
	side := (n + by - 1) / by
	m := page.Heatmap{Title: fmt.Sprintf("pairs of experts of layer %d", l.Layer), Name: "magnitude of cosines",
		ColName: fmt.Sprintf("layer %d", l.Layer),
		Max:     1, Side: pairSide, Quiet: true, NoValue: "none", MarkName: inspect.FoundMark}
	for i := range side {
		label := fmt.Sprint(l.Experts[i*by].Expert)
		if last := min((i+1)*by, n) - 1; last > i*by {
			label += fmt.Sprintf("–%d", l.Experts[last].Expert)
		}
		m.Rows, m.Columns = append(m.Rows, label), append(m.Columns, label)
		m.Values = append(m.Values, make([]float64, side))
		for k := range side {
			m.Values[i][k] = math.NaN()
		}
	}
	index, named := map[int]int{}, map[[2]int]bool{}
	for i := range l.Experts {
		index[l.Experts[i].Expert] = i / by
	}
	for _, o := range found {
		for _, at := range o.Members {
			for _, a := range at.Experts {
				for _, b := range at.Experts {
					if at.Layer == l.Layer && a != b {
						named[[2]int{index[a], index[b]}] = true
					}
				}
			}
		}
	}
	m.Marked = func(row, col int) bool { return named[[2]int{row, col}] }
	s := l.Similarity
	for i := range n {
		for k := range n {
			cosines := []matrix.Cosines{s.Function}
			if i < k {
				cosines = []matrix.Cosines{s.Gate, s.Up, s.Down}
			}
			for _, c := range cosines {
				if i != k && c != nil && c[i][k] == c[i][k] && !(inspect.Magnitude(c[i][k]) <= m.Values[i/by][k/by]) {
					m.Values[i/by][k/by] = inspect.Magnitude(c[i][k])
				}
			}
		}
	}
	return m
}
