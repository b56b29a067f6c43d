package tensor

import (
	"fmt"
	"math"
	"math/bits"

	"dsmoe/model/internal/kernel"
)

// Dequantiser turns codes with scales into a float dtype, as the reference does:
// the product is rounded to F32, that to the dtype. A NaN among the codes stays itself,
// whatever its scale. It is safe for concurrent use.
type Dequantiser struct {
	From *Form // the form of the codes
	To   DType // dtype of the products: F32, F16 or BF16

	wide      bool       // some codes have more than 4 significant bits: what they lose is counted one by one
	fractions [256]uint8 // of each code that is not wide: bit f for ±(1 + f/8)·2ⁿ, none for 0
	all       uint8      // of all codes
	kept      uint32     // bits of an F32 number, but for its exponent, that are zero where the dtype has it
}

// Dequantiser prepares the conversion of the form, which has scales, to F32, F16 or BF16.
func (f *Form) Dequantiser(to DType) (*Dequantiser, error) {
	if !to.Casts() {
		return nil, fmt.Errorf("%s cannot be dequantised to %s", f.Name, to)
	}
	q := &Dequantiser{From: f, To: to, kept: map[DType]uint32{F16: 1<<13 - 1, BF16: 1<<16 - 1}[to]}
	for i, v := range f.values {
		q.wide = q.wide || math.Float64bits(v)<<15 != 0
		if v != 0 {
			q.fractions[i] = 1 << (math.Float64bits(v) >> 49 & 7)
		}
		q.all |= q.fractions[i]
	}
	return q, nil
}

// CodeTable has the 16-bit patterns that the magnitudes of FP8 codes may be written as.
type CodeTable = kernel.CodeTable

// SamePatterns returns how many of the first codes have in out the pattern that patterns[i/block] has of code i.
func SamePatterns(patterns []CodeTable, codes, out []byte, block int) int {
	return kernel.SamePatterns(patterns, codes, out, block)
}

// Widen decodes len(dst) elements of a matrix from element at on, whose codes src begins with,
// into dst: products, rounded to F32. grid is the rows of the grid from that of element at on.
func (f *Form) Widen(dst []float32, src []byte, at int, b Blocks, grid Grid) {
	_, width := b.Grid()
	first := b.GridRow(int64(at))
	codes, _ := f.Codes.Format()
	for len(dst) > 0 {
		row, col, n := b.run(at, len(dst))
		g := grid.From((row/b.BlockRows-first)*width + col/b.BlockCols)
		kernel.WidenBlocks(dst[:n], src, codes, g.Scales, g.Zeros, b.BlockCols)
		dst, src, at = dst[n:], src[f.Codes.Bytes(int64(n)):], at+n
	}
}

// run returns the place of element at in the matrix, and how many of n elements from it on
// are decoded at once: in its row, and in its block if that has begun before it.
func (b *Blocks) run(at, n int) (row, col, length int) {
	row, col = at/b.Cols, at%b.Cols
	n = min(b.Cols-col, n)
	if within := col % b.BlockCols; within > 0 {
		n = min(n, b.BlockCols-within)
	}
	return row, col, n
}

// Convert decodes the elements of src, which are those of a matrix from element at
// on, into dst, and counts what is lost. grid is the rows of the grid from that
// of element at on.
func (q *Dequantiser) Convert(dst, src []byte, at int, b Blocks, grid Grid) (lost Loss) {
	_, width := b.Grid()
	first := b.GridRow(int64(at))
	codes, _ := q.From.Codes.Format()
	to, _ := q.To.Format()
	size := to.Size()
	most := min(piece, b.Cols, len(dst)/size)
	var wide []float32
	known := make([]lossy, len(grid.Scales))
	for len(dst) > 0 {
		row, col, n := b.run(at, min(most, len(dst)/size))
		begin := (row/b.BlockRows - first) * width
		s := grid.From(begin)
		g := s.From(col / b.BlockCols)
		byElement := q.byElement(known[begin:], &b, s, col, n)
		if !byElement && codes == kernel.F8E4M3 && to == kernel.BF16 {
			if rounded, ok := kernel.NarrowBlocks(dst[:n*size], src[:n], g.Scales, b.BlockCols); ok {
				lost.Rounded += int64(rounded)
				src, dst, at = src[n:], dst[n*size:], at+n
				continue
			}
		}
		if wide == nil {
			wide = make([]float32, most)
		}
		kernel.WidenBlocks(wide[:n], src, codes, g.Scales, g.Zeros, b.BlockCols)
		kernel.Narrow(dst, wide[:n], to)
		switch {
		case byElement || lost.cast(dst[:n*size], to, wide[:n]):
			b.runs(col, n, func(i, j, block int) { lost.scaled(dst[i*size:j*size], to, q.From, src, i, s.From(block)) })
		case q.To == F32:
			b.runs(col, n, func(i, j, block int) { lost.Rounded += q.products(src, i, j, s.From(block)) })
		}
		src, dst, at = src[q.From.Codes.Bytes(int64(n)):], dst[n*size:], at+n
	}
	return lost
}

// lossy says whether what elements of a block lost is counted one by one; 0 if that is not known yet.
type lossy uint8

const (
	together lossy = iota + 1
	oneByOne
)

// byElement reports whether what n elements from column col on lost is counted one by one: where a product may
// be zero though neither factor is, and where the dtype has the number that F32 rounds one to. g is the row of
// the grid, known what is known of its blocks.
func (q *Dequantiser) byElement(known []lossy, b *Blocks, g Grid, col, n int) bool {
	for i := col / b.BlockCols; i <= (col+n-1)/b.BlockCols; i++ {
		if known[i] == 0 {
			known[i] = together
			if q.wide || abs32(g.Scales[i]) < 0x1p-117 || (q.To != F32 || g.Zeros != nil) && q.rounded(g.From(i)) != 0 {
				known[i] = oneByOne
			}
		}
		if known[i] == oneByOne {
			return true
		}
	}
	return false
}

// rounded returns the codes of the grid's first block whose product F32 rounds to a number that the dtype
// has, as fractions.
func (q *Dequantiser) rounded(g Grid) (set uint8) {
	if math.Float32bits(g.Scales[0])&15 == 0 && !g.rounded(0) { // 20 bits times 4
		return 0
	}
	scale := math.Float32frombits(math.Float32bits(g.Scales[0])&(1<<23-1) | 127<<23) // of 1 … 2
	codes := q.all
	if g.Zeros != nil {
		codes = 1<<8 - 1
	}
	for ; codes != 0; codes &= codes - 1 {
		f := bits.TrailingZeros8(codes)
		exact := (1 + float64(f)/8) * float64(scale)
		p := float32(exact)
		if math.Float32bits(p)&q.kept == 0 && (g.rounded(0) || float64(p) != exact) {
			set |= 1 << f
		}
	}
	return set
}

// products counts the codes of src from … to whose product with the scale of the grid's first block F32 rounds.
func (q *Dequantiser) products(src []byte, from, to int, g Grid) (n int64) {
	set := q.rounded(g)
	for i := from; set != 0 && i < to; i++ {
		if q.fractions[q.From.code(src, i)]&set != 0 {
			n++
		}
	}
	return n
}

// runs calls f for the parts i … j of n elements from column col on that lie in one block.
func (b *Blocks) runs(col, n int, f func(i, j, block int)) {
	end := b.BlockCols - col%b.BlockCols
	for i, block := 0, col/b.BlockCols; i < n; block++ {
		f(i, min(end, n), block)
		i, end = end, end+b.BlockCols
	}
}

// scaled counts what codes of src, from the first on, lost when they were multiplied by the first scale
// of the grid and became dst. All is done again
// by the definition: the kernels change NaNs. What a scale that is infinite or NaN makes infinite
// or NaN was so in the source.
func (l *Loss) scaled(dst []byte, to kernel.Format, from *Form, src []byte, first int, grid Grid) {
	scale := grid.Scales[0]
	for i := range len(dst) / to.Size() {
		var value [1]float64
		from.Values(value[:], src, first+i)
		v := float32(value[0]) - grid.zero(0)
		product := v
		if v == v {
			product = v * scale
		}
		p := kernel.Encode(math.Float32bits(product), to)
		store(dst, i, to, p)
		switch y := math.Float32frombits(kernel.Decode(p, to)); {
		case v != v || !IsFinite(scale) && !IsFinite(y):
			l.NotFinite++
		case !IsFinite(product):
			l.Overflow++
		case product == 0 && v != 0 && (scale != 0 || grid.rounded(0)):
			l.Flushed++
		case y == product && v != 0 && (grid.rounded(0) || float64(v)*float64(scale) != float64(product)):
			l.rounded(product, to)
		default:
			l.element(y, product, to)
		}
	}
}
