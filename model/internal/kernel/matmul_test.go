package kernel

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
)

var (
	accumulators  = []Accumulator{Float64, Float32}
	storedFormats = []Format{F32, F16, BF16, F8E4M3}
)

// product is a matrix product and its results by definition, one per accumulator.
type product struct {
	x, bias []float32
	w       Matrix
	want    [2][]float32
}

// newProduct computes the results with Dot32 and Dot64.
func newProduct(x []float32, w Matrix, bias []float32) *product {
	p := &product{x: x, w: w, bias: bias}
	tokens := len(x) / max(1, w.Cols)
	row := make([]float32, w.Cols)
	for _, acc := range accumulators {
		p.want[acc] = make([]float32, tokens*w.Rows)
		for r := range w.Rows {
			values := w.Row(row, r)
			for i := range tokens {
				p.want[acc][i*w.Rows+r] = definition(x[i*w.Cols:(i+1)*w.Cols], values, bias, r, acc)
			}
		}
	}
	return p
}

// definition is one number of a product.
func definition(x, row, bias []float32, r int, acc Accumulator) float32 {
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

// newProducts makes products of w as it is, scaled, rounded, and as plain values.
func newProducts(r *rand.Rand, w Matrix, tokens int) []*product {
	x, bias := awkward(r, tokens*w.Cols), awkward(r, w.Rows)
	scaled, rounded := w, w
	scaled.BlockRows, scaled.BlockCols = 2, 16+r.IntN(50)
	scaled.Scales = random(r, ceilDiv(w.Rows, 2)*ceilDiv(w.Cols, scaled.BlockCols))
	both := scaled
	both.Round, both.Via = true, BF16
	rounded.Round, rounded.Via = true, F16
	values := Matrix{Rows: w.Rows, Cols: w.Cols, Values: awkward(r, w.Rows*w.Cols)}
	return []*product{
		newProduct(x, w, bias), newProduct(x, w, nil), newProduct(x, scaled, nil),
		newProduct(x, both, nil), newProduct(x, rounded, nil), newProduct(x, values, bias),
	}
}

// check computes the product with the implementation in use and looks at what it wrote,
// and beside it.
func (p *product) check(t *testing.T, workers int) {
	t.Helper()
	const guard = 1234.5
	for _, acc := range accumulators {
		want := p.want[acc]
		buf := make([]float32, len(want)+2)
		fill(buf, guard)
		got := buf[1 : len(buf)-1]
		MatMul(got, p.x, p.w, p.bias, acc, workers)
		if buf[0] != guard || buf[len(buf)-1] != guard {
			t.Fatalf("%d×%d: wrote outside dst", p.w.Rows, p.w.Cols)
		}
		for i := range want {
			if !same(want[i], got[i]) {
				t.Fatalf("acc %v format %v token %d row %d of %d×%d×%d: got %x, want %x", acc, p.w.Format,
					i/p.w.Rows, i%p.w.Rows, len(want)/p.w.Rows, p.w.Rows, p.w.Cols, got[i], want[i])
			}
		}
	}
}

// TestMatMulIsTheDotProduct ranges over implementations, lengths, formats, byte offsets,
// tokens, rows and workers, and demands the bits of Dot32 and Dot64.
func TestMatMulIsTheDotProduct(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	var products []*product
	for cols := range 258 {
		f := storedFormats[cols%len(storedFormats)]
		rows, tokens, offset := 1+r.IntN(9), 1+r.IntN(2*panelTokens[Float32]), r.IntN(5)
		products = append(products, newProducts(r, stored(r, rows, cols, f, offset), tokens)...)
	}
	for i, cols := range []int{1408, 2048, 10944} {
		for _, tokens := range []int{3, panelTokens[Float32] + 1} {
			products = append(products, newProducts(r, stored(r, 5, cols, storedFormats[i+1], 1), tokens)...)
		}
	}
	each(t, func(t *testing.T) {
		for i, p := range products {
			p.check(t, 1+i%3)
		}
	})
}

// TestMatMulOfEveryCount has every count of tokens and rows around the counts of the tiles,
// and every count of tokens up to several panels.
func TestMatMulOfEveryCount(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 2))
	var products []*product
	for tokens := 1; tokens <= 40; tokens++ {
		for _, rows := range []int{1, 2, 3, 4, 5, 7, 8, 9} {
			f := storedFormats[r.IntN(3)]
			products = append(products, newProduct(awkward(r, tokens*32), stored(r, rows, 32, f, 0), nil))
		}
		products = append(products, newProduct(awkward(r, tokens*33), stored(r, 32, 33, BF16, 1), nil))
	}
	each(t, func(t *testing.T) {
		for _, p := range products {
			p.check(t, 1)
		}
	})
}

// TestMatMulOfPanels has counts of rows, tokens and numbers around the sizes of panels:
// of one, of a block of tokens, and of the steps that are multiplied at once.
func TestMatMulOfPanels(t *testing.T) {
	r := rand.New(rand.NewPCG(4, 2))
	var products []*product
	for i, shape := range [][3]int{
		{15, 16, 31}, {16, 17, 32}, {17, 24, 33}, {31, 25, 47}, {33, 36, 48}, {65, 37, 20}, {100, 23, 3}, {32, 12, 1}, {64, 48, 64},
		{3, mostPanelTokens + 5, 40}, {40, 2*mostPanelTokens + 1, 17}, {16, mostPanelTokens, 16},
		{33, 20, panelSteps*lanes - 1}, {32, 24, panelSteps * lanes}, {20, 19, panelSteps*lanes + 1}, {18, 18, 2*panelSteps*lanes + 40},
	} {
		rows, tokens, cols := shape[0], shape[1], shape[2]
		for k, f := range storedFormats {
			if rows*tokens*cols > 1<<18 && k != i%len(storedFormats) {
				continue // one format of each large shape
			}
			x, w := awkward(r, tokens*cols), stored(r, rows, cols, f, 1)
			products = append(products, newProduct(x, w, nil))
			if rows*tokens*cols <= 1<<18 {
				products = append(products, newProduct(x, w, awkward(r, rows)))
			}
		}
	}
	each(t, func(t *testing.T) {
		for _, p := range products {
			p.check(t, 1)
		}
	})
}

// TestMatMulInParallel has products large enough for several workers, cut along rows,
// along tokens and along both.
func TestMatMulInParallel(t *testing.T) {
	each(t, func(t *testing.T) {
		r := rand.New(rand.NewPCG(8, 2))
		shapes := [][3]int{{300, 70, 101}, {5, 1200, 101}, {2000, 3, 96}, {16, 300, 1500}, {90, 50, 1100}}
		for i, shape := range shapes {
			if current() == &portable {
				shape[1] = ceilDiv(shape[1], 4) // an order of magnitude slower
			}
			rows, tokens, cols := shape[0], shape[1], shape[2]
			w := stored(r, rows, cols, []Format{BF16, F8E4M3}[i%2], 1)
			x, bias := awkward(r, tokens*cols), awkward(r, rows)
			for _, acc := range accumulators {
				one, many := make([]float32, tokens*rows), make([]float32, tokens*rows)
				MatMul(one, x, w, bias, acc, 1)
				MatMul(many, x, w, bias, acc, 3)
				requireSame(t, one, many)
			}
		}
	})
}

// TestItemsCoverTheProduct cuts many products and looks at the blocks: each number of dst
// is in one item, and no block is larger than it may be.
func TestItemsCoverTheProduct(t *testing.T) {
	t.Parallel()
	for _, im := range supported() {
		for _, tokens := range []int{0, 1, 11, 12, 13, 95, 97, 516, 517, 3000} {
			for _, rows := range []int{0, 1, 4, 33, 64, 1408} {
				for _, cols := range []int{1, 64, 2048} {
					for _, workers := range []int{1, 2, 7} {
						for _, acc := range accumulators {
							j := &job{im: im, tokens: tokens, w: Matrix{Rows: rows, Cols: cols}, length: cols, acc: acc, workers: workers}
							j.panels = im.panels32.available() && tokens >= panelTokens[acc]
							j.cut()
							requireCover(t, j)
						}
					}
				}
			}
		}
	}
}

// requireCover holds the grid of items against the product.
func requireCover(t *testing.T, j *job) {
	t.Helper()
	message := fmt.Sprintf("%s: %d tokens, %d×%d, acc %v", j.im.name, j.tokens, j.w.Rows, j.w.Cols, j.acc)
	require.Equal(t, ceilDiv(j.tokens, j.tokenBlock), j.tokenBlocks, message)
	require.Equal(t, ceilDiv(j.w.Rows, j.rowBlock), j.rowBlocks, message)
	require.Zero(t, j.tokenBlock%blockStep, message)
	if j.panels {
		require.LessOrEqual(t, j.tokenBlock, mostPanelTokens, message)
	}
	if j.workers == 1 {
		require.LessOrEqual(t, j.rowBlocks, 1, message)
	}
}

// TestMatMulOfNotANumber puts a NaN and infinities at every place of a row.
func TestMatMulOfNotANumber(t *testing.T) {
	r := rand.New(rand.NewPCG(5, 2))
	inf := float32(math.Inf(1))
	var products []*product
	for at := range 40 {
		for _, v := range []float32{float32(math.NaN()), inf, -inf} {
			for _, tokens := range []int{3, panelTokens[Float32] + 3} {
				x := random(r, tokens*40)
				x[40+at] = v
				products = append(products, newProduct(x, stored(r, 6, 40, BF16, 1), nil))
				w := stored(r, 6, 40, BF16, 1)
				Narrow(w.Data[2*at:], []float32{v}, BF16)
				products = append(products, newProduct(x, w, nil))
			}
		}
	}
	each(t, func(t *testing.T) {
		for _, p := range products {
			p.check(t, 1)
		}
	})
}

// TestMatMulOfNothing has no tokens, no rows, and rows of no numbers.
func TestMatMulOfNothing(t *testing.T) {
	each(t, func(t *testing.T) {
		for _, acc := range accumulators {
			MatMul(nil, nil, Matrix{Rows: 3, Cols: 2, Values: make([]float32, 6)}, nil, acc, 2)
			MatMul(nil, make([]float32, 4), Matrix{Cols: 2}, nil, acc, 2)
			MatMul(nil, nil, Matrix{Rows: 3}, nil, acc, 2)
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
	stored := Matrix{Rows: 2, Cols: 3, Format: BF16, Data: make([]byte, 11)}
	require.Panics(t, func() { MatMul(make([]float32, 2), make([]float32, 3), stored, nil, Float32, 1) })
}

// TestMatMulReadsNoFurther puts the operands at the end of a page that no readable one
// follows.
func TestMatMulReadsNoFurther(t *testing.T) {
	r := rand.New(rand.NewPCG(7, 2))
	var products []*product
	for cols := 1; cols < 70; cols++ {
		for _, f := range storedFormats {
			w := stored(r, 3, cols, f, 0)
			w.Data = atPageEnd(t, w.Data)
			for _, tokens := range []int{1, 3, 5, panelTokens[Float32] + 1} {
				products = append(products, newProduct(floatsAtPageEnd(t, random(r, tokens*cols)), w, nil))
			}
		}
	}
	each(t, func(t *testing.T) {
		for _, p := range products {
			p.check(t, 1)
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
