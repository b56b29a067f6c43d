package kernel

import (
	"encoding/binary"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"
)

// eachPanels runs f with the panel kernels of every implementation that has any.
func eachPanels(t *testing.T, f32 func(*testing.T, *panelKernels[float32]), f64 func(*testing.T, *panelKernels[float64])) {
	for _, im := range supported() {
		if im.panels32.available() {
			t.Run(im.name+"/float32", func(t *testing.T) { f32(t, &im.panels32) })
			t.Run(im.name+"/float64", func(t *testing.T) { f64(t, &im.panels64) })
		}
	}
}

// TestPanelCut cuts every count of tokens: panels follow each other, the first is by
// itself, all but the last are of the widest kind, and the last is the narrowest that holds
// what is left.
func TestPanelCut(t *testing.T) {
	t.Parallel()
	k := &panelKernels[float32]{rows: 1, tiles: []panelTile[float32]{{width: 4}, {width: 8}, {width: 12}}}
	for tokens, want := range map[int][]tokenRun{
		1:  {{0, 4, 1}},
		4:  {{0, 4, 1}},
		5:  {{0, 8, 1}},
		12: {{0, 12, 1}},
		13: {{0, 12, 1}, {12, 4, 1}},
		24: {{0, 12, 1}, {12, 12, 1}},
		64: {{0, 12, 1}, {12, 12, 4}, {60, 4, 1}},
		71: {{0, 12, 1}, {12, 12, 4}, {60, 12, 1}},
	} {
		require.Equal(t, want, k.cut(nil, tokens), "%d tokens", tokens)
	}
	for tokens := 1; tokens < 600; tokens++ {
		at, runs := 0, k.cut(nil, tokens)
		require.Equal(t, 1, runs[0].panels)
		for _, run := range runs {
			require.Equal(t, at, run.first)
			at = run.end()
		}
		require.GreaterOrEqual(t, at, tokens)
		require.Less(t, at-tokens, 4, "repeated tokens")
	}
}

// TestFoldOrder follows the waiting sums of a panel and finds the tree of Dot32.
func TestFoldOrder(t *testing.T) {
	t.Parallel()
	require.ElementsMatch(t, []int{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15}, foldOrder[:])
	var waiting []string
	for i, lane := range foldOrder {
		sum := string(rune('a' + lane))
		for n := i; n&1 == 1; n /= 2 {
			last := len(waiting) - 1
			sum, waiting = "("+waiting[last]+sum+")", waiting[:last]
		}
		waiting = append(waiting, sum)
		require.LessOrEqual(t, len(waiting), waitingSums+1)
	}
	lane := [lanes]string{}
	for i := range lane {
		lane[i] = string(rune('a' + i))
	}
	for n := lanes / 2; n > 0; n /= 2 {
		for i := range n {
			lane[i] = "(" + lane[i] + lane[i+n] + ")"
		}
	}
	require.Equal(t, lane[:1], waiting)
}

// TestPack compares each pack kernel with its definition, and looks beside the rows, which
// end where memory does, and beside the panel.
func TestPack(t *testing.T) {
	t.Parallel()
	eachPanels(t, checkPack[float32], checkPack[float64])
}

func checkPack[F float32 | float64](t *testing.T, k *panelKernels[F]) {
	r := rand.New(rand.NewPCG(18, 2))
	for _, steps := range []int{0, 2, 4, 10} {
		for _, stride := range []int{4, k.group, k.rows} {
			w := packed(t, r, k.group, steps*lanes, F32)
			want := make([]float32, k.group*steps*lanes)
			widenPortable(want, w.Data, F32)
			checkLanes(t, k.pack, w, stride, lanes, steps, func(row, at int) F { return F(want[row*w.Cols+at]) })
			w = packed(t, r, k.group, steps*lanes, BF16)
			checkLanes(t, k.packPairs, w, stride, lanes/2, steps, func(row, at int) uint32 {
				return binary.LittleEndian.Uint32(w.Data[4*(row*w.Cols/2+at):])
			})
		}
	}
}

// packed returns rows of ordinary numbers, of which the last ends where memory does.
func packed(t *testing.T, r *rand.Rand, rows, cols int, f Format) Matrix {
	w := Matrix{Format: f, Rows: rows, Cols: cols, Data: make([]byte, rows*cols*f.Size())}
	narrowPortable(w.Data, random(r, rows*cols), f)
	if len(w.Data) > 0 {
		w.Data = atPageEnd(t, w.Data)
	}
	return w
}

// checkLanes runs a pack kernel and compares lane l, step s and row i with value(i, lanes*s + l).
func checkLanes[D comparable](t *testing.T, kernel packKernel[D], w Matrix, stride, lanes, steps int, value func(row, at int) D) {
	t.Helper()
	lane := steps*stride + laneGap
	dst := make([]D, lanes*lane+1)
	guard := dst[0]
	var src [maxGroup]*byte
	for i := range w.Rows {
		if steps > 0 {
			src[i] = (*byte)(w.start(i))
		}
	}
	kernel(&dst[0], &src, steps, stride, lane)
	for l := range lanes {
		for s := range steps {
			for i := range min(stride, w.Rows) {
				require.Equal(t, value(i, lanes*s+l), dst[l*lane+s*stride+i], "%v lane %d step %d row %d", w.Format, l, s, i)
			}
		}
		if spilled := max(0, w.Rows-stride); steps > 0 {
			for _, v := range dst[l*lane+steps*stride+spilled : (l+1)*lane] {
				require.Equal(t, guard, v, "%v: behind lane %d", w.Format, l)
			}
		}
	}
	require.Equal(t, guard, dst[len(dst)-1])
}

// TestAdd compares each add kernel with its definition: from 0 and from sums, with and
// without folds, one panel and several, even and odd counts of steps.
func TestAdd(t *testing.T) {
	t.Parallel()
	eachPanels(t,
		func(t *testing.T, k *panelKernels[float32]) { checkAdds(t, k, fma32) },
		func(t *testing.T, k *panelKernels[float64]) {
			checkAdds(t, k, func(a, b, c float64) float64 { return float64(a*b) + c }) // exact products
		})
}

// addition is a case of an add kernel.
type addition[F float32 | float64] struct {
	k             *panelKernels[F]
	tile          panelTile[F]
	fma           func(a, b, c F) F
	steps, panels int
	folds         int
	again         bool

	acc, w, x, pending, out []F
}

func checkAdds[F float32 | float64](t *testing.T, k *panelKernels[F], fma func(a, b, c F) F) {
	r := rand.New(rand.NewPCG(19, 2))
	widths := []int{}
	for _, tile := range k.tiles {
		widths = append(widths, tile.width)
		for _, steps := range []int{0, 1, 2, 7, 16} {
			for folds := range waitingSums + 1 {
				for panels := 1; panels <= 3; panels++ {
					a := &addition[F]{k: k, tile: tile, fma: fma, steps: steps, panels: panels, folds: folds, again: (steps+folds)%2 == 0}
					a.fill(r)
					a.checkAdd(t)
				}
				a := &addition[F]{k: k, tile: tile, fma: fma, steps: steps, panels: 1, folds: folds, again: (steps+folds)%2 == 1}
				a.fill(r)
				a.checkPairs(t, r, steps%3 == 0)
			}
		}
	}
	require.True(t, slices.IsSorted(widths))
	require.Zero(t, blockStep%k.widest().width, "blocks of tokens are whole panels")
	require.LessOrEqual(t, k.widest().width-k.tiles[0].width, laneGap)
	require.Zero(t, k.rows%k.group)
}

// slot is how far apart pending sums are, and stride how far apart tokens of out.
func (a *addition[F]) slot() int   { return a.panels*a.tile.width*a.k.rows + 3 }
func (a *addition[F]) stride() int { return a.k.rows + 5 }

func (a *addition[F]) fill(r *rand.Rand) {
	numbers := func(n int) []F {
		var x []F
		for _, v := range random(r, n) {
			x = append(x, F(v))
		}
		return x
	}
	tokens := a.panels * a.tile.width
	a.acc, a.w = numbers(tokens*a.k.rows), numbers(a.steps*a.k.rows+a.k.rows)
	a.x = numbers(a.panels * (a.steps*a.tile.width + 1))
	a.pending = numbers((waitingSums + 1) * a.slot())
	a.out = make([]F, tokens*a.stride()+1)
	fill(a.out, 7)
}

// last is the place of the pending sum that is added first.
func (a *addition[F]) last() *F { return &a.pending[waitingSums*a.slot()] }

func (a *addition[F]) checkAdd(t *testing.T) {
	t.Helper()
	a.tile.add(&a.acc[0], &a.w[0], &a.x[0], a.steps, a.panels, a.steps*a.tile.width+1, a.again,
		a.last(), a.folds, a.slot(), &a.out[0], a.stride(), uintptr(unsafe.Pointer(&a.x[0])), 0)
	a.compare(t)
}

func (a *addition[F]) checkPairs(t *testing.T, r *rand.Rand, odd bool) {
	t.Helper()
	pairs := make([]uint32, len(a.w))
	for i := range pairs {
		here, other := Encode(uint32(r.UintN(1<<31)), BF16)%0x7f00, uint32(r.UintN(1<<16))
		a.w[i] = F(math.Float32frombits(here << 16))
		pairs[i] = here | other<<16
		if odd {
			pairs[i] = here<<16 | other
		}
	}
	wide := make([]F, len(a.w)+1)
	a.tile.pairs(&a.acc[0], &pairs[0], odd, &wide[0], &a.x[0], a.steps, a.again,
		a.last(), a.folds, a.slot(), &a.out[0], a.stride(), uintptr(unsafe.Pointer(&a.x[0])), 0)
	a.compare(t)
	n := a.steps * a.k.rows
	require.Equal(t, a.w[:n], wide[:n], "the weights are left widened")
	require.Zero(t, wide[len(wide)-1])
}

func (a *addition[F]) compare(t *testing.T) {
	t.Helper()
	for p := range a.panels {
		for i := range a.tile.width {
			token := p*a.tile.width + i
			for j := range a.k.rows {
				sum := F(0)
				if a.again {
					sum = a.acc[token*a.k.rows+j]
				}
				for s := range a.steps {
					sum = a.fma(a.x[p*(a.steps*a.tile.width+1)+s*a.tile.width+i], a.w[s*a.k.rows+j], sum)
				}
				for f := range a.folds {
					sum += a.pending[(waitingSums-f)*a.slot()+token*a.k.rows+j]
				}
				got := a.out[token*a.stride()+j]
				if !same(sum, got) {
					t.Fatalf("width %d, %d steps, %d panels, %d folds: token %d row %d: got %x, want %x", a.tile.width, a.steps, a.panels, a.folds, token, j, got, sum)
				}
			}
			for _, v := range a.out[token*a.stride()+a.k.rows : (token+1)*a.stride()] {
				require.Equal(t, F(7), v, "beside the rows")
			}
		}
	}
	require.Equal(t, F(7), a.out[len(a.out)-1], "behind the tokens")
}
