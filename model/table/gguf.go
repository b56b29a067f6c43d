package table

import (
	"strconv"
	"strings"

	"dsmoe/config"
	"dsmoe/model/tensor"
)

// GGUF says where the files of llama.cpp have a weight: under the names of
// gguf-py/gguf/tensor_mapping.py, in the order that its converter gives the elements.
type GGUF struct {
	// Name is the tensor with the weight's elements as they lie; of a routed expert, with
	// those of all experts of the layer one behind the other. "{l}" stands for a layer.
	// Empty: no file has one.
	Name string
	// Pieces are tensors with the elements in another order, or with a part of them each.
	// Where they are, the tensor Name is not: they are what is written.
	Pieces []GGUFPiece
}

// GGUFPiece is a tensor with elements of a weight in an order of its own.
type GGUFPiece struct {
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
func (p *GGUFPiece) Order(c *config.Config, shape []int) Order { return p.order(c, shape) }

// InLayer puts the layer into the name of a GGUF tensor.
func (p Place) InLayer(name string) string {
	return strings.Replace(name, "{l}", strconv.Itoa(p.Layer), 1)
}

// The forms of the table's column.

// stored is a tensor with the elements as they lie.
func stored(name string) GGUF { return GGUF{Name: name} }

// split is pieces, or in older files one tensor.
func split(name string, pieces ...GGUFPiece) GGUF { return GGUF{name, pieces} }

// rotated has the rows of each head paired as RoPE rotates them in llama.cpp: row i of the
// first half of the head, then row i of the second. DeepseekModel.permute of
// conversion/deepseek.py.
func rotated(name string, heads Dim) GGUF {
	return GGUF{Pieces: []GGUFPiece{{name, func(c *config.Config, shape []int) Order {
		n, width := int64(heads.Size(c, -1)), int64(1)
		if len(shape) > 1 {
			width = int64(shape[1])
		}
		half := int64(shape[0]) / n / 2
		return Order{Shape: shape, View: view([]int64{n, half, 2, width}, 2*half*width, width, half*width, 1)}
	}}}}
}

func view(shape []int64, stride ...int64) *tensor.View {
	return &tensor.View{Shape: shape, Stride: stride}
}

// latentSizes are num_attention_heads, qk_nope_head_dim, v_head_dim and kv_lora_rank.
func latentSizes(c *config.Config) (heads, nope, value, rank int64) {
	return int64(c.NumAttentionHeads), int64(c.QKNopeHeadDim), int64(c.VHeadDim), int64(c.KVLoraRank)
}

// latentKeys has of kv_b_proj the rows that make keys, those of each head transposed:
// [heads, kv_lora_rank, qk_nope_head_dim].
func latentKeys(name string) GGUFPiece {
	return GGUFPiece{name, func(c *config.Config, _ []int) Order {
		heads, nope, value, rank := latentSizes(c)
		return Order{Shape: []int{int(heads), int(rank), int(nope)},
			View: view([]int64{heads, rank, nope}, (nope+value)*rank, 1, rank)}
	}}
}

// latentValues has of kv_b_proj the rows that make values: [heads, v_head_dim, kv_lora_rank].
func latentValues(name string) GGUFPiece {
	return GGUFPiece{name, func(c *config.Config, _ []int) Order {
		heads, nope, value, rank := latentSizes(c)
		return Order{Shape: []int{int(heads), int(value), int(rank)}, First: nope * rank,
			View: view([]int64{heads, value, rank}, (nope+value)*rank, rank, 1)}
	}}
}

// Dimensions of the column.
var (
	queryHeads = Dim{[]string{"num_attention_heads"}, func(c *config.Config, _ int) int { return c.NumAttentionHeads }}
	keyHeads   = Dim{[]string{"num_key_value_heads"}, func(c *config.Config, _ int) int { return c.NumKeyValueHeads }}
)
