package table

import (
	"dsmoe/config"
	"dsmoe/model/tensor"
)

// torchNames spells dtypes as torch_dtype of config.json does.
var torchNames = map[tensor.DType]string{
	tensor.F64: "float64", tensor.F32: "float32", tensor.F16: "float16", tensor.BF16: "bfloat16"}

// TorchDType returns torch_dtype as a dtype; without one BF16, in which these models are published.
func TorchDType(c *config.Config) tensor.DType {
	if d := ParseTorch(c.TorchDType); d != tensor.Invalid {
		return d
	}
	return tensor.BF16
}

// ParseTorch returns the dtype that torch_dtype spells so; Invalid if it is none of weights.
func ParseTorch(name string) tensor.DType {
	for d, torch := range torchNames {
		if torch == name {
			return d
		}
	}
	return tensor.Invalid
}

// TorchName returns what torch_dtype is for weights of d, "bfloat16"; empty if it can
// say no such thing.
func TorchName(d tensor.DType) string { return torchNames[d] }
