package experts

import (
	"cmp"
	"fmt"
	"math"
	"slices"

	"dsmoe/inspect"
	"dsmoe/inspect/matrix"
	"dsmoe/model/table"
	"dsmoe/text"
)

// Experts, and matrices, that are others over again. Those that look so, by hashes that do not depend on the order of
// neurons, or by cosines, are read again and compared, neuron by neuron.

// suspect is a matrix of an expert, or all three, and the hash that equal ones have.
type suspect struct {
	*mlp
	role table.Role // "" for the whole expert
	hash uint64
}

// name returns the name of the expert or the matrix.
func (s *suspect) name() string {
	if s.role == "" {
		return s.module
	}
	return (*s.weights.Of(s.role)).Name
}

// suspects returns the experts of a layer and their matrices, except those that are all zero or not finite. It
// drops what the layer's comparisons alone needed.
func (l *layerMLPs) suspects(r *Layer) (all []*suspect) {
	for i, e := range r.all() {
		m, usable := l.all[i], 0
		for role, n := range present(&e.Matrices) {
			if n.Norm == nil || *n.Norm == 0 {
				continue
			}
			usable++
			orientation := uint64(1) // of neurons: rows, or columns
			if role == table.DownProj {
				orientation = 2
			}
			hash := matrix.Mix(orientation, e.facts.matrices.Of(role).print)
			all = append(all, &suspect{m, role, matrix.Mix(hash, uint64(n.Shape[0]))})
		}
		if usable == len(roles) && e.facts.whole && e.ZeroNeurons < e.Down.Shape[1] {
			all = append(all, &suspect{m, "", matrix.Orderless(e.facts.hashes())})
		}
		e.facts = nil
	}
	return all
}

// duplicates finds experts that are others, in their layer or another one, and then single matrices that are.
func duplicates(x *matrix.Reader, all []*suspect) (found []inspect.Observation, err error) {
	isWhole := func(s *suspect) bool { return s.role == "" }
	group := map[*mlp]int{} // of equal experts
	for _, same := range byHash(all, isWhole) {
		equal, moved, err := confirm(x, same)
		if err != nil {
			return nil, err
		}
		if len(equal) < 2 {
			continue
		}
		for _, s := range equal {
			group[s.mlp] = len(found) + 1
		}
		found = append(found, describe(equal, moved, "duplicate"))
	}
	for _, same := range byHash(all, func(s *suspect) bool { return !isWhole(s) }) {
		type matrixOf struct {
			group int
			role  table.Role
		}
		seen := map[matrixOf]bool{} // of a group of equal experts one is compared
		same = slices.DeleteFunc(same, func(s *suspect) bool {
			key := matrixOf{group[s.mlp], s.role}
			repeats := key.group > 0 && seen[key]
			seen[key] = true
			return repeats
		})
		equal, moved, err := confirm(x, same)
		if err != nil {
			return nil, err
		}
		if len(equal) > 1 {
			found = append(found, describe(equal, moved, "duplicate-matrix"))
		}
	}
	return found, nil
}

// byHash returns the suspects with equal hashes, of one kind, in the order of the first of each hash.
func byHash(all []*suspect, kind func(*suspect) bool) (groups [][]*suspect) {
	all = slices.DeleteFunc(slices.Clone(all), func(s *suspect) bool { return !kind(s) })
	groups = inspect.GroupBy(all, func(s *suspect) uint64 { return s.hash })
	return slices.DeleteFunc(groups, func(g []*suspect) bool { return len(g) < 2 })
}

// confirm compares suspects with the first of them whole, and returns those that are equal, and whether neurons of
// one are in another order.
func confirm(x *matrix.Reader, same []*suspect) (equal []*suspect, moved bool, err error) {
	equal = append(equal, same[0])
	for _, s := range same[1:] {
		p, err := compare(x, same[0], s, nil)
		if err != nil {
			return nil, false, err
		}
		if p.equal {
			equal, moved = append(equal, s), moved || p.moved
		}
	}
	return equal, moved, x.Again.Wait()
}

// comparison is how one expert, or matrix, compares with another once their neurons are matched.
type comparison struct {
	equal  bool    // every number is the other's
	moved  bool    // neurons have other places
	cosine float64 // of all numbers
}

// compare matches the neurons of two suspects, by their hashes or else, with probes, by their responses, and
// compares all numbers.
func compare(x *matrix.Reader, a, b *suspect, probes []float32) (r comparison, err error) {
	left, err := read(x, a.mlp, probes, false)
	if err != nil {
		return r, err
	}
	right, err := read(x, b.mlp, probes, false)
	if err != nil {
		return r, err
	}
	order, ok := matchHashes(a.neurons(left.facts), b.neurons(right.facts))
	if !ok && left.facts.whole && right.facts.whole {
		order, ok = matchResponses(left.facts, right.facts), true
	}
	if !ok {
		return r, nil
	}
	space := x.Spaces.Get().(*matrix.Space)
	defer x.Spaces.Put(space)
	r.equal, r.moved = true, !slices.IsSorted(order)
	var dot, squares, others float64 // Σab, Σa², Σb²
	for _, role := range roles {
		if a.role != "" && a.role != role {
			continue
		}
		m, err := x.Matrix(x.Again, *a.weights.Of(role), &space.First)
		if err != nil {
			return r, err
		}
		o, err := x.Matrix(x.Again, *b.weights.Of(role), &space.Second)
		if err != nil {
			return r, err
		}
		for i, v := range m.Values {
			row, col := i/m.Cols, i%m.Cols
			if role == table.DownProj { // neurons are columns
				col = order[col]
			} else {
				row = order[row]
			}
			w := o.Values[row*o.Cols+col]
			r.equal = r.equal && v == w
			dot += float64(v) * float64(w) // products of two float32 are exact
			squares += float64(v) * float64(v)
			others += float64(w) * float64(w)
		}
	}
	r.cosine = dot / (math.Sqrt(squares) * math.Sqrt(others))
	return r, nil
}

// neurons returns the hashes of the neurons of the suspected matrix or expert.
func (s *suspect) neurons(x *facts) []uint64 {
	if s.role == "" {
		return x.hashes()
	}
	return x.matrices.Of(s.role).neurons
}

// matchHashes returns for each neuron of a where it is in b.
func matchHashes(a, b []uint64) (order []int, ok bool) {
	unmatched := map[uint64][]int{} // neurons of b by their hashes
	for i, h := range b {
		unmatched[h] = append(unmatched[h], i)
	}
	for _, h := range a {
		places := unmatched[h]
		if len(places) == 0 {
			return nil, false
		}
		order, unmatched[h] = append(order, places[0]), places[1:]
	}
	return order, len(a) == len(b)
}

// matchResponses returns for each neuron of a one of b, none twice: the pairs whose responses to the probes are most
// alike first. It is the best matching wherever each neuron is nearer to its own copy than to others; in any case
// the cosine that it gives is that of two real orders.
func matchResponses(a, b *facts) []int {
	n := len(a.matrices.Gate.neurons)
	p := matrix.Arithmetic()
	defer p.Close(nil)
	alike := p.Product(a.normedResponses(n), b.normedResponses(n), 2*probeCount)
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
	var unmatched []int
	for _, m := range best {
		if m.k < 0 || taken[m.k] {
			unmatched = append(unmatched, m.i)
			continue
		}
		order[m.i], taken[m.k] = m.k, true
	}
	for _, i := range unmatched {
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

// normedResponses returns the responses of each neuron to the probes, of norm 1: [neurons, 2·probeCount].
func (x *facts) normedResponses(n int) []float32 {
	all := make([]float32, 0, n*2*probeCount)
	for i := range n {
		first, squares := len(all), 0.0
		for _, responses := range [][]float32{x.responses.Gate, x.responses.Up} {
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

// describe returns the observation about equal experts or matrices, with a member for each layer that has one.
func describe(same []*suspect, moved bool, id string) inspect.Observation {
	slices.SortStableFunc(same, func(a, b *suspect) int { return a.layer - b.layer })
	o := inspect.Observation{ID: id, Value: inspect.Finite(1), Expected: inspect.Finite(0)}
	var others []string
	for i, s := range same {
		if i == 0 || s.layer != same[i-1].layer {
			o.Members = append(o.Members, inspect.Member{Layer: s.layer, Experts: []int{}, Tensor: s.name(), Value: o.Value})
		}
		at := &o.Members[len(o.Members)-1]
		if s.number >= 0 && !slices.Contains(at.Experts, s.number) {
			at.Experts = append(at.Experts, s.number)
			slices.Sort(at.Experts)
		}
		if i > 0 {
			others = append(others, text.Quote(s.name()))
		}
	}
	o.Layer, o.Experts, o.Tensor = o.Members[0].Layer, o.Members[0].Experts, o.Members[0].Tensor
	o.Text = "has the numbers of " + inspect.List(others)
	if moved {
		o.Text += ", neurons in another order"
	}
	return o
}

// twin is the first expert that another one equals, maybe but for noise: its leader.
type twin struct {
	leader int // index; the expert's own if it equals no other
	cosine float64
	equal  bool
}

// nearTwins finds experts of a layer that are others but for noise, and matrices that are though their experts are
// not. It leaves out equal ones.
func nearTwins(x *matrix.Reader, l *layerMLPs, r *Layer, probes []float32, layers int) (found []inspect.Observation,
	err error) {
	routed := l.routed()
	twins := make([]twin, len(routed))
	for i := range routed {
		twins[i] = twin{leader: i}
		var likely []int // earlier leaders that expert i may equal but for noise, the likeliest first
		for k := range i {
			a, b := &r.Experts[i], &r.Experts[k]
			sameShape := a.facts.whole && b.facts.whole && slices.Equal(a.Gate.Shape, b.Gate.Shape)
			if twins[k].leader == k && sameShape && r.Similarity.likeness(k, i) >= alike {
				likely = append(likely, k)
			}
		}
		slices.SortStableFunc(likely, func(a, b int) int {
			return cmp.Compare(r.Similarity.likeness(b, i), r.Similarity.likeness(a, i))
		})
		for _, k := range likely[:min(len(likely), maxTrials)] {
			p, err := compare(x, &suspect{mlp: routed[k]}, &suspect{mlp: routed[i]}, probes)
			if err != nil {
				return nil, err
			}
			if p.equal || p.cosine >= alike {
				twins[i] = twin{k, p.cosine, p.equal}
				break
			}
			if c := r.Similarity.Function; c != nil && c[k][i] >= sameFunction {
				o := observation(r.Layer, &r.Experts[k], "same-function", "", inspect.Finite(c[k][i]), inspect.Finite(0),
					"computes what expert %d does, on 8 inputs: the cosine of their outputs is %.6f, "+
						"that of all numbers, neurons matched, %.2g",
					routed[i].number, c[k][i], p.cosine)
				o.Experts = append(o.Experts, routed[i].number)
				found = append(found, o)
			}
		}
	}
	for k := range routed {
		found = append(found, r.twinsOf(k, twins)...)
	}
	return append(found, r.nearMatrices(twins, layers)...), x.Again.Wait()
}

// maxTrials is how many others an expert is compared with whole, so that experts that compute much the same with
// other weights do not take the square of their number.
const maxTrials = 4

// likeness is the largest magnitude of the cosines of two experts; 0 if they have none.
func (s *Similarity) likeness(a, b int) (most float64) {
	for _, c := range []matrix.Cosines{s.Function, s.Gate, s.Up, s.Down} {
		if c != nil && inspect.Magnitude(c[a][b]) > most {
			most = inspect.Magnitude(c[a][b])
		}
	}
	return most
}

// twinsOf returns the observation about the experts that are not quite their leader k, if there are any.
func (r *Layer) twinsOf(k int, twins []twin) []inspect.Observation {
	o := inspect.Observation{ID: "near-duplicate", Layer: r.Layer, Experts: []int{r.Experts[k].Expert},
		Tensor: r.Experts[k].Module, Expected: inspect.Finite(0)}
	least := 1.0
	for i, m := range twins {
		if m.leader == k && i != k && !m.equal {
			o.Experts = append(o.Experts, r.Experts[i].Expert)
			least = min(least, m.cosine)
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
	o.Text = fmt.Sprintf("equals %s%s but for noise: "+
		"with their neurons matched, the cosine of all numbers is at least %.4f",
		noun, text.Ranges(o.Experts[1:]), least)
	return []inspect.Observation{o}
}

// halfAlike: two matrices are alike if they share at least so much of what sets each apart from the layer. The mean of
// two experts has a half of each.
const halfAlike = 0.5

// nearMatrices finds pairs of matrices that are alike though their experts are not twins, and are not equal: by their
// cosine as such, or beside the cosines of the layer, in a model of so many layers.
func (r *Layer) nearMatrices(twins []twin, layers int) (found []inspect.Observation) {
	for role, c := range r.Similarity.All() {
		var all []float64
		for i := range c {
			all = append(all, c[i][:i]...)
		}
		peers := inspect.TailedPeersOf(all, layers*len(roles)*len(all))
		for i := range c {
			for k := range i {
				a, b := &r.Experts[k], &r.Experts[i]
				near := inspect.Magnitude(c[k][i]) >= alike ||
					peers != nil && c[k][i] > peers.Median && peers.Odd(c[k][i], halfAlike*(1-peers.Median))
				if !near || twins[i].leader == twins[k].leader ||
					a.facts.matrices.Of(role).print == b.facts.matrices.Of(role).print {
					continue
				}
				usual := 0.0
				if peers != nil {
					usual = peers.Median
				}
				o := observation(r.Layer, b, "similar", role, inspect.Finite(c[k][i]), &usual,
					"its cosine with that of expert %d is %.4f, the layer's median %.2g; that of independent random ones has "+
						"standard deviation %.2g", a.Expert, c[k][i], usual, (*r.Of(role)).Pairs.NullStd)
				o.Experts = []int{a.Expert, b.Expert}
				found = append(found, o)
			}
		}
	}
	return found
}

// sharedCopies finds routed experts whose neurons are all in the shared experts, and those that compute much the same,
// in a model of so many layers.
func (r *Layer) sharedCopies(layers int) (found []inspect.Observation) {
	if r.Shared == nil || !r.Shared.facts.whole {
		return nil
	}
	neurons := map[uint64]bool{}
	for _, h := range r.Shared.facts.hashes() {
		neurons[h] = true
	}
	// R. Fisher's z, the hyperbolic arctangent, of the cosine between the function of an expert and of the shared ones is
	// nearly normal
	var angles []float64
	for i := range r.Experts {
		angle := math.NaN()
		if c := r.Similarity.Function; c != nil {
			angle = math.Atanh(c[len(c)-1][i])
		}
		angles = append(angles, angle)
	}
	peers := inspect.PeersOf(angles, layers*len(angles))
	for i := range r.Experts {
		e := &r.Experts[i]
		switch whole := e.facts.whole && e.ZeroNeurons < e.Down.Shape[1]; {
		case whole && !slices.ContainsFunc(e.facts.hashes(), func(h uint64) bool { return !neurons[h] }):
			if slices.Equal(e.Gate.Shape, r.Shared.Gate.Shape) {
				continue // a duplicate
			}
			found = append(found, observation(r.Layer, e, "duplicate", "", inspect.Finite(1), inspect.Finite(0),
				"all its neurons are in %s", text.Quote(r.Shared.Module)))
		case peers != nil && angles[i] > peers.Median && peers.Odd(angles[i], 0) && math.Tanh(angles[i]) >= halfAlike:
			c, usual := math.Tanh(angles[i]), math.Tanh(peers.Median)
			found = append(found, observation(r.Layer, e, "similar", "", &c, &usual,
				"computes much of what %s do, on 8 inputs: the cosine of their outputs is %.3f, the layer's median %.2g",
				text.Quote(r.Shared.Module), c, usual))
		}
	}
	return found
}
