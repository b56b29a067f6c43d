package tensor

import (
	"math"

	"dsmoe/model/internal/kernel"
)

// Encoder turns the numbers of blocks into codes of a form with scales. With scales in F32 it
// computes what Fp8Quantize of transformers does on CPU: codes of x·f and the scale 1/f, where f is
// the form's largest code times the reciprocal of the block's largest magnitude, each rounded to F32.
type Encoder struct {
	Form *Form // the form of the codes
	// scales are powers of two, as with scale_fmt ue8m0: the least with which no number is beyond the largest code
	PowersOfTwo bool
}

// leastScale is the least scale, the least normal number: smaller ones are less precise, and their
// reciprocals may be infinite.
const leastScale = 0x1p-126

// Scale returns the scale of a block whose largest magnitude is largest, a finite number, and the
// factor that its numbers are multiplied by before they are rounded to codes. A block of zeros has
// scale 1.
func (e *Encoder) Scale(largest float32) (scale, factor float32) {
	switch {
	case largest == 0:
		return 1, 1
	case largest < e.Form.Largest*leastScale:
		return leastScale, 1 / float32(leastScale)
	case e.PowersOfTwo:
		_, exponent := math.Frexp(float64(largest) / float64(e.Form.Largest))
		if scale = float32(math.Ldexp(1, exponent-1)); e.Form.Largest*scale < largest {
			scale *= 2
		}
		return scale, 1 / scale
	}
	factor = 1 / largest * e.Form.Largest
	return 1 / factor, factor
}

// Convert sets dst to the codes of x, numbers of one block, whose largest magnitude is largest,
// and adds to lost what that does to them. x is at most 2,048 numbers.
func (e *Encoder) Convert(dst []byte, x []float32, largest float32, lost *Loss) {
	scale, factor := e.Scale(largest)
	e.Form.encode(dst, x, factor)
	m := measures.Get().(*measure)
	defer measures.Put(m)
	codes, _ := e.Form.Codes.Format()
	y := m.decoded[:len(x)]
	kernel.WidenBlocks(y, dst, codes, []float32{scale}, nil, len(y))
	whole := len(x) &^ 7 // what the kernel of Compare takes
	lost.compare(y[:whole], x[:whole], m.sums[:1])
	if whole < len(x) {
		var restX, restY [8]float32
		copy(restX[:], x[whole:])
		copy(restY[:], y[whole:])
		lost.compare(restY[:], restX[:], m.sums[:1])
	}
}

// compare adds the errors of y, which x became, a multiple of 8 numbers.
func (l *Loss) compare(y, x []float32, sums []kernel.BlockSums) {
	kernel.Compare(sums, y, x)
	l.measure(y, x, &sums[0])
}

// Magnitudes raises largest, one number per block, to the magnitudes of x, consecutive numbers of a
// row of the matrix from column col on. A NaN or infinity makes its block's NaN or infinite.
func (b *Blocks) Magnitudes(largest []float32, x []float32, col int) {
	b.runs(col, len(x), func(i, j, block int) {
		most := math.Float32bits(largest[block])
		for _, v := range x[i:j] {
			most = max(most, math.Float32bits(v)&magnitudeBits)
		}
		largest[block] = math.Float32frombits(most)
	})
}
