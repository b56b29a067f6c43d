package tensor

// The search for infinities and NaNs.

import (
	"bytes"
	"encoding/binary"
	"math/bits"

	"dsmoe/model/internal/kernel"
)

// signBit and top hold the bits of −0 and of the first magnitude that is not finite:
// infinity or, in F8E4M3, NaN.
var (
	signBit = [...]uint32{kernel.F32: 1 << 31, kernel.F16: 1 << 15, kernel.BF16: 1 << 15, kernel.F8E4M3: 1 << 7}
	top     = [...]uint32{kernel.F32: 0x7f800000, kernel.F16: 0x7c00, kernel.BF16: 0x7f80, kernel.F8E4M3: 0x7f}
)

// word holds constants for elements that lie side by side in eight bytes: their sign
// bits, and how far below those top is.
type word struct{ sign, gap uint64 }

// scanned is how many bytes are searched before what was found in them is counted.
const scanned = 4096

func wordOf(f kernel.Format) word {
	ones := [...]uint64{1: 0x0101_0101_0101_0101, 2: 0x0001_0001_0001_0001, 4: 0x0000_0001_0000_0001}[f.Size()]
	return word{ones * uint64(signBit[f]), ones * uint64(signBit[f]-top[f])}
}

// Finite says whether no element of t is infinite or NaN: see NotFinite.
func (t Tensor) Finite() bool { return NotFinite(t.Data, t.DType) == 0 }

// NotFinite counts the elements of data, of dtype d, that are infinite or NaN. Of C64 it
// counts real and imaginary parts. Integers are finite, and so are dtypes without such
// patterns. Of block types it counts what the blocks stand for.
func NotFinite(data []byte, d DType) (n int64) {
	if d.Blocked() {
		d.eachDecoded(data, func(x []float32) { n += NotFiniteValues(x) })
		return n
	}
	switch d {
	case F64:
		return word{1 << 63, (0x8000 - 0x7ff0) << 48}.count(data)
	case C64:
		return wordOf(kernel.F32).count(data)
	case F8E5M2:
		return word{0x8080_8080_8080_8080, 0x0404_0404_0404_0404}.count(data)
	case F8E4M3FNUZ, F8E5M2FNUZ:
		return int64(bytes.Count(data, []byte{0x80}))
	case F8E8M0:
		return int64(bytes.Count(data, []byte{0xff}))
	}
	if _, coded := d.codes(); coded {
		return 0
	}
	if f, ok := d.Format(); ok {
		return wordOf(f).count(data)
	}
	return 0
}

// count counts the elements that are infinite or NaN: added to a magnitude, the gap carries into the sign bit from
// top on.
func (w word) count(data []byte) (n int64) {
	sign, gap := w.sign, w.gap
	for len(data) > 0 {
		part, any := data[:min(len(data), scanned)], uint64(0)
		rest := part
		for ; len(rest) >= 32; rest = rest[32:] {
			b := (*[32]byte)(rest)
			any |= binary.LittleEndian.Uint64(b[0:])&^sign + gap
			any |= binary.LittleEndian.Uint64(b[8:])&^sign + gap
			any |= binary.LittleEndian.Uint64(b[16:])&^sign + gap
			any |= binary.LittleEndian.Uint64(b[24:])&^sign + gap
		}
		if any&sign != 0 {
			n += w.atLeast(part, gap)
		} else {
			n += w.atLeast(rest, gap)
		}
		data = data[len(part):]
	}
	return n
}

// atLeast counts the elements of at least the magnitude that a gap stands for.
func (w word) atLeast(data []byte, gap uint64) (n int64) {
	for ; len(data) > 0; data = data[min(8, len(data)):] {
		n += int64(bits.OnesCount64((wordAt(data)&^w.sign + gap) & w.sign))
	}
	return n
}

// wordAt returns the first eight bytes of data; those that it lacks are 0.
func wordAt(data []byte) uint64 {
	if len(data) >= 8 {
		return binary.LittleEndian.Uint64(data)
	}
	var b [8]byte
	copy(b[:], data)
	return binary.LittleEndian.Uint64(b[:])
}

// load returns the bits of element i.
func load(data []byte, i int, f kernel.Format) uint32 {
	switch f.Size() {
	case 1:
		return uint32(data[i])
	case 2:
		return uint32(binary.LittleEndian.Uint16(data[2*i:]))
	}
	return binary.LittleEndian.Uint32(data[4*i:])
}

// store sets the bits of element i, two bytes or four.
func store(data []byte, i int, f kernel.Format, p uint32) {
	if f.Size() == 2 {
		binary.LittleEndian.PutUint16(data[2*i:], uint16(p))
	} else {
		binary.LittleEndian.PutUint32(data[4*i:], p)
	}
}

// IsFinite reports whether v is neither NaN nor infinite.
func IsFinite[F float32 | float64](v F) bool { return v-v == 0 }

// NotFiniteValues counts the numbers that are infinite or NaN.
func NotFiniteValues(x []float32) (n int64) {
	for _, v := range x {
		if !IsFinite(v) {
			n++
		}
	}
	return n
}
