package model

import (
	"dsmoe/config"
	"dsmoe/model/tensor"
)

// torchNames spells dtypes as torch_dtype of config.json does.
var torchNames = map[tensor.DType]string{tensor.F64: "float64", tensor.F32: "float32", tensor.F16: "float16", tensor.BF16: "bfloat16"}

// TorchDType returns torch_dtype as a dtype. A config without one means F32, the
// type in which PyTorch creates weights.
func TorchDType(c *config.Config) tensor.DType {
	for d, name := range torchNames {
		if name == c.TorchDType {
			return d
		}
	}
	return tensor.F32
}

// TorchName returns what torch_dtype is for weights of d, "bfloat16"; empty if it can
// say no such thing.
func TorchName(d tensor.DType) string { return torchNames[d] }
