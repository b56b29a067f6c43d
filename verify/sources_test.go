package verify_test

import (
	"iter"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/stretchr/testify/require"

	"dsmoe/config"
	"dsmoe/model/tensor"
	"dsmoe/model/weights"
)

// altered is a source with some tensors replaced.
type altered struct {
	weights.Source
	tensors map[string]tensor.Tensor
	missing string
}

func (a altered) Tensors() iter.Seq[tensor.Info] {
	return func(yield func(tensor.Info) bool) {
		for i := range a.Source.Tensors() {
			if t, ok := a.tensors[i.Name]; ok {
				i.DType, i.Shape = t.DType, t.Shape
			}
			if i.Name != a.missing && !yield(i) {
				return
			}
		}
	}
}

func (a altered) Tensor(name string) (tensor.Tensor, error) {
	if t, ok := a.tensors[name]; ok {
		return t, nil
	}
	return a.Source.Tensor(name)
}

// get returns a tensor with data of its own.
func get(t *testing.T, src weights.Source, name string) tensor.Tensor {
	t.Helper()
	w, err := src.Tensor(name)
	require.NoError(t, err)
	w.Data = slices.Clone(w.Data)
	return w
}

func swap(t *testing.T, src weights.Source, pairs ...string) altered {
	a := altered{Source: src, tensors: map[string]tensor.Tensor{}}
	for i := 0; i < len(pairs); i += 2 {
		a.tensors[pairs[i]], a.tensors[pairs[i+1]] = get(t, src, pairs[i+1]), get(t, src, pairs[i])
	}
	return a
}

func replace(src weights.Source, name string, w tensor.Tensor) altered {
	return altered{Source: src, tensors: map[string]tensor.Tensor{name: w}}
}

// interleave reorders the rows of each head from halves to pairs, as a conversion
// for the other RoPE layout does.
func interleave(w tensor.Tensor, dim int) tensor.Tensor {
	var rows []byte
	for r := range w.Shape[0] {
		i := r % dim
		rows = append(rows, w.Row(r/dim*dim+i/2+i%2*dim/2).Data...)
	}
	w.Data = rows
	return w
}

func rotateRows(w tensor.Tensor) tensor.Tensor {
	n := len(w.Data) / w.Shape[0]
	w.Data = append(slices.Clone(w.Data[n:]), w.Data[:n]...)
	return w
}

func lexicographic(t *testing.T, src weights.Source, c *config.Config) altered {
	a := altered{Source: src, tensors: map[string]tensor.Tensor{}}
	for l := range c.NumHiddenLayers {
		var names []string
		for e := range c.MoE.NRoutedExperts {
			names = append(names, strconv.Itoa(e))
		}
		slices.Sort(names)
		for at, name := range names {
			for _, proj := range []string{"gate_proj", "up_proj", "down_proj"} {
				if c.IsMoE(l) {
					prefix := "model.layers." + strconv.Itoa(l) + ".mlp.experts."
					a.tensors[prefix+strconv.Itoa(at)+"."+proj+".weight"] = get(t, src, prefix+name+"."+proj+".weight")
				}
			}
		}
	}
	return a
}

func override(t *testing.T, c *config.Config, key, value string) *config.Config {
	t.Helper()
	changed, err := c.Override(map[string]jsontext.Value{key: jsontext.Value(value)})
	require.NoError(t, err)
	return changed
}

// shallow is a source without layer 3.
type shallow struct{ weights.Source }

func (s shallow) Tensors() iter.Seq[tensor.Info] {
	return func(yield func(tensor.Info) bool) {
		for i := range s.Source.Tensors() {
			if !strings.HasPrefix(i.Name, "model.layers.3.") && !yield(i) {
				return
			}
		}
	}
}

// mtp is a source with more headers.
type mtp struct {
	weights.Source
	infos map[string]tensor.Info
}

func (m mtp) Tensors() iter.Seq[tensor.Info] {
	return func(yield func(tensor.Info) bool) {
		for i := range m.Source.Tensors() {
			if !yield(i) {
				return
			}
		}
		for _, i := range m.infos {
			if !yield(i) {
				return
			}
		}
	}
}

// Tensor returns zeros for what the headers add.
func (m mtp) Tensor(name string) (tensor.Tensor, error) {
	if i, ok := m.infos[name]; ok {
		return tensor.Tensor{DType: i.DType, Shape: i.Shape, Data: make([]byte, i.Bytes())}, nil
	}
	return m.Source.Tensor(name)
}
