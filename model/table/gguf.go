package table

import (
	"strconv"
	"strings"

	"dsmoe/config"
	"dsmoe/model/tensor"
)

// gguf says where the files of llama.cpp have a weight: under the names of
// gguf-py/gguf/tensor_mapping.py, in the order that its converter gives the elements.
type gguf struct {
	// Name is the tensor with the weight's elements as they lie; of a routed expert, with
	// those of all experts of the layer one behind the other. "{l}" stands for a layer.
	// Empty: no file has one.
	Name string
	// Pieces are tensors with the elements in another order, or with a part of them each.
	// Where they are, the tensor Name is not: they are what is written.
	Pieces []ggufPiece
}

// ggufPiece is a tensor with elements of a weight in an order of its own.
type ggufPiece struct {
	Name string // of the tensor; "{l}" stands for a layer
	// Order returns what the piece has of a weight of that shape.
	Order func(c *config.Config, shape []int) Order
}

// Order is which elements of a weight a tensor has.
type Order struct {
	Shape []int // of the tensor, outermost first
	First int64 // the first element of the weight that View counts from
	// View is which elements, in which order. The pieces of a weight that has several take turns
	// along the first axis.
	View *tensor.View
}

// StageOf returns the stage that an engine's number of this name is, which is named by the weight of a GGUF file that gave
// or took it: "blk.3.attn_q_a.output" is model.layers.3.self_attn.q_a_proj.output, "blk.3.ffn_down_exps.7.input" is
// model.layers.3.mlp.experts.7.down_proj.input. Columns lie in the file's order; column i is column columns.Element(i)
// of the stage, or column i where columns is nil. Of other names it returns "".
func (f *Family) StageOf(c *config.Config, name string) (stage string, columns *tensor.View) {
	weight, input := strings.CutSuffix(name, ".input")
	if !input {
		var output bool
		if weight, output = strings.CutSuffix(name, ".output"); !output {
			return "", nil
		}
	}
	layer, expert := -1, -1
	if rest, ok := strings.CutPrefix(weight, "blk."); ok {
		n, digits := number(rest)
		layer, weight = n, "blk."+layerHole+rest[digits:]
	}
	if at := strings.LastIndexByte(weight, '.'); at >= 0 && strings.HasSuffix(weight[:at], "_exps") {
		n, err := strconv.Atoi(weight[at+1:])
		if err != nil {
			return "", nil
		}
		expert, weight = n, weight[:at]
	}
	var piece *ggufPiece
	row := f.find(func(r *Row) bool {
		piece = nil
		if len(r.GGUF.Pieces) == 1 && r.GGUF.Name == "" {
			piece = &r.GGUF.Pieces[0]
			return piece.Name == weight+".weight"
		}
		return r.GGUF.Name == weight+".weight"
	})
	if row == nil || row.PerLayer() != (layer >= 0) || row.PerExpert() != (expert >= 0) {
		return "", nil
	}
	at := Place{row, layer, expert}
	module := strings.TrimSuffix(row.NameIn(layer, expert), ".weight")
	switch {
	case input:
		return module + ".input", nil
	case row.Role == DownProj:
		return at.MLP() + ".output", nil
	case piece != nil:
		columns = piece.Order(c, row.Sizes(c, layer)[:1]).View
	}
	return at.Stage(), columns
}
