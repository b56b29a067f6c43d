package kernel

import "math"

// Lines are what the codes of a block of a type K stand for, 16 numbers each: Scale·code - Low.
type Lines struct{ Scale, Low [16]float32 }

// Codes sets the codes to those nearest to x, (x + Low)/Scale, clamped to least … most, less least. Those of a part without
// scale are undefined.
func (l *Lines) Codes(codes *[256]byte, x *[256]float32, least, most int32) {
	if f := current().lineCodes; f != nil {
		f(&codes[0], &x[0], &l.Scale[0], int(least), int(most))
		return
	}
	l.codesPortable(codes, x, least, most)
}

// codesPortable is Codes in portable Go.
func (l *Lines) codesPortable(codes *[256]byte, x *[256]float32, least, most int32) {
	for i, v := range x {
		codes[i] = byte(Clamp(Nearest((v+l.Low[i/16])/l.Scale[i/16]), least, most) - least)
	}
}

// Values sets y to the numbers that codes, of which that of 0 is zero, stand for.
func (l *Lines) Values(y *[256]float32, codes *[256]byte, zero int32) {
	if f := current().lineValues; f != nil {
		f(&y[0], &codes[0], &l.Scale[0], int(zero))
		return
	}
	l.valuesPortable(y, codes, zero)
}

// valuesPortable is Values in portable Go.
func (l *Lines) valuesPortable(y *[256]float32, codes *[256]byte, zero int32) {
	for i, q := range codes {
		y[i] = float32(l.Scale[i/16]*float32(int32(q)-zero)) - l.Low[i/16]
	}
}

// Span is how far numbers reach that stand for others: y for x.
type Span struct {
	Farthest     float32 // max |y - x|
	Top          float32 // max |x|
	Above, Below float32 // max y and max -y, at least 0
}

// Spans sets spans to those of parts of the same length, a positive multiple of 8 numbers, none of them infinite or NaN, nor
// y - x. Spans panics if lengths do not fit.
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
