package kernel

// The kernels of matrix products, of roundings and of losses that an implementation may have.

// tileRows is the number of rows of weights that a tile multiplies.
const tileRows = 4

// maxWidth is the largest width of a tile, in tokens.
const maxWidth = 4

// tileKernel multiplies tileRows rows of weights with a fixed number of tokens, the
// tile's width:
//
//	sum[tileRows*i+j] = Dot32(x[i][:n], w[j][:n])
//
// or Dot64 of widened tokens if F is float64. The rest of sum is scratch. The weights have the
// format of the tile, at any alignment.
type tileKernel[F float32 | float64] func(w *[tileRows]*byte, x *[maxWidth]*F, n int, sum *[256]F)

// tiles holds the tiles for one format of weights. The tile of width n is at index n-1, nil for
// widths without a tile; float32 and float64 have the same widths.
type tiles struct {
	float32 [maxWidth]tileKernel[float32]
	float64 [maxWidth]tileKernel[float64]
}

// width returns the smallest width of a tile for n tokens, or the largest width if all are
// smaller than n.
func (t *tiles) width(n int) int {
	best := 1
	for width := 2; width <= maxWidth && best < n; width++ {
		if t.float32[width-1] != nil {
			best = width
		}
	}
	return best
}

// panelKernels are the kernels that work on panels with sums of type F.
type panelKernels[F float32 | float64] struct {
	group int // rows that one call of a pack kernel rearranges, at most maxGroup
	rows  int // rows of weights in a panel, a multiple of group; 0 means no kernels

	// pack rearranges rows of F32, packPairs rows of BF16. Two neighbouring BF16 numbers of a
	// row stay together in one uint32, and so do their lanes: half the bytes of widened
	// numbers. An addPairs kernel widens them later.
	pack      packKernel[F]
	packPairs packKernel[uint32]

	// tiles multiply panels, narrowest first; the last is the widest.
	tiles []panelTile[F]
}

// panelTile holds the kernels for panels of width tokens.
type panelTile[F float32 | float64] struct {
	width int
	add   addKernel[F]
	pairs addPairsKernel[F]
}

// packKernel rearranges a group of rows:
//
//	dst[l*lane + s*stride + i] = src[i][lanes*s + l],  s < steps, l < lanes, i < group
//
// lanes is 16, or 8 if D is uint32 (src is then read as pairs of BF16). steps is even. A
// group wider than stride writes into the next steps, which the kernel then overwrites.
type packKernel[D any] func(dst *D, src *[maxGroup]*byte, steps, stride, lane int)

// addKernel multiplies one lane of a panel of weights, w, with the same lane of panels of
// tokens, the first at x and then one every next numbers:
//
//	sum[token][row] = acc[token][row], or 0 unless again
//	sum[token][row] += x[s][token] * w[s][row],        s < steps, fused, in this order
//	sum[token][row] += (pending - f*lane)[token][row], f < folds
//	out[token*stride + row] = sum[token][row]
//
// acc and pending have the layout [token][row of the panel]. Meanwhile the kernel prefetches
// into the second-level cache, from address ahead on, pace bytes further every 2 steps.
type addKernel[F any] func(acc, w, x *F, steps, panels, next int, again bool, pending *F, folds, lane int,
	out *F, stride int, ahead uintptr, pace int)

// addPairsKernel is addKernel for a single panel of tokens. It takes one lane of the
// weights from pairs, the upper half of each if odd, and leaves it widened in w, for the
// next calls of an addKernel.
type addPairsKernel[F any] func(acc *F, pairs *uint32, odd bool, w, x *F, steps int, again bool,
	pending *F, folds, lane int, out *F, stride int, ahead uintptr, pace int)

// available reports whether the implementation has panel kernels.
func (k *panelKernels[F]) available() bool { return k.rows > 0 }

// widest returns the tile for the most tokens.
func (k *panelKernels[F]) widest() *panelTile[F] { return &k.tiles[len(k.tiles)-1] }

// tile returns the narrowest tile that holds n tokens, or else the widest.
func (k *panelKernels[F]) tile(n int) *panelTile[F] {
	for i := range k.tiles {
		if k.tiles[i].width >= n {
			return &k.tiles[i]
		}
	}
	return k.widest()
}

// maxGroup is the largest group of a pack kernel.
const maxGroup = 16

// partialKernels are kernels for panels of rows of weights, and a few tokens. A panel is two
// groups of rows; a group holds the short numbers of its rows side by side, panelTerms of each at most:
//
//	panel[group][k][row of the group]
//
// With pairs, a group holds the pairOf each two numbers of a row, then the pairOf their squares:
//
//	panel[group][0 or 1][k/2][row of the group]
type partialKernels struct {
	group int                            // rows of a group: a register of float32; 0 means no kernels
	pairs bool                           // weights, numbers and terms lie in pairs, as pairOf makes them
	pack  packKernel[float32]            // called with lane = group and stride = 16·group
	short func(dst, src *float32, n int) // makes a group of a panel from what pack made; n is a multiple of 32·group
	// packPairs and shortStored do the same with rows of stored BF16, lane = group and stride = 8·group; nil without pairs.
	packPairs   packKernel[uint32]
	shortStored func(dst, src *float32, n int)
	sums        [maxWidth]partialKernel // the kernel at index i takes panels of i+1 tokens; nil if missing
}

// partialKernel continues partialSums of a panel of weights and a panel of tokens by a number of
// steps of 4·turns terms. w is a panel, and x holds for each k, or pair of them, the numbers of all tokens, then
// their terms. state is [s, squares, start and sum of each plan][token][row of the panel]:
//
//	for each step { s, squares as in partialSums; sum = fma32(n*r, r, sum) with r = power(s-start) }
//	for each plan whose bit is set in ends { r = power(s); sum = fma32(r, r, sum); start = s }
//
// plans is the number of plans; steps and turns are at least 1.
type partialKernel func(state, w, x *float32, steps, turns int, n float32, plans, ends int)

// width returns the smallest width of a kernel for n tokens, or the largest width if all are
// smaller than n.
func (k *partialKernels) width(n int) int {
	best := 0
	for i, kernel := range k.sums {
		if kernel != nil && best < n {
			best = i + 1
		}
	}
	return best
}

// roundingsBlock is the number of roundings that a kernel tests together.
const roundingsBlock = lanes

// plainKernel returns at which of n numbers the first block with a doubtful rounding begins, as DoubtfulRoundings defines
// it; n if there is none. n is a multiple of roundingsBlock.
type plainKernel func(out, src *byte, n int) int

// lossesKernel sets the fields of a Losses, which starts at sums, to the counts of n numbers x and the numbers of a format
// that out holds; n is a multiple of lanes.
type lossesKernel func(sums *uint32, out *byte, x *float32, n int)
