package gguf

import (
	"strconv"

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
	3: {"Q4_1", tensor.Q4_1}, 20: {"IQ4_NL", tensor.IQ4_NL}, 23: {"IQ4_XS", tensor.IQ4_XS}, 10: {"Q2_K", tensor.Q2_K}, 11: {"Q3_K", tensor.Q3_K}, 12: {"Q4_K", tensor.Q4_K}, 13: {"Q5_K", tensor.Q5_K},
	14: {"Q6_K", tensor.Q6_K}, 39: {"MXFP4", tensor.MXFP4},

	9: {name: "Q8_1"}, 15: {name: "Q8_K"},
	16: {name: "IQ2_XXS"}, 17: {name: "IQ2_XS"}, 18: {name: "IQ3_XXS"}, 19: {name: "IQ1_S"},
	21: {name: "IQ3_S"}, 22: {name: "IQ2_S"}, 29: {name: "IQ1_M"},
	34: {name: "TQ1_0"}, 35: {name: "TQ2_0"}, 40: {name: "NVFP4"}, 41: {name: "Q1_0"}, 42: {name: "Q2_0"},
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

// kind is the type of a value: enum gguf_type.
type kind uint32

// The types of values.
const (
	u8 kind = iota
	i8
	u16
	i16
	u32
	i32
	f32
	boolean
	str
	array
	u64
	i64
	f64
	kinds // number of kinds
)

// names and sizes in bytes of kinds; a string's size is its least, the size of its length.
var kindTable = [kinds]struct {
	name string
	size int64
}{
	u8: {"u8", 1}, i8: {"i8", 1}, u16: {"u16", 2}, i16: {"i16", 2}, u32: {"u32", 4}, i32: {"i32", 4}, f32: {"f32", 4},
	boolean: {"bool", 1}, str: {"string", 8}, array: {"array", 12}, u64: {"u64", 8}, i64: {"i64", 8}, f64: {"f64", 8},
}

// String returns the name, or the number of an unknown type.
func (k kind) String() string {
	if k >= kinds {
		return "type " + strconv.FormatUint(uint64(k), 10)
	}
	return kindTable[k].name
}

// value is the value of a key: a uint64, int64, float64, bool or string, or a list.
type value struct {
	kind kind
	of   kind   // of the elements of an array
	one  any    // of a single value; f32 is the float64 of the same value
	many []any  // the elements of an array, if they are few
	n    uint64 // how many elements an array has

	at, end int64 // where key and value are in the file
}

// maxList bounds the elements of an array that is kept: configs have one per layer or per
// norm. The tokens of a vocabulary are not kept.
const maxList = 4096

// most returns the dtype of most elements.
func most(tensors []tensor.Info) (most tensor.DType) {
	counts := map[tensor.DType]int64{}
	for _, info := range tensors {
		counts[info.DType] += int64(info.Len())
		if counts[info.DType] > counts[most] {
			most = info.DType
		}
	}
	return most
}
