package kernel

// tileRows is the number of weight rows in a tile.
const tileRows = 4

// tile32 multiplies tileRows rows of weights with a fixed number of tokens, the
// tile's width: sum[tileRows*i+j] = Dot32(x[i][:n], w[j][:n]). The rest of sum is
// scratch. The weights are stored in the format that the tile was made for and
// need not be aligned.
type tile32 func(w *[tileRows]*byte, x *[maxWidth]*float32, n int, sum *[256]float32)

// tile64 is tile32 with Dot64, on activations that were widened before.
type tile64 func(w *[tileRows]*byte, x *[maxWidth]*float64, n int, sum *[256]float64)

// maxWidth is the largest width of a tile.
const maxWidth = 4

// tiles holds one tile per width that an implementation has; index width-1.
type tiles struct {
	float32 [maxWidth]tile32
	float64 [maxWidth]tile64
}

// implementation is a set of kernels for one kind of processor. What is nil falls
// back to portable Go, which gives the same bits.
type implementation struct {
	name string

	// tile is indexed by the format of the weights. Nil widths are skipped; if
	// there are any, there are some for F32.
	tile [F8E4M3]tiles
	// anyLength says that the tiles take any n; otherwise n is a multiple of Lanes.
	anyLength bool

	panels32 panelKernels[float32]
	panels64 panelKernels[float64]

	// The element kernels take n that is a multiple of Lanes. Those of stream store
	// around the caches and want dst aligned to cacheLine.
	element   elementKernels
	stream    elementKernels
	widenE4M3 func(dst *float32, src *byte, n int, scales *float32, block int)
	widen64   func(dst *float64, src *float32, n int)
	exp       func(dst, src *float64, n int)
}

// elementKernels is indexed by the format that is not float32 in memory.
type elementKernels struct {
	widen  [F8E4M3]func(dst *float32, src *byte, n int)
	narrow [F8E4M3]func(dst *byte, src *float32, n int)
}

// hasTiles says whether im multiplies matrices other than in portable Go.
func (im *implementation) hasTiles() bool { return im.tile[F32].float32[0] != nil }

// width returns the smallest width of a tile for m tokens or, if there is none, the
// largest.
func (t *tiles) width(m int) int {
	best := 1
	for width := 1; width <= maxWidth && best < m; width++ {
		if t.float32[width-1] != nil {
			best = width
		}
	}
	return best
}
