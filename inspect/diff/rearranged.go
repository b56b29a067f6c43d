package diff

// The same weights in other places: experts under other numbers, gate_proj where the other
// side has up_proj, rows of a router under other numbers. What may have moved is found by
// hashes of the first values, and then compared whole.

import (
	"context"
	"encoding/binary"
	"fmt"
	"hash/maphash"
	"math"
	"slices"
	"strconv"
	"strings"

	"dsmoe/inspect"
	"dsmoe/model/table"
	"dsmoe/model/tensor"
	"dsmoe/model/weights"
	"dsmoe/text"
)

// Rearranged is weights of a layer that A and B hold in different places, each the other's
// value or its rounding.
type Rearranged struct {
	Module  string       `json:"module"`  // of the MLPs: "model.layers.3.mlp"
	Experts []Renumbered `json:"experts"` // whose number is another, by that of A
	// how its rows stand to renumbered experts; "" if neither are renumbered
	Router    Router       `json:"router,omitempty"`
	Regrouped bool         `json:"regrouped"` // experts of one of the n_group groups of A are of several in B
	Exchanged []string     `json:"exchanged"` // MLPs, named as in A, whose gate_proj is B's up_proj and the reverse
	Rows      []Renumbered `json:"rows"`      // of the router, whose number is another though no expert's is
}

// Renumbered is a routed expert, or its row of the router.
type Renumbered struct {
	A int `json:"a"` // its number in A
	B int `json:"b"` // its number in B
}

// mlp is the three projections of a DeepseekMLP on one side.
type mlp struct {
	module         string // "model.layers.3.mlp.experts.17"
	gate, up, down *weights.Weight
}

// match is an MLP of A and the MLP of B that has its weights.
type match struct {
	a, b      *mlp
	exchanged bool
}

// rearranged looks for the MLPs that differ elsewhere in their layer.
func rearranged(ctx context.Context, a, b Side, findings []Finding) ([]Rearranged, error) {
	all, at := []Rearranged{}, map[string]table.Place{}
	for _, w := range slices.Concat(a.Weights, b.Weights) {
		at[w.Name] = w.Place
	}
	differ, unlike, layers := map[string]bool{}, map[string]bool{}, []string{}
	for _, f := range findings {
		if module := at[f.Name].MLP(); module != "" && f.Status != statusEqual && f.Status != statusClose {
			unlike[module], differ[module] = true, differ[module] || f.Status == statusDiffers
		}
		if layer := layerOf(at[f.Name]); layer != "" && f.Status == statusDiffers && !slices.Contains(layers, layer) {
			layers = append(layers, layer)
		}
	}
	left, right := mlps(a, differ), mlps(b, differ)
	for _, layer := range layers {
		s := search{a: a, b: b, left: left[layer], right: right[layer], unlike: unlike}
		matches, err := s.matches(ctx)
		if err != nil {
			return nil, err
		}
		r, err := s.describe(layer, matches)
		if err != nil {
			return nil, err
		}
		if len(r.Experts)+len(r.Exchanged)+len(r.Rows) > 0 {
			all = append(all, r)
		}
	}
	return all, nil
}

// layerOf returns the module in which a weight may be found elsewhere: of a routed expert or a
// router that of the layer's MLPs, of another MLP its own; "" for other weights.
func layerOf(p table.Place) string {
	switch p.Module() {
	case table.RoutedExperts, table.Router:
		return fmt.Sprintf("model.layers.%d.mlp", p.Layer)
	}
	return p.MLP()
}

// mlps returns the whole MLPs of a side among those that differ, by layerOf.
func mlps(s Side, differ map[string]bool) map[string][]*mlp {
	byModule := map[string]*mlp{}
	var all []*mlp
	for _, w := range s.Weights {
		module := w.MLP()
		if !differ[module] || !decodes(w) || len(w.Shape) != 2 {
			continue
		}
		m := byModule[module]
		if m == nil {
			m = &mlp{module: module}
			byModule[module] = m
			all = append(all, m)
		}
		switch w.Role() {
		case table.GateProj:
			m.gate = w
		case table.UpProj:
			m.up = w
		case table.DownProj:
			m.down = w
		}
	}
	byLayer := map[string][]*mlp{}
	for _, m := range all {
		if m.gate != nil && m.up != nil && m.down != nil {
			layer := layerOf(m.gate.Place)
			byLayer[layer] = append(byLayer[layer], m)
		}
	}
	return byLayer
}

// search looks for the MLPs of one layer of A among those of B.
type search struct {
	a, b        Side
	left, right []*mlp
	unlike      map[string]bool // MLPs that are not the same on both sides, by their modules
	seed        maphash.Seed
	dtype       tensor.DType // that fingerprints are rounded to
}

// matches returns the MLPs of A that B has, in the order of A: whole, or with gate and up exchanged.
func (s *search) matches(ctx context.Context) ([]match, error) {
	var all []*weights.Weight
	for _, m := range slices.Concat(s.left, s.right) {
		all = append(all, m.gate, m.up, m.down)
	}
	s.seed, s.dtype = maphash.MakeSeed(), coarsest(all...)
	at, err := s.fingerprints(ctx, s.b, s.right)
	if err != nil {
		return nil, err
	}
	keys, err := s.fingerprints(ctx, s.a, s.left)
	if err != nil {
		return nil, err
	}
	free := map[[3]uint64][]*mlp{}
	for i, m := range s.right {
		free[at[i]] = append(free[at[i]], m)
	}
	var candidates []match
	for i, m := range s.left {
		for _, exchanged := range []bool{false, true} {
			key := keys[i]
			if exchanged {
				key[0], key[1] = key[1], key[0]
			}
			if twins := free[key]; len(twins) > 0 {
				candidates = append(candidates, match{m, twins[0], exchanged})
				free[key] = twins[1:]
				break
			}
		}
	}
	return s.confirm(ctx, candidates)
}

// coarsest returns the dtype of the fewest digits among those of the numbers: rounded to
// it, the numbers of a cast are those that were cast.
func coarsest(all ...*weights.Weight) tensor.DType {
	coarsest := tensor.F32
	for _, w := range all {
		if d := w.NumberType(); d == tensor.BF16 || d == tensor.F16 && coarsest == tensor.F32 {
			coarsest = d
		}
	}
	return coarsest
}

// sampled is how many of the first values of a matrix a fingerprint is of.
const sampled = 4096

// fingerprints returns hashes of the first values of gate, up and down of each MLP.
func (s *search) fingerprints(ctx context.Context, side Side, all []*mlp) ([][3]uint64, error) {
	keys := make([][3]uint64, len(all))
	return keys, each(ctx, s.a, s.b, len(all), nil, func(_ *weights.Walk, i int) error {
		for k, w := range []*weights.Weight{all[i].gate, all[i].up, all[i].down} {
			values, err := part(side, w, 0, min(sampled, w.Len()))
			if err != nil {
				return err
			}
			keys[i][k] = s.hash(w, values)
		}
		return nil
	})
}

// hash hashes the shape of a weight and values of it, rounded.
func (s *search) hash(w *weights.Weight, values []float32) uint64 {
	data := fmt.Append(nil, w.Shape)
	for _, v := range values {
		data = binary.LittleEndian.AppendUint32(data, math.Float32bits(tensor.Rounded(v, s.dtype)))
	}
	return maphash.Bytes(s.seed, data)
}

// part reads n values of a weight from at on.
func part(s Side, w *weights.Weight, at int64, n int) ([]float32, error) {
	stream := weights.NewStream(s.Reader, w)
	err := stream.Load(at, n)
	var values []float32
	if err == nil {
		values, err = stream.Values()
	}
	return values, w.Failed(err)
}

// confirm compares the candidates whole and returns those with equal weights, or one side's rounded.
func (s *search) confirm(ctx context.Context, candidates []match) ([]match, error) {
	same := make([]bool, len(candidates))
	err := each(ctx, s.a, s.b, len(candidates), nil, func(w *weights.Walk, i int) error {
		c := candidates[i]
		gate, up := c.b.gate, c.b.up
		if c.exchanged {
			gate, up = up, gate
		}
		for _, p := range []weights.Pair{{A: c.a.gate, B: gate}, {A: c.a.up, B: up}, {A: c.a.down, B: c.b.down}} {
			f, err := compare(w, p)
			if err != nil {
				return err
			}
			if f.Status != statusEqual && f.Status != statusClose {
				return nil
			}
		}
		same[i] = true
		return nil
	})
	var matches []match
	for i, c := range candidates {
		if same[i] {
			matches = append(matches, c)
		}
	}
	return matches, err
}

// describe says what the matches mean.
func (s *search) describe(layer string, matches []match) (Rearranged, error) {
	r := Rearranged{Module: layer, Experts: []Renumbered{}, Exchanged: []string{}, Rows: []Renumbered{}}
	for _, p := range matches {
		if p.exchanged {
			r.Exchanged = append(r.Exchanged, p.a.module)
		}
		if from, to := p.a.gate.Expert, p.b.gate.Expert; to >= 0 && from != to {
			r.Experts = append(r.Experts, Renumbered{from, to})
		}
	}
	if len(r.Experts) == 0 {
		rows, err := s.rows(layer)
		if err != nil || len(rows) == 0 {
			return r, err
		}
		r.Rows, r.Router = rows, routerAlone
		for _, m := range rows {
			if s.unlike[layer+".experts."+strconv.Itoa(m.A)] {
				r.Router = routerOther
			}
		}
		return r, nil
	}
	r.Regrouped = s.regrouped(r.Experts)
	var err error
	r.Router, err = s.router(layer, r.Experts)
	return r, err
}

// regrouped says whether the new numbers divide experts among groups otherwise, where
// groups limit a token's choice.
func (s *search) regrouped(moved []Renumbered) bool {
	c := s.a.Config
	if c == nil || !c.LimitsGroups() || c.Router.NGroup == 0 || c.MoE.NRoutedExperts < c.Router.NGroup {
		return false
	}
	size := c.MoE.NRoutedExperts / c.Router.NGroup
	numbers := make([]int, c.MoE.NRoutedExperts)
	for e := range numbers {
		numbers[e] = e
	}
	for _, m := range moved {
		if m.A < len(numbers) {
			numbers[m.A] = m.B
		}
	}
	for e, n := range numbers {
		if n/size != numbers[e/size*size]/size {
			return true
		}
	}
	return false
}

// maxMoved is how many experts a line names.
const maxMoved = 8

// lines says what is elsewhere, for a reader.
func (r *Rearranged) lines() (lines []string) {
	if n := len(r.Experts); n > 0 {
		lines = append(lines, fmt.Sprintf("%s.experts: %s renumbered: %s; %s",
			text.Quote(r.Module), text.Plural(n, "expert"), moves(r.Experts), r.consequence()))
	}
	if n := len(r.Rows); n > 0 {
		lines = append(lines, fmt.Sprintf("%s.gate: %s renumbered: %s; %s",
			text.Quote(r.Module), text.Plural(n, "row"), moves(r.Rows), r.consequence()))
	}
	if len(r.Exchanged) > 0 {
		name, experts := r.Exchanged[0], []int{}
		for _, m := range r.Exchanged {
			if _, e := table.CutExpert(m); e >= 0 {
				experts = append(experts, e)
			}
		}
		if len(experts) > 1 {
			folded, _ := table.CutExpert(name)
			name = strings.Replace(folded, "{e}", text.Set(experts, inspect.AllRuns), 1)
		}
		lines = append(lines, fmt.Sprintf("%s: gate_proj and up_proj are exchanged in B", text.Quote(name)))
	}
	return lines
}

// moves names the first of those that are elsewhere: "0 is 1, 1 is 0 in B".
func moves(moved []Renumbered) string {
	var all []string
	for _, m := range moved[:min(len(moved), maxMoved)] {
		all = append(all, strconv.Itoa(m.A)+" is "+strconv.Itoa(m.B))
	}
	if len(moved) > maxMoved {
		all = append(all, "…")
	}
	return strings.Join(all, ", ") + " in B"
}

// consequence says what renumbering does to the model.
func (r *Rearranged) consequence() string {
	switch {
	case r.Router == routerAlone:
		return "the experts are not: tokens reach other experts"
	case len(r.Rows) > 0:
		return "the experts of these numbers differ"
	case r.Router == routerAlong && r.Regrouped:
		return "the router's rows are too, but the groups of n_group are others: tokens reach other experts"
	case r.Router == routerAlong:
		return "the router's rows are too: this alone changes nothing"
	case r.Router == routerStays:
		return "the router's rows are not: tokens reach other experts"
	}
	return "the router's rows are others"
}
