package kernel

import (
	"sync"
	"sync/atomic"
)

// job is one call of MatMul, cut into a grid of items: blocks of tokens against
// blocks of rows. No dot product is cut.
type job struct {
	serial  uint64 // unique to the job
	im      *implementation
	dst, x  []float32
	w       Matrix
	bias    []float32
	acc     Accumulator
	workers int
	tokens  int
	length  int // length of a row of the operands, padded if the tiles need whole steps of lanes

	panels  bool   // tokens and weights are packed into panels
	inPlace bool   // tiles read the weights as stored, not decoded
	format  Format // format of the weights that tiles read

	tokenBlock, rowBlock   int // tokens and rows of an item
	tokenBlocks, rowBlocks int // the grid
}

var (
	jobs    = sync.Pool{New: func() any { return new(job) }}
	serials atomic.Uint64
)

// Sizes of the blocks that a product is cut into.
const (
	// blockStep divides the number of tokens of every block but the last. It is a multiple of
	// the widths of all tiles and panels.
	blockStep = 12
	// itemsPerWorker is the number of items per worker, if rows and tokens suffice: a worker
	// that the system delays then takes fewer items.
	itemsPerWorker = 8
	// leastRowBlock is the fewest rows that a block is cut to.
	leastRowBlock = 16
	// wakeProducts is the number of multiply-adds that take about as long as waking a worker.
	wakeProducts = 1 << 19

	// tileBlockBytes bounds the tokens of a block for tiles: they stay in the second-level
	// cache while a block of rows passes by.
	tileBlockBytes = 512 << 10

	// panelBlockBytes and mostPanelTokens bound the tokens of a block for panels, which
	// pass from the third-level cache through the kernels. The weights are packed again for
	// every block, so a block has at least leastPanelTokens, if the product has that many.
	panelBlockBytes  = 5 << 20
	mostPanelTokens  = 516
	leastPanelTokens = 96
)

// panelTokens is the least number of tokens at which packing saves more time than it takes:
// a full panel with float32 sums, half a panel with float64 sums, where a multiplication
// takes twice the time.
var panelTokens = [...]int{Float64: 6, Float32: 12}

// prepare sets up j for one call; it panics if lengths do not fit.
func (j *job) prepare(dst, x []float32, w Matrix, bias []float32, acc Accumulator, workers int) {
	tokens := 0
	if w.Cols > 0 {
		tokens = len(x) / w.Cols
	}
	if len(x) != tokens*w.Cols || len(dst) != tokens*w.Rows || bias != nil && len(bias) < w.Rows {
		panic("kernel: MatMul: lengths do not fit")
	}
	w.check()
	*j = job{
		serial: serials.Add(1), im: current(), dst: dst, x: x, w: w, bias: bias, acc: acc,
		workers: workerCount(workers), tokens: tokens, length: w.Cols, format: w.format(),
	}
	if j.im.hasTiles() && !j.im.anyLength {
		j.length = roundUp(w.Cols, lanes)
	}
	j.panels = j.im.panels32.available() && tokens >= panelTokens[acc] && w.Cols > 0
	j.inPlace = w.inPlace(j.im)
	if !j.inPlace {
		j.format = F32
	}
	j.cut()
}

// cut chooses the grid of items: tokens that fit a cache against all rows, and smaller
// blocks of both if workers would have nothing to do.
func (j *job) cut() {
	tokenBytes := 4 * max(1, j.length) // of the numbers of a token, as they are multiplied
	if j.acc == Float64 {
		tokenBytes *= 2
	}
	least, rows, block := blockStep, tileRows, tileBlockBytes/tokenBytes
	if j.panels {
		least, rows = leastPanelTokens, j.im.panelRows(j.acc)
		block = min(panelBlockBytes/tokenBytes, mostPanelTokens)
	}
	j.cutTokens(max(least, block))
	j.cutRows(max(rows, j.w.Rows))
	j.workers = min(j.workers, 1+j.tokens*j.w.Rows*j.w.Cols/wakeProducts)
	want := j.workers * itemsPerWorker
	if j.workers == 1 || j.tokenBlocks >= want {
		return
	}
	j.cutRows(max(leastRowBlock, rows, j.w.Rows*j.tokenBlocks/want/rows*rows))
	if j.items() < want {
		j.cutTokens(min(j.tokenBlock, max(least, j.tokens*j.rowBlocks/want)))
	}
}

// cutTokens cuts the tokens into blocks of at most block tokens, a multiple of blockStep,
// and makes the blocks as small as possible without adding one.
func (j *job) cutTokens(block int) {
	block = max(1, block/blockStep) * blockStep
	blocks := max(1, ceilDiv(j.tokens, block))
	j.tokenBlock = max(blockStep, roundUp(ceilDiv(j.tokens, blocks), blockStep))
	j.tokenBlocks = ceilDiv(j.tokens, j.tokenBlock)
}

// cutRows cuts the rows into blocks of block rows.
func (j *job) cutRows(block int) {
	j.rowBlock, j.rowBlocks = block, ceilDiv(j.w.Rows, block)
}

// items returns the number of items.
func (j *job) items() int { return j.tokenBlocks * j.rowBlocks }

// steps returns the number of steps of the longest lane, rounded up to an even number: pack
// kernels take two steps at a time.
func (j *job) steps() int { return ceilDiv(j.w.Cols, 2*lanes) * 2 }

// finish sets out to sums of the rows r, r+1, … plus their bias.
func finish[F float32 | float64](out []float32, sum []F, bias []float32, r int) {
	sum = sum[:len(out)]
	if bias == nil {
		for k, v := range sum {
			out[k] = float32(v)
		}
		return
	}
	for k, v := range sum {
		out[k] = float32(v + F(bias[r+k]))
	}
}
