package tensor

// Counts of the bit patterns of 16-bit elements. All that can be said of a tensor's
// distribution follows from them, exactly and whatever the order in which its parts are
// counted.

import (
	"encoding/binary"
	"math"

	"dsmoe/model/internal/kernel"
)

// patternCount is how many patterns 16 bits have.
const patternCount = 1 << 16

// Patterns counts the patterns of F16 or BF16 elements, at most 2^32 - 1 until Take. It is
// for one goroutine.
type Patterns struct {
	lanes [2][patternCount]uint32 // two, so that equal neighbours need not wait for each other
}

// Add counts the elements of data, whole ones of 16 bits.
func (p *Patterns) Add(data []byte) {
	even, odd := &p.lanes[0], &p.lanes[1]
	for ; len(data) >= 16; data = data[16:] { // a load for each element: shifting them out of one is slower
		b := (*[16]byte)(data)
		even[binary.LittleEndian.Uint16(b[0:])]++
		odd[binary.LittleEndian.Uint16(b[2:])]++
		even[binary.LittleEndian.Uint16(b[4:])]++
		odd[binary.LittleEndian.Uint16(b[6:])]++
		even[binary.LittleEndian.Uint16(b[8:])]++
		odd[binary.LittleEndian.Uint16(b[10:])]++
		even[binary.LittleEndian.Uint16(b[12:])]++
		odd[binary.LittleEndian.Uint16(b[14:])]++
	}
	for ; len(data) >= 2; data = data[2:] {
		even[binary.LittleEndian.Uint16(data)]++
	}
}

// LargestFinite returns the largest magnitude of the finite elements of data, whole ones of
// F16 or BF16; 0 if there are none.
func LargestFinite(data []byte, d DType) float32 {
	f, _ := d.Format()
	return patternValue(kernel.Largest16(data, uint16(top[f])), f)
}

// Take adds the counts to sums, and forgets them.
func (p *Patterns) Take(sums *[patternCount]int64) {
	even, odd := &p.lanes[0], &p.lanes[1]
	for i := range even {
		if even[i]|odd[i] != 0 {
			sums[i] += int64(even[i]) + int64(odd[i])
			even[i], odd[i] = 0, 0
		}
	}
}

// PatternValues returns what each of the patterns of F16 or BF16 stands for.
func PatternValues(d DType) *[patternCount]float32 {
	f, _ := d.Format()
	values := new([patternCount]float32)
	for i := range values {
		values[i] = patternValue(uint16(i), f)
	}
	return values
}

func patternValue(p uint16, f kernel.Format) float32 {
	return math.Float32frombits(kernel.Decode(uint32(p), f))
}
