package model

import (
	"dsmoe/config"
	"dsmoe/model/tensor"
)

// TorchDType returns torch_dtype as a dtype. A config without one means F32, the
// type in which PyTorch creates weights.
func TorchDType(c *config.Config) tensor.DType {
	switch c.TorchDType {
	case "bfloat16":
		return tensor.BF16
	case "float16":
		return tensor.F16
	case "float64":
		return tensor.F64
	}
	return tensor.F32
}
