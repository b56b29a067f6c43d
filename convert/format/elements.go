package format

import (
	"encoding/binary"

	"dsmoe/model/tensor"
)

// ReadElements fills dst with n elements of dtype d from first on. read fills its dst from an
// offset in bytes, counted from the first element. With a decode other than Invalid, the
// stored elements are decoded from that dtype (F16, BF16 or one with blocks) to d, which is F32, or from I32 to I64.
func ReadElements(read func(dst []byte, offset int64) error, dst []byte, d, decode tensor.DType, first, n int64) error {
	if decode == tensor.Invalid {
		return read(dst, d.Bytes(first))
	}
	elements, size := decode.Block()
	unit := int64(elements)
	begin, end := first/unit, (first+n+unit-1)/unit
	blocks := make([]byte, (end-begin)*int64(size))
	if err := read(blocks, begin*int64(size)); err != nil {
		return err
	}
	wide := make([]byte, d.Bytes((end-begin)*unit))
	if decode.Blocked() {
		tensor.DequantiseBlocks(wide, blocks, decode, d)
	} else if decode == tensor.I32 && d == tensor.I64 {
		for i := range len(wide) / 8 {
			v := int32(binary.LittleEndian.Uint32(blocks[4*i:]))
			binary.LittleEndian.PutUint64(wide[8*i:], uint64(int64(v)))
		}
	} else if c, err := tensor.NewCast(decode, d); err != nil {
		return err
	} else {
		c.Convert(wide, blocks)
	}
	copy(dst, wide[d.Bytes(first-begin*unit):])
	return nil
}
