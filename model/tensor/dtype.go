package tensor

import "fmt"

// DType is the type of a tensor's elements. The names are those of the
// safetensors format.
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
	name string // as the safetensors format spells it
	bits int    // per element
}{
	Invalid:    {"invalid", 0},
	F64:        {"F64", 64},
	F32:        {"F32", 32},
	F16:        {"F16", 16},
	BF16:       {"BF16", 16},
	F8E4M3:     {"F8_E4M3", 8},
	F8E5M2:     {"F8_E5M2", 8},
	F8E8M0:     {"F8_E8M0", 8},
	F8E4M3FNUZ: {"F8_E4M3FNUZ", 8},
	F8E5M2FNUZ: {"F8_E5M2FNUZ", 8},
	F6E2M3:     {"F6_E2M3", 6},
	F6E3M2:     {"F6_E3M2", 6},
	F4:         {"F4", 4},
	C64:        {"C64", 64},
	I64:        {"I64", 64},
	I32:        {"I32", 32},
	I16:        {"I16", 16},
	I8:         {"I8", 8},
	U64:        {"U64", 64},
	U32:        {"U32", 32},
	U16:        {"U16", 16},
	U8:         {"U8", 8},
	Bool:       {"BOOL", 8},
}

// String returns the safetensors name, such as "BF16".
func (d DType) String() string {
	if int(d) >= len(dtypes) {
		return fmt.Sprintf("DType(%d)", uint8(d))
	}
	return dtypes[d].name
}

// Bits returns the size of one element in bits; sub-byte types have fewer than 8.
func (d DType) Bits() int {
	if int(d) >= len(dtypes) {
		return 0
	}
	return dtypes[d].bits
}

// Bytes returns the size of n elements, which fill whole bytes: as many bits as Size
// accepts do not overflow.
func (d DType) Bytes(n int64) int64 { return n/8*int64(d.Bits()) + n%8*int64(d.Bits())/8 }

// Casts says whether elements of d can be cast to any other dtype that casts: F32, F16
// and BF16.
func (d DType) Casts() bool { return d == F32 || d == F16 || d == BF16 }

// Integer says whether d holds integers or truth values, which a cast of weights leaves
// as they are.
func (d DType) Integer() bool { return I64 <= d && d <= Bool }

// ParseDType returns the type that the safetensors format calls name (exact case).
func ParseDType(name string) (DType, error) {
	for d := Invalid + 1; int(d) < len(dtypes); d++ {
		if dtypes[d].name == name {
			return d, nil
		}
	}
	return Invalid, fmt.Errorf("unknown dtype %.40q", name)
}

// MarshalText writes the safetensors name.
func (d DType) MarshalText() ([]byte, error) { return []byte(d.String()), nil }

// UnmarshalText reads the safetensors name.
func (d *DType) UnmarshalText(name []byte) error {
	parsed, err := ParseDType(string(name))
	*d = parsed
	return err
}
