package kernel

import (
	"math"
	"sync"
)

// Lines are the codes of a block of a type K, and what they stand for, 16 numbers with a line each: Scale·code - Low.
type Lines struct {
	Scale, Low [16]float32
	Codes      [256]byte // from 0 on
}

// SetPart sets the lines of part p of 32 numbers.
func (l *Lines) SetPart(p int, scale, low float32) {
	l.Scale[2*p], l.Scale[2*p+1] = scale, scale
	l.Low[2*p], l.Low[2*p+1] = low, low
}

// Encode sets the code of each number x to the integer nearest to (x + Low)/Scale, clamped to least … most, minus least.
// Codes of a part without scale are undefined.
func (l *Lines) Encode(x *[256]float32, least, most int32) {
	if f := current().encodeLines; f != nil {
		f(&l.Scale[0], &x[0], int(least), int(most))
		return
	}
	l.encodePortable(x, least, most)
}

// encodePortable is Encode in portable Go.
func (l *Lines) encodePortable(x *[256]float32, least, most int32) {
	for i, v := range x {
		l.Codes[i] = byte(Clamp(Nearest((v+l.Low[i/16])/l.Scale[i/16]), least, most) - least)
	}
}

// Decode sets y to the numbers that the codes stand for; zero is the code of 0.
func (l *Lines) Decode(y *[256]float32, zero int32) {
	if f := current().decodeLines; f != nil {
		f(&y[0], &l.Scale[0], int(zero))
		return
	}
	l.decodePortable(y, zero)
}

// decodePortable is Decode in portable Go.
func (l *Lines) decodePortable(y *[256]float32, zero int32) {
	for i, q := range l.Codes {
		y[i] = float32(l.Scale[i/16]*float32(int32(q)-zero)) - l.Low[i/16]
	}
}

// decoders are for decoders at work.
var decoders = sync.Pool{New: func() any { return new(Lines) }}

// decodeBlocks sets dst to the numbers of blocks of size bytes. parse sets the lines and codes of a block;
// zero is the code of 0.
func decodeBlocks(dst []float32, src []byte, size int, zero int32, parse func(l *Lines, block []byte)) {
	l := decoders.Get().(*Lines)
	defer decoders.Put(l)
	for ; len(dst) >= 256; dst, src = dst[256:], src[size:] {
		parse(l, src[:size])
		l.Decode((*[256]float32)(dst), zero)
	}
}

// Span is how far numbers y of a part, which stand for x, and their errors reach.
type Span struct {
	Farthest     float32 // max |y - x|
	Top          float32 // max |x|
	Above, Below float32 // max y and max -y, at least 0
}

// Spans sets spans[i] to the span of part i. All parts have the same length, a positive multiple of 8 numbers. All
// numbers and y - x are finite. Spans panics if lengths do not fit.
func Spans(spans []Span, y, x []float32) {
	n := len(x) / max(1, len(spans))
	if len(y) != len(x) || n*len(spans) != len(x) || n == 0 || n%8 != 0 || len(x) > chunk {
		panic("kernel: Spans: lengths do not fit")
	}
	if f := current().spans; f != nil {
		f(&spans[0].Farthest, &y[0], &x[0], len(spans), n)
		return
	}
	for i := range spans {
		spans[i] = spanPortable(y[i*n:][:n], x[i*n:][:n])
	}
}

// spanPortable is the span of a part in portable Go.
func spanPortable(y, x []float32) (s Span) {
	far, top := uint32(0), uint32(0)
	for i, v := range x {
		far = max(far, math.Float32bits(y[i]-v)&^(1<<31))
		top = max(top, math.Float32bits(v)&^(1<<31))
		if y[i] > s.Above {
			s.Above = y[i]
		} else if -y[i] > s.Below {
			s.Below = -y[i]
		}
	}
	s.Farthest, s.Top = math.Float32frombits(far), math.Float32frombits(top)
	return s
}
