// Package experts says what the experts of a checkpoint are, each by itself and beside the others of its layer.
//
// Examine reads the weights twice: each expert's matrices as a whole (measure.go), then those of a layer side by
// side (similar.go). Experts that look alike are read again and compared (twins.go). Against compares experts
// with their originals.
package experts

import (
	"cmp"
	"errors"
	"fmt"
	"iter"
	"slices"

	"dsmoe/inspect"
	"dsmoe/inspect/matrix"
	"dsmoe/model/table"
	"dsmoe/model/weights"
	"dsmoe/text"
)

// Options says what Examine looks at; the zero value is everything.
type Options struct {
	Selection    inspect.Selection
	Similarities bool             // the report keeps the cosines of all pairs, Layer.Similarity
	By           inspect.Grouping // rows of the sheet: ByExpert, also "", or ByLayer
}

// Report is what the experts of a checkpoint are.
type Report struct {
	Path   string  `json:"path"`   // of the checkpoint, as the user gave it
	Layers []Layer `json:"layers"` // layers with a selected expert, in their order
	inspect.Examined

	by inspect.Grouping
}

// Matrices has one of something for each matrix of an expert.
type Matrices[T any] struct {
	Gate T `json:"gate"` // of gate_proj
	Up   T `json:"up"`   // of up_proj
	Down T `json:"down"` // of down_proj
}

// Of returns the one of a matrix.
func (m *Matrices[T]) Of(role table.Role) *T {
	switch role {
	case table.GateProj:
		return &m.Gate
	case table.UpProj:
		return &m.Up
	}
	return &m.Down
}

// roles are the matrices of an expert, in the order of all reports.
var roles = [...]table.Role{table.GateProj, table.UpProj, table.DownProj}

// All yields what each matrix has.
func (m *Matrices[T]) All() iter.Seq2[table.Role, T] {
	return func(yield func(table.Role, T) bool) {
		for _, role := range roles {
			if !yield(role, *m.Of(role)) {
				return
			}
		}
	}
}

// present yields the matrices that m has.
func present[T any](m *Matrices[*T]) iter.Seq2[table.Role, *T] {
	return func(yield func(table.Role, *T) bool) {
		for role, x := range m.All() {
			if x != nil && !yield(role, x) {
				return
			}
		}
	}
}

// weightName returns the name of a matrix of an expert.
func weightName(module string, role table.Role) string {
	return module + "." + string(role) + ".weight"
}

// Layer is the experts of a layer.
type Layer struct {
	Layer                   int                `json:"layer"`
	Experts                 []Expert           `json:"experts"` // the routed ones, by their numbers
	Shared                  *Expert            `json:"shared"`  // the shared experts, one MLP; null if the layer has none
	Matrices[*MatrixSpread]                    // of the routed experts; null if the layer has none
	Function                *matrix.PairSpread `json:"function"` // the cosines of Expert.Function; null below two experts

	// Similarity is the cosines of all pairs. Rows and columns are Experts. null unless Options asks for it: that
	// of DeepSeek-V3 takes 120 MB.
	Similarity *Similarity `json:"similarity"`
}

// Similarity is cosines [experts, experts]: see matrix.PairSpread. nil if there are none; NaN, null in JSON, for a
// pair that has none. The last row and column of Function are the shared experts, if there are any.
type Similarity struct {
	Matrices[matrix.Cosines]
	Function matrix.Cosines `json:"function"`
}

// MatrixSpread is one matrix over the routed experts of a layer.
type MatrixSpread struct {
	Norm           *inspect.Spread    `json:"norm"`             // of MatrixNumbers.Norm
	StableRank     *inspect.Spread    `json:"stable_rank"`      // of MatrixNumbers.StableRank
	NullStableRank float64            `json:"null_stable_rank"` // rows·cols / (√rows + √cols)²: of normal numbers
	Pairs          *matrix.PairSpread `json:"pairs"`            // of MatrixNumbers.Nearest; null below two experts
}

// Expert is one expert.
type Expert struct {
	Expert                   int    `json:"expert"` // its number; -1 for the shared ones
	Module                   string `json:"module"` // "model.layers.3.mlp.experts.17"
	Matrices[*MatrixNumbers]        // null if not selected
	// ZeroNeurons is the number of neurons whose row of gate_proj or of up_proj, or column of down_proj, is all
	// zero: they add nothing.
	ZeroNeurons int `json:"zero_neurons"`

	// Function is the routed expert whose outputs are most like this one's.
	Function *matrix.Neighbour `json:"function"`

	facts *facts
}

// MatrixNumbers is one matrix [rows, cols] of an expert. Sums that are not finite are null.
type MatrixNumbers struct {
	Shape        []int             `json:"shape"`
	NaN          int64             `json:"nan"`
	Infinite     int64             `json:"infinite"`
	Zeros        int64             `json:"zeros"`
	Norm         *float64          `json:"norm"`          // √Σw², in float64
	RMS          *float64          `json:"rms"`           // Norm / √(rows·cols)
	NormZ        *float64          `json:"norm_z"`        // robust z-score of Norm among the layer's routed experts
	SpectralNorm *float64          `json:"spectral_norm"` // σ₁, the largest singular value: see matrix.SpectralNorm
	StableRank   *float64          `json:"stable_rank"`   // Norm² / σ₁²
	Distinct     *float64          `json:"distinct"`      // share of different magnitudes in runs of a row: see distinct
	Nearest      *matrix.Neighbour `json:"nearest"`       // the routed expert with the matrix most like it
}

// facts is what Examine compares of an expert with others.
type facts struct {
	matrices  Matrices[matrixFacts]
	responses Matrices[[]float32] // of gate_proj and up_proj to the probes [probeCount, neurons]; for twins
	whole     bool                // no matrix is missing: there is an output
	output    []float32           // of the expert for the probes [probeCount, hidden]; until Layer.functions
}

// matrixFacts is what Examine compares of a matrix with others.
type matrixFacts struct {
	neurons  []uint64  // a hash of each neuron's numbers: rows of gate_proj and up_proj, columns of down_proj
	print    uint64    // a hash of those, whatever their order
	zero     []bool    // neurons with nothing but zeros
	size     float64   // mean of log₂|w| over the numbers that are not 0; NaN without one
	fourth   float64   // Σw⁴
	channels []float64 // the same of the other axis, which experts share, less their median; until Layer.observe
	bits     int       // of codes that the numbers went through: see matrix.CodeBits
	peak     float64   // the largest of a neuron, less the neurons' median
	neuron   int       // the neuron with that
}

// numbers are the numbers of the routed experts.
func (r *Layer) numbers() (all []int) {
	for i := range r.Experts {
		all = append(all, r.Experts[i].Expert)
	}
	return all
}

// all returns the routed experts, then the shared ones.
func (r *Layer) all() (all []*Expert) {
	for i := range r.Experts {
		all = append(all, &r.Experts[i])
	}
	if r.Shared != nil {
		all = append(all, r.Shared)
	}
	return all
}

// mlp is the weights of an expert.
type mlp struct {
	layer, number int // -1 for the shared experts
	module        string
	weights       Matrices[*weights.Weight] // nil if not selected
}

// isWhole reports whether all three matrices are there and fit each other: [n, d], [n, d], [d, n].
func (m *mlp) isWhole() bool {
	g, u, d := m.weights.Gate, m.weights.Up, m.weights.Down
	return g != nil && u != nil && d != nil && slices.Equal(g.Shape, u.Shape) &&
		slices.Equal(d.Shape, []int{g.Shape[1], g.Shape[0]})
}

// bytes is the size of the selected matrices.
func (m *mlp) bytes() (n int64) {
	for _, w := range present(&m.weights) {
		n += w.Bytes()
	}
	return n
}

// layerMLPs is the experts of a layer, the shared ones last.
type layerMLPs struct {
	layer int
	all   []*mlp
	norm  *weights.Weight // post_attention_layernorm, before the experts; nil if the layer has none
}

// bytes is the size of the experts of a layer.
func (l *layerMLPs) bytes() (n int64) {
	for _, m := range l.all {
		n += m.bytes()
	}
	return n
}

// routed returns the routed experts.
func (l *layerMLPs) routed() []*mlp {
	if n := len(l.all); n > 0 && l.all[n-1].number < 0 {
		return l.all[:n-1]
	}
	return l.all
}

// IsMatrix reports whether a routed or shared expert has a matrix at a place.
func IsMatrix(at table.Place) bool {
	return at.Layer >= 0 && (at.Module() == table.RoutedExperts || at.Module() == table.SharedExperts)
}

// Reads reports whether Examine and Against may read a weight, for a selection. isMoE tells the layers with
// experts.
func Reads(s inspect.Selection, isMoE func(layer int) bool, w *weights.Weight) bool {
	isNorm := w.Role() == table.PostAttentionLayernorm && isMoE(w.Layer)
	return IsMatrix(w.OwnerPlace()) && s.Has(w.Name) || isNorm && inspect.Selection{Layers: s.Layers}.Has(w.Name)
}

// selected collects the experts of the selected weights, layer by layer, and those that have no numbers.
func selected(w *inspect.Weights, s inspect.Selection) (layers []*layerMLPs, not []inspect.NotCounted, err error) {
	list, err := w.Pick(s)
	if err != nil {
		return nil, nil, err
	}
	not = []inspect.NotCounted{}
	byLayer, byExpert := map[int]*layerMLPs{}, map[[2]int]*mlp{}
	for _, x := range list {
		at := x.Place
		if !IsMatrix(at) {
			continue
		}
		if err := inspect.Measurable(x); err != nil {
			not = append(not, inspect.Skip(x, err))
			continue
		}
		l, m := byLayer[at.Layer], byExpert[[2]int{at.Layer, at.Expert}]
		if l == nil {
			l = &layerMLPs{layer: at.Layer}
			byLayer[at.Layer], layers = l, append(layers, l)
		}
		if m == nil {
			m = &mlp{layer: at.Layer, number: at.Expert,
				module: x.Name[:len(x.Name)-len(weightName("", at.Role()))]}
			byExpert[[2]int{at.Layer, at.Expert}], l.all = m, append(l.all, m)
		}
		*m.weights.Of(at.Role()) = x
	}
	if len(layers)+len(not) == 0 {
		return nil, nil, errors.New("no expert is selected, or there is none")
	}
	for _, x := range w.List {
		if x.Role() == table.PostAttentionLayernorm && byLayer[x.Layer] != nil {
			byLayer[x.Layer].norm = x
		}
	}
	slices.SortFunc(layers, func(a, b *layerMLPs) int { return a.layer - b.layer })
	for _, l := range layers {
		slices.SortFunc(l.all, func(a, b *mlp) int { return cmp.Compare(uint(a.number), uint(b.number)) })
	}
	return layers, not, nil
}

// expertCell is the name of an expert in a sheet.
func expertCell(number int) text.Cell {
	if number < 0 {
		return text.Plain("shared")
	}
	return text.Whole(number)
}

// observation returns an observation about an expert, or about a matrix of it unless role is "".
func observation(layer int, e *Expert, id string, role table.Role, value, expected *float64, format string,
	args ...any) inspect.Observation {
	o := inspect.Observation{ID: id, Layer: layer, Experts: []int{}, Tensor: e.Module,
		Text: fmt.Sprintf(format, args...), Value: value, Expected: expected}
	if e.Expert >= 0 {
		o.Experts = append(o.Experts, e.Expert)
	}
	if role != "" {
		o.Tensor = weightName(e.Module, role)
	}
	return o
}
