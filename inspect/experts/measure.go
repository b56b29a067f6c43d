package experts

// What one expert is by itself, and what it computes.

import (
	"math"
	"slices"

	"dsmoe/inspect"
	"dsmoe/inspect/matrix"
	"dsmoe/model"
	"dsmoe/model/table"
	"dsmoe/model/tensor"
)

// hashes returns a hash of each neuron's three vectors.
func (x *facts) hashes() []uint64 {
	all := make([]uint64, len(x.matrices.Gate.neurons))
	for _, m := range x.matrices.All() {
		for i := range all {
			all[i] = matrix.Mix(all[i], m.neurons[i])
		}
	}
	return all
}

// axis is the rows, or the columns, of a matrix.
type axis struct {
	zeros []int // how many numbers are 0
	logs  []matrix.LogSum
}

func newAxis(n int) *axis { return &axis{make([]int, n), make([]matrix.LogSum, n)} }

// sizes returns the mean of log₂|w| of each, less their median; NaN for those without a number.
func (a *axis) sizes() []float64 {
	sizes, known := make([]float64, len(a.logs)), []float64{}
	for i := range a.logs {
		if sizes[i] = a.logs[i].Log2(); sizes[i] == sizes[i] {
			known = append(known, sizes[i])
		}
	}
	if len(known) > 0 {
		median := inspect.LowerMedian(known)
		for i := range sizes {
			sizes[i] -= median
		}
	}
	return sizes
}

// measure counts in a matrix, and hashes its neurons.
func measure(m *matrix.Stored, n *MatrixNumbers, role table.Role) (x matrixFacts) {
	rows, cols := newAxis(m.Rows), newAxis(m.Cols)
	neurons, channels := rows, cols
	if role == table.DownProj {
		neurons, channels = cols, rows
	}
	x.neurons = make([]uint64, len(neurons.logs))
	total := 0.0
	for first, values := range m.Runs() {
		n.count(first, values, rows, cols)
		if role == table.DownProj {
			for row := range slices.Chunk(values, m.Cols) {
				for c, v := range row {
					x.neurons[c] = matrix.Mix(x.neurons[c], matrix.Bits(v))
				}
			}
		} else {
			hashRows(x.neurons[first:], values, m.Cols)
		}
		for _, s := range x.squares(values, m.Cols) {
			total += s
		}
	}
	n.Norm, n.RMS = inspect.Finite(math.Sqrt(total)), inspect.Finite(math.Sqrt(total/float64(m.Rows*m.Cols)))
	n.Distinct = distinct(m)
	x.print, x.channels, x.peak = matrix.Orderless(x.neurons), channels.sizes(), math.NaN()
	for _, zeros := range neurons.zeros {
		x.zero = append(x.zero, zeros == m.Rows*m.Cols/len(neurons.zeros))
	}
	for i, v := range neurons.sizes() {
		if v > x.peak || x.peak != x.peak {
			x.peak, x.neuron = v, i
		}
	}
	var all matrix.LogSum
	for _, l := range neurons.logs {
		all.Merge(l)
	}
	x.size = all.Log2()
	return x
}

// count counts the values of rows from first on. It adds tensor.Runs finite rows together and then takes their zeros
// off; other rows it counts value by value.
func (n *MatrixNumbers) count(first int, values []float32, rows, cols *axis) {
	width := len(cols.logs)
	var zeros [tensor.Runs]uint32
	together := len(values) == tensor.Runs*width
	for i := 0; together && i < tensor.Runs; i++ {
		e := tensor.ExtremesOf(values[i*width:][:width])
		zeros[i], together = e.Zeros, tensor.IsFinite(e.Largest)
	}
	for i := 0; together && i < tensor.Runs; i += 4 {
		addFour(rows.logs[first+i:], cols.logs, values[i*width:])
	}
	for i := range len(values) / width {
		if together && zeros[i] == 0 {
			continue
		}
		r := first + i
		for c, v := range values[i*width:][:width] {
			switch {
			case v == 0:
				n.Zeros++
				rows.zeros[r]++
				cols.zeros[c]++
				if together {
					rows.logs[r].AddBits(0, -1)
					cols.logs[c].AddBits(0, -1)
				}
			case together:
			case v != v:
				n.NaN++
			case !tensor.IsFinite(v):
				n.Infinite++
			default:
				rows.logs[r].Add(v)
				cols.logs[c].Add(v)
			}
		}
	}
}

// addFour adds four rows of finite numbers, zeros as if they were others.
func addFour(rows, cols []matrix.LogSum, values []float32) {
	n := len(cols)
	row0, row1, row2, row3 := values[:n], values[n:][:n], values[2*n:][:n], values[3*n:][:n]
	var sum0, sum1, sum2, sum3 uint64
	magnitude := func(v float32) uint64 { return uint64(math.Float32bits(v) &^ (1 << 31)) }
	for c := range cols {
		b0, b1, b2, b3 := magnitude(row0[c]), magnitude(row1[c]), magnitude(row2[c]), magnitude(row3[c])
		sum0, sum1, sum2, sum3 = sum0+b0, sum1+b1, sum2+b2, sum3+b3
		cols[c].AddBits(b0+b1+b2+b3, 4)
	}
	for i, sum := range [...]uint64{sum0, sum1, sum2, sum3} {
		rows[i].AddBits(sum, n)
	}
}

// hashRows hashes the numbers of each row of n, four rows side by side if there are as many.
func hashRows(hashes []uint64, values []float32, n int) {
	for ; len(values) >= 4*n; hashes, values = hashes[4:], values[4*n:] {
		row0, row1, row2, row3 := values[:n], values[n:][:n], values[2*n:][:n], values[3*n:][:n]
		h0, h1, h2, h3 := hashes[0], hashes[1], hashes[2], hashes[3]
		for c, v := range row0 {
			h0, h1 = matrix.Mix(h0, matrix.Bits(v)), matrix.Mix(h1, matrix.Bits(row1[c]))
			h2, h3 = matrix.Mix(h2, matrix.Bits(row2[c])), matrix.Mix(h3, matrix.Bits(row3[c]))
		}
		hashes[0], hashes[1], hashes[2], hashes[3] = h0, h1, h2, h3
	}
	for i, v := range values {
		hashes[i/n] = matrix.Mix(hashes[i/n], matrix.Bits(v))
	}
}

// squares returns Σw² of each row of n, and adds to fourth. It overwrites values.
func (x *matrixFacts) squares(values []float32, n int) []float64 {
	var squares, fourths [tensor.Runs]float64
	rows := len(values) / n
	if rows == tensor.Runs {
		tensor.Powers(&squares, &fourths, values)
	} else {
		for i, v := range values {
			squares[i/n] += float64(float64(v) * float64(v))
			rounded := float64(float32(v * v)) // as Powers has it
			fourths[i/n] += float64(rounded * rounded)
		}
	}
	for _, f := range fourths[:rows] {
		x.fourth += f
	}
	return squares[:rows]
}

// The runs of distinct: at most so many, evenly over the rows, of at most so many numbers.
const (
	distinctRuns   = 64
	distinctLength = 128
)

// distinct is the number of different magnitudes, other than 0, in the first 128 numbers of each of up to 64 rows,
// over the number of those that are not 0. Numbers that were quantised to few bits repeat, whatever their scale.
// nil if all are 0.
func distinct(m *matrix.Stored) *float64 {
	different, all := 0, 0
	runs, length := min(distinctRuns, m.Rows), min(distinctLength, m.Cols)
	for i := range runs {
		var seen [2 * distinctLength]uint32 // a hash table; 0 is free
		for _, v := range m.Row(i * m.Rows / runs)[:length] {
			if v == 0 || v != v {
				continue
			}
			all++
			magnitude := math.Float32bits(v) &^ (1 << 31)
			at := magnitude * 0x9e3779b1 >> 24 // of 256
			for seen[at] != 0 && seen[at] != magnitude {
				at = (at + 1) % uint32(len(seen))
			}
			if seen[at] == 0 {
				seen[at] = magnitude
				different++
			}
		}
	}
	if all == 0 {
		return nil
	}
	return inspect.Finite(float64(different) / float64(all))
}

// probeCount is the number of inputs that all experts of a layer are given.
const probeCount = 8

// probesOf returns those inputs [probeCount, hidden]: what post_attention_layernorm makes of vectors of ±1, whose
// RMS is 1. Without its weight they are the vectors.
func probesOf(hidden int, norm []float32) []float32 {
	probes := make([]float32, probeCount*hidden)
	for p := range probeCount {
		for c := range hidden {
			v := matrix.Sign(p, c)
			if len(norm) == hidden {
				v *= norm[c]
			}
			probes[p*hidden+c] = v
		}
	}
	return probes
}

// respond takes the probes through a matrix. The matrices come in the order of roles.
func (x *facts) respond(p *model.Plain, role table.Role, m *matrix.Stored, probes []float32) {
	if role != table.DownProj {
		*x.responses.Of(role) = m.Products(probes)
		return
	}
	activation := func(values []float32) *model.Activation {
		return &model.Activation{Shape: []int{len(values) / m.Cols, m.Cols}, Values: values, DType: tensor.F32}
	}
	inner := p.SwiGLU(activation(x.responses.Gate), activation(x.responses.Up))
	x.output, x.whole = m.Products(inner.Values), true
}

// read reads an expert; the first time its bytes are counted, and its spectra computed.
func read(x *matrix.Reader, m *mlp, probes []float32, first bool) (*Expert, error) {
	space, p := x.Spaces.Get().(*matrix.Space), matrix.Arithmetic()
	defer x.Spaces.Put(space)
	defer p.Close(nil)
	reading := x.Again
	if first {
		reading = x.Reading
	}
	e := &Expert{Expert: m.number, Module: m.module, facts: &facts{}}
	for role, w := range present(&m.weights) {
		values, err := x.Stored(reading, w, p, space)
		if err != nil {
			return nil, err
		}
		n := &MatrixNumbers{Shape: w.Shape}
		*e.facts.matrices.Of(role), *e.Of(role) = measure(values, n, role), n
		if first && w.DType.Casts() {
			e.facts.matrices.Of(role).bits = matrix.CodeBits(values.Rows, values.Row)
		}
		if first && n.Norm != nil {
			n.SpectralNorm = inspect.Finite(values.SpectralNorm())
			if s := n.SpectralNorm; s != nil && *s > 0 {
				ratio := *n.Norm / *s
				n.StableRank = inspect.Finite(ratio * ratio)
			}
		}
		if m.isWhole() && len(probes) == probeCount*m.weights.Gate.Shape[1] {
			e.facts.respond(p, role, values, probes)
		}
	}
	if m.isWhole() {
		for i, zero := range e.facts.matrices.Gate.zero {
			if zero || e.facts.matrices.Up.zero[i] || e.facts.matrices.Down.zero[i] {
				e.ZeroNeurons++
			}
		}
	}
	return e, nil
}
