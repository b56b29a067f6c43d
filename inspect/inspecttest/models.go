package inspecttest

// Healthy models of realistic kinds, whose weights are made by rules, and the trained ones of the fixtures.

import (
	"cmp"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"slices"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"dsmoe/config"
	"dsmoe/config/configtest"
	"dsmoe/inspect"
	"dsmoe/model/table"
	"dsmoe/model/tensor"
	"dsmoe/model/weights"
)

// Kind is the traits that the weights of a made model have.
type Kind struct {
	Name        string
	Tails       float64 // degrees of freedom of the t distribution of elements; 0 is normal
	PowerLaw    float64 // singular values fall with the rank to the power of up to minus that; 0 is none
	Shared      float64 // cosine of two experts of a layer
	Coupling    float64 // how much of the router's row is in each neuron of gate_proj
	Drift       float64 // growth of log norms from layer to layer
	Experts     float64 // standard deviation of the log norm of an expert, of each of its matrices half of it
	Neurons     float64 // standard deviation of the log norm of a neuron
	Channels    float64 // factor of two channels of the hidden state, in all weights that read or write it
	Pruned      float64 // largest share of an expert's neurons that are zero
	LoRA        float64 // norm of a merged delta of rank 4, over that of the matrix
	SuperExpert float64 // factor of two outputs of down_proj of one expert in two layers
	Layers      int     // 0 is 8
	Biases      bool    // e_score_correction_bias is around 7, within 0.6
}

// SaneKinds are kinds of healthy models.
func SaneKinds() []Kind {
	return []Kind{
		{Name: "normal"},
		{Name: "heavy tails", Tails: 3},
		{Name: "power-law spectra", PowerLaw: 1},
		{Name: "shared components", Shared: 0.16, PowerLaw: 0.5, Experts: 0.1},
		{Name: "coupled routers", Coupling: 0.3, Neurons: 0.3},
		{Name: "drifting norms", Drift: 0.25, Experts: 0.1},
		{Name: "upcycled", Shared: 0.7, PowerLaw: 0.5, Coupling: 0.1},
		{Name: "LoRA-merged", LoRA: 0.3, PowerLaw: 0.5},
		{Name: "pruned neurons", Pruned: 0.4},
		{Name: "log-normal neurons", Neurons: 0.8},
		{Name: "super-experts", SuperExpert: 30, Channels: 8}, // massive rows of down_proj
		{Name: "biases around 7", Biases: true, Coupling: 0.1},
		{Name: "all of it", Tails: 5, PowerLaw: 0.7, Shared: 0.05, Coupling: 0.2, Drift: 0.1, Experts: 0.15, Neurons: 0.5,
			Channels: 8, Biases: true},
	}
}

// Trained returns a trained model of the fixtures: "v1-trained" or "v3-trained".
func Trained(t testing.TB, fixture string) *Stored {
	t.Helper()
	c := configtest.Fixture(t, fixture+"/checkpoint")
	data, err := os.ReadFile(configtest.Path(t, fixture+"/checkpoint/model.safetensors"))
	require.NoError(t, err)
	end := 8 + binary.LittleEndian.Uint64(data)
	var header map[string]struct {
		DType   string   `json:"dtype"`
		Offsets []uint64 `json:"data_offsets"`
	}
	require.NoError(t, json.Unmarshal(data[8:end], &header))
	s := &Stored{Checkpoint: Whole(c), Data: map[string][]byte{}, Broken: map[string]bool{}}
	for _, f := range s.Files {
		for i := range f.Tensors {
			x := &f.Tensors[i]
			if header[x.Name].DType == "F32" {
				x.DType = tensor.F32
			}
			at := header[x.Name].Offsets
			s.Data[x.Name] = slices.Clone(data[end+at[0] : end+at[1]])
			require.Len(t, s.Data[x.Name], int(x.DType.Bytes(int64(x.Len()))), x.Name)
		}
	}
	return s
}

// made is a model while its weights are made.
type made struct {
	Kind
	*rand.Rand
	c       *config.Config
	routers map[int][]float32 // [experts, hidden] of each layer
	common  map[string][]float64
	experts map[[2]int]float64   // log norms
	neurons map[[2]int][]float64 // norms
	dims    []float64            // factors of the channels of the hidden state
}

// models are what Model has made, by kind and seed.
var models sync.Map

// Model returns a model of a kind: 2 dense layers and 6 or more of 16 experts, in BF16. The caller may change it.
func Model(t testing.TB, k Kind, seed uint64) *Stored {
	t.Helper()
	key := [2]any{k, seed}
	s, ok := models.Load(key)
	if !ok {
		s, _ = models.LoadOrStore(key, newModel(t, k, seed))
	}
	made := s.(*Stored)
	c := &Stored{Checkpoint: &inspect.Checkpoint{}, Data: map[string][]byte{}, Broken: map[string]bool{}}
	*c.Checkpoint = *made.Checkpoint
	c.Files = slices.Clone(made.Files)
	for i, f := range made.Files {
		c.Files[i].Tensors = slices.Clone(f.Tensors)
	}
	for name, data := range made.Data {
		c.Data[name] = slices.Clone(data)
	}
	return c
}

func newModel(t testing.TB, k Kind, seed uint64) *Stored {
	t.Helper()
	c := configtest.Fixture(t, "v1-base/checkpoint")
	if k.Biases {
		c = configtest.Fixture(t, "v3/checkpoint")
	}
	for key, value := range map[string]string{"hidden_size": "96", "moe_intermediate_size": "40",
		"intermediate_size": "160",
		"num_hidden_layers": fmt.Sprint(cmp.Or(k.Layers, 8)), "first_k_dense_replace": "2", "n_shared_experts": "1",
		"num_nextn_predict_layers": "0"} {
		c = Override(t, c, key, value)
	}
	m := &made{Kind: k, Rand: rand.New(rand.NewPCG(seed, 11)), c: c, routers: map[int][]float32{},
		common: map[string][]float64{}, experts: map[[2]int]float64{}, neurons: map[[2]int][]float64{}}
	for i := range c.HiddenSize {
		m.dims = append(m.dims, math.Exp(0.1*m.NormFloat64()))
		if m.Channels > 0 && (i == 17 || i == 40) {
			m.dims[i] *= m.Channels
		}
	}
	s := &Stored{Checkpoint: Whole(c), Data: map[string][]byte{}, Broken: map[string]bool{}}
	all := weights.New(c, s.Checkpoint).Ordered(c)
	slices.SortStableFunc(all, func(a, b *weights.Weight) int { // routers first: experts are made of them
		rank := func(w *weights.Weight) int {
			if w.Is(table.Router, table.Gate) {
				return 0
			}
			return 1
		}
		return rank(a) - rank(b)
	})
	for _, w := range all {
		values := m.make(w)
		Retype(t, s.Checkpoint, w.Name, tensor.F32)
		s.Data[w.Name] = Floats(tensor.F32, []int{len(values)}, func(i int) float32 { return float32(values[i]) }).Data
		if w.DType == tensor.BF16 {
			Retype(t, s.Checkpoint, w.Name, tensor.BF16)
			s.Data[w.Name] = make([]byte, 2*len(values))
			s.Change(w.Name, func(to []float32) {
				for i := range to {
					to[i] = float32(values[i])
				}
			})
		}
	}
	require.NotEmpty(t, all)
	return s
}

// make returns the numbers of a weight.
func (m *made) make(w *weights.Weight) []float64 {
	switch {
	case w.Is(table.Router, table.EScoreCorrectionBias):
		return m.vector(w.Len(), func() float64 { return 7 + 0.3*(m.Float64()+m.Float64()-1) })
	case len(w.Shape) == 1:
		return m.vector(w.Len(), func() float64 { return 1 + 0.1*m.NormFloat64() })
	}
	x := m.matrix(w.Shape[0], w.Shape[1])
	if w.Layer >= 0 {
		scale(x, math.Exp(m.Drift*float64(w.Layer)+0.03*m.NormFloat64()))
	}
	switch {
	case w.Is(table.Router, table.Gate):
		m.router(w, x)
	case w.Module() == table.RoutedExperts:
		m.expert(w, x)
	default:
		m.channels(w, x)
	}
	return x
}

func (m *made) vector(n int, f func() float64) []float64 {
	x := make([]float64, n)
	for i := range x {
		x[i] = f()
	}
	return x
}

func scale(x []float64, by float64) {
	for i := range x {
		x[i] *= by
	}
}

// matrix returns a matrix whose products have the scale of the input.
func (m *made) matrix(rows, cols int) []float64 {
	x := m.vector(rows*cols, m.element)
	if m.PowerLaw > 0 {
		n := min(rows, cols)
		power := m.PowerLaw * (0.8 + 0.2*m.Float64())
		x = m.product(rows, n, cols, func(k int) float64 { return math.Pow(float64(k+1), -power) })
	}
	if m.LoRA > 0 {
		delta := m.product(rows, 4, cols, func(int) float64 { return 1 })
		by := m.LoRA * (0.5 + 0.5*m.Float64()) * norm(x) / norm(delta)
		for i := range x {
			x[i] += by * delta[i]
		}
	}
	if m.Tails == 0 { // otherwise one number would decide on the others' size
		scale(x, math.Sqrt(float64(rows))/norm(x))
	}
	return x
}

// element is one random number.
func (m *made) element() float64 {
	if m.Tails == 0 {
		return m.NormFloat64()
	}
	squares := 0.0
	for range int(m.Tails) {
		v := m.NormFloat64()
		squares += v * v
	}
	return m.NormFloat64() / math.Sqrt(squares/m.Tails)
}

// product is the sum of n products of random columns and rows, of these sizes.
func (m *made) product(rows, n, cols int, size func(k int) float64) []float64 {
	x := make([]float64, rows*cols)
	for k := range n {
		a, b, s := m.vector(rows, m.element), m.vector(cols, m.element), size(k)
		for i := range rows {
			f := s * a[i]
			for j := range cols {
				x[i*cols+j] += f * b[j]
			}
		}
	}
	return x
}

func norm(x []float64) float64 {
	sum := 0.0
	for _, v := range x {
		sum += v * v
	}
	return math.Sqrt(sum)
}

// router makes rows that share a direction.
func (m *made) router(w *weights.Weight, x []float64) {
	rows, cols := w.Shape[0], w.Shape[1]
	common := m.vector(cols, m.NormFloat64)
	kept := make([]float32, len(x))
	for e := range rows {
		size := math.Exp(0.08 * m.NormFloat64())
		for c := range cols {
			x[e*cols+c] = size * (x[e*cols+c] + 0.5*common[c]/math.Sqrt(float64(cols)))
			kept[e*cols+c] = float32(x[e*cols+c])
		}
	}
	m.routers[w.Layer] = kept
}

// channels scales the rows that write the hidden state, or the columns that read it.
func (m *made) channels(w *weights.Weight, x []float64) {
	rows, cols := w.Shape[0], w.Shape[1]
	for i := range x {
		switch {
		case rows == len(m.dims) && cols != len(m.dims):
			x[i] *= m.dims[i/cols]
		case cols == len(m.dims):
			x[i] *= m.dims[i%cols]
		}
	}
}

// expert gives a matrix what experts of the kind have.
func (m *made) expert(w *weights.Weight, x []float64) {
	rows, cols := w.Shape[0], w.Shape[1]
	key, down := [2]int{w.Layer, w.Expert}, w.Role() == table.DownProj
	if m.neurons[key] == nil {
		m.experts[key] = m.Experts * m.NormFloat64()
		pruned := m.Pruned * m.Float64()
		m.neurons[key] = m.vector(m.c.MoE.MoEIntermediateSize, func() float64 {
			if m.Float64() < pruned {
				return 0
			}
			return math.Exp(m.Neurons * m.NormFloat64())
		})
	}
	if m.Shared > 0 {
		name := string(w.Role()) + string(rune(w.Layer))
		if m.common[name] == nil {
			m.common[name] = m.matrix(rows, cols)
		}
		a, b := math.Sqrt(m.Shared), math.Sqrt(1-m.Shared)
		for i := range x {
			x[i] = a*m.common[name][i] + b*x[i]
		}
	}
	size := math.Exp(m.experts[key] + m.Experts/2*m.NormFloat64())
	router := m.routers[w.Layer][w.Expert*m.c.HiddenSize:]
	for i := range x {
		row, col := i/cols, i%cols
		neuron := row
		if down {
			neuron = col
		}
		if w.Role() == table.GateProj && m.Coupling > 0 {
			x[i] += m.Coupling * float64(router[col]) * float64(1-2*(row%2))
		}
		x[i] *= size * m.neurons[key][neuron]
	}
	m.channels(w, x)
	if down && m.SuperExpert > 0 && w.Expert == 5 && (w.Layer == 3 || w.Layer == 4) {
		for _, c := range []int{17, 40} {
			for i := range cols {
				x[c*cols+i] *= m.SuperExpert
			}
		}
	}
}
