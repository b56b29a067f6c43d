package tensor

// Casts between the float dtypes, byte slice to byte slice, for conversion. The
// kernels do them, in pieces that stay in the cache, and know nothing of losses nor of
// what a NaN carries. Losses are counted in the pieces; few have a NaN, and there it is done
// again.

import (
	"fmt"
	"iter"
	"math"

	"dsmoe/model/internal/kernel"
)

// Cast converts elements between F32, F16 and BF16, rounding to nearest, ties to
// even. Signs stay, also that of zero. A NaN keeps the top of its payload, and is quiet
// if nothing of that is left. A Cast is safe for concurrent use.
type Cast struct {
	From DType // dtype of what is converted
	To   DType // dtype of what it becomes
}

// NewCast prepares the cast, or says that there is none.
func NewCast(from, to DType) (*Cast, error) {
	if !from.Casts() {
		return nil, fmt.Errorf("dtype %s cannot be cast", from)
	}
	if !to.Casts() {
		return nil, fmt.Errorf("nothing can be cast to dtype %s", to)
	}
	return &Cast{From: from, To: to}, nil
}

// Convert encodes the elements of src into dst, which has room for exactly them,
// and counts what is lost.
func (c *Cast) Convert(dst, src []byte) (lost Loss) {
	if c.From == c.To {
		copy(dst, src)
		return Loss{NotFinite: NotFinite(src, c.From)}
	}
	from, _ := c.From.Format()
	to, _ := c.To.Format()
	n := min(piece, len(src)/from.Size())
	wide := make([]float32, n)
	for len(src) >= from.Size() {
		wide = wide[:min(len(wide), len(src)/from.Size())]
		n, m := len(wide)*to.Size(), len(wide)*from.Size()
		kernel.Widen(wide, src[:m], from)
		kernel.Narrow(dst[:n], wide, to)
		before := lost.NotFinite
		if to == kernel.F32 { // which every number of 16 bits is
			lost.NotFinite += NotFinite(src[:m], c.From)
		} else {
			lost.narrowed(dst[:n], to, wide)
		}
		if lost.NotFinite > before { // every NaN again by the definition, which keeps payloads
			for i := range wide {
				if p := load(src, i, from); p&^signBit[from] > top[from] {
					store(dst, i, to, kernel.Encode(kernel.Decode(p, from), to))
				}
			}
		}
		src, dst = src[m:], dst[n:]
	}
	return lost
}

// DoubtfulRoundings yields the indices of the elements of src that are not plainly rounded to those of out, as
// kernel.DoubtfulRoundings says: all wrong ones, and some right ones. Dtypes are F32, F16 and BF16.
func DoubtfulRoundings(out []byte, to DType, src []byte, from DType) iter.Seq[int] {
	t, _ := to.Format()
	f, _ := from.Format()
	return kernel.DoubtfulRoundings(out, t, src, f)
}

// Rounded returns v rounded to F32, F16 or BF16, as a cast there and back does.
func Rounded(v float32, d DType) float32 {
	if bits := math.Float32bits(v); d == BF16 && bits&0x7f800000 != 0x7f800000 { // ties to even, and beyond all to infinity
		return math.Float32frombits((bits + 0x7fff + bits>>16&1) &^ 0xffff)
	}
	f, _ := d.Format()
	return math.Float32frombits(kernel.Decode(kernel.Encode(math.Float32bits(v), f), f))
}

// Ordinal rounds v to F32, F16 or BF16 and numbers the dtype's values in ascending
// order: neighbours are one apart, both zeros are 0.
func Ordinal(v float32, d DType) int64 {
	bits := math.Float32bits(v)
	switch {
	case d == F32:
		return ordinal(bits, 1<<31)
	case d == BF16 && bits<<16 == 0: // most often: v is a BF16 number already
		return ordinal(bits>>16, 1<<15)
	}
	f, _ := d.Format()
	return ordinal(kernel.Encode(bits, f), signBit[f])
}

// ordinal returns the number of a pattern of sign and magnitude. It does not branch: signs are hard to guess.
func ordinal(p, sign uint32) int64 {
	n := int64(p &^ sign)
	if p&sign != 0 {
		n = -n
	}
	return n
}
