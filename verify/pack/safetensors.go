package pack

import (
	"encoding/binary"
	"fmt"

	"github.com/nlpodyssey/safetensors"

	"dsmoe/model/tensor"
	"dsmoe/text"
)

// parse returns the tensors of a safetensors file.
func parse(data []byte) (map[string]tensor.Tensor, error) {
	if len(data) < 8 || binary.LittleEndian.Uint64(data) > maxHeader {
		return nil, fmt.Errorf("not a safetensors file with a header of at most %s", text.Bytes(maxHeader))
	}
	parsed, err := safetensors.Deserialize(data)
	if err != nil {
		return nil, err
	}
	tensors := map[string]tensor.Tensor{}
	for _, t := range parsed.Tensors() {
		dtype, err := tensor.ParseDType(t.TensorView.DType().String())
		if err != nil {
			return nil, err
		}
		shape := make([]int, len(t.TensorView.Shape()))
		for i, d := range t.TensorView.Shape() {
			shape[i] = int(d)
		}
		tensors[t.Name] = tensor.Tensor{DType: dtype, Shape: shape, Data: t.TensorView.Data()}
	}
	return tensors, nil
}

// ints returns the elements of an I64 tensor.
func ints(t tensor.Tensor) ([]int, error) {
	if t.DType != tensor.I64 {
		return nil, fmt.Errorf("dtype %s, I64 expected", t.DType)
	}
	values := make([]int, t.Len())
	for i := range values {
		values[i] = int(int64(binary.LittleEndian.Uint64(t.Data[8*i:])))
	}
	return values, nil
}

// maxHeader is how large the header of a safetensors file of a pack may be.
const maxHeader = 16 << 20
