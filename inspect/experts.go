package inspect

// What the experts are, each for itself and beside the others of its layer: the report, and
// the order in which it is made. The weights are read twice: each expert's matrices as a whole
// (experts_matrix.go, experts_function.go), then those of a layer side by side
// (experts_similar.go). What looks alike is read again and compared (experts_twins.go).

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"

	"dsmoe/model/weights"
)

// The matrices of an expert, in the order of everything that has one of each.
const (
	gateProj = iota
	upProj
	downProj
	projections // number of them
)

// projectionNames are those of the matrices in a checkpoint.
var projectionNames = [projections]string{"gate_proj", "up_proj", "down_proj"}

// ExpertsOptions says what ExamineExperts looks at; the zero value is everything.
type ExpertsOptions struct {
	Selection    Selection
	Similarities bool     // the report keeps the cosines of all pairs, LayerExperts.Similarity
	By           Grouping // rows of the sheet: ByExpert, also "", or ByLayer
}

// ExpertsReport is what the experts of a checkpoint are.
type ExpertsReport struct {
	Path       string         `json:"path"`        // of the checkpoint, as it was given
	Layers     []LayerExperts `json:"layers"`      // those of which an expert is selected, in their order
	Findings   []Observation  `json:"findings"`    // in the order of the layers, then of the experts
	NotCounted []NotCounted   `json:"not_counted"` // weights that are selected and have no numbers

	by Grouping
}

// LayerExperts is the experts of a layer.
type LayerExperts struct {
	Layer    int             `json:"layer"`
	Experts  []ExpertNumbers `json:"experts"`  // the routed ones, by their numbers
	Shared   *ExpertNumbers  `json:"shared"`   // the shared ones, which are one MLP; null if there is none
	Gate     *MatrixSpread   `json:"gate"`     // of the routed experts' gate_proj; null if there are none
	Up       *MatrixSpread   `json:"up"`       // of up_proj
	Down     *MatrixSpread   `json:"down"`     // of down_proj
	Function *PairSpread     `json:"function"` // the cosines of ExpertNumbers.Function; null below two experts

	// Similarity is the cosines of all pairs. Rows and columns are Experts. null unless they were asked
	// for: those of DeepSeek-V3 take 120 MB.
	Similarity *Similarity `json:"similarity"`
}

// Similarity is cosines [experts][experts]: see PairSpread. nil where there are none; NaN where
// a pair has none, which JSON writes as null. The last row and column of Function are the shared
// experts, if there are any.
type Similarity struct {
	Gate     Cosines `json:"gate"`
	Up       Cosines `json:"up"`
	Down     Cosines `json:"down"`
	Function Cosines `json:"function"`
}

// Cosines is a row of cosines for each expert.
type Cosines [][]float64

// MarshalJSON writes null for what is not a number.
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

// MatrixSpread is one matrix over the routed experts of a layer.
type MatrixSpread struct {
	Norm           *Spread     `json:"norm"`             // of MatrixNumbers.Norm
	StableRank     *Spread     `json:"stable_rank"`      // of MatrixNumbers.StableRank
	NullStableRank float64     `json:"null_stable_rank"` // rows·cols / (√rows + √cols)²: of a matrix of independent normal numbers
	Pairs          *PairSpread `json:"pairs"`            // the cosines of MatrixNumbers.Nearest; null below two experts
}

// PairSpread is the cosines of all pairs of experts of a layer.
type PairSpread struct {
	Pairs   int     `json:"pairs"`    // that have a cosine
	Mean    float64 `json:"mean"`     // of them
	MeanAbs float64 `json:"mean_abs"` // of their magnitudes; √(2/π)·NullStd for random weights
	Largest float64 `json:"largest"`  // the one of the largest magnitude
	A       int     `json:"a"`        // the experts whose it is
	B       int     `json:"b"`
	NullStd float64 `json:"null_std"` // standard deviation for independent random weights, whose mean is 0
}

// ExpertNumbers is one expert.
type ExpertNumbers struct {
	Expert      int            `json:"expert"` // its number; -1 of the shared ones
	Module      string         `json:"module"` // "model.layers.3.mlp.experts.17"
	Gate        *MatrixNumbers `json:"gate"`   // gate_proj; null if it is not selected
	Up          *MatrixNumbers `json:"up"`
	Down        *MatrixNumbers `json:"down"`
	ZeroNeurons int            `json:"zero_neurons"` // whose row of gate_proj or of up_proj, or column of down_proj, is all zero: they add nothing

	// Function is the routed expert whose outputs are most like this one's.
	Function *Neighbour `json:"function"`

	facts *examined
}

// Neighbour is the expert of a layer that is most like another in something.
type Neighbour struct {
	Expert int     `json:"expert"` // its number; -1 of the shared ones
	Cosine float64 `json:"cosine"` // of the two; of matrices the one of the largest magnitude
}

// MatrixNumbers is one matrix [rows, cols] of an expert. What sums need that are not finite is
// null.
type MatrixNumbers struct {
	Shape        []int      `json:"shape"`
	NaN          int64      `json:"nan"`
	Infinite     int64      `json:"infinite"`
	Zeros        int64      `json:"zeros"`
	Norm         *float64   `json:"norm"`          // √Σw², in float64
	RMS          *float64   `json:"rms"`           // Norm / √(rows·cols)
	NormZ        *float64   `json:"norm_z"`        // robust z-score of Norm among the layer's routed experts
	SpectralNorm *float64   `json:"spectral_norm"` // σ₁, the largest singular value: see spectral
	StableRank   *float64   `json:"stable_rank"`   // Norm² / σ₁²
	Distinct     *float64   `json:"distinct"`      // share of different magnitudes in runs of a row: see distinct
	Nearest      *Neighbour `json:"nearest"`       // the routed expert whose matrix, element by element, has the cosine of the largest magnitude
}

// matrices returns the numbers of the three matrices; some may be nil.
func (e *ExpertNumbers) matrices() [projections]*MatrixNumbers {
	return [projections]*MatrixNumbers{e.Gate, e.Up, e.Down}
}

// mlp is the weights of an expert.
type mlp struct {
	layer, number int // -1 of the shared experts
	module        string
	weights       [projections]*weights.Weight // nil if not selected
}

// whole says whether all three matrices are there and fit each other: [n, d], [n, d], [d, n].
func (m *mlp) whole() bool {
	for _, w := range m.weights {
		if w == nil {
			return false
		}
	}
	g, u, d := m.weights[gateProj].Shape, m.weights[upProj].Shape, m.weights[downProj].Shape
	return g[0] == u[0] && g[1] == u[1] && d[0] == g[1] && d[1] == g[0]
}

// layerMLPs is the experts of a layer, the shared ones last.
type layerMLPs struct {
	layer int
	all   []*mlp
	norm  *weights.Weight // post_attention_layernorm, before the experts; nil if there is none
}

// mlpOf returns the expert that a weight is a matrix of.
func mlpOf(name string) (number int, module string, projection int, ok bool) {
	number = -1
	before, e, after, routed := weights.CutExpert(name)
	if routed {
		number, module = e, before+fmt.Sprint(e)
	} else if at := strings.Index(name, sharedMark); at >= 0 {
		module, after = name[:at+len(sharedMark)], name[at+len(sharedMark):]
	} else {
		return 0, "", 0, false
	}
	for p, projection := range projectionNames {
		if after == "."+projection+".weight" {
			return number, module, p, true
		}
	}
	return 0, "", 0, false
}

// sharedMark is in the names of the weights of shared experts, in front of their dot.
const sharedMark = ".mlp.shared_experts"

// normName follows the layer in the name of the norm whose output routers and experts read.
const normName = ".post_attention_layernorm.weight"

// selectedExperts collects the experts of the selected weights, layer by layer, and tells of those
// that have no numbers.
func selectedExperts(w *Weights, s Selection) (layers []*layerMLPs, not []NotCounted, err error) {
	list, err := w.pick(s)
	if err != nil {
		return nil, nil, err
	}
	not = []NotCounted{}
	at, modules := map[int]*layerMLPs{}, map[string]*mlp{}
	for _, x := range list {
		number, module, p, ok := mlpOf(x.Name)
		l := placeOf(x.Name).layer
		if !ok || l < 0 {
			continue
		}
		if err := measurable(x); err != nil {
			not = append(not, NotCounted{x.Name, x.DType, err.Error()})
			continue
		}
		if at[l] == nil {
			at[l] = &layerMLPs{layer: l}
			layers = append(layers, at[l])
		}
		if modules[module] == nil {
			modules[module] = &mlp{layer: l, number: number, module: module}
			at[l].all = append(at[l].all, modules[module])
		}
		modules[module].weights[p] = x
	}
	if len(layers)+len(not) == 0 {
		return nil, nil, errors.New("no expert is selected, or there is none")
	}
	for _, x := range w.List {
		if l := at[placeOf(x.Name).layer]; l != nil && strings.HasSuffix(x.Name, normName) {
			l.norm = x
		}
	}
	slices.SortFunc(layers, func(a, b *layerMLPs) int { return a.layer - b.layer })
	for _, l := range layers {
		slices.SortFunc(l.all, func(a, b *mlp) int { return cmp.Compare(uint(a.number), uint(b.number)) })
	}
	return layers, not, nil
}

// measurable says why a weight's numbers cannot be measured as those of a matrix.
func measurable(w *weights.Weight) error {
	if len(w.Shape) != 2 || w.Len() == 0 {
		return fmt.Errorf("shape %v is not that of a matrix", w.Shape)
	}
	return countable(w)
}
