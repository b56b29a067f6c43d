package operation

import (
	"encoding/binary"
	"fmt"
	"math"

	"dsmoe/model/tensor"
)

// Product is what an adapter adds to a matrix: Scale · Left · Rightᵀ.
type Product struct {
	Rank  int     `json:"rank"`  // columns of Left and of Right
	Scale float64 `json:"scale"` // lora_alpha/r, or with rsLoRA lora_alpha/√r
	Left  Factor  `json:"left"`  // a line for each row of the matrix
	Right Factor  `json:"right"` // a line for each column of the matrix
}

// Factor says where a stored tensor of an adapter has the numbers of a factor: number k of a line is element
// First + line·Line + k·Rank.
type Factor struct {
	DType tensor.DType `json:"dtype"` // F32, F16 or BF16
	First int64        `json:"first"` // the first number of line 0
	Line  int64        `json:"line"`  // how many elements neighbouring lines are apart
	Rank  int64        `json:"rank"`  // how many elements neighbouring numbers of a line are apart
}

// span returns the bytes from the first to the last number of the lines from … to-1.
func (f *Factor) span(from, to int64, rank int) Span {
	return Span{f.DType.Bytes(f.First + from*f.Line), f.DType.Bytes(f.First + (to-1)*f.Line + int64(rank-1)*f.Rank + 1)}
}

// numbers returns the numbers of all lines of a span, those with number k of their lines side by side, and how many
// lines there are. values sets v to elements from i on.
func (f *Factor) numbers(dst *[]float64, span []byte, rank int, values func(v []float32, i int)) (lines int) {
	lines = int((f.DType.Elements(int64(len(span)))-1-int64(rank-1)*f.Rank)/f.Line) + 1
	*dst = sized(*dst, rank*lines)
	var room [512]float32
	most := 1
	if f.Line == 1 {
		most = len(room)
	}
	for k := range rank {
		for line := 0; line < lines; {
			v := room[:min(most, lines-line)]
			values(v, k*int(f.Rank)+line*int(f.Line))
			for _, x := range v {
				(*dst)[k*lines+line] = float64(x)
				line++
			}
		}
	}
	return lines
}

// sized returns n numbers, in the memory of dst if that is enough.
func sized[T any](dst []T, n int) []T {
	if cap(dst) < n {
		return make([]T, n)
	}
	return dst[:n]
}

// Merge adds an adapter's product to a matrix. The sum of a number of the matrix, which codes with scales and blocks
// are decoded to in F32, and of the products of the two factors is computed in float64, and rounded once. The elements
// of a piece follow each other in the matrix. The last two sides are the factors, Right first.
type Merge struct {
	From   tensor.DType `json:"from"`             // dtype of the source
	To     tensor.DType `json:"to"`               // F32, F16 or BF16
	Shape  [2]int       `json:"shape"`            // rows and columns of the matrix
	Scaled *Dequantise  `json:"scaled,omitempty"` // of a source of codes; else nil
	Product
}

// NewMerge prepares the operation; it refuses other dtypes. s describes the scales of a source of codes.
func NewMerge(from, to tensor.DType, s tensor.Scaling, shape [2]int, p Product) (m *Merge, err error) {
	m = &Merge{From: from, To: to, Shape: shape, Product: p}
	switch {
	case !to.Casts():
		err = fmt.Errorf("an adapter cannot be merged into %s", to)
	case from.Scaled():
		m.Scaled, err = NewDequantise(from, tensor.F32, s)
	case !from.Casts() && !from.Blocked():
		err = fmt.Errorf("an adapter cannot be merged into a matrix of dtype %s", from)
	}
	return m, err
}

// Name returns "merge-lora" and the dtype of the output.
func (m *Merge) Name() string { return "merge-lora " + m.To.String() }

// Unit returns the fewest elements that fill whole bytes, or a block.
func (m *Merge) Unit() unit {
	elements, bytes := m.From.Block()
	return unit{elements, bytes, int(m.To.Bytes(int64(elements)))}
}

// Places returns where the elements of the source and its scales lie.
func (m *Merge) Places() *tensor.Placement {
	if m.Scaled == nil {
		return &tensor.Placement{}
	}
	return m.Scaled.Places()
}

// Sides returns the rows of the scales that the elements need, all of Right, and the lines of Left for the rows that
// the elements lie in.
func (m *Merge) Sides(at, n int64) (spans []Span) {
	if m.Scaled != nil {
		spans = m.Scaled.Sides(at, n)
	}
	cols := int64(m.Shape[1])
	return append(spans, m.Right.span(0, cols, m.Rank), m.Left.span(at/cols, (at+n-1)/cols+1, m.Rank))
}

// Room returns the bytes of memory that n elements which follow each other in the matrix take beside source and output.
func (m *Merge) Room(n int64) int64 {
	cols := int64(m.Shape[1])
	rows := min(n/cols+2, int64(m.Shape[0]))
	left, right := m.Left.span(0, rows, m.Rank), m.Right.span(0, cols, m.Rank)
	return left.End - left.Begin + right.End - right.Begin + 8*(int64(m.Rank)*(rows+cols)+cols) + 8*n
}

// room returns the memory of in's Tables.
func (in *Input) room() *merging {
	if in.Tables == nil {
		in.Tables = new(Tables)
	}
	return &in.Tables.merging
}

// read sets t to the numbers of a piece and of the factors. factor returns what decodes a side.
func (m *Merge) read(in Input, t *merging, factor func(d tensor.DType, side []byte) func(v []float32, i int)) {
	right, left := in.Sides[len(in.Sides)-2], in.Sides[len(in.Sides)-1]
	t.numbers = sized(t.numbers, int(m.From.Elements(int64(len(in.Data)))))
	t.cols = m.Right.numbers(&t.right, right, m.Rank, factor(m.Right.DType, right))
	t.lines = m.Left.numbers(&t.left, left, m.Rank, factor(m.Left.DType, left))
	t.row = int(in.At) / m.Shape[1]
}

// eachRow calls do for the elements of a piece that lie in a row, a line of left: from … to-1, from a column on.
func (m *Merge) eachRow(in Input, t *merging, do func(line, col, from, to int) error) error {
	row, col := int(in.At)/m.Shape[1], int(in.At)%m.Shape[1]
	for from := 0; from < len(t.numbers); row, col = row+1, 0 {
		to := min(from+m.Shape[1]-col, len(t.numbers))
		if err := do(row-t.row, col, from, to); err != nil {
			return err
		}
		from = to
	}
	return nil
}

// Apply adds up and rounds every element.
func (m *Merge) Apply(dst []byte, in Input, lost *tensor.Loss) error {
	t := in.room()
	m.read(in, t, func(d tensor.DType, side []byte) func(v []float32, i int) {
		size := int(d.Bytes(1))
		return func(v []float32, i int) {
			tensor.Tensor{DType: d, Shape: []int{len(v)}, Data: side[size*i : size*(i+len(v))]}.Float32s(v[:0])
		}
	})
	if err := m.decode(in, t); err != nil {
		return err
	}
	err := m.eachRow(in, t, func(line, col, from, to int) error {
		x := t.numbers[from:to]
		t.sums = sized(t.sums, len(x))
		for i, v := range x {
			t.sums[i] = float64(v)
		}
		for k := range m.Rank {
			l, right := m.Scale*t.left[k*t.lines+line], t.right[k*t.cols+col:][:len(x)]
			for i, r := range right {
				t.sums[i] += float64(l * r)
			}
		}
		for i, v := range t.sums {
			if m.To == tensor.F32 {
				x[i] = rounded(v, lost)
			} else {
				x[i] = toOdd(v)
			}
		}
		return nil
	})
	if err != nil || m.To == tensor.F32 {
		tensor.PutFloat32s(dst, t.numbers)
		return err
	}
	lost.Add((&tensor.Cast{From: tensor.F32, To: m.To}).Convert(dst, tensor.Float32Bytes(t.numbers)))
	return nil
}

// decode sets the numbers of t to those of a piece.
func (m *Merge) decode(in Input, t *merging) (err error) {
	plain := tensor.Tensor{DType: m.From, Shape: []int{len(t.numbers)}, Data: in.Data}
	if m.Scaled != nil {
		t.wide = sized(t.wide, 4*len(t.numbers))
		err = m.Scaled.Apply(t.wide, in.withoutFactors(), new(tensor.Loss))
		plain.DType, plain.Data = tensor.F32, t.wide
	}
	if err == nil {
		_, err = plain.Float32s(t.numbers[:0])
	}
	return err
}

// withoutFactors returns a Merge's input for what its source is decoded with.
func (in Input) withoutFactors() Input {
	in.Sides = in.Sides[:len(in.Sides)-2]
	return in
}

// rounded returns v in F32, and counts what is lost.
func rounded(v float64, lost *tensor.Loss) float32 {
	x := float32(v)
	switch {
	case math.IsInf(v, 0) || v != v:
		lost.NotFinite++
	case math.IsInf(float64(x), 0):
		lost.Overflow++
	case float64(x) == v:
	case x == 0:
		lost.Flushed++
	case math.Abs(v) < 0x1p-126:
		lost.Denormal++
	default:
		lost.Rounded++
	}
	return x
}

// toOdd returns v in F32, rounded such that the result rounds to 16 bits as v does: to the number of odd bits of the two
// around v. S. Boldo and G. Melquiond, Emulation of a FMA and correctly rounded sums, 2008.
func toOdd(v float64) float32 {
	x := float32(v)
	if float64(x) == v || v != v {
		return x
	}
	bits := math.Float32bits(x)
	if math.Abs(float64(x)) > math.Abs(v) { // towards zero
		bits--
	}
	return math.Float32frombits(bits | 1)
}

// Prove decodes the source, the factors and the written numbers by the definition of their dtypes, adds up the
// products of each element, and checks that the sum could have been rounded to the written number.
func (m *Merge) Prove(out []byte, in Input) error {
	t, b := in.room(), boundsOf(m.To)
	m.read(in, t, exactValues)
	if err := m.define(in, t.numbers); err != nil {
		return err
	}
	size := int(m.To.Bytes(1))
	return m.eachRow(in, t, func(line, col, from, to int) error {
		for i := from; i < to; i++ {
			sum, base, at := 0.0, float64(t.numbers[i]), col+i-from
			for k := m.Rank - 1; k >= 0; k-- {
				sum += float64(t.left[k*t.lines+line] * t.right[k*t.cols+at])
			}
			v := float64(m.Scale*sum) + base
			if got := b.stored(out, i); got == b.pattern(v) || b.near(got, v, m.error(t, base, line, at)) {
				continue
			}
			return &Mismatch{i, hexOf(out[size*i : size*(i+1)]), fmt.Sprint(v)}
		}
		return nil
	})
}

// error bounds by how much two sums in float64 of an element may differ. Each product is rounded twice, and each of
// Rank+1 terms added with one rounding.
func (m *Merge) error(t *merging, base float64, line, col int) float64 {
	size := math.Abs(base)
	for k := range m.Rank {
		size += math.Abs(float64(m.Scale * float64(t.left[k*t.lines+line]*t.right[k*t.cols+col])))
	}
	return float64(m.Rank+4) * 0x1p-52 * size
}

// define sets x to the numbers of a piece by the definition of its dtype.
func (m *Merge) define(in Input, x []float32) error {
	switch elements, size := m.From.Block(); {
	case m.Scaled != nil:
		in = in.withoutFactors()
		grid, err := m.Scaled.grid(in)
		if err != nil {
			return err
		}
		return m.Scaled.parts(in, len(x), grid, func(r part) error {
			p := products{r.blocks, r.grid, r.blocks.GridRow(r.at), r.at, m.From.Form(), in.Data, r.from}
			p.rounded(x[r.from:r.to], 0)
			return nil
		})
	case m.From.Blocked():
		for b := in.Data; len(b) > 0; b, x = b[size:], x[elements:] {
			blockValues(x[:elements], b[:size], m.From)
		}
	default:
		exactValues(m.From, in.Data)(x, 0)
	}
	return nil
}

// stored returns the pattern of element i of out.
func (b *bounds) stored(out []byte, i int) uint32 {
	if b.dtype == tensor.F32 {
		return binary.LittleEndian.Uint32(out[4*i:])
	}
	return uint32(binary.LittleEndian.Uint16(out[2*i:]))
}

// near reports whether a number at most limit away from v rounds to the pattern got, or whether both are NaN.
func (b *bounds) near(got uint32, v, limit float64) bool {
	sign := uint32(1) << (8*b.dtype.Bytes(1) - 1)
	place := func(p uint32) int64 { // in ascending order
		if p&sign != 0 {
			return -int64(p &^ sign)
		}
		return int64(p)
	}
	if nan := b.pattern(math.Inf(1)) < got&^sign; nan || v != v || math.IsInf(v, 0) {
		return nan && v != v
	}
	return place(b.pattern(v-limit)) <= place(got) && place(got) <= place(b.pattern(v+limit))
}
