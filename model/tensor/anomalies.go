package tensor

// The search through stored weights for what no model's should hold, at the speed of
// memory: eight bytes at a time, and elements are only counted where there is something.

import (
	"encoding/binary"

	"dsmoe/model/internal/kernel"
)

// Anomalies counts elements that are not what weights are.
type Anomalies struct {
	NaN       int64 // not a number
	Infinite  int64 // +∞ or -∞, which F8_E4M3 does not have
	BeyondF16 int64 // finite, but infinite when rounded to F16: of magnitude 65520 or more
	Nonzero   bool  // there is an element that is neither 0 nor -0
}

// The first magnitudes, as bits, that are NaN, and that are at least infinite in F16.
var (
	firstNaN  = [...]uint32{kernel.F32: 0x7f800001, kernel.F16: 0x7c01, kernel.BF16: 0x7f81, kernel.F8E4M3: 0x7f}
	beyondF16 = [...]uint32{kernel.F32: 0x477ff000, kernel.F16: 0x7c00, kernel.BF16: 0x4780, kernel.F8E4M3: 0x7f}
)

// Add counts the elements of data, whole ones of F32, F16, BF16, F8 or codes, or what whole
// blocks of a block type stand for. The order in which the parts of a tensor are added does
// not matter.
func (a *Anomalies) Add(data []byte, d DType) {
	if _, coded := d.codes(); coded || d.Blocked() || d == F8E8M0 {
		var wide [4 * piece]byte
		d.eachDecoded(data, func(x []float32) {
			kernel.Narrow(wide[:4*len(x)], x, kernel.F32)
			a.Add(wide[:4*len(x)], F32)
		})
		return
	}
	f, ok := d.Format()
	if !ok {
		panic("tensor: Anomalies.Add: dtype " + d.String())
	}
	w := wordOf(f)
	beyond := word{w.sign, w.gapTo(f, beyondF16[f])}
	for len(data) > 0 {
		part := data[:min(scanned, len(data))]
		some, found := beyond.search(part)
		a.Nonzero = a.Nonzero || some
		if found {
			nan, infinite := w.atLeast(part, w.gapTo(f, firstNaN[f])), w.atLeast(part, w.gap)
			a.NaN += nan
			a.Infinite += infinite - nan
			a.BeyondF16 += w.atLeast(part, beyond.gap) - infinite
		}
		data = data[len(part):]
	}
}

// Merge adds what was counted in another part of the tensor.
func (a *Anomalies) Merge(o Anomalies) {
	a.NaN += o.NaN
	a.Infinite += o.Infinite
	a.BeyondF16 += o.BeyondF16
	a.Nonzero = a.Nonzero || o.Nonzero
}

// gapTo returns how far below the sign bits a magnitude is, in every element.
func (w word) gapTo(f kernel.Format, magnitude uint32) uint64 {
	return w.sign / uint64(signBit[f]) * uint64(signBit[f]-magnitude)
}

// search says whether an element of data is not zero, and whether one has at least the
// magnitude that w's gap stands for.
func (w word) search(data []byte) (nonzero, found bool) {
	largest, gap := ^w.sign, w.gap
	var any, high uint64
	for ; len(data) >= 32; data = data[32:] {
		b := (*[32]byte)(data)
		p, q := binary.LittleEndian.Uint64(b[0:])&largest, binary.LittleEndian.Uint64(b[8:])&largest
		r, s := binary.LittleEndian.Uint64(b[16:])&largest, binary.LittleEndian.Uint64(b[24:])&largest
		any |= p | q | r | s
		high |= (p + gap) | (q + gap) | (r + gap) | (s + gap)
	}
	for ; len(data) > 0; data = data[min(8, len(data)):] {
		x := wordAt(data) & largest
		any |= x
		high |= x + gap
	}
	return any != 0, high&w.sign != 0
}
