package operation

import (
	"errors"
	"fmt"
	"strings"

	"dsmoe/model/tensor"
)

// Dequantise multiplies codes by the scale of their block and rounds to F32, F16 or BF16. The
// tensors beside the source are the sides of its tensor.Scaling.
type Dequantise struct {
	To tensor.DType `json:"to"` // dtype of the output
	tensor.Scaling

	codec *tensor.Dequantiser
}

// NewDequantise prepares the operation for codes of dtype from; it refuses other dtypes.
func NewDequantise(from, to tensor.DType, s tensor.Scaling) (*Dequantise, error) {
	codec, err := from.Form().Dequantiser(to)
	if err != nil {
		return nil, err
	}
	return &Dequantise{To: to, Scaling: s, codec: codec}, nil
}

// Name returns "fp8-dequantise" and the dtype of the output, FP8 being the codes' stored form.
func (d *Dequantise) Name() string {
	return strings.ToLower(d.codec.From.Name) + "-dequantise " + d.To.String()
}

// Unit returns the fewest codes that fill whole bytes.
func (d *Dequantise) Unit() unit {
	elements, bytes := d.codec.From.Codes.Block()
	return unit{elements, bytes, int(d.To.Bytes(int64(elements)))}
}

// Sides returns the rows of the sides that the elements need.
func (d *Dequantise) Sides(at, n int64) (spans []Span) {
	d.Spans(d.Blocks.GridRow(at), d.Blocks.GridRow(at+n-1), func(begin, end int64) {
		spans = append(spans, Span{begin, end})
	})
	return spans
}

// grid decodes the rows of the sides that came with the input.
func (d *Dequantise) grid(in Input) (tensor.Grid, error) {
	return d.Grid(in.Sides, d.Blocks.GridRow(in.At))
}

// part is a run of a piece's elements, from … to-1, whose codes lie side by side in the blocks of a matrix.
type part struct {
	from, to int
	at       int64 // of the first in the matrix
	blocks   tensor.Blocks
	grid     tensor.Grid // from the row of at on
}

// after returns the part without its first n elements.
func (p part) after(n int) part {
	before := p.blocks.GridRow(p.at)
	if p.from, p.at = p.from+n, p.at+int64(n); p.from < p.to {
		_, width := p.blocks.Grid()
		p.grid = p.grid.From((p.blocks.GridRow(p.at) - before) * width)
	}
	return p
}

// parts calls do for the parts of the n elements of a piece. Runs that follow each other in one block are one part, as
// if they were a row of it: of a transposed matrix each element is a run.
func (d *Dequantise) parts(in Input, n int, grid tensor.Grid, do func(p part) error) error {
	if in.Runs == nil {
		return do(part{0, n, in.At, d.Blocks, grid})
	}
	_, width := d.Blocks.Grid()
	first, last, open := d.Blocks.GridRow(in.At), -1, part{}
	flush := func() error {
		if open.from == open.to {
			return nil
		}
		p := open
		p.blocks = tensor.Blocks{Rows: 1, Cols: p.to - p.from, BlockRows: 1, BlockCols: p.to - p.from}
		open.from = open.to
		return do(p)
	}
	per, _ := d.codec.From.Codes.Block()
	err := in.each(n, func(at int64, from, to int) error {
		row, col := int(at)/d.Blocks.Cols, int(at)%d.Blocks.Cols
		begin := (row/d.Blocks.BlockRows - first) * width
		block, end := begin+col/d.Blocks.BlockCols, min((col/d.Blocks.BlockCols+1)*d.Blocks.BlockCols, d.Blocks.Cols)
		if per == 1 && to-from <= end-col {
			if block == last && open.to == from && open.from < open.to {
				open.to = to
				return nil
			}
			err := flush()
			last, open = block, part{from: from, to: to, grid: grid.From(block)}
			return err
		}
		if err := flush(); err != nil {
			return err
		}
		return do(part{from, to, at, d.Blocks, grid.From(begin)})
	})
	if err != nil {
		return err
	}
	return flush()
}

// Apply multiplies and rounds every element.
func (d *Dequantise) Apply(dst []byte, in Input, lost *tensor.Loss) error {
	grid, err := d.grid(in)
	if err != nil {
		return err
	}
	codes := d.codec.From.Codes
	return d.parts(in, int(codes.Elements(int64(len(in.Data)))), grid, func(p part) error {
		n := 1
		if per, _ := codes.Block(); p.from%per == 0 && p.to%per == 0 && p.at%int64(per) == 0 {
			n = p.to - p.from
		}
		for ; p.from < p.to; p = p.after(n) {
			out := dst[d.To.Bytes(int64(p.from)):d.To.Bytes(int64(p.from+n))]
			lost.Add(d.codec.Convert(out, codesAt(codes, in.Data, p.from), int(p.at), p.blocks, p.grid))
		}
		return nil
	})
}

// codesAt returns the codes from the one with that index on. Of one within a byte it returns that code alone.
func codesAt(codes tensor.DType, data []byte, index int) []byte {
	if per, _ := codes.Block(); index%per > 0 {
		return []byte{data[index/2] >> 4}
	}
	return data[codes.Bytes(int64(index)):]
}

// productSlack is the share by which a product that is rounded to F32 before it is
// rounded to 16 bits may miss the bounds of one rounding.
const productSlack = 0x1p-23

// Prove decodes the written numbers and checks that the exact products could have been
// rounded to them.
func (d *Dequantise) Prove(out []byte, in Input) error {
	grid, err := d.grid(in)
	if err != nil {
		return err
	}
	form := d.codec.From
	t := in.Tables
	if t == nil {
		t = new(Tables)
	}
	return d.parts(in, int(form.Codes.Elements(int64(len(in.Data)))), grid, func(r part) error {
		p := products{r.blocks, r.grid, r.blocks.GridRow(r.at), r.at, form, in.Data, r.from}
		err := p.check(t, boundsOf(d.To), out[d.To.Bytes(int64(r.from)):], r.to-r.from)
		var m *Mismatch
		if errors.As(err, &m) {
			m.Element += r.from
		}
		return err
	})
}

// products are the exact products of a piece of codes and their scales.
type products struct {
	blocks tensor.Blocks
	grid   tensor.Grid
	first  int   // row of the matrix's grid that grid begins with
	at     int64 // first element of the piece in the matrix
	form   *tensor.Form
	codes  []byte
	begin  int // the first of them
}

// run returns which block of the grid element i of the piece lies in, and how many elements from it on
// share that; column is the block's in the grid.
func (p *products) run(i int) (at, column, n int) {
	row, col := (int(p.at)+i)/p.blocks.Cols, (int(p.at)+i)%p.blocks.Cols
	column = col / p.blocks.BlockCols
	end := min((column+1)*p.blocks.BlockCols, p.blocks.Cols)
	_, width := p.blocks.Grid()
	return (row/p.blocks.BlockRows-p.first)*width + column, column, end - col
}

// exact returns the product of element i.
func (p *products) exact(i int) float64 {
	var value [1]float64
	p.form.Values(value[:], p.codes, p.begin+i)
	block, _, _ := p.run(i)
	return p.grid.Value(block, value[0])
}

// rounded sets v to the products from element i on, rounded to F32.
func (p *products) rounded(v []float32, i int) {
	var values [256]float64
	for len(v) > 0 {
		block, _, n := p.run(i)
		n = min(n, len(v), len(values))
		p.form.Values(values[:n], p.codes, p.begin+i)
		for k, code := range values[:n] {
			v[k] = float32(p.grid.Value(block, code))
		}
		v, i = v[n:], i+n
	}
}

// leastTabled is the number of elements from which on a block has a table: making one takes as long as checking
// about a thousand elements one by one.
const leastTabled = 1 << 12

// check checks the first n elements of out. In large blocks of FP8, it looks up what their codes may become.
func (p *products) check(t *Tables, b *bounds, out []byte, n int) error {
	if p.blocks.BlockRows*p.blocks.BlockCols < leastTabled || p.form != tensor.FP8 {
		return b.checkAll(out, n, productSlack, p.exact, p.rounded)
	}
	size := int(b.dtype.Bytes(1))
	for i := 0; i < n; {
		block, column, run := p.run(i)
		length := p.blocks.BlockCols
		if row := p.blocks.Cols - (int(p.at)+i)%p.blocks.Cols; run == length { // whole blocks, to the end of the row
			run = row
		} else {
			length = run
		}
		run = min(run, n-i)
		t.row(p.grid.Scales[block:block+(run+length-1)/length], column, b)
		same := t.same(column, p.codes[p.begin+i:p.begin+i+run], out[size*i:], length)
		if i += same; same == run {
			continue
		}
		if exact := p.exact(i); !b.check(exact, out, i, productSlack) {
			return &Mismatch{i, hexOf(out[size*i : size*(i+1)]), fmt.Sprint(exact)}
		}
		i++
	}
	return nil
}
