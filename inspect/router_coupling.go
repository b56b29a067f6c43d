package inspect

// Whether the rows of a router belong to the experts of their numbers. Training moves gate_proj of
// an expert along the tokens that its row sends to it, so that gate_proj answers more to its own row
// than to others'. Where that shows, a conversion that numbers rows and experts apart shows too.

import (
	"fmt"
	"math"
)

// The verdicts of Coupling.
const (
	coupledOwn      = "own"            // at least half of the experts fit a row, and these are their own
	coupledPermuted = "permuted"       // at least half fit a row, and two or more another one than their own
	notMeasurable   = "not measurable" // fewer fit a row: as with random weights
	notLookedAt     = "not looked at"  // there are too few experts, or one has no gate_proj
)

// fitZ is the z-score from which on an expert fits a row; looseZ is what it must not reach with
// its own row for another one to be told of.
const (
	fitZ         = 6
	looseZ       = 3
	leastCoupled = 8 // experts; among fewer nothing is looked for
)

// String says how many experts fit which rows.
func (c *Coupling) String() string {
	switch {
	case c == nil:
		return ""
	case c.Verdict == notMeasurable || c.Verdict == notLookedAt:
		return c.Verdict
	}
	return fmt.Sprintf("%s (%d fit their own row, %d another)", c.Verdict, c.Own, c.Other)
}

// coupling holds the rows of a router against gate_proj of its experts, if all are there.
//
//	q[e][f] = ‖W_e·(r_f - mean r)‖² / ‖r_f - mean r‖²
//
// is divided by its median over e, for each f, then by that over f, for each e. z is what is above
// the median of all, over a standard deviation: the larger one of MAD/0.6745 and √(2/neurons), that of
// random weights.
func (x *examination) coupling(l *layerWeights, r *routerNumbers) (*Coupling, error) {
	if len(l.experts) < leastCoupled {
		return &Coupling{Rows: []int{}, Verdict: notLookedAt}, nil
	}
	for _, w := range l.experts {
		if w == nil || measurable(w) != nil {
			return &Coupling{Rows: []int{}, Verdict: notLookedAt}, nil
		}
	}
	rows := r.centred()
	energies := make([][]float64, r.rows)
	for e, w := range l.experts {
		x.Go(func() error {
			space, p := x.spaces.get(), arithmetic()
			defer x.spaces.put(space)
			defer p.Close(nil)
			m, err := x.matrix(x.Reading, w, &space.first)
			if err != nil {
				return fmt.Errorf("router of layer %d: %w", l.layer, err)
			}
			answers := p.Product(rows, m.values, m.cols)
			for f := range r.rows {
				energies[e] = append(energies[e], dot(answers[f*m.rows:(f+1)*m.rows], answers[f*m.rows:(f+1)*m.rows]))
			}
			return nil
		})
	}
	if err := x.Wait(); err != nil {
		return nil, err
	}
	return couplingOf(relative(energies), math.Sqrt(2/float64(l.experts[0].Shape[0]))), nil
}

// centred returns the rows less their mean, of norm 1; those that are it are 0.
func (r *routerNumbers) centred() []float32 {
	mean := make([]float64, r.cols)
	for e := range r.rows {
		for c, v := range r.row(e) {
			mean[c] += float64(v) / float64(r.rows)
		}
	}
	all := make([]float32, 0, r.rows*r.cols)
	off := make([]float64, r.cols)
	for e := range r.rows {
		squares := 0.0
		for c, v := range r.row(e) {
			off[c] = float64(v) - mean[c]
			squares += float64(off[c] * off[c])
		}
		for _, v := range off {
			if squares > 0 {
				v /= math.Sqrt(squares)
			}
			all = append(all, float32(v))
		}
	}
	return all
}

// relative divides energies by the medians of their columns, then of their rows; nil if one of these is
// 0 or not finite.
func relative(energies [][]float64) [][]float64 {
	n := len(energies)
	column := make([]float64, n)
	for pass := range 2 {
		for f := range n {
			for e := range n {
				column[e] = *at(energies, e, f, pass)
			}
			median := lowerMedian(column)
			if !(median > 0) || median-median != 0 {
				return nil
			}
			for e := range n {
				*at(energies, e, f, pass) /= median
			}
		}
	}
	return energies
}

// at is the element of row e and column f, or with pass 1 of row f and column e.
func at(m [][]float64, e, f, pass int) *float64 {
	if pass == 1 {
		return &m[f][e]
	}
	return &m[e][f]
}

// couplingOf says which experts fit which rows: each the other's best, by fitZ.
func couplingOf(energies [][]float64, null float64) *Coupling {
	c := &Coupling{Rows: []int{}, Verdict: notMeasurable}
	var all []*float64
	for _, row := range energies {
		for i := range row {
			all = append(all, &row[i])
		}
	}
	if energies == nil {
		return c
	}
	spread := spreadOf(all)
	unit := max(spread.MAD/robustUnit, null)
	z := func(v float64) float64 { return (v - spread.Median) / unit }
	clear := 0 // matches that are not their own, where that one does not fit
	for e, row := range energies {
		c.Rows = append(c.Rows, -1)
		best := largest(len(row), func(f int) float64 { return row[f] })
		if best < 0 || largest(len(energies), func(i int) float64 { return energies[i][best] }) != e {
			continue
		}
		if z(row[best]) < fitZ {
			continue
		}
		switch c.Rows[e] = best; {
		case best == e:
			c.Own++
		default:
			c.Other++
			if z(row[e]) < looseZ {
				clear++
			}
		}
	}
	switch {
	case 2*(c.Own+c.Other) < len(energies):
	case clear >= 2:
		c.Verdict = coupledPermuted
	default:
		c.Verdict = coupledOwn
	}
	return c
}

// largest returns the first index of the largest of n numbers; -1 if there is none.
func largest(n int, value func(i int) float64) int {
	best := -1
	for i := range n {
		if v := value(i); v == v && (best < 0 || v > value(best)) {
			best = i
		}
	}
	return best
}
