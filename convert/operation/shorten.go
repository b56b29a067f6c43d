package operation

import (
	"encoding/binary"
	"fmt"

	"dsmoe/model/tensor"
)

// Shorten stores I64 as I32. A number that I32 does not have is an error.
type Shorten struct{}

// Name returns "shorten I32".
func (Shorten) Name() string { return "shorten I32" }

// Unit returns one number.
func (Shorten) Unit() unit { return unit{1, 8, 4} }

// Apply stores every number.
func (Shorten) Apply(dst []byte, in Input, _ *tensor.Loss) error {
	for i := range len(dst) / 4 {
		n := int64(binary.LittleEndian.Uint64(in.Data[8*i:]))
		if n != int64(int32(n)) {
			return fmt.Errorf("element %d is %d, which is not an I32", in.Into+int64(i), n)
		}
		binary.LittleEndian.PutUint32(dst[4*i:], uint32(n))
	}
	return nil
}

// Prove demands equal numbers.
func (Shorten) Prove(out []byte, in Input) error {
	for i := range len(out) / 4 {
		got, want := int64(int32(binary.LittleEndian.Uint32(out[4*i:]))), int64(binary.LittleEndian.Uint64(in.Data[8*i:]))
		if got != want {
			return &Mismatch{i, fmt.Sprint(got), fmt.Sprint(want)}
		}
	}
	return nil
}
