package kernel

import "encoding/binary"

// largestBlock divides the number of patterns that a kernel of Largest16 takes.
const largestBlock = 128

// Largest16 returns the largest magnitude below limit in data, 16-bit patterns of F16 or BF16: a
// magnitude is a pattern without its sign bit. It returns 0 if no magnitude is below limit.
func Largest16(data []byte, limit uint16) (most uint16) {
	largest := current().largest16
	if largest == nil {
		return largestPortable(data, limit)
	}
	n := len(data) / 2 &^ (largestBlock - 1)
	for i := 0; i < n; i += chunk {
		most = max(most, largest(&data[2*i], min(chunk, n-i)))
	}
	if most >= limit {
		return largestPortable(data, limit)
	}
	return largestAfter(data[2*n:], most, limit)
}

const (
	each16 = 0x0001_0001_0001_0001 // its product with a 16-bit number holds the number four times
	sign16 = 0x8000 * each16
)

// largestPortable is Largest16 without kernels. Few blocks hold a larger magnitude than all
// blocks before.
func largestPortable(data []byte, limit uint16) (most uint16) {
	gap := uint64(0x7fff * each16) // added to a magnitude above most it sets the sign bit
	for ; len(data) >= 64; data = data[64:] {
		b := (*[64]byte)(data)
		above := binary.LittleEndian.Uint64(b[0:])&^sign16 + gap
		above |= binary.LittleEndian.Uint64(b[8:])&^sign16 + gap
		above |= binary.LittleEndian.Uint64(b[16:])&^sign16 + gap
		above |= binary.LittleEndian.Uint64(b[24:])&^sign16 + gap
		above |= binary.LittleEndian.Uint64(b[32:])&^sign16 + gap
		above |= binary.LittleEndian.Uint64(b[40:])&^sign16 + gap
		above |= binary.LittleEndian.Uint64(b[48:])&^sign16 + gap
		above |= binary.LittleEndian.Uint64(b[56:])&^sign16 + gap
		if above&sign16 != 0 {
			most = largestAfter(b[:], most, limit)
			gap = uint64(0x7fff-most) * each16
		}
	}
	return largestAfter(data, most, limit)
}

// largestAfter returns the largest of most and the magnitudes in data below limit.
func largestAfter(data []byte, most, limit uint16) uint16 {
	for ; len(data) >= 2; data = data[2:] {
		if m := binary.LittleEndian.Uint16(data) &^ 0x8000; m < limit {
			most = max(most, m)
		}
	}
	return most
}
