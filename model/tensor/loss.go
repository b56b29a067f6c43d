package tensor

// What conversions lose, counted while a piece is in the cache: a kernel compares the source's
// numbers with those that the output stands for, and only in a piece with one that is infinite or
// NaN is each element looked at.

import (
	"math"

	"dsmoe/model/internal/kernel"
)

// Loss is what a conversion did to elements: how many are not the source's value, each counted
// once, and the error of those that it quantised. The source's value is the exact product of a code and
// its scale, which the reference rounds to F32 first; of a block type it is the float32 that ggml makes of
// the block.
type Loss struct {
	Rounded  int64 `json:"rounded"`  // another number in the output, of none of the kinds below
	Denormal int64 `json:"denormal"` // the same, of a source below the least normal number of the target dtype
	// not zero in the source, but zero in the target dtype; of a block type, with their whole block
	Flushed   int64 `json:"flushed"`
	Overflow  int64 `json:"overflow"`   // finite in the source, but infinite or NaN in the target dtype
	NotFinite int64 `json:"not_finite"` // infinite or NaN in the source, and so in the output
	// entries of a table of experts whose expert is dropped: another stands in
	Replaced int64 `json:"replaced,omitempty"`

	// Of elements that became blocks, but for blocks with one that became infinite or NaN:
	Squares float64 `json:"squares,omitempty"` // Σ x², x the element in the source
	Errors  float64 `json:"errors,omitempty"`  // Σ (y - x)², y what the block stands for
	Largest float64 `json:"largest,omitempty"` // max |y - x|
}

// Add adds what is in o.
func (l *Loss) Add(o Loss) {
	l.Rounded += o.Rounded
	l.Denormal += o.Denormal
	l.Flushed += o.Flushed
	l.Overflow += o.Overflow
	l.NotFinite += o.NotFinite
	l.Replaced += o.Replaced
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

// Exact reports whether every element is finite and the source's value, or the kept expert that it names.
func (l Loss) Exact() bool {
	return l.Rounded+l.Denormal+l.Flushed+l.Overflow+l.NotFinite+l.Replaced == 0
}

const (
	magnitudeBits = 1<<31 - 1
	infinityBits  = 0x7f800000
)

// cast counts what x lost when they became dst, of format to. All is counted but what is infinite or NaN: whether there is
// any, of which the source may have been so.
func (l *Loss) cast(dst []byte, to kernel.Format, x []float32) (infinite bool) {
	var n kernel.Losses
	if n.Count(dst, to, x); n.Infinite > 0 {
		return true
	}
	l.Flushed += int64(n.Zero)
	l.Denormal += int64(n.Small - n.Zero)
	l.Rounded += int64(n.Changed - n.Small)
	return false
}

// narrowed counts what x lost when they became dst, of format to.
func (l *Loss) narrowed(dst []byte, to kernel.Format, x []float32) {
	if !l.cast(dst, to, x) {
		return
	}
	y := make([]float32, len(x))
	kernel.Widen(y, dst, to)
	for i, v := range x {
		l.element(y[i], v, to)
	}
}

// element counts what x lost when it became an element of format to, which stands for y.
func (l *Loss) element(y, x float32, to kernel.Format) {
	switch a, b := math.Float32bits(x)&magnitudeBits, math.Float32bits(y)&magnitudeBits; {
	case a >= infinityBits:
		l.NotFinite++
	case b >= infinityBits:
		l.Overflow++
	case a == b:
	case b == 0:
		l.Flushed++
	default:
		l.rounded(x, to)
	}
}

// rounded counts a number x that is rounded to another one of format to, which is not zero.
func (l *Loss) rounded(x float32, to kernel.Format) {
	if abs32(x) < to.LeastNormal() {
		l.Denormal++
		return
	}
	l.Rounded++
}
