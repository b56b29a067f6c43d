package table

import (
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
	Name  string // of the tensor; "{l}" stands for a layer
	order func(c *config.Config, shape []int) Order
}

// Order is which elements of a weight a tensor has.
type Order struct {
	Shape []int // of the tensor, outermost first
	First int64 // the first element of the weight that View counts from
	// View is which elements, in which order. The pieces of a weight that has several take turns
	// along the first axis.
	View *tensor.View
}

// Order returns what the piece has of a weight of that shape.
func (p *ggufPiece) Order(c *config.Config, shape []int) Order { return p.order(c, shape) }
