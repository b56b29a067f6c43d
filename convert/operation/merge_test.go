package operation

import (
	"math"
	"math/big"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"dsmoe/config/configtest"
	"dsmoe/model/tensor"
)

// merged is a Merge of random numbers, with what it reads and the exact sums.
type merged struct {
	*Merge
	base, right, left []byte
	scales            []byte // nil for none
	exact             []*big.Float
}

// stored encodes numbers, and sets them to what is stored.
func stored(d tensor.DType, x []float32) []byte {
	wide := make([]byte, 4*len(x))
	tensor.PutFloat32s(wide, x)
	out := make([]byte, d.Bytes(int64(len(x))))
	(&tensor.Cast{From: tensor.F32, To: d}).Convert(out, wide)
	tensor.Tensor{DType: d, Shape: []int{len(x)}, Data: out}.Float32s(x[:0])
	return out
}

// newMerged returns a Merge of a matrix. Left and Right are rows of larger tensors, as an expert's among others, with
// their numbers side by side in a line or among the lines.
func newMerged(t *testing.T, from, to, factors tensor.DType, shape [2]int, rank int, side bool) merged {
	rng := rand.New(rand.NewPCG(uint64(from), uint64(to)+8*uint64(factors)))
	normal := func(n int, size float64) []float32 {
		x := make([]float32, n)
		for i := range x {
			x[i] = float32(size * rng.NormFloat64())
		}
		return x
	}
	n := shape[0] * shape[1]
	const others = 3 // as of further experts
	factor := func(lines int, side bool) Factor {
		if side {
			return Factor{factors, others, int64(rank * others), others}
		}
		return Factor{factors, int64(others * lines), 1, int64(lines)}
	}
	p := Product{Rank: rank, Scale: 4 / math.Sqrt(3), Left: factor(shape[0], side), Right: factor(shape[1], !side)}
	var m merged
	var scaling tensor.Scaling
	x := normal(n, 1)
	switch {
	case from.Casts():
		m.base = stored(from, x)
	case from.Blocked():
		m.base = make([]byte, from.Bytes(int64(n)))
		codec, err := tensor.NewQuantiser(from)
		require.NoError(t, err)
		require.NoError(t, codec.Convert(m.base, x, new(tensor.Loss)))
		tensor.Tensor{DType: from, Shape: []int{n}, Data: m.base}.Float32s(x[:0])
	default:
		scaling = tensor.Scaling{Scales: tensor.F32, Blocks: tensor.Blocks{Rows: shape[0], Cols: shape[1], BlockRows: 8, BlockCols: 16}}
		rows, cols := scaling.Blocks.Grid()
		scales := normal(rows*cols, 0.1)
		m.scales, m.base = stored(tensor.F32, scales), make([]byte, n)
		for i := range x {
			m.base[i] = byte(rng.IntN(255)&0x7f) & 0x77
			x[i] = tensor.E4M3(m.base[i]) * scales[i/shape[1]/8*cols+i%shape[1]/16]
		}
	}
	var err error
	m.Merge, err = NewMerge(from, to, scaling, shape, p)
	require.NoError(t, err)
	left, right := normal((shape[0]+others)*(rank+others)*others, 0.1), normal((shape[1]+others)*(rank+others)*others, 0.3)
	m.left, m.right = stored(factors, left), stored(factors, right)
	m.exact = make([]*big.Float, n)
	number := func(v float64) *big.Float { return big.NewFloat(v).SetPrec(600) }
	for i := range m.exact {
		m.exact[i] = number(0)
		for k := range rank {
			l := left[p.Left.First+int64(i/shape[1])*p.Left.Line+int64(k)*p.Left.Rank]
			r := right[p.Right.First+int64(i%shape[1])*p.Right.Line+int64(k)*p.Right.Rank]
			m.exact[i].Add(m.exact[i], number(0).Mul(number(float64(l)), number(float64(r))))
		}
		m.exact[i].Add(m.exact[i].Mul(m.exact[i], number(p.Scale)), number(float64(x[i])))
	}
	return m
}

// input returns elements first, …, end-1.
func (m *merged) input(first, end int) Input {
	in := Input{Data: m.base[m.From.Bytes(int64(first)):m.From.Bytes(int64(end))], At: int64(first)}
	all := [][]byte{m.right, m.left}
	if m.scales != nil {
		all = [][]byte{m.scales, m.right, m.left}
	}
	for i, s := range m.Sides(int64(first), int64(end-first)) {
		in.Sides = append(in.Sides, all[i][s.Begin:s.End])
	}
	return in
}

// TestMerge_every holds merged matrices against exact sums, of every kind of source, in pieces that cut rows, and with every
// arrangement of the factors. The proof accepts what was written, and refuses each element a unit further.
func TestMerge_every(t *testing.T) {
	for i, from := range []tensor.DType{tensor.F32, tensor.F16, tensor.BF16, tensor.F8E4M3, tensor.Q8_0} {
		for j, to := range []tensor.DType{tensor.F32, tensor.F16, tensor.BF16} {
			m := newMerged(t, from, to, []tensor.DType{tensor.F32, tensor.F16, tensor.BF16}[(i+j)%3], [2]int{11, 96}, 5, j == 1)
			n, size := len(m.exact), int(to.Bytes(1))
			step, _ := from.Block()
			out, lost, tables := make([]byte, n*size), tensor.Loss{}, new(Tables)
			for first := 0; first < n; {
				end := min(first+(1+first%7)*step, n)
				in := m.input(first, end)
				in.Tables = tables
				require.NoError(t, m.Apply(out[first*size:end*size], in, &lost))
				require.NoError(t, m.Prove(out[first*size:end*size], in), "%s to %s", from, to)
				first = end
			}
			got, inexact := make([]float32, 0, n), int64(0)
			got, _ = tensor.Tensor{DType: to, Shape: []int{n}, Data: out}.Float32s(got)
			b := boundsOf(to)
			for i, exact := range m.exact {
				v, accuracy := exact.Float64()
				want := b.pattern(v)
				if to == tensor.F32 {
					f, _ := exact.Float32()
					want = math.Float32bits(f)
				}
				if got := b.stored(out, i); want != got {
					require.Equal(t, want, got, "%s to %s: element %d: %v", from, to, i, exact)
				}
				if float64(got[i]) != v || accuracy != big.Exact {
					inexact++
				}
			}
			require.Equal(t, inexact, lost.Rounded+lost.Denormal+lost.Flushed)
			require.Zero(t, lost.Overflow+lost.NotFinite)
			in := m.input(0, n)
			apart := 13
			if configtest.Every(t) {
				apart = 3
			}
			for at := (i + j) % 3; at < n; at += apart {
				for _, by := range []byte{1, 2} {
					out[at*size] ^= by
					var differs *Mismatch
					require.ErrorAs(t, m.Prove(out, in), &differs, "%s to %s: %v", from, to, m.exact[at])
					require.Equal(t, at, differs.Element)
					out[at*size] ^= by
				}
			}
		}
	}
}

// TestMergeExtremes: numbers that overflow, that are not finite and that vanish are counted, and proven.
func TestMergeExtremes(t *testing.T) {
	for _, to := range []tensor.DType{tensor.F32, tensor.F16, tensor.BF16} {
		base := []float32{math.MaxFloat32, float32(math.Inf(-1)), float32(math.NaN()), 0, 1e-40, -3}
		left, right := []float32{1}, []float32{math.MaxFloat32, 1, 1, 1e-30, 0, 3}
		p := Product{1, 1, Factor{tensor.F32, 0, 1, 1}, Factor{tensor.F32, 0, 1, 6}}
		if to == tensor.F32 {
			p.Scale = 1e-20
		}
		m, err := NewMerge(tensor.F32, to, tensor.Scaling{}, [2]int{1, 6}, p)
		require.NoError(t, err)
		in := Input{Data: stored(tensor.F32, base), Sides: [][]byte{stored(tensor.F32, right), stored(tensor.F32, left)}}
		out, lost := make([]byte, to.Bytes(6)), tensor.Loss{}
		require.NoError(t, m.Apply(out, in, &lost))
		require.NoError(t, m.Prove(out, in))
		require.Equal(t, int64(2), lost.NotFinite, to)
		switch to {
		case tensor.F32:
			require.Equal(t, tensor.Loss{NotFinite: 2, Flushed: 1}, lost)
		default:
			require.Equal(t, int64(1), lost.Overflow)
		}
	}
	for _, to := range []tensor.DType{tensor.Q8_0, tensor.F8E4M3} {
		_, err := NewMerge(tensor.BF16, to, tensor.Scaling{}, [2]int{1, 1}, Product{})
		require.ErrorContains(t, err, "an adapter cannot be merged into "+to.String())
	}
	_, err := NewMerge(tensor.I64, tensor.F32, tensor.Scaling{}, [2]int{1, 1}, Product{})
	require.ErrorContains(t, err, "an adapter cannot be merged into a matrix of dtype I64")
}
