package cli

import (
	"fmt"
	"slices"
	"strings"

	"dsmoe/convert/checkpoint"
	"dsmoe/model/tensor"
)

// WeightType is the dtype of weights, or a mixture of types that a format has.
type WeightType struct {
	DType   tensor.DType
	Mixture string
}

// parseWeightType reads a dtype, or a mixture's name.
func parseWeightType(word string) (t WeightType, err error) {
	d, ok := dtypeNamed(word)
	mixture := strings.ToLower(word)
	switch {
	case word == "keep", ok && d.Casts():
		t.DType = d
	case mixture == "fp8":
		t.DType = tensor.FP8.Codes
	case slices.Contains(checkpoint.Mixtures(), mixture):
		t.Mixture = mixture
	default:
		err = fmt.Errorf("not f32, f16, bf16, fp8 or keep, nor, for GGUF, %s", strings.Join(checkpoint.Mixtures(), ", "))
	}
	return t, err
}

// String returns the dtype as the format spells it.
func (t WeightType) String() string {
	switch {
	case t.Mixture != "":
		return t.Mixture
	case t.DType == tensor.Invalid:
		return "keep"
	case t.DType.Scaled():
		return "fp8"
	}
	return t.DType.String()
}

// TypeFlag is a flag that takes a type of weights.
func TypeFlag(to *WeightType) Value[WeightType] {
	return Value[WeightType]{to, "dtype", parseWeightType, WeightType.String,
		append([]string{"bf16", "f16", "f32", "fp8", "keep"}, checkpoint.Mixtures()...)}
}
