// Package inspecttest has checkpoints in memory for the tests of inspections.
package inspecttest

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/stretchr/testify/require"

	"dsmoe/config"
	"dsmoe/config/configtest"
	"dsmoe/inspect"
	"dsmoe/model/synth"
	"dsmoe/model/tensor"
	"dsmoe/model/weights"
	"dsmoe/text"
)

// Whole returns a checkpoint of two files that fits its config.
func Whole(c *config.Config) *inspect.Checkpoint {
	infos := slices.Collect(synth.New(c, 0).Tensors())
	half := len(infos) / 2
	return &inspect.Checkpoint{Path: "ckpt", Config: c, Index: &inspect.Index{File: "model.safetensors.index.json",
		Tensors: len(infos), Shards: 2},
		Files: []inspect.File{{Name: "a.safetensors", Size: 1 << 20, Tensors: infos[:half:half]},
			{Name: "b.safetensors", Size: 1 << 20, Tensors: infos[half:]}}}
}

// Override returns c with another value of one key.
func Override(t testing.TB, c *config.Config, key, value string) *config.Config {
	t.Helper()
	c, err := c.Override(map[string]jsontext.Value{key: jsontext.Value(value)})
	require.NoError(t, err)
	return c
}

// Printed returns a report as text.
func Printed(t testing.TB, report interface{ WriteText(io.Writer) error }) string {
	t.Helper()
	var b strings.Builder
	require.NoError(t, report.WriteText(&b))
	return b.String()
}

// Spans reads numbers.
func Spans(t testing.TB, list string) text.Spans {
	t.Helper()
	s, err := text.ParseSpans(list, "numbers")
	require.NoError(t, err)
	return s
}

// Stored is the weights of a checkpoint in memory.
type Stored struct {
	*inspect.Checkpoint
	Data    map[string][]byte
	Broken  map[string]bool // tensors that cannot be read
	Largest int             // bytes that were read at once

	mu sync.Mutex // guards Largest
}

// Fill returns a checkpoint of synthetic weights that fits c, without prediction layers.
func Fill(t testing.TB, c *config.Config) *Stored {
	t.Helper()
	c = Override(t, c, "num_nextn_predict_layers", "0")
	s := &Stored{Checkpoint: Whole(c), Data: map[string][]byte{}, Broken: map[string]bool{}}
	source := synth.New(c, 3)
	for info := range source.Tensors() {
		x, err := source.Tensor(info.Name)
		require.NoError(t, err)
		s.Data[info.Name] = x.Data
	}
	return s
}

// Filled is Fill for the config of a fixture.
func Filled(t testing.TB, fixture string) *Stored {
	return Fill(t, configtest.Fixture(t, fixture+"/checkpoint"))
}

// Only returns a checkpoint of some tensors, which are no model.
func Only(t testing.TB, tensors map[string]tensor.Tensor) *Stored {
	c := Override(t, configtest.Fixture(t, "v3-fp8/checkpoint"), "num_nextn_predict_layers", "0")
	s := &Stored{Checkpoint: &inspect.Checkpoint{Path: "ckpt", Config: c, Files: make([]inspect.File, 2)},
		Data: map[string][]byte{}, Broken: map[string]bool{}}
	for name, x := range tensors {
		s.Store(name, x.DType, x.Shape, x.Data)
	}
	return s
}

// Floats returns a tensor of F32 or BF16 whose elements f gives, as float32 that fit it.
func Floats(d tensor.DType, shape []int, f func(i int) float32) tensor.Tensor {
	x := tensor.Tensor{DType: d, Shape: shape}
	x.Data = make([]byte, 0, d.Bytes(int64(x.Len())))
	for i := range x.Len() {
		b := math.Float32bits(f(i))
		switch d {
		case tensor.F32:
			x.Data = binary.LittleEndian.AppendUint32(x.Data, b)
		case tensor.BF16:
			x.Data = binary.LittleEndian.AppendUint16(x.Data, uint16(b>>16))
		}
	}
	return x
}

// ReadAt implements weights.ReaderAt.
func (s *Stored) ReadAt(name string, dst []byte, offset int64) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.Largest = max(s.Largest, len(dst))
	if s.Broken[name] {
		return errors.New("disk on fire")
	}
	copy(dst, s.Data[name][offset:])
	return nil
}

// Weights returns the checkpoint as its weights are read.
func (s *Stored) Weights() inspect.Weights {
	return inspect.Weights{Path: s.Path, Config: s.Config, List: weights.New(s.Config, s.Checkpoint).Ordered(s.Config),
		Reader: s}
}

// Store adds a tensor, or takes another in its place.
func (s *Stored) Store(name string, d tensor.DType, shape []int, data []byte) {
	s.Files[1].Tensors = append(slices.Clone(s.Files[1].Tensors), tensor.Info{Name: name, DType: d, Shape: shape})
	s.Data[name] = data
}

// Put writes 16-bit numbers at an element.
func (s *Stored) Put(name string, at int, values ...uint16) {
	for i, v := range values {
		binary.LittleEndian.PutUint16(s.Data[name][2*(at+i):], v)
	}
}

// Zero makes every value of tensors zero.
func (s *Stored) Zero(names ...string) {
	for _, name := range names {
		clear(s.Data[name])
	}
}

// DType returns the dtype of a tensor.
func (s *Stored) DType(name string) tensor.DType {
	for x := range s.Tensors() {
		if x.Name == name {
			return x.DType
		}
	}
	panic(name)
}

// Retype gives a tensor another dtype.
func Retype(t testing.TB, c *inspect.Checkpoint, name string, d tensor.DType) {
	t.Helper()
	for _, f := range c.Files {
		if i := slices.IndexFunc(f.Tensors, func(x tensor.Info) bool { return x.Name == name }); i >= 0 {
			f.Tensors[i].DType = d
			return
		}
	}
	t.Fatal("no tensor", name)
}

// Numbers decodes a BF16 or F32 tensor.
func (s *Stored) Numbers(name string) []float32 {
	data, d := s.Data[name], s.DType(name)
	values := make([]float32, 0, d.Elements(int64(len(data))))
	if d == tensor.F32 {
		for i := 0; i < len(data); i += 4 {
			values = append(values, math.Float32frombits(binary.LittleEndian.Uint32(data[i:])))
		}
		return values
	}
	for i := 0; i < len(data); i += 2 {
		values = append(values, math.Float32frombits(uint32(binary.LittleEndian.Uint16(data[i:]))<<16))
	}
	return values
}

// Change lets f change the numbers of a BF16 or F32 tensor.
func (s *Stored) Change(name string, f func(values []float32)) {
	values, d := s.Numbers(name), s.DType(name)
	f(values)
	data := make([]byte, 0, d.Bytes(int64(len(values))))
	for _, v := range values {
		b := math.Float32bits(v)
		if d == tensor.F32 {
			data = binary.LittleEndian.AppendUint32(data, b)
			continue
		}
		if v == v {
			b += 0x7fff + b>>16&1
		}
		data = binary.LittleEndian.AppendUint16(data, uint16(b>>16))
	}
	s.Data[name] = data
}

// InFloat32 stores the numbers of a tensor in F32.
func (s *Stored) InFloat32(t testing.TB, name string) {
	values := s.Numbers(name)
	Retype(t, s.Checkpoint, name, tensor.F32)
	s.Data[name] = make([]byte, 4*len(values))
	s.Change(name, func(to []float32) { copy(to, values) })
}

// ExpertName returns the name of an expert's matrix: "gate", "up" or "down".
func ExpertName(layer, expert int, matrix string) string {
	return fmt.Sprintf("model.layers.%d.mlp.experts.%d.%s_proj.weight", layer, expert, matrix)
}

// Times returns a function that multiplies by factor.
func Times(factor float32) func(float32) float32 {
	return func(v float32) float32 { return v * factor }
}

// Row returns a function that changes n numbers from at on.
func Row(at, n int, f func(v float32) float32) func(values []float32) {
	return func(values []float32) {
		for i := range values[at : at+n] {
			values[at+i] = f(values[at+i])
		}
	}
}

// MixRows makes values c times from, beside numbers at right angles to it, with the norm of from.
func MixRows(values, from []float32, c float64) {
	product := func(a, b []float32) (sum float64) {
		for i, v := range a {
			sum += float64(v) * float64(b[i])
		}
		return sum
	}
	share := product(values, from) / product(from, from)
	for i, v := range from {
		values[i] -= float32(share * float64(v))
	}
	size := math.Sqrt((1 - c*c) * product(from, from) / product(values, values))
	for i, v := range from {
		values[i] = float32(c*float64(v) + size*float64(values[i]))
	}
}

// Kinds returns observations without their numbers: "duplicate 2 [3 7]".
func Kinds(found []inspect.Observation) (all []string) {
	for _, o := range found {
		all = append(all, fmt.Sprint(o.ID, " ", o.Layer, " ", o.Experts))
	}
	return all
}

// With returns the observations with an id.
func With(found []inspect.Observation, id string) (kept []inspect.Observation) {
	for _, o := range found {
		if o.ID == id {
			kept = append(kept, o)
		}
	}
	return kept
}

// Limit plants something that grows with a factor, and checks that look finds it from limit times the layer's median
// on, and not below.
func Limit(t *testing.T, c *config.Config, id string, limit float64, plant func(s *Stored, factor float64),
	look func(s *Stored) []inspect.Observation) {
	t.Helper()
	planted := func(factor float64) []inspect.Observation {
		s := Fill(t, c)
		plant(s, factor)
		return With(look(s), id)
	}
	const far = 24
	found := planted(far)
	require.Len(t, found, 1)
	one := far * *found[0].Expected / *found[0].Value // the factor that gives the median
	require.Len(t, planted(1.03*limit*one), 1)
	require.Empty(t, planted(0.97*limit*one))
}
