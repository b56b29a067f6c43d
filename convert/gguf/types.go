package gguf

import (
	"fmt"

	"dsmoe/model/tensor"
)

// ggmlType is a row of ggml's table of types: enum ggml_type and its type_traits.
type ggmlType struct {
	name  string       // as ggml spells it, in capitals
	dtype tensor.DType // Invalid if its elements cannot be read here
}

// types is the table by ggml's numbers. It lacks numbers that ggml abandoned or never
// assigned.
var types = map[uint32]ggmlType{
	0: {"F32", tensor.F32}, 1: {"F16", tensor.F16}, 30: {"BF16", tensor.BF16}, 28: {"F64", tensor.F64},
	24: {"I8", tensor.I8}, 25: {"I16", tensor.I16}, 26: {"I32", tensor.I32}, 27: {"I64", tensor.I64},

	2: {"Q4_0", tensor.Q4_0}, 6: {"Q5_0", tensor.Q5_0}, 7: {"Q5_1", tensor.Q5_1}, 8: {"Q8_0", tensor.Q8_0},
	10: {"Q2_K", tensor.Q2_K}, 11: {"Q3_K", tensor.Q3_K}, 12: {"Q4_K", tensor.Q4_K}, 13: {"Q5_K", tensor.Q5_K},
	14: {"Q6_K", tensor.Q6_K}, 39: {"MXFP4", tensor.MXFP4},

	3: {name: "Q4_1"}, 9: {name: "Q8_1"},
	15: {name: "Q8_K"},
	16: {name: "IQ2_XXS"}, 17: {name: "IQ2_XS"}, 18: {name: "IQ3_XXS"}, 19: {name: "IQ1_S"}, 20: {name: "IQ4_NL"},
	21: {name: "IQ3_S"}, 22: {name: "IQ2_S"}, 23: {name: "IQ4_XS"}, 29: {name: "IQ1_M"},
	34: {name: "TQ1_0"}, 35: {name: "TQ2_0"}, 40: {name: "NVFP4"}, 41: {name: "Q1_0"}, 42: {name: "Q2_0"},
}

// dtypeOf returns the dtype that a tensor of this ggml type is read as.
func dtypeOf(number uint32) (tensor.DType, error) {
	t, known := types[number]
	switch {
	case !known:
		return tensor.Invalid, fmt.Errorf("type %d is not a type of ggml", number)
	case t.dtype == tensor.Invalid:
		return tensor.Invalid, fmt.Errorf("type %s cannot be read", t.name)
	}
	return t.dtype, nil
}

// typeOf returns ggml's number of a dtype.
func typeOf(d tensor.DType) (number uint32, ok bool) {
	for n, t := range types {
		if t.dtype == d && d != tensor.Invalid {
			return n, true
		}
	}
	return 0, false
}
