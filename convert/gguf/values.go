package gguf

import "strconv"

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
