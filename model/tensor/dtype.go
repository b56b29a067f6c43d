package tensor

import "fmt"

// DType is the type of a tensor's elements. The names are those of the safetensors
// format, and ggml's for the types that Blocked tells of, which only GGUF holds. INT2 … UINT8 are
// codes of that many bits, the lowest first, of integers from -2^(bits-1) on, with that added, and INT8 those of two's
// complement; files hold them in integers: see Form.
type DType uint8

// The element types that a checkpoint can hold, those without a fraction last. Format
// says which of them the kernels read, Casts which can be cast to each other.
const (
	Invalid DType = iota
	F64
	F32
	F16
	BF16
	F8E4M3
	F8E5M2
	F8E8M0
	F8E4M3FNUZ
	F8E5M2FNUZ
	F6E2M3
	F6E3M2
	F4
	INT2
	INT3
	INT4
	INT5
	INT6
	INT7
	UINT8
	INT8
	Q4_0
	Q4_1
	Q5_0
	Q5_1
	Q8_0
	Q2_K
	Q3_K
	Q4_K
	Q5_K
	Q6_K
	IQ4_NL
	IQ4_XS
	MXFP4
	C64
	I64
	I32
	I16
	I8
	U64
	U32
	U16
	U8
	Bool
)

// dtypes is the dtype table: one row per type, in the order of the constants.
var dtypes = [...]struct {
	name     string // as the safetensors format spells it, or ggml
	elements int    // the fewest that fill whole bytes or, of a blocked type, share scales
	bytes    int    // that these take
}{
	Invalid:    {"invalid", 1, 0},
	F64:        {"F64", 1, 8},
	F32:        {"F32", 1, 4},
	F16:        {"F16", 1, 2},
	BF16:       {"BF16", 1, 2},
	F8E4M3:     {"F8_E4M3", 1, 1},
	F8E5M2:     {"F8_E5M2", 1, 1},
	F8E8M0:     {"F8_E8M0", 1, 1},
	F8E4M3FNUZ: {"F8_E4M3FNUZ", 1, 1},
	F8E5M2FNUZ: {"F8_E5M2FNUZ", 1, 1},
	F6E2M3:     {"F6_E2M3", 4, 3},
	F6E3M2:     {"F6_E3M2", 4, 3},
	F4:         {"F4", 2, 1},
	INT2:       {"INT2", 4, 1},
	INT3:       {"INT3", 8, 3},
	INT4:       {"INT4", 2, 1},
	INT5:       {"INT5", 8, 5},
	INT6:       {"INT6", 4, 3},
	INT7:       {"INT7", 8, 7},
	UINT8:      {"UINT8", 1, 1},
	INT8:       {"INT8", 1, 1},
	Q4_0:       {"Q4_0", 32, 18},
	Q4_1:       {"Q4_1", 32, 20},
	Q5_0:       {"Q5_0", 32, 22},
	Q5_1:       {"Q5_1", 32, 24},
	Q8_0:       {"Q8_0", 32, 34},
	Q2_K:       {"Q2_K", 256, 84},
	Q3_K:       {"Q3_K", 256, 110},
	Q4_K:       {"Q4_K", 256, 144},
	Q5_K:       {"Q5_K", 256, 176},
	Q6_K:       {"Q6_K", 256, 210},
	IQ4_NL:     {"IQ4_NL", 32, 18},
	IQ4_XS:     {"IQ4_XS", 256, 136},
	MXFP4:      {"MXFP4", 32, 17},
	C64:        {"C64", 1, 8},
	I64:        {"I64", 1, 8},
	I32:        {"I32", 1, 4},
	I16:        {"I16", 1, 2},
	I8:         {"I8", 1, 1},
	U64:        {"U64", 1, 8},
	U32:        {"U32", 1, 4},
	U16:        {"U16", 1, 2},
	U8:         {"U8", 1, 1},
	Bool:       {"BOOL", 1, 1},
}

// String returns the name, such as "BF16" or "Q8_0".
func (d DType) String() string {
	if int(d) >= len(dtypes) {
		return fmt.Sprintf("DType(%d)", uint8(d))
	}
	return dtypes[d].name
}

// Block returns the least that elements of d come in, and its bytes: as few as fill whole
// bytes, or as share scales. Of no dtype it returns 1 and 0.
func (d DType) Block() (elements, bytes int) {
	if int(d) >= len(dtypes) {
		return 1, 0
	}
	return dtypes[d].elements, dtypes[d].bytes
}

// Blocked reports whether the elements of d lie in blocks that hold their own scales. A row,
// the last axis, is a whole number of them, and no element can be had without its block.
func (d DType) Blocked() bool { return Q4_0 <= d && d <= MXFP4 }

// HasMinimum reports whether the blocks of d have one scale and one minimum.
func (d DType) HasMinimum() bool { return d == Q4_1 || d == Q5_1 }

// codes reports whether the elements of d are codes without a NaN, whose values a table has; bits is their size.
func (d DType) codes() (bits int, ok bool) {
	elements, bytes := d.Block()
	return 8 * bytes / elements, d == F6E2M3 || F4 <= d && d <= INT8
}

// Bytes returns the size of n elements, which fill whole blocks: as many bits as Size
// accepts do not overflow.
func (d DType) Bytes(n int64) int64 {
	elements, bytes := d.Block()
	return n / int64(elements) * int64(bytes)
}

// Elements returns how many elements the first n bytes of a tensor are: those of whole
// blocks. Of no dtype it returns 0.
func (d DType) Elements(n int64) int64 {
	elements, bytes := d.Block()
	if bytes == 0 {
		return 0
	}
	return n / int64(bytes) * int64(elements)
}

// Casts reports whether elements of d can be cast to any other dtype that casts: F32, F16
// and BF16.
func (d DType) Casts() bool { return d == F32 || d == F16 || d == BF16 }

// Integer reports whether d holds integers or truth values, which a cast of weights leaves
// as they are.
func (d DType) Integer() bool { return I64 <= d && d <= Bool }

// ParseDType returns the type that the safetensors format, or ggml, calls name (exact
// case).
func ParseDType(name string) (DType, error) {
	for d := Invalid + 1; int(d) < len(dtypes); d++ {
		if dtypes[d].name == name {
			return d, nil
		}
	}
	return Invalid, fmt.Errorf("unknown dtype %.40q", name)
}

// MarshalText writes the name.
func (d DType) MarshalText() ([]byte, error) { return []byte(d.String()), nil }

// UnmarshalText reads the name.
func (d *DType) UnmarshalText(name []byte) error {
	parsed, err := ParseDType(string(name))
	*d = parsed
	return err
}
