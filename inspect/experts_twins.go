package inspect

// Experts, and matrices, that are others over again. What looks so, by hashes that do not depend
// on the order of neurons, or by cosines, is read again and compared, neuron by neuron.

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"

	"dsmoe/text"
)

// suspect is a matrix of an expert, or all three, and the hash that equal ones have.
type suspect struct {
	*mlp
	projection int // projections is the whole expert
	hash       uint64
}

// module or tensor name.
func (s *suspect) name() string {
	if s.projection == projections {
		return s.module
	}
	return s.weights[s.projection].Name
}

// suspects returns the experts of a layer and their matrices, but for those that are all zero or
// not finite.
func (l *layerMLPs) suspects(r *LayerExperts) (all []*suspect) {
	numbers := r.Experts
	if r.Shared != nil {
		numbers = append(slices.Clone(numbers), *r.Shared)
	}
	for i, m := range l.all {
		e := &numbers[i]
		sound := 0
		for p, n := range e.matrices() {
			if n != nil && n.Norm != nil && *n.Norm > 0 {
				sound++
				hash := mixed(uint64(p/downProj+1), e.facts.matrices[p].print)
				all = append(all, &suspect{mlp: m, projection: p, hash: mixed(hash, uint64(n.Shape[0]))})
			}
		}
		if sound == projections && e.facts.output != nil && e.ZeroNeurons < e.Down.Shape[1] {
			all = append(all, &suspect{mlp: m, projection: projections, hash: orderless(e.facts.neurons())})
		}
		r.release(i)
	}
	return all
}

// release forgets what of an expert was needed for the comparison of its layer alone.
func (r *LayerExperts) release(i int) {
	if i < len(r.Experts) {
		r.Experts[i].facts = nil
	} else {
		r.Shared.facts = nil
	}
}

// duplicates tells of experts that are others, in this layer or another one, and then of single
// matrices that are.
func (x *examination) duplicates(all []*suspect) (found []Observation, err error) {
	wholes := slices.DeleteFunc(slices.Clone(all), func(s *suspect) bool { return s.projection < projections })
	group := map[*mlp]int{}
	for _, same := range byHash(wholes) {
		same, moved, err := x.confirm(same)
		if err != nil {
			return nil, err
		}
		if len(same) < 2 {
			continue
		}
		for _, s := range same {
			group[s.mlp] = len(group) + 1
		}
		first := group[same[0].mlp]
		for _, s := range same {
			group[s.mlp] = first
		}
		found = append(found, tellOfSame(same, moved, "duplicate")...)
	}
	for _, same := range byHash(slices.DeleteFunc(all, func(s *suspect) bool { return s.projection == projections })) {
		same = withoutTold(same, group)
		same, moved, err := x.confirm(same)
		if err != nil {
			return nil, err
		}
		if len(same) > 1 {
			found = append(found, tellOfSame(same, moved, "duplicate-matrix")...)
		}
	}
	return found, nil
}

// byHash returns the suspects of which there is more than one, in the order of the first of each.
func byHash(all []*suspect) (groups [][]*suspect) {
	at := map[uint64]int{}
	for _, s := range all {
		i, ok := at[s.hash]
		if !ok {
			i = len(groups)
			at[s.hash], groups = i, append(groups, nil)
		}
		groups[i] = append(groups[i], s)
	}
	return slices.DeleteFunc(groups, func(g []*suspect) bool { return len(g) < 2 })
}

// withoutTold leaves of each group of equal experts one, for each of its matrices.
func withoutTold(same []*suspect, group map[*mlp]int) (left []*suspect) {
	seen := map[[2]int]bool{}
	for _, s := range same {
		key := [2]int{group[s.mlp], s.projection}
		if key[0] == 0 || !seen[key] {
			left = append(left, s)
		}
		seen[key] = true
	}
	return left
}

// confirm compares suspects with the first of them whole, and returns those that are equal, and
// whether neurons of one are in another order.
func (x *examination) confirm(same []*suspect) (equal []*suspect, moved bool, err error) {
	for i, s := range same {
		if i == 0 {
			equal = append(equal, s)
			continue
		}
		p, err := x.pair(same[0], s, nil)
		if err != nil {
			return nil, false, err
		}
		if p.equal {
			equal, moved = append(equal, s), moved || p.moved
		}
	}
	return equal, moved, x.again.Wait()
}

// pairing is how one expert, or matrix, compares with another once their neurons are matched.
type pairing struct {
	equal  bool    // every number is the other's
	moved  bool    // neurons have other places
	cosine float64 // of all numbers
}

// pair matches the neurons of two suspects, by their hashes or else, with probes, by what they
// answer to these, and compares all numbers.
func (x *examination) pair(a, b *suspect, probes []float32) (r pairing, err error) {
	left, err := x.examine(a.mlp, probes, false)
	if err != nil {
		return r, err
	}
	right, err := x.examine(b.mlp, probes, false)
	if err != nil {
		return r, err
	}
	order, ok := matchHashes(a.neurons(left.facts), b.neurons(right.facts))
	if !ok && left.facts.output != nil && right.facts.output != nil {
		order, ok = matchAnswers(left.facts, right.facts), true
	}
	if !ok {
		return r, nil
	}
	r.moved = !slices.IsSorted(order)
	err = x.compareAll(a, b, order, &r)
	return r, err
}

// compareAll compares all numbers of two suspects, neuron i of a with order[i] of b.
func (x *examination) compareAll(a, b *suspect, order []int, r *pairing) error {
	space := x.spaces.get()
	defer x.spaces.put(space)
	sums := products{equal: true}
	for p := range projections {
		q := p
		if a.projection < projections {
			if p != a.projection {
				continue
			}
			q = b.projection
		}
		m, err := x.matrix(x.again, a.weights[p], &space.first)
		if err != nil {
			return err
		}
		o, err := x.matrix(x.again, b.weights[q], &space.second)
		if err != nil {
			return err
		}
		sums.add(m, o, order, p == downProj)
	}
	r.equal = sums.equal
	r.cosine = sums.dot / (math.Sqrt(sums.squares) * math.Sqrt(sums.others))
	return nil
}

// products is how the numbers of two compare, and Σab, Σa² and Σb².
type products struct {
	equal                bool
	dot, squares, others float64
}

// add adds two matrices whose neurons are rows, or columns.
func (s *products) add(a, b *matrix, order []int, columns bool) {
	for i, v := range a.values {
		row, col := i/a.cols, i%a.cols
		if columns {
			col = order[col]
		} else {
			row = order[row]
		}
		w := b.values[row*b.cols+col]
		s.equal = s.equal && v == w
		s.dot += float64(v) * float64(w) // products of two float32 are exact
		s.squares += float64(v) * float64(v)
		s.others += float64(w) * float64(w)
	}
}

// neurons returns the hashes of the neurons of what is suspected.
func (s *suspect) neurons(x *examined) []uint64 {
	if s.projection == projections {
		return x.neurons()
	}
	return x.matrices[s.projection].neurons
}

// matchHashes returns for each of a where it is in b.
func matchHashes(a, b []uint64) (order []int, ok bool) {
	free := map[uint64][]int{}
	for i, h := range b {
		free[h] = append(free[h], i)
	}
	for _, h := range a {
		places := free[h]
		if len(places) == 0 {
			return nil, false
		}
		order, free[h] = append(order, places[0]), places[1:]
	}
	return order, len(a) == len(b)
}

// matchAnswers returns for each neuron of a one of b, none twice: the pairs whose answers to the
// probes are most alike first. It is the best matching wherever each neuron is nearer to its own
// copy than to others; whichever it is, the cosine that it gives is that of two real orders.
func matchAnswers(a, b *examined) []int {
	n := len(a.matrices[gateProj].neurons)
	p := arithmetic()
	defer p.Close(nil)
	alike := p.Product(a.answers(n), b.answers(n), downProj*probeCount)
	type match struct {
		i, k   int
		cosine float32
	}
	best := make([]match, n)
	for i := range best {
		row := alike[i*n : (i+1)*n]
		best[i] = match{i, slices.Index(row, slices.Max(row)), slices.Max(row)}
	}
	slices.SortStableFunc(best, func(x, y match) int { return cmp.Compare(y.cosine, x.cosine) })
	order, taken := make([]int, n), make([]bool, n)
	var rest []int
	for _, m := range best {
		if m.k < 0 || taken[m.k] {
			rest = append(rest, m.i)
			continue
		}
		order[m.i], taken[m.k] = m.k, true
	}
	for _, i := range rest {
		k := -1
		for c, v := range alike[i*n : (i+1)*n] {
			if !taken[c] && (k < 0 || v > alike[i*n+k]) {
				k = c
			}
		}
		order[i], taken[k] = k, true
	}
	return order
}

// answers returns what each neuron answers to the probes, of norm 1: [neurons, 2·probeCount].
func (x *examined) answers(n int) []float32 {
	all := make([]float32, 0, n*downProj*probeCount)
	for i := range n {
		first, squares := len(all), 0.0
		for _, responses := range x.responses {
			for p := range probeCount {
				v := responses[p*n+i]
				squares += float64(v) * float64(v)
				all = append(all, v)
			}
		}
		for k := range all[first:] {
			if squares > 0 {
				all[first+k] = float32(float64(all[first+k]) / math.Sqrt(squares))
			}
		}
	}
	return all
}

// tellOfSame tells of equal experts or matrices, for each layer that has one.
func tellOfSame(same []*suspect, moved bool, id string) (found []Observation) {
	slices.SortStableFunc(same, func(a, b *suspect) int { return a.layer - b.layer })
	one, of := 1.0, 0.0
	for i := 0; i < len(same); {
		n := 1
		for i+n < len(same) && same[i+n].layer == same[i].layer {
			n++
		}
		o := Observation{ID: id, Layer: same[i].layer, Experts: []int{}, Tensor: same[i].name(), Value: &one, Expected: &of}
		var others []string
		for k, s := range same {
			if k >= i && k < i+n && s.number >= 0 && !slices.Contains(o.Experts, s.number) {
				o.Experts = append(o.Experts, s.number)
			}
			if k != i {
				others = append(others, text.Quote(s.name()))
			}
		}
		slices.Sort(o.Experts)
		o.Text = "has the numbers of " + listed(others)
		if moved {
			o.Text += ", neurons in another order"
		}
		found, i = append(found, o), i+n
	}
	return found
}

// listed names the first of many.
func listed(names []string) string {
	if more := len(names) - maxChannels; more > 0 {
		return strings.Join(names[:maxChannels], ", ") + fmt.Sprintf(" and %d more", more)
	}
	return strings.Join(names, ", ")
}

// near tells of experts of a layer that are others but for noise, and of matrices that are though
// their experts are not. It does not tell of equal ones.
func (x *examination) near(l *layerMLPs, r *LayerExperts, probes []float32) (found []Observation, err error) {
	routed := l.routed()
	leader := make([]int, len(routed)) // of the expert that each is a twin of
	cosines := make([]float64, len(routed))
	equal := make([]bool, len(routed)) // to its leader
	for i := range routed {
		leader[i] = i
		for _, k := range r.likeliest(i, leader) {
			a, b := &suspect{mlp: routed[k], projection: projections}, &suspect{mlp: routed[i], projection: projections}
			p, err := x.pair(a, b, probes)
			if err != nil {
				return nil, err
			}
			if p.equal || p.cosine >= alike {
				leader[i], cosines[i], equal[i] = k, p.cosine, p.equal
				break
			}
			if c := r.Similarity.Function; c != nil && c[k][i] >= sameFunction {
				o := r.observation(&r.Experts[k], "same-function", -1, finite(c[k][i]), finite(0), "computes what expert %d does, on 8 inputs: the cosine of their outputs is %.6f, that of all numbers, neurons matched, %.2g", routed[i].number, c[k][i], p.cosine)
				o.Experts = append(o.Experts, routed[i].number)
				found = append(found, o)
			}
		}
	}
	for k := range routed {
		if o := r.nearTwins(k, leader, cosines, equal); o != nil {
			found = append(found, *o)
		}
	}
	return append(found, r.nearMatrices(leader)...), x.again.Wait()
}

// maxTrials is how many others an expert is compared with whole, so that experts that compute much
// the same with other weights do not take the square of their number.
const maxTrials = 4

// likeliest returns the leaders before expert i that it may be but for noise, the likeliest first.
func (r *LayerExperts) likeliest(i int, leader []int) (all []int) {
	for k := range i {
		if leader[k] == k && r.likeness(k, i) >= alike && sameShapes(&r.Experts[k], &r.Experts[i]) {
			all = append(all, k)
		}
	}
	slices.SortStableFunc(all, func(a, b int) int { return cmp.Compare(r.likeness(b, i), r.likeness(a, i)) })
	return all[:min(len(all), maxTrials)]
}

// likeness is the largest of the cosines of two experts; 0 if there are none.
func (r *LayerExperts) likeness(a, b int) (most float64) {
	for _, c := range []Cosines{r.Similarity.Function, r.Similarity.Gate, r.Similarity.Up, r.Similarity.Down} {
		if c != nil && magnitude(c[a][b]) > most {
			most = magnitude(c[a][b])
		}
	}
	return most
}

// sameShapes says whether two experts are whole and of one shape.
func sameShapes(a, b *ExpertNumbers) bool {
	return a.facts.output != nil && b.facts.output != nil && slices.Equal(a.Gate.Shape, b.Gate.Shape)
}

// nearTwins tells of the experts that are not quite their leader k; nil if there are none.
func (r *LayerExperts) nearTwins(k int, leader []int, cosines []float64, equal []bool) *Observation {
	o := Observation{ID: "near-duplicate", Layer: r.Layer, Experts: []int{r.Experts[k].Expert}, Tensor: r.Experts[k].Module, Expected: finite(0)}
	least := 1.0
	for i, at := range leader {
		if at == k && i != k && !equal[i] {
			o.Experts = append(o.Experts, r.Experts[i].Expert)
			least = min(least, cosines[i])
		}
	}
	if len(o.Experts) == 1 {
		return nil
	}
	o.Value = &least
	noun := "expert "
	if len(o.Experts) > 2 {
		noun = "experts "
	}
	o.Text = fmt.Sprintf("equals %s%s but for noise: with their neurons matched, the cosine of all numbers is at least %.4f", noun, text.Ranges(o.Experts[1:]), least)
	return &o
}

// nearMatrices tells of pairs of matrices that are alike though their experts are not twins, and
// are not equal.
func (r *LayerExperts) nearMatrices(leader []int) (found []Observation) {
	for p, c := range []Cosines{r.Similarity.Gate, r.Similarity.Up, r.Similarity.Down} {
		for i := range c {
			for k := range i {
				a, b := &r.Experts[k], &r.Experts[i]
				if !(magnitude(c[k][i]) >= alike) || leader[i] == leader[k] || a.facts.matrices[p].print == b.facts.matrices[p].print {
					continue
				}
				o := r.observation(b, "similar-matrix", p, finite(c[k][i]), finite(0), "its cosine with that of expert %d is %.4f; that of independent random ones has standard deviation %.2g", a.Expert, c[k][i], (*[]*MatrixSpread{r.Gate, r.Up, r.Down}[p]).Pairs.NullStd)
				o.Experts = []int{a.Expert, b.Expert}
				found = append(found, o)
			}
		}
	}
	return found
}
