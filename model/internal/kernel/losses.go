package kernel

import "math"

// Losses counts how numbers y differ from their sources x, of which they are roundings.
type Losses struct {
	Changed  uint32 // |y| ≠ |x|
	Small    uint32 // |y| ≠ |x|, |x| below the least normal number
	Zero     uint32 // |y| ≠ |x|, y = 0
	Infinite uint32 // y infinite or NaN
}

// Count sets l to the counts of fewer than 2³² numbers; least is the least normal number of y's
// format. Count panics if lengths differ.
func (l *Losses) Count(y, x []float32, least float32) {
	if len(y) != len(x) {
		panic("kernel: Losses: lengths do not fit")
	}
	*l = Losses{}
	done := 0
	if f := current().losses; f != nil {
		done = inChunks(len(x), func(i, n int) {
			var part Losses
			f(&part.Changed, &y[i], &x[i], n, math.Float32bits(least))
			l.Changed += part.Changed
			l.Small += part.Small
			l.Zero += part.Zero
			l.Infinite += part.Infinite
		})
	}
	lossesPortable(l, y[done:], x[done:], math.Float32bits(least))
}

// lossesPortable adds the counts to l, in portable Go.
func lossesPortable(l *Losses, y, x []float32, least uint32) {
	const magnitude, infinity = 1<<31 - 1, 0x7f800000
	y = y[:len(x)]
	for i, v := range x {
		a, b := math.Float32bits(v)&magnitude, math.Float32bits(y[i])&magnitude
		changed := negative(a-b) | negative(b-a)
		l.Changed += changed
		l.Small += changed & negative(a-least)
		l.Zero += changed & negative(b-1)
		l.Infinite += negative(infinity - 1 - b)
	}
}

// negative returns 1 for a difference of magnitudes below 0, else 0.
func negative(d uint32) uint32 { return d >> 31 }
