package model

import (
	"math"
	"slices"

	"dsmoe/model/internal/arena"
	"dsmoe/model/internal/kernel"
	"dsmoe/model/tensor"
)

// Activation is a tensor between two stages: float32 values that its dtype can
// represent, row-major.
type Activation struct {
	Shape  []int        // the last dimension is the width of a row
	Values []float32    // one value per element of the shape
	DType  tensor.DType // dtype of the reference's tensor: F32, BF16 or F16
}

// Width returns the last dimension.
func (a *Activation) Width() int { return a.Shape[len(a.Shape)-1] }

// Row returns row i of the last axis.
func (a *Activation) Row(i int) []float32 {
	w := a.Width()
	return a.Values[i*w : (i+1)*w]
}

// Rows returns the number of rows: the product of all dimensions but the last.
func (a *Activation) Rows() int { return len(a.Values) / a.Width() }

// Matrix returns the i-th matrix of the last two axes.
func (a *Activation) Matrix(i int) []float32 {
	n := a.Shape[len(a.Shape)-2] * a.Width()
	return a.Values[i*n : (i+1)*n]
}

// format returns the format to which a's values are rounded.
func (a *Activation) format() kernel.Format {
	f, _ := a.DType.Format()
	return f
}

// Plain is the arithmetic of inference: float32 activations, in memory that later
// operations reuse. It rounds where the reference does, and gives the same bits on every
// machine. An arithmetic in another package can embed a Plain or call its operations.
type Plain struct {
	o       Options
	weights kernel.Format // format to which the reference cast its weights
	compute tensor.DType
	arena   *arena.Arena
}

// NewPlain returns an arithmetic for one pass.
func NewPlain(o Options) *Plain {
	compute, _ := o.dtypes()
	format, _ := compute.Format()
	return &Plain{o: o, compute: compute, weights: format, arena: arena.New()}
}

// Close takes back all memory except the memory of result, which may be nil. Call it once and
// use neither the arithmetic nor its other activations afterwards.
func (p *Plain) Close(result *Activation) {
	var keep []float32
	if result != nil {
		keep = result.Values
	}
	p.arena.Close(keep)
	p.arena = nil
}

// Scope implements Arithmetic.
func (p *Plain) Scope(x *Activation, f func(x *Activation) *Activation) *Activation {
	s := p.Enter(x)
	y := f(x)
	s.Leave(y)
	return y
}

// entered is a Scope that has begun.
type entered struct {
	arena   *arena.Arena
	mark    int
	dropped []float32
}

// Enter begins a Scope of x, which may be nil.
func (p *Plain) Enter(x *Activation) entered {
	s := entered{arena: p.arena, mark: p.arena.Mark()}
	if x != nil {
		s.dropped = p.arena.Own(x.Values)
	}
	return s
}

// Leave ends a Scope whose result is y, which may be nil.
func (s entered) Leave(y *Activation) {
	var kept []float32
	if y != nil {
		kept = y.Values
	}
	s.arena.Release(s.mark, s.dropped, kept)
}

// Make returns an activation with undefined values.
func (p *Plain) Make(d tensor.DType, shape ...int) *Activation {
	n := 1
	for _, dim := range shape {
		n *= dim
	}
	return &Activation{Shape: shape, Values: p.arena.Get(n), DType: d}
}

// Each calls f(0) … f(n-1), in parallel if the work is worth waking other goroutines. work
// counts copied numbers; an exponential counts as eight.
func (p *Plain) Each(n, work int, f func(i int)) {
	const little = 1 << 14
	workers := p.o.Parallelism
	if work < little {
		workers = 1
	}
	kernel.Parallel(n, workers, f)
}

// Embed implements Arithmetic.
func (p *Plain) Embed(w *Weight, ids []int) *Activation {
	x := p.Make(p.compute, len(ids), w.Shape[1])
	format, _ := w.DType.Format()
	for i, id := range ids {
		kernel.Widen(x.Row(i), w.Row(id).Data, format)
	}
	kernel.RoundTo(x.Values, x.format())
	return x
}

// Linear implements Arithmetic.
func (p *Plain) Linear(x *Activation, l *Linear) *Activation {
	y := p.Make(x.DType, slices.Concat(x.Shape[:len(x.Shape)-1], l.Weight.Shape[:1])...)
	var bias []float32
	if l.Bias.Name != "" {
		bias = p.Values(&l.Bias)
	}
	kernel.MatMul(y.Values, x.Values, p.matrix(&l.Weight), bias, p.o.Accumulate, p.o.Parallelism)
	kernel.RoundTo(y.Values, y.format())
	return y
}

// matrix returns w for the kernels: as stored, cast to the compute dtype on the way if that
// dtype holds fewer values. Decoded blocks are not cast: the reference has no such numbers,
// and a cast would add another rounding error. Nor are weights that the reference keeps in float32.
func (p *Plain) matrix(w *Weight) kernel.Matrix {
	m := w.matrix()
	m.Round = p.weights != kernel.F32 && m.Format != p.weights && !m.Format.Blocked() && !w.InFloat32
	m.Via = p.weights
	return m
}

// matrix returns w for the kernels, as it is stored. A vector is a matrix of one row.
func (w *Weight) matrix() kernel.Matrix {
	format, _ := w.DType.Format()
	rows, cols := 1, w.Shape[0]
	if len(w.Shape) == 2 {
		rows, cols = w.Shape[0], w.Shape[1]
	}
	return kernel.Matrix{
		Format: format, Rows: rows, Cols: cols, Data: w.Data,
		Scales: w.Scales, Zeros: w.Zeros, BlockRows: w.Block[0], BlockCols: w.Block[1],
	}
}

// Values returns w's numbers as the reference multiplies with them: decoded and cast to the
// compute dtype.
func (p *Plain) Values(w *Weight) []float32 { return decoded(p.matrix(w)) }

// decoded returns m's numbers, row by row.
func decoded(m kernel.Matrix) []float32 {
	values := make([]float32, m.Rows*m.Cols)
	for r := range m.Rows {
		m.Row(values[r*m.Cols:], r)
	}
	return values
}

// Product returns a·bᵀ for rows of k numbers, summed as Options.Accumulate says:
// [len(a)/k, len(b)/k].
func (p *Plain) Product(a, b []float32, k int) []float32 {
	dst := make([]float32, len(a)/k*(len(b)/k))
	kernel.MatMul(dst, a, kernel.Matrix{Rows: len(b) / k, Cols: k, Values: b}, nil, p.o.Accumulate, p.o.Parallelism)
	return dst
}

// Products returns x·wᵀ for rows x of a matrix's columns, summed as Options.Accumulate says: [len(x)/in, out].
func (p *Plain) Products(x []float32, w *Weight) []float32 {
	dst := make([]float32, len(x)/w.Shape[1]*w.Shape[0])
	kernel.MatMul(dst, x, p.matrix(w), nil, p.o.Accumulate, p.o.Parallelism)
	return dst
}

// Times returns w·x in float32, for a matrix w and a number of x for each column; its bits are those of Product.
func (p *Plain) Times(w *Weight, x []float32) []float32 {
	dst := make([]float32, w.Shape[0])
	kernel.Times(dst, x, p.matrix(w))
	return dst
}

// TimesColumns returns wᵀ·x in float32, for a number of x for each row; its bits are those of Product with the matrix
// turned.
func (p *Plain) TimesColumns(w *Weight, x []float32) []float32 {
	dst := make([]float32, w.Shape[1])
	kernel.TimesColumns(dst, x, p.matrix(w))
	return dst
}

// RowOf returns row r of a matrix, decoded into the memory of dst.
func (p *Plain) RowOf(dst []float32, w *Weight, r int) []float32 {
	m := p.matrix(w)
	return m.Row(dst, r)
}

// RMSNorm implements Arithmetic. The mean is summed in float64.
func (p *Plain) RMSNorm(x *Activation, weight *Weight, eps float64) *Activation {
	w := p.Values(weight)
	y := p.Make(x.DType, x.Shape...)
	p.Each(x.Rows(), 4*len(y.Values), func(i int) {
		in, out := x.Row(i), y.Row(i)
		scale := inverseRMS(in, eps)
		for k, v := range in {
			out[k] = float32(float64(v) * scale)
		}
		kernel.RoundTo(out, y.format())
		for k, v := range w {
			out[k] *= v
		}
		kernel.RoundTo(out, y.format())
	})
	return y
}

// inverseRMS returns 1/sqrt(mean(x²) + eps).
func inverseRMS(x []float32, eps float64) float64 {
	return 1 / math.Sqrt(kernel.Dot64(x, x)/float64(len(x))+eps)
}

// Add implements Arithmetic.
func (p *Plain) Add(a, b *Activation) *Activation {
	sum := p.Make(a.DType, a.Shape...)
	p.Each(a.Rows(), len(sum.Values), func(t int) {
		out, b := sum.Row(t), b.Row(t)
		for i, v := range a.Row(t) {
			out[i] = v + b[i]
		}
		kernel.RoundTo(out, sum.format())
	})
	return sum
}

// SwiGLU implements Arithmetic. The exponential is computed in float64.
func (p *Plain) SwiGLU(gate, up *Activation) *Activation {
	y := p.Make(gate.DType, gate.Shape...)
	p.Each(gate.Rows(), 8*len(y.Values), func(t int) {
		out := y.Row(t)
		kernel.SiLU(out, gate.Row(t))
		kernel.RoundTo(out, y.format())
		for i, u := range up.Row(t) {
			out[i] *= u
		}
		kernel.RoundTo(out, y.format())
	})
	return y
}

// Softmax implements Arithmetic. It is computed in float64.
func (p *Plain) Softmax(x *Activation) *Activation {
	y := p.Make(x.DType, x.Shape...)
	p.Each(y.Rows(), 8*len(y.Values), func(t int) {
		out := y.Row(t)
		copy(out, x.Row(t))
		kernel.Softmax(out)
		kernel.RoundTo(out, y.format())
	})
	return y
}

// Float32 implements Arithmetic.
func (p *Plain) Float32(x *Activation) *Activation {
	return &Activation{Shape: x.Shape, Values: x.Values, DType: tensor.F32}
}

// Reshape implements Arithmetic.
func (p *Plain) Reshape(x *Activation, shape ...int) *Activation {
	return &Activation{Shape: shape, Values: x.Values, DType: x.DType}
}

// Move implements Arithmetic.
func (p *Plain) Move(m *Move, operands ...*Activation) *Activation {
	y := p.Make(operands[0].DType, m.Shape...)
	p.Each(m.parts, len(y.Values), func(i int) {
		m.part(i, func(r Run) { moveRun(y.Values, operands[r.Operand].Values, r) })
	})
	return y
}

// Kernels names the implementations of the arithmetic that this processor runs, such as
// "avx512", "avx2", "neon" and, always, "portable". The first is in use; all give the same
// bits.
func Kernels() []string { return kernel.Implementations() }
