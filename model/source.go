package model

import (
	"fmt"
	"iter"
	"strconv"
	"strings"

	"dsmoe/config"
	"dsmoe/model/tensor"
)

// Source is any set of named tensors: an opened checkpoint, a golden pack, a
// synthetic model. It is safe for concurrent use.
type Source interface {
	// Tensors yields the header entries, in a fixed order; it reads no data.
	Tensors() iter.Seq[tensor.Info]
	// Tensor returns a view of the named tensor, valid until the owner is closed,
	// or an error that names the file and the tensor.
	Tensor(name string) (tensor.Tensor, error)
}

// Canonical returns src under the names of the table: as a checkpoint of the whole
// model with each expert apart. Two other forms are recognised by their names:
//
//	layers.0.…                          the decoder saved without its head: "model." is put before
//	….mlp.experts.gate_up_proj [E, 2I, H]   all experts in one, as transformers 5 saves them:
//	….mlp.experts.down_proj    [E, H, I]    experts.{e}.gate_proj.weight is rows 0 … I-1 of
//	                                        expert e's 2I, up_proj.weight the others
//
// FP8 scales of fused experts (gate_up_proj_scale_inv) are split alike.
//
// The tensors are views of src's; nothing is copied.
func Canonical(src Source) Source {
	if _, done := src.(*canonical); done {
		return src
	}
	c := &canonical{src: src, parts: map[string]part{}}
	prefix := missingPrefix(src)
	for info := range src.Tensors() {
		name := prefix + info.Name
		if strings.HasPrefix(info.Name, "lm_head.") {
			name = info.Name
		}
		switch {
		case len(info.Shape) == 3 && strings.HasSuffix(name, fusedGateUp) && info.Shape[1]%2 == 0:
			c.split(name, info, fusedGateUp, "gate_proj.weight", "up_proj.weight")
		case len(info.Shape) == 3 && strings.HasSuffix(name, fusedGateUp+scaleSuffix) && info.Shape[1]%2 == 0:
			c.split(name, info, fusedGateUp+scaleSuffix, "gate_proj.weight"+scaleSuffix, "up_proj.weight"+scaleSuffix)
		case len(info.Shape) == 3 && strings.HasSuffix(name, fusedDown):
			c.split(name, info, fusedDown, "down_proj.weight")
		case len(info.Shape) == 3 && strings.HasSuffix(name, fusedDown+scaleSuffix):
			c.split(name, info, fusedDown+scaleSuffix, "down_proj.weight"+scaleSuffix)
		default:
			c.add(name, info.Shape, info, 0, 1)
		}
	}
	return c
}

const (
	fusedGateUp = ".mlp.experts.gate_up_proj"
	fusedDown   = ".mlp.experts.down_proj"
)

// missingPrefix returns "model." if src's names lack it.
func missingPrefix(src Source) string {
	for info := range src.Tensors() {
		if strings.HasPrefix(info.Name, "model.") {
			return ""
		}
	}
	return "model."
}

// canonical is a source whose tensors are equal parts of another's.
type canonical struct {
	src   Source
	infos []tensor.Info
	parts map[string]part
}

// part is the index-th of count equal parts of a tensor, along its first axes.
type part struct {
	of           string
	shape        []int
	index, count int
}

func (c *canonical) add(name string, shape []int, of tensor.Info, index, count int) {
	c.infos = append(c.infos, tensor.Info{Name: name, DType: of.DType, Shape: shape})
	c.parts[name] = part{of.Name, shape, index, count}
}

// split adds the experts of a fused tensor: its first axis, and its second in as many
// parts as there are weights.
func (c *canonical) split(name string, info tensor.Info, suffix string, weights ...string) {
	prefix := strings.TrimSuffix(name, suffix) + ".mlp.experts."
	n := len(weights)
	shape := []int{info.Shape[1] / n, info.Shape[2]}
	for e := range info.Shape[0] {
		for i, weight := range weights {
			c.add(prefix+strconv.Itoa(e)+"."+weight, shape, info, e*n+i, info.Shape[0]*n)
		}
	}
}

// Tensors yields the parts in the order of the tensors they are of.
func (c *canonical) Tensors() iter.Seq[tensor.Info] {
	return func(yield func(tensor.Info) bool) {
		for _, info := range c.infos {
			if !yield(info) {
				return
			}
		}
	}
}

// Tensor returns a view of a part.
func (c *canonical) Tensor(name string) (tensor.Tensor, error) {
	p, ok := c.parts[name]
	if !ok {
		return tensor.Tensor{}, fmt.Errorf("there is no tensor %q", name)
	}
	t, err := c.src.Tensor(p.of)
	if err != nil {
		return tensor.Tensor{}, err
	}
	n := len(t.Data) / p.count
	return tensor.Tensor{DType: t.DType, Shape: p.shape, Data: t.Data[p.index*n : (p.index+1)*n : (p.index+1)*n]}, nil
}

// scaleSuffix ends the name of an FP8 weight's scales.
const scaleSuffix = "_scale_inv"

// Dequantized returns src with every FP8 weight as plain numbers of dtype d (F32, BF16
// or F16), and without the scales:
//
//	w[r, c] = float32(e4m3[r, c] · weight_scale_inv[r/block[0], c/block[1]])
//
// rounded to d. Such a tensor is computed, whole, each time it is asked for; all
// others are src's views. c says the size of the blocks.
func Dequantized(c *config.Config, src Source, d tensor.DType) Source {
	return &dequantized{c, src, d}
}

type dequantized struct {
	c   *config.Config
	src Source
	d   tensor.DType
}

func (q *dequantized) Tensors() iter.Seq[tensor.Info] {
	return func(yield func(tensor.Info) bool) {
		for info := range q.src.Tensors() {
			if strings.HasSuffix(info.Name, ".weight"+scaleSuffix) {
				continue
			}
			if info.DType == tensor.F8E4M3 {
				info.DType = q.d
			}
			if !yield(info) {
				return
			}
		}
	}
}

func (q *dequantized) Tensor(name string) (tensor.Tensor, error) {
	w, err := loadWeight(q.c, q.src, name)
	if err != nil || w.DType != tensor.F8E4M3 {
		return w.Tensor, err
	}
	to, err := tensor.NewDequantiser(q.d)
	if err != nil {
		return tensor.Tensor{}, fmt.Errorf("%s: %w", name, err)
	}
	data := make([]byte, w.Len()*q.d.Bits()/8)
	to.Convert(data, w.Data, 0, tensor.Blocks{Rows: w.Shape[0], Cols: w.Shape[1], BlockRows: w.Block[0], BlockCols: w.Block[1]}, w.Scales)
	return tensor.Tensor{DType: q.d, Shape: w.Shape, Data: data}, nil
}
