package diff

// The routers of renumbered experts: a row of mlp.gate.weight, and an element of
// e_score_correction_bias, for each expert.

import (
	"slices"

	"dsmoe/model/weights"
)

// Router says how the rows of mlp.gate.weight, and the elements of e_score_correction_bias,
// stand to the experts, where either are renumbered.
type Router string

// What the router's rows can have done.
const (
	routerAlong Router = "along" // they have the same new numbers: the same function
	routerStays Router = "stays" // they have their numbers of before: tokens reach other experts
	routerAlone Router = "alone" // they have new numbers, and the experts have not: tokens reach other experts
	routerOther Router = "other" // none of these
)

// routerPairs returns the weights of a layer's router that both sides have.
func (s *search) routerPairs(layer string) (pairs []weights.Pair) {
	for _, name := range []string{layer + ".gate.weight", layer + ".gate.e_score_correction_bias"} {
		named := func(w *weights.Weight) bool { return w.Name == name }
		x, y := slices.IndexFunc(s.a.Weights, named), slices.IndexFunc(s.b.Weights, named)
		if x >= 0 && y >= 0 {
			pairs = append(pairs, weights.Pair{A: s.a.Weights[x], B: s.b.Weights[y]})
		}
	}
	return pairs
}

// router compares the rows of the layer's router, and the elements of its bias.
func (s *search) router(layer string, moved []Renumbered) (Router, error) {
	along, stays, found := true, true, false
	for _, p := range s.routerPairs(layer) {
		found = true
		for _, m := range moved {
			for _, test := range []struct {
				row  int
				fits *bool
			}{{m.B, &along}, {m.A, &stays}} {
				same, err := s.sameRow(p.A, m.A, p.B, test.row)
				if err != nil {
					return "", err
				}
				*test.fits = *test.fits && same
			}
		}
	}
	switch {
	case found && along:
		return routerAlong, nil
	case found && stays:
		return routerStays, nil
	}
	return routerOther, nil
}

// rows returns the rows of a layer's router that B holds under other numbers, if A's rows
// are B's in another order.
func (s *search) rows(layer string) (moved []Renumbered, err error) {
	var x, y []*weights.Weight
	for _, p := range s.routerPairs(layer) {
		x, y = append(x, p.A), append(y, p.B)
	}
	s.dtype = coarsest(slices.Concat(x, y)...)
	left, err := s.rowHashes(s.a, x)
	if err != nil {
		return nil, err
	}
	right, err := s.rowHashes(s.b, y)
	if err != nil || len(left) != len(right) {
		return nil, err
	}
	free := map[[2]uint64][]int{}
	for j, h := range right {
		if left[j] != h {
			free[h] = append(free[h], j)
		}
	}
	for i, h := range left {
		if right[i] == h {
			continue
		}
		if len(free[h]) == 0 {
			return nil, nil
		}
		moved, free[h] = append(moved, Renumbered{i, free[h][0]}), free[h][1:]
	}
	if how, err := s.router(layer, moved); err != nil || how != routerAlong {
		return nil, err
	}
	return moved, nil
}

// rowHashes returns hashes of the rows of a router's weights, the parts of one row together;
// nil if they are not as many rows each.
func (s *search) rowHashes(side Side, router []*weights.Weight) ([][2]uint64, error) {
	var rows [][2]uint64
	for k, w := range router {
		if len(w.Shape) == 0 || w.Shape[0] == 0 || !decodes(w) || k > 0 && w.Shape[0] != len(rows) {
			return nil, nil
		}
		if k == 0 {
			rows = make([][2]uint64, w.Shape[0])
		}
		n := w.Len() / len(rows)
		for i := range rows {
			values, err := part(side, w, int64(i*n), min(n, sampled))
			if err != nil {
				return nil, err
			}
			rows[i][k] = s.hash(w, values)
		}
	}
	return rows, nil
}

// sameRow says whether row i of x and row j of y are the same, or the other's rounding.
func (s *search) sameRow(x *weights.Weight, i int, y *weights.Weight, j int) (bool, error) {
	if len(x.Shape) == 0 || len(y.Shape) == 0 || x.Shape[0] <= i || y.Shape[0] <= j ||
		x.Len()/x.Shape[0] != y.Len()/y.Shape[0] || !decodes(x) || !decodes(y) {
		return false, nil
	}
	n := x.Len() / x.Shape[0]
	p, err := part(s.a, x, int64(i*n), n)
	if err != nil {
		return false, err
	}
	q, err := part(s.b, y, int64(j*n), n)
	if err != nil {
		return false, err
	}
	var m Measures
	m.add(p, q, 0, x.NumberType(), y.NumberType())
	return m.different == m.rounded, nil
}
