package operation

import (
	"fmt"

	"dsmoe/model/tensor"
)

// Narrow gives F32 elements back the dtype, F16 or BF16, that they had before they were
// widened. Unlike a Cast it loses nothing: an element that it cannot keep is an error.
type Narrow struct {
	To tensor.DType `json:"to"` // dtype of the output

	codec *tensor.Cast
}

// NewNarrow prepares the operation; it refuses other dtypes.
func NewNarrow(to tensor.DType) (*Narrow, error) {
	c, err := tensor.NewCast(tensor.F32, to)
	if err != nil {
		return nil, err
	}
	return &Narrow{to, c}, nil
}

// Name returns "narrow" and the dtype of the output.
func (n *Narrow) Name() string { return "narrow " + n.To.String() }

// Unit returns one element.
func (n *Narrow) Unit() unit { return unit{1, int(tensor.F32.Bytes(1)), int(n.To.Bytes(1))} }

// Apply drops the bits that are all zero.
func (n *Narrow) Apply(dst []byte, in Input, lost *tensor.Loss) error {
	lost.Add(n.codec.Convert(dst, in.Data))
	if err := n.Prove(dst, in); err != nil {
		return fmt.Errorf("was not widened from %s, as the file says: %w", n.To, err)
	}
	return nil
}

// Prove demands that the written numbers, widened, are the source to the bit.
func (n *Narrow) Prove(out []byte, in Input) error { return proveWidening(n.To, in.Data, out) }
