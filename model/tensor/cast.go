package tensor

// Casts between the float dtypes, byte slice to byte slice, for conversion. The
// kernels do them, in pieces that stay in the cache, and know nothing of losses nor of
// what a NaN carries. Losses show when zeros and infinities are counted before and
// after; few pieces have a NaN, and there it is done again.

import (
	"fmt"
	"math"

	"dsmoe/model/internal/kernel"
)

// Loss is what a conversion did to elements that it could not keep: it counts those that
// it could not keep even approximately, and those that were no numbers to begin with, and
// measures the error of those that it quantised.
type Loss struct {
	Overflow  int64 `json:"overflow"`   // finite in the source, but infinite or NaN in the target dtype
	Flushed   int64 `json:"flushed"`    // not zero in the source, but zero in the target dtype; of a block type, with their whole block
	NotFinite int64 `json:"not_finite"` // infinite or NaN in the source, and so in the output

	// Of elements that became blocks, but for blocks with one that became infinite or NaN:
	Squares float64 `json:"squares,omitempty"` // Σ x², x the element in the source
	Errors  float64 `json:"errors,omitempty"`  // Σ (y - x)², y what the block stands for
	Largest float64 `json:"largest,omitempty"` // max |y - x|
}

// Add adds what is in o.
func (l *Loss) Add(o Loss) {
	l.Overflow += o.Overflow
	l.Flushed += o.Flushed
	l.NotFinite += o.NotFinite
	l.Squares += o.Squares
	l.Errors += o.Errors
	l.Largest = max(l.Largest, o.Largest)
}

// RelRMS is the root of the mean square of the error of what was quantised, relative to
// that of the elements; 0 if nothing was.
func (l Loss) RelRMS() float64 {
	if l.Squares == 0 {
		return 0
	}
	return math.Sqrt(l.Errors / l.Squares)
}

// Any says whether anything was lost.
func (l Loss) Any() bool { return l != Loss{} }

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

// piece is how many elements are converted at a time: source, target and what they are
// as float32 fit a level-1 cache together.
const piece = 2048

// Convert encodes the elements of src into dst, which has room for exactly them,
// and counts what is lost.
func (c *Cast) Convert(dst, src []byte) (lost Loss) {
	if c.From == c.To {
		copy(dst, src)
		return Loss{NotFinite: NotFinite(src, c.From)}
	}
	from, _ := c.From.Format()
	to, _ := c.To.Format()
	moves := from == kernel.BF16 && to == kernel.F32 // bits and does nothing else
	wide := make([]float32, min(piece, len(src)/from.Size()))
	for len(src) >= from.Size() {
		wide = wide[:min(len(wide), len(src)/from.Size())]
		n, m := len(wide)*to.Size(), len(wide)*from.Size()
		kernel.Widen(wide, src[:m], from)
		kernel.Narrow(dst[:n], wide, to)
		if moves {
			lost.NotFinite += NotFinite(src[:m], c.From)
		} else if lost.compare(dst[:n], to, src[:m], from) {
			keepNaN(dst[:n], to, src[:m], from)
		}
		src, dst = src[m:], dst[n:]
	}
	return lost
}

// compare counts what src lost when it became dst: how many more elements are zero, and
// infinite or NaN, than were. It says whether there may be a NaN.
func (l *Loss) compare(dst []byte, to kernel.Format, src []byte, from kernel.Format) (nan bool) {
	zero, infinite := census(dst, to)
	if zero+infinite == 0 {
		return false
	}
	zeros, infinities := census(src, from)
	l.Flushed += zero - zeros
	l.Overflow += infinite - infinities
	l.NotFinite += infinities
	return infinities > 0
}

// keepNaN does every NaN of src again by the definition, which keeps payloads.
func keepNaN(dst []byte, to kernel.Format, src []byte, from kernel.Format) {
	for i := range len(src) / from.Size() {
		if p := load(src, i, from); p&^signBit[from] > top[from] {
			store(dst, i, to, kernel.Encode(kernel.Decode(p, from), to))
		}
	}
}

// Rounded returns v rounded to F32, F16 or BF16, as a cast there and back does.
func Rounded(v float32, d DType) float32 {
	f, _ := d.Format()
	return math.Float32frombits(kernel.Decode(kernel.Encode(math.Float32bits(v), f), f))
}

// Ordinal rounds v to F32, F16 or BF16 and numbers the dtype's values in ascending
// order: neighbours are one apart, both zeros are 0.
func Ordinal(v float32, d DType) int64 {
	bits := math.Float32bits(v)
	if d == BF16 && bits<<16 == 0 { // most often: v is a BF16 number already
		return ordinal(bits>>16, 1<<15)
	}
	f, _ := d.Format()
	return ordinal(kernel.Encode(bits, f), signBit[f])
}

// ordinal returns the number of a pattern of sign and magnitude.
func ordinal(p, sign uint32) int64 {
	if p&sign != 0 {
		return -int64(p &^ sign)
	}
	return int64(p)
}
