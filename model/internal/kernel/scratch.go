package kernel

import "sync"

// scratch is the memory of one worker. A worker takes a scratch from scratches for each item, so
// that buffers grow to the needs of the largest product and are allocated once.
type scratch struct {
	w      [tileRows]*byte // the rows of a tile
	tile32 tileScratch[float32]
	tile64 tileScratch[float64]

	// A block of tokens, each job.length numbers long: x, the caller's memory or padded, for
	// float32 sums; wide for float64 sums.
	x, padded   []float32
	wide        []float64
	blockSerial uint64 // serial of the job of padded or wide
	blockFirst  int    // first token in padded or wide

	rows    []float32 // weights decoded for a tile, or one row in portable Go
	rowWide []float64 // the row in portable Go as float64

	panels32 panelScratch[float32]
	panels64 panelScratch[float64]

	partial partialScratch

	exps []float64 // exponents of Softmax and SiLU

	four fourRows // of Times and TimesColumns
}

// fourRows is what the kernels for rows of F8E4M3 take of four rows.
type fourRows struct {
	scales  [4]*float32
	factors [4]float32
	sums    [4][lanes]float32
}

var scratches = sync.Pool{New: func() any { return new(scratch) }}

// tileScratch is the memory of one worker for tiles with sums of type F.
type tileScratch[F float32 | float64] struct {
	x   [maxWidth]*F // the tokens of one tile
	sum [256]F
}

// panelScratch is the memory of one worker for panels, and its present work.
type panelScratch[F float32 | float64] struct {
	j *job
	k *panelKernels[F]

	// A block of tokens, from token first on, as panels.
	first, tokens int
	runs          []tokenRun
	x             []F    // panels of the block
	packedFor     uint64 // serial of the job of x
	packedFrom    int    // first token in x

	// A panel of weights, or the part of its steps that is multiplied at once.
	w     []F       // all lanes; of pairs the present lane
	pairs []uint32  // all lanes, in pairs
	rows  []float32 // the decoded rows, where the kernels do not read their format

	// sums is slots of [token][row]: waitingSums slots for the sums that wait and, if the
	// steps are multiplied in several parts, one slot for each lane.
	sums []F

	ahead uintptr // address to prefetch next
	pace  int     // bytes to prefetch in 2 steps

	src  [maxGroup]*byte               // the rows that a pack kernel rearranges
	tail [maxGroup][2 * lanes * 4]byte // the ends of rows; no product uses the bytes behind an end
}

// tokenRun is a row of panels of equal width, next to each other.
type tokenRun struct {
	first  int // first token of the run, in the block
	width  int // tokens in each panel
	panels int
}

// end returns the token behind the run.
func (run tokenRun) end() int { return run.first + run.width*run.panels }

// padded returns the number of tokens in the panels of the block, repeated ones included.
func (s *panelScratch[F]) padded() int { return s.runs[len(s.runs)-1].end() }

// laneGap is the distance in numbers between the end of a lane and the next lane. It
// keeps the distance between lanes from being a power of two, where lanes compete for the
// same lines of the cache. The last step of a group wider than its panel writes into it.
const laneGap = maxGroup

// tokenLane returns the distance between lanes of x.
func (s *panelScratch[F]) tokenLane() int { return s.j.steps()*s.padded() + laneGap }

// weightLane returns the distance between lanes of weights, in numbers or pairs.
func (s *panelScratch[F]) weightLane(steps int) int { return steps*s.k.rows + laneGap }

const (
	// partialPanels is the largest number of panels of weights that a partialJob decodes at once.
	partialPanels = 4
	// panelTerms is the number of terms of such a panel.
	panelTerms = 512
)

// partialScratch is the memory of one worker for partialKernels.
type partialScratch struct {
	rows  []float32                           // decoded rows of weights
	w     []float32                           // panels of weights; in portable Go a token
	short []float32                           // in portable Go a row of short weights
	row   []float32                           // a row that is computed again
	again []float32                           // the short numbers and terms of a token that is computed again
	sums  []float64                           // results of a token and some rows
	group [maxGroup * panelTerms]float32      // a packed group of a panel, before its numbers are made short
	state []float32                           // state of each panel of weights and of tokens
	start [partialPanels * 2 * maxGroup]*byte // of rows, decoded or stored
	src   [maxGroup]*byte
	cuts  []termRun // of a panel
}

// termRun is n terms of a panel, from place at on, with which the chains of the plans end whose bits are set.
type termRun struct{ at, n, ends int }

// part is the steps step … step+steps of the rows r … r+rows of one panel.
type part struct{ r, rows, step, steps int }

// grow returns a slice of n elements, in buf's memory if it is large enough. The values of the
// elements are undefined.
func grow[T any](buf []T, n int) []T {
	if cap(buf) < n {
		return make([]T, n)
	}
	return buf[:n]
}

// fill sets all elements of x to v.
func fill[T any](x []T, v T) {
	for i := range x {
		x[i] = v
	}
}
