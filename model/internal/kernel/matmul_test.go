package kernel

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
)

// each runs f once per implementation that this machine has.
func each(t *testing.T, f func(t *testing.T)) {
	for _, name := range Implementations() {
		t.Run(name, func(t *testing.T) {
			defer Use(name)()
			f(t)
		})
	}
}

// awkward returns n numbers that rounding, underflow and sign of zero show on.
func awkward(r *rand.Rand, n int) []float32 {
	special := []float32{0, float32(math.Copysign(0, -1)), 0x1p-149, -0x1p-149, 0x1p-126, 0x1p-100, -0x1p-80, 0x1.fep60, -1, 1}
	x := random(r, n)
	for i := range x {
		switch r.IntN(12) {
		case 0, 1:
			x[i] = special[r.IntN(len(special))]
		case 2:
			x[i] *= 0x1p-75 // the product of two is below the float32 denormals
		}
	}
	return x
}

// stored returns rows × cols numbers of a format at a byte offset, NaN around them.
func stored(r *rand.Rand, rows, cols int, f Format, offset int) Matrix {
	const guard = 64
	n := rows * cols * f.Size()
	data := make([]byte, offset+n+guard)
	for i := range data {
		data[i] = 0xff
	}
	if f == F8E4M3 {
		for i := range n {
			data[offset+i] = byte(r.UintN(0x7f)) | byte(r.UintN(2)<<7)
		}
	} else {
		Narrow(data[offset:offset+n], awkward(r, rows*cols), f)
	}
	return Matrix{Format: f, Rows: rows, Cols: cols, Data: data[offset : offset+n]}
}

// TestMatMulIsTheDotProduct ranges over implementations, lengths, formats, byte
// offsets, tokens and rows, and demands the bits of Dot32 and Dot64.
func TestMatMulIsTheDotProduct(t *testing.T) {
	each(t, func(t *testing.T) {
		r := rand.New(rand.NewPCG(1, 2))
		for cols := range 258 {
			for _, f := range []Format{F32, F16, BF16, F8E4M3} {
				rows, tokens, offset := 1+r.IntN(9), 1+r.IntN(2*panelTokens[Float32]), r.IntN(5)
				checkAll(t, r, stored(r, rows, cols, f, offset), tokens)
			}
		}
		for _, cols := range []int{1408, 2048, 10944} {
			for _, f := range []Format{F32, F16, BF16, F8E4M3} {
				checkAll(t, r, stored(r, 5, cols, f, 1), 3)
				checkAll(t, r, stored(r, 5, cols, f, 1), panelTokens[Float32]+1)
			}
		}
	})
}

// TestMatMulCoversEveryTile has every count of tokens and of rows around the tiles'.
func TestMatMulCoversEveryTile(t *testing.T) {
	each(t, func(t *testing.T) {
		r := rand.New(rand.NewPCG(3, 2))
		for rows := 1; rows <= 9; rows++ {
			for tokens := 1; tokens <= panelTokens[Float32]+2*maxPanelWidth; tokens++ {
				for _, f := range []Format{F32, F16, BF16} {
					checkMatMul(t, awkward(r, tokens*32), stored(r, rows, 32, f, 0), nil, 1)
				}
			}
		}
	})
}

// TestMatMulOfPanels has counts of rows, tokens and numbers around the sizes of panels.
func TestMatMulOfPanels(t *testing.T) {
	each(t, func(t *testing.T) {
		r := rand.New(rand.NewPCG(4, 2))
		for _, shape := range [][3]int{
			{15, 16, 31}, {16, 17, 32}, {17, 24, 33}, {31, 25, 47}, {33, 36, 48}, {65, 37, 20}, {100, 23, 3},
			{3, mostPanelTokens + 5, 40}, {40, 2*mostPanelTokens + 1, 17},
			{33, 20, panelSteps*Lanes - 1}, {20, 19, panelSteps*Lanes + 1}, {18, 18, 2*panelSteps*Lanes + 40},
		} {
			rows, tokens, cols := shape[0], shape[1], shape[2]
			for _, f := range []Format{F32, F16, BF16, F8E4M3} {
				w := stored(r, rows, cols, f, 1)
				checkMatMul(t, awkward(r, tokens*cols), w, awkward(r, rows), 1)
			}
		}
	})
}

// TestMatMulInParallel has products large enough for several workers, cut along rows,
// along tokens and along both.
func TestMatMulInParallel(t *testing.T) {
	each(t, func(t *testing.T) {
		r := rand.New(rand.NewPCG(8, 2))
		for _, shape := range [][3]int{{300, 70, 101}, {5, 1200, 101}, {2000, 3, 96}, {16, 300, 1500}, {90, 50, 1100}} {
			rows, tokens, cols := shape[0], shape[1], shape[2]
			for _, f := range []Format{BF16, F8E4M3} {
				w := stored(r, rows, cols, f, 1)
				x, bias := awkward(r, tokens*cols), awkward(r, rows)
				for _, acc := range []Accumulator{Float64, Float32} {
					one, many := make([]float32, tokens*rows), make([]float32, tokens*rows)
					MatMul(one, x, w, bias, acc, 1)
					MatMul(many, x, w, bias, acc, 3)
					requireSame(t, one, many)
				}
				checkMatMul(t, x[:2*cols], w, bias, 3)
			}
		}
	})
}

// checkAll checks w as it is, scaled, rounded, and as plain values, with several
// numbers of workers.
func checkAll(t *testing.T, r *rand.Rand, w Matrix, tokens int) {
	x, bias := awkward(r, tokens*w.Cols), awkward(r, w.Rows)
	for _, workers := range []int{1, 2, 5} {
		checkMatMul(t, x, w, bias, workers)
	}
	checkMatMul(t, x, w, nil, 1)
	scaled := w
	scaled.BlockRows, scaled.BlockCols = 2, 16+r.IntN(50)
	scaled.Scales = random(r, (w.Rows+1)/2*((w.Cols+scaled.BlockCols-1)/scaled.BlockCols))
	checkMatMul(t, x, scaled, nil, 2)
	scaled.Round, scaled.Via = true, BF16
	checkMatMul(t, x, scaled, nil, 1)
	w.Round, w.Via = true, F16
	checkMatMul(t, x, w, nil, 1)
	checkMatMul(t, x, Matrix{Rows: w.Rows, Cols: w.Cols, Values: awkward(r, w.Rows*w.Cols)}, bias, 1)
}

func checkMatMul(t *testing.T, x []float32, w Matrix, bias []float32, workers int) {
	t.Helper()
	tokens := 0
	if w.Cols > 0 {
		tokens = len(x) / w.Cols
	}
	const guard = 1234.5
	row := make([]float32, w.Cols)
	for _, acc := range []Accumulator{Float64, Float32} {
		buf := make([]float32, tokens*w.Rows+2)
		buf[0], buf[len(buf)-1] = guard, guard
		MatMul(buf[1:len(buf)-1], x, w, bias, acc, workers)
		if buf[0] != guard || buf[len(buf)-1] != guard {
			t.Fatalf("%d×%d: wrote outside dst", w.Rows, w.Cols)
		}
		for r := range w.Rows {
			values := w.Row(row, r)
			for i := range tokens {
				want := product(x[i*w.Cols:(i+1)*w.Cols], values, bias, r, acc)
				got := buf[1+i*w.Rows+r]
				if !same(want, got) {
					t.Fatalf("acc %v format %v token %d row %d of %d×%d×%d: got %x, want %x", acc, w.Format, i, r, tokens, w.Rows, w.Cols, got, want)
				}
			}
		}
	}
}

// same says whether a and b have the same bits or are both NaN.
func same(a, b float32) bool {
	return math.Float32bits(a) == math.Float32bits(b) || a != a && b != b
}

func product(x, row, bias []float32, r int, acc Accumulator) float32 {
	if acc == Float32 {
		sum := Dot32(x, row)
		if bias != nil {
			sum += bias[r]
		}
		return sum
	}
	sum := Dot64(x, row)
	if bias != nil {
		sum += float64(bias[r])
	}
	return float32(sum)
}

// TestMatMulOfNotANumber puts a NaN and infinities at every place of a row.
func TestMatMulOfNotANumber(t *testing.T) {
	each(t, func(t *testing.T) {
		r := rand.New(rand.NewPCG(5, 2))
		inf := float32(math.Inf(1))
		for at := range 40 {
			for _, v := range []float32{float32(math.NaN()), inf, -inf} {
				for _, tokens := range []int{3, panelTokens[Float32] + 3} {
					x := random(r, tokens*40)
					x[40+at] = v
					w := stored(r, 6, 40, BF16, 1)
					checkMatMul(t, x, w, nil, 1)
					Narrow(w.Data[2*at:], []float32{v}, BF16)
					checkMatMul(t, x, w, nil, 1)
				}
			}
		}
	})
}

// TestMatMulRefuses what does not fit.
func TestMatMulRefuses(t *testing.T) {
	w := Matrix{Rows: 2, Cols: 3, Values: make([]float32, 6)}
	require.Panics(t, func() { MatMul(make([]float32, 2), make([]float32, 4), w, nil, Float32, 1) })
	require.Panics(t, func() { MatMul(make([]float32, 3), make([]float32, 3), w, nil, Float32, 1) })
	require.Panics(t, func() { MatMul(make([]float32, 2), make([]float32, 3), w, make([]float32, 1), Float32, 1) })
	w.Values = w.Values[:5]
	require.Panics(t, func() { MatMul(make([]float32, 2), make([]float32, 3), w, nil, Float32, 1) })
	require.Panics(t, func() { Use("vax") })
}

// TestTilesReadNoFurther puts the operands at the end of a page that no readable
// one follows.
func TestTilesReadNoFurther(t *testing.T) {
	each(t, func(t *testing.T) {
		r := rand.New(rand.NewPCG(7, 2))
		for _, f := range []Format{F32, F16, BF16, F8E4M3} {
			for cols := 1; cols < 70; cols++ {
				w := stored(r, 3, cols, f, 0)
				w.Data = atPageEnd(t, w.Data)
				for _, tokens := range []int{1, 3, 5, panelTokens[Float32] + 1} {
					x := floatsAtPageEnd(t, random(r, tokens*cols))
					checkMatMul(t, x, w, nil, 1)
				}
			}
		}
	})
}

func ExampleUse() {
	defer Use("portable")()
	dst := make([]float32, 1)
	MatMul(dst, []float32{1, 2}, Matrix{Rows: 1, Cols: 2, Values: []float32{3, 4}}, nil, Float64, 1)
	fmt.Println(dst[0])
	// Output: 11
}
