package experts

// Likeness between the experts of different layers, and between routed and shared ones.

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"slices"

	"dsmoe/inspect"
	"dsmoe/inspect/matrix"
	"dsmoe/model/tensor"
	"dsmoe/text"
	"dsmoe/text/page"
)

// Between is which experts of different layers are most alike.
type Between struct {
	Pairs []layerPair `json:"pairs"` // of layers, ascending
	// Chance is what the largest of as many cosines of unlike functions is about, for the layers with most experts:
	// s·√(2·ln N²), s² = 1/(8·hidden_size), and 1/2048 more where a function is summed up in 2048 numbers.
	Chance float64       `json:"chance"`
	Shared []sharedMatch `json:"shared"` // layers with routed and shared experts, ascending
}

// layerPair is the routed experts of two layers whose functions are most alike. A function is what an expert makes of 8
// inputs of ±1, the same for all layers: the order of neurons does not change it.
type layerPair struct {
	Layers   [2]int  `json:"layers"`
	Experts  [2]int  `json:"experts"`  // one of each layer
	Function float64 `json:"function"` // cosine of their functions
	// Weights is the cosine of all their numbers, once the neurons are matched by their responses; null if their shapes
	// differ or numbers are not finite.
	Weights *float64 `json:"weights"`
	Equal   bool     `json:"equal"` // every number is the other's
}

// sharedMatch is the routed expert of a layer whose function is most like that of the layer's shared experts.
type sharedMatch struct {
	Layer    int     `json:"layer"`
	Expert   int     `json:"expert"`
	Function float64 `json:"function"` // cosine of their functions
}

// sketchSize is how many numbers of a function are kept.
const sketchSize = 2048

// sketched is the functions of a layer's experts.
type sketched struct {
	layer   int
	routed  []*mlp
	numbers []float32 // [routed, size], each of norm 1
	shared  []float32 // [size]; nil without shared experts
}

// CompareLayers reads the selected experts once, and of each two layers the two experts that are most alike twice more:
// of DeepSeek-V3's 58 layers 14,848 experts, then 1,653 pairs. Memory is 8 kB for each expert, 120 MB for these, beside
// two matrices and the products of all neurons of two experts for each processor. The numbers do not depend on the
// number of workers.
func CompareLayers(ctx context.Context, w inspect.Weights, s inspect.Selection) (*Between, error) {
	layers, _, err := selected(&w, s)
	if err != nil {
		return nil, err
	}
	x := matrix.NewReader(ctx, w)
	for _, l := range layers {
		x.Expect(l.bytes())
	}
	var all []*sketched
	for _, l := range layers {
		k, err := sketch(x, l)
		if err != nil {
			return nil, err
		}
		all = append(all, k)
	}
	r := &Between{Pairs: []layerPair{}, Shared: []sharedMatch{}}
	for i, a := range all {
		if len(a.routed) == 0 {
			continue
		}
		if len(a.shared) == a.size() {
			k, _, cosine := largest(a.numbers, a.shared, a.size())
			r.Shared = append(r.Shared, sharedMatch{a.layer, a.routed[k].number, cosine})
		}
		for _, b := range all[i+1:] {
			if len(b.routed) > 0 && a.size() == b.size() {
				k, n, cosine := largest(a.numbers, b.numbers, a.size())
				r.Pairs = append(r.Pairs, layerPair{Layers: [2]int{a.layer, b.layer},
					Experts: [2]int{a.routed[k].number, b.routed[n].number}, Function: cosine})
				hidden := float64(a.routed[0].weights.Gate.Shape[1])
				variance := 1 / (probeCount * hidden)
				if probeCount*hidden > sketchSize {
					variance += 1.0 / sketchSize
				}
				pairs := float64(len(a.routed)) * float64(len(b.routed))
				r.Chance = max(r.Chance, min(1, math.Sqrt(variance*2*math.Log(pairs))))
			}
		}
	}
	return r, r.match(x, all)
}

// sketch reads the whole experts of a layer.
func sketch(x *matrix.Reader, l *layerMLPs) (*sketched, error) {
	functions := make([][]float32, len(l.all))
	for i, m := range l.all {
		x.Go(func() error {
			if !m.isWhole() {
				return nil
			}
			space, p := x.Spaces.Get().(*matrix.Space), matrix.Arithmetic()
			defer x.Spaces.Put(space)
			defer p.Close(nil)
			var f facts
			probes := probesOf(m.weights.Gate.Shape[1], nil)
			for role, w := range present(&m.weights) {
				values, err := x.Stored(x.Reading, w, p, space)
				if err != nil {
					return err
				}
				f.respond(p, role, values, probes)
			}
			functions[i] = summedUp(f.output)
			return nil
		})
	}
	if err := x.Wait(); err != nil {
		return nil, err
	}
	k := &sketched{layer: l.layer}
	for i, m := range l.all {
		switch f := functions[i]; {
		case f == nil:
		case m.number < 0:
			k.shared = f
		case len(k.routed) == 0 || len(f) == len(k.numbers)/len(k.routed):
			k.routed, k.numbers = append(k.routed, m), append(k.numbers, f...)
		}
	}
	return k, nil
}

// summedUp returns a function as at most sketchSize numbers of norm 1: numbers are added up, each times ±1, which keeps
// cosines but for 1/√sketchSize. It is nil if the function is zero or not finite.
func summedUp(output []float32) []float32 {
	sums := make([]float64, min(len(output), sketchSize))
	for i, v := range output {
		if len(output) > sketchSize {
			v *= matrix.Sign(probeCount, i)
		}
		sums[i%len(sums)] += float64(v)
	}
	squares := 0.0
	for _, v := range sums {
		squares += float64(v * v)
	}
	if !(squares > 0) || !tensor.IsFinite(squares) {
		return nil
	}
	kept := make([]float32, len(sums))
	for i, v := range sums {
		kept[i] = float32(v / math.Sqrt(squares))
	}
	return kept
}

// size is the numbers of a function.
func (k *sketched) size() int { return len(k.numbers) / max(1, len(k.routed)) }

// largest returns the rows of a and b whose product is largest in magnitude, and the product.
func largest(a, b []float32, size int) (i, k int, product float64) {
	p := matrix.Arithmetic()
	defer p.Close(nil)
	columns := len(b) / size
	for at, v := range p.Product(a, b, size) {
		if inspect.Magnitude(float64(v)) > inspect.Magnitude(product) {
			i, k, product = at/columns, at%columns, float64(v)
		}
	}
	return i, k, product
}

// match compares the experts of each pair of layers whole.
func (r *Between) match(x *matrix.Reader, all []*sketched) error {
	byPlace := map[[2]int]*mlp{}
	for _, k := range all {
		for _, m := range k.routed {
			byPlace[[2]int{k.layer, m.number}] = m
		}
	}
	for i := range r.Pairs {
		pair := &r.Pairs[i]
		a, b := byPlace[[2]int{pair.Layers[0], pair.Experts[0]}], byPlace[[2]int{pair.Layers[1], pair.Experts[1]}]
		if a.weights.Gate.Shape[0] != b.weights.Gate.Shape[0] {
			continue
		}
		x.Again.Go(func() error {
			c, err := compare(x, &suspect{mlp: a}, &suspect{mlp: b}, probesOf(a.weights.Gate.Shape[1], nil))
			pair.Weights, pair.Equal = inspect.Finite(c.cosine), c.equal
			return err
		})
	}
	return x.Again.Wait()
}

// Sheet is a row for each of the n pairs of layers whose experts are most alike, these first.
func (r *Between) Sheet(n int) *text.Sheet {
	s := text.NewSheet(">layer", ">expert", ">other_layer", ">other_expert", ">function", ">weights", "equal")
	pairs := slices.SortedStableFunc(slices.Values(r.Pairs), func(a, b layerPair) int {
		return cmp.Compare(inspect.Magnitude(b.Function), inspect.Magnitude(a.Function))
	})
	for _, p := range pairs[:min(n, len(pairs))] {
		s.Row(p.Layers[0], p.Experts[0], p.Layers[1], p.Experts[1], p.Function, p.Weights, fmt.Sprint(p.Equal))
	}
	return s
}

// SharedSheet is a row for each layer with shared experts.
func (r *Between) SharedSheet() *text.Sheet {
	s := text.NewSheet(">layer", ">expert", ">function")
	for _, m := range r.Shared {
		s.Row(m.Layer, m.Expert, m.Function)
	}
	return s
}

// mostTips is how many pairs of layers have tips in the drawing.
const mostTips = 300

// Figure draws layer × layer: above the diagonal the largest cosine of functions, below it that of the same experts'
// weights; nil if there are no two layers.
func (r *Between) Figure() page.Figure {
	c := inspect.NewCells()
	for _, p := range r.Pairs {
		a, b := inspect.LayerLabel(p.Layers[0]), inspect.LayerLabel(p.Layers[1])
		function := inspect.Magnitude(p.Function)
		c.Raise(a, b, &function)
		c.AddColumn(a)
		c.Raise(b, b, nil)
		if p.Weights != nil {
			weights := inspect.Magnitude(*p.Weights)
			c.Raise(b, a, &weights)
		}
	}
	return c.Heatmap(page.Heatmap{Title: "most alike experts of each two layers", Name: "magnitude of cosines",
		RowName: "layer", ColName: "layer", Max: 1, NoValue: "none", Quiet: len(r.Pairs) > mostTips})
}
