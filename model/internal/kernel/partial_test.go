package kernel

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"dsmoe/config/configtest"
)

// TestPartialSumsAreTheDefinition_every: MatMulPartial and MatPartial give the bits of partialSums, for
// all implementations, formats, offsets and lengths around a step, a chain and a panel, for one plan to
// three, few tokens and several blocks of them, and write nothing beside their results. Without -every each shape has
// one list of plans.
func TestPartialSumsAreTheDefinition_every(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for i, shape := range [][3]int{
		{1, 5, 16}, {2, 7, 33}, {3, 70, 15}, {4, 33, 1}, {5, 34, 100}, {7, 3, 511}, {2, 150, 512}, {3, 17, 513}, {4, 9, 1055},
		{partialTokens/2 + 3, 4, 35},
	} {
		tokens, rows, cols := shape[0], shape[1], shape[2]
		w := stored(r, rows, cols, BF16, 3)
		for k, plans := range [][]int{{cols}, {512, 192}, {512, 192, max(4, cols/8*4)}, {20, 48, 2048}} {
			if configtest.Every(t) || k == i%4 {
				requirePartial(t, r, w, tokens, plans)
			}
		}
		if !configtest.Every(t) && i%3 > 0 {
			continue
		}
		values := append(random(r, 1), decodedRows(w)...)[1:]
		requirePartial(t, r, Matrix{Rows: rows, Cols: cols, Values: values}, tokens, []int{512, 192})
	}
	for _, f := range []Format{F32, F16, F8E4M3} {
		w := stored(r, 20, 600, f, 1)
		requirePartial(t, r, w, 3, []int{512})
		w.Round, w.Via = true, BF16
		requirePartial(t, r, w, 2, []int{192, 300})
		if f == F8E4M3 {
			for _, block := range []int{48, 32} {
				w.BlockRows, w.BlockCols = 4, block
				w.Scales = random(r, 5*ceilDiv(600, block))
				requirePartial(t, r, w, 2, []int{600, 300})
			}
		}
	}
}

// decodedRows are all numbers of w.
func decodedRows(w Matrix) (values []float32) {
	for row := range w.Rows {
		values = append(values, w.Row(make([]float32, w.Cols), row)...)
	}
	return values
}

// requirePartial compares with partialSums of each token and row.
func requirePartial(t *testing.T, r *rand.Rand, w Matrix, tokens int, plans []int) {
	t.Helper()
	for _, numbers := range []func(r *rand.Rand, n int) []float32{random, awkward} {
		x, v := numbers(r, tokens*w.Cols), numbers(r, tokens*w.Cols)
		for i := range v {
			v[i] = float32(math.Abs(float64(v[i])))
		}
		requirePartialOf(t, x, v, random(r, w.Rows), w, plans)
	}
}

// requirePartialOf compares every implementation with partialSums of each token of x and v and each row.
func requirePartialOf(t *testing.T, x, v, start []float32, w Matrix, plans []int) {
	t.Helper()
	tokens := len(x) / w.Cols
	n := tokens * w.Rows
	var want, without [3][]float64
	rows := decodedRows(w)
	for i := range n {
		from, row := i/w.Rows*w.Cols, rows[i%w.Rows*w.Cols:][:w.Cols]
		x, v := x[from:from+w.Cols], v[from:from+w.Cols]
		scale := scaleOf(x)
		scaled, squared := make([]float32, w.Cols), make([]float32, w.Cols)
		for c := range w.Cols {
			scaled[c] = float32(float64(x[c]) / scale)
			squared[c] = scaled[c] * scaled[c]
		}
		_, carried := partialSums(scaled, v, row, 0, plans)
		for all, start := range map[*[3][]float64]float64{&want: float64(start[i%w.Rows]), &without: 0} {
			partial, squares := partialSums(scaled, squared, row, start/scale, plans)
			all[0], all[1], all[2] = append(all[0], partial*scale*scale), append(all[1], squares*scale*scale), append(all[2], carried)
		}
	}
	each(t, func(t *testing.T) {
		product := make([]float32, n)
		MatMul(product, x, w, start, Float64, 1)
		all, dst := guarded[float32](n), guarded[float32](n)
		requireGiven(t, want, &Partial{X: x, Start: start, V: v, Plans: plans}, n, w.Rows, func(p *Partial) {
			each := p.Each
			p.Each = func(token, row int, partial, squares, carried []float64) {
				each(token, row, partial, squares, carried)
				copy(all[token*w.Rows+row:], dst[token*w.Rows+row:][:len(partial)])
			}
			MatMulPartial(dst, x, w, start, Float64, p, 2)
		})
		requireSame(t, product, dst)
		requireSame(t, product, all) // the product's results are there before
		requireGuarded(t, all, dst)
		requireGiven(t, want, &Partial{X: x, Start: start, V: v, Plans: plans}, n, w.Rows, func(p *Partial) { MatPartial(w, p, 3) })
		requireGiven(t, [3][]float64{2: want[2]}, &Partial{V: v, Plans: plans}, n, w.Rows, func(p *Partial) { MatPartial(w, p, 1) })
		requireGiven(t, [3][]float64{without[0], without[1]}, &Partial{X: x, Plans: plans}, n, w.Rows, func(p *Partial) { MatPartial(w, p, 2) })
	})
}

// guarded are n numbers with others before and behind them, which requireGuarded looks at.
func guarded[F float32 | float64](n int) []F {
	all := make([]F, n+2)
	for i := range all {
		all[i] = -7
	}
	return all[1 : n+1]
}

func requireGuarded[F float32 | float64](t *testing.T, all ...[]F) {
	for _, x := range all {
		require.Equal(t, F(-7), x[:len(x)+1][len(x)])
	}
}

// requireGiven demands that p's results, which run asks for, are these, each given once.
func requireGiven(t *testing.T, want [3][]float64, p *Partial, n, rows int, run func(p *Partial)) {
	t.Helper()
	got, given := [3][]float64{guarded[float64](n), guarded[float64](n), guarded[float64](n)}, make([]int, n)
	p.Each = func(token, row int, partial, squares, carried []float64) {
		for i, sums := range [][]float64{partial, squares, carried} {
			if (sums == nil) != (want[i] == nil) {
				panic("given what is not wanted")
			}
			copy(got[i][token*rows+row:], sums)
		}
		for i := range max(len(partial), len(carried)) {
			given[token*rows+row+i]++
		}
	}
	run(p)
	for i := range want {
		if want[i] != nil {
			requireSame(t, want[i], got[i])
		}
	}
	require.Equal(t, slices.Repeat([]int{1}, n), given)
	requireGuarded(t, got[:]...)
}

// TestPartialSumsHaveNoScale: tokens, weights and starts of any size, denormal ones and those whose squares overflow, give
// the sums of ordinary ones times a power of two, for all implementations.
func TestPartialSumsHaveNoScale(t *testing.T) {
	const rows, cols = 37, 600
	r := rand.New(rand.NewPCG(11, 12))
	scaled := func(x []float32, e int) []float32 {
		y := make([]float32, len(x))
		for i, v := range x {
			y[i] = float32(math.Ldexp(float64(v), e))
		}
		return y
	}
	short := func(n int) []float32 { // of few bits, which a denormal number holds
		x := make([]float32, n)
		for i := range x {
			x[i] = float32(1+r.IntN(15)) * float32(1-2*r.IntN(2)) / 16
		}
		return x
	}
	x, v, w, start := short(3*cols), make([]float32, 3*cols), short(rows*cols), short(rows)
	for i := range v {
		v[i] = x[i] * x[i]
	}
	plans := []int{512, 192}
	sums := func(x, w, start []float32) (all [3][]float64) {
		for i := range all {
			all[i] = make([]float64, 3*rows)
		}
		p := &Partial{X: x, V: v, Start: start, Plans: plans, Each: func(token, row int, partial, squares, carried []float64) {
			for i, sums := range [][]float64{partial, squares, carried} {
				copy(all[i][token*rows+row:], sums)
			}
		}}
		MatPartial(Matrix{Rows: rows, Cols: cols, Values: w}, p, 1)
		return all
	}
	each(t, func(t *testing.T) {
		want := sums(x, w, start)
		for _, e := range [][2]int{{-145, 0}, {120, 0}, {0, -70}, {0, -145}, {0, 62}, {0, 120}, {-100, -45}, {60, 60}, {-100, 127}} {
			product, from := e[0]+e[1], make([]float32, rows)
			if product > -145 { // else a float32 start is lost
				from = scaled(start, product)
			}
			got, want := sums(scaled(x, e[0]), scaled(w, e[1]), from), want
			if product <= -145 {
				want = sums(x, w, from)
			}
			for i, unit := range []int{2 * product, 2 * product, 2 * e[1]} {
				for k, sum := range want[i] {
					if math.Ldexp(sum, unit) != got[i][k] {
						require.Equal(t, math.Ldexp(sum, unit), got[i][k], "%v, sum %d", e, i)
					}
				}
			}
		}
		zeros := make([]float32, rows*cols)
		require.Equal(t, [3][]float64{make([]float64, 3*rows), make([]float64, 3*rows), make([]float64, 3*rows)}, sums(x, zeros, nil))
	})
	requirePartialOf(t, x, v, scaled(start, 100), Matrix{Rows: rows, Cols: cols, Values: w}, plans)
	requirePartialOf(t, scaled(x, -100), v, start, Matrix{Rows: rows, Cols: cols, Values: scaled(w, -40)}, plans)
}

// TestTotalsBeginWithTheStart: each chain's partial sums begin with 0, and the totals of the chains with the start.
func TestTotalsBeginWithTheStart(t *testing.T) {
	x, w := make([]float32, 1024), make([]float32, 1024)
	for k := range x {
		x[k], w[k] = 1, 0x1p-10
	}
	chains, _ := partialSums(x, x, w, 0, []int{256})
	for _, start := range []float64{96, -96} {
		partial, _ := partialSums(x, x, w, start, []int{256})
		require.InDelta(t, chains-(1+4+4+16)/16.0+4*64*64, partial, 0.01) // totals 1/4, 2/4, 3/4 and 1, whose powers are 1/4, 1/2, 1/2 and 1; 64 of 96 more
	}
}

// TestPartialTokensMayBeOthers than the tokens of the product, and may be absent.
func TestPartialTokensMayBeOthers(t *testing.T) {
	each(t, func(t *testing.T) {
		r := rand.New(rand.NewPCG(5, 6))
		w := stored(r, 20, 40, BF16, 1)
		for _, tokens := range []int{0, 6} {
			want, dst, x := make([]float32, 60), make([]float32, 60), random(r, 120)
			MatMul(want, x, w, nil, Float64, 1)
			v, sums := random(r, tokens*40), []float64{}
			for i := range tokens * 20 {
				_, carried := partialSums(v[i/20*40:], v[i/20*40:], w.Row(make([]float32, 40), i%20), 0, nil)
				sums = append(sums, carried)
			}
			requireGiven(t, [3][]float64{2: sums}, &Partial{V: v}, tokens*20, 20, func(p *Partial) { MatMulPartial(dst, x, w, nil, Float64, p, 1) })
			requireSame(t, want, dst)
		}
		require.Panics(t, func() { MatPartial(w, &Partial{X: make([]float32, 39), Plans: []int{40}}, 1) })
		require.Panics(t, func() { MatPartial(w, &Partial{X: make([]float32, 40), Plans: []int{40}, V: make([]float32, 80)}, 1) })
		for _, plans := range [][]int{nil, {0}, {6}, {40, 40, 40, 40}} {
			require.Panics(t, func() { MatPartial(w, &Partial{X: make([]float32, 40), Plans: plans}, 1) }, "%v", plans)
		}
	})
}

// TestPartialSumsOfOneTermAreNotLess: the first of 512 terms is a little larger than 1, and the others are 0. Rounding the
// first term's factors to 8 bits may make it less than 1; the squared powers of two must not become smaller by that.
func TestPartialSumsOfOneTermAreNotLess(t *testing.T) {
	r, x, w := rand.New(rand.NewPCG(9, 10)), make([]float32, 512), make([]float32, 512)
	below := 0
	for range 10_000 {
		x[0] = 1 + r.Float32()
		w[0] = (1 + r.Float32()*0x1p-9) / x[0]
		partial, _ := partialSums(x, x, w, 0, []int{512})
		if x[0]*w[0] >= 1 && !(partial >= 513) {
			require.GreaterOrEqual(t, partial, 513.0, "%v, %v", x[0], w[0])
		}
		if short(x[0], leastNumber)*short(w[0], leastWeight) < 1 {
			below++
		}
	}
	require.Greater(t, below, 1000)
}

// TestShort: 8 bits, ties away from 0, and 0 below a limit.
func TestShort(t *testing.T) {
	for _, test := range [][3]float32{
		{1, 0, 1}, {0x1.01p0, 0, 0x1.02p0}, {-0x1.01p0, 0, -0x1.02p0}, {0x1.00fffep0, 0, 1}, {0x1.fffffep0, 0, 2},
		{0x1p-63, 0x1p-63, 0x1p-63}, {0x1.fffffep-64, 0x1p-63, 0}, {-0x1.fffffep-64, 0x1p-63, 0}, {0x1p-149, 0x1p-126, 0},
		{math.MaxFloat32, 0, float32(math.Inf(1))}, {float32(math.Inf(-1)), 1, float32(math.Inf(-1))},
	} {
		require.Equal(t, test[2], short(test[0], test[1]), "%v", test)
	}
}

// TestPartialSumsArePowersOfPrefixes: against float64, whose sums are every term's, for terms of
// one sign, where the sampling is at its worst, and for terms that go far from 0 and come back.
func TestPartialSumsArePowersOfPrefixes(t *testing.T) {
	r := rand.New(rand.NewPCG(7, 8))
	power := func(x float64) float64 {
		if x == 0 {
			return 0
		}
		return math.Exp2(math.Floor(math.Log2(math.Abs(x) * (1 + 0x1p-7))))
	}
	for _, n := range []int{1, 5, 16, 40, 200, 384, 512, 1000, 4096} {
		for _, length := range []int{192, (n + 7) / 8 * 4, 512, n} {
			for _, turns := range []int{n, 64} { // terms of one sign
				x, w := make([]float32, n), make([]float32, n)
				sum, total, want := 0.0, 0.0, 0.0
				for k := range n {
					x[k], w[k] = 1, float32(1+0.1*r.NormFloat64())
					if k/turns%2 == 1 {
						w[k] = -w[k]
					}
					sum += float64(w[k])
					want += power(sum) * power(sum)
					if k == n-1 || k%length == length-1 {
						total += sum
						want += power(total) * power(total)
						sum = 0
					}
				}
				partial, squares := partialSums(x, x, w, 0, []int{length})
				require.InDelta(t, 1, math.Sqrt(partial/want), 1.3, "%d terms, chains of %d", n, length)
				if turns == n && n >= 512 && length >= 512 {
					require.InEpsilon(t, want, partial, 0.2, "%d terms, chains of %d", n, length)
				}
				require.InEpsilon(t, float64(Dot32(w, w)), squares, 0x1p-7) // of weights, twice, their squares and terms
				if length%sampleStep(n) == 0 {                              // one plan does not change where the other's sums are sampled
					both, _ := partialSums(x, x, w, 0, []int{n, length})
					one, _ := partialSums(x, x, w, 0, []int{n})
					require.Equal(t, max(partial, one), both)
				}
			}
		}
	}
}
