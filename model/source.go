package model

import (
	"iter"

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
