package engine

// The work on tensors: who does what, with how much memory, and what the journal is told.

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sync/semaphore"

	"dsmoe/convert/internal/disk"
	"dsmoe/convert/plan"
	"dsmoe/model/tensor"
	"dsmoe/text"
)

// execution is a plan that is being carried out.
type execution struct {
	Settings
	plan    *plan.Plan
	source  Source
	dst     string // the target
	dir     string // the hidden directory beside it
	journal *journal
	files   []*disk.TileFile    // as plan.Files
	compute *semaphore.Weighted // held by a goroutine while it computes
	shape   shape

	mu      sync.Mutex
	states  []tensorState // as plan.Tensors
	changed map[int]bool  // tensors whose state the journal does not have
	phase   string        // for Progress
	ahead   int64         // bytes written or compared since the journal was last told
	done    int64         // bytes, for Progress
	total   int64
	flushMu sync.Mutex
}

// tensorState is how far one tensor has come.
type tensorState struct {
	done  int64 // bytes written
	lost  tensor.Loss
	proof *proof // nil until all is written and, with verification, compared
}

func newExecution(dst string, p *plan.Plan, src Source, s Settings) *execution {
	e := &execution{Settings: s, plan: p, source: src, dst: dst, dir: partialName(dst), shape: newShape(p, s),
		compute: semaphore.NewWeighted(int64(s.Compute)), states: make([]tensorState, len(p.Tensors)), changed: map[int]bool{}}
	_, e.total = p.Bytes()
	return e
}

// shape is how the work is cut: how many tensors at once, and into which tiles.
type shape struct {
	workers int // tensors that are worked on at once
	limit   int // of the bytes of a tile
	largest int // the bytes of the largest tile that there is
}

// The sizes of tiles: large enough for the disk, larger ones for a tensor that has
// many, so that it keeps up with the others, as one worker does all of it.
const (
	minTile  = 1 << 20
	maxTile  = 4 << 20
	tiles    = 64
	maxPiece = 256 << 10 // bytes of source at a time: what a level-2 cache holds
)

// newShape divides half the memory, or what the plan itself leaves of it if that is less,
// among workers, each with a tile, a piece of source and room to gather one.
func newShape(p *plan.Plan, s Settings) (h shape) {
	room := int(min(s.Memory/2, s.Memory-held(p)))
	h.workers = max(min(s.IO, room/(minTile+3*maxPiece)), 1)
	h.limit = max(min(room/h.workers-3*maxPiece, maxTile)&^(disk.Block-1), disk.Block)
	for i := range p.Tensors {
		h.largest = max(h.largest, h.tileBytes(p.Tensors[i].Bytes()))
	}
	return h
}

// tileBytes returns the size of the tiles of a tensor of so many bytes.
func (h *shape) tileBytes(size int64) int {
	n := min(max(size/tiles, minTile), int64(h.limit), size)
	return int(n+disk.Block-1) &^ (disk.Block - 1)
}

// tileEnd returns where the tile of a tensor ends that begins at from: a whole number of
// units of its operations from there.
func (h *shape) tileEnd(t *plan.Tensor, from int64) int64 {
	size := t.Bytes()
	end := disk.TileEnd(t.Offset+from, int64(h.tileBytes(size)), t.Offset+size) - t.Offset
	if end == size {
		return end
	}
	begin := int64(0) // of the segment
	for i := range t.Segments {
		s := &t.Segments[i]
		if end < begin+s.Bytes {
			unit := int64(s.Operation.Unit().Out)
			return max(end-(end-begin)%unit, min(from+unit, begin+s.Bytes))
		}
		begin += s.Bytes
	}
	return end
}

// task is what is done to one tensor, by its index in the plan.
type task func(ctx context.Context, w *worker, i int) error

// each does a task for the tensors of todo, some at once: in their order, but for those
// with more than a worker's share of all bytes, which go first, as each is done by one
// worker from its begin to its end.
func (e *execution) each(ctx context.Context, todo []int, do task) error {
	g, ctx := errgroup.WithContext(ctx)
	todo = largeFirst(todo, e.shape.workers, func(i int) int64 { return e.plan.Tensors[i].Bytes() })
	var next atomic.Int64
	for range min(e.shape.workers, len(todo)) {
		g.Go(func() error {
			w := e.newWorker()
			for {
				n := int(next.Add(1)) - 1
				if n >= len(todo) || ctx.Err() != nil {
					return ctx.Err()
				}
				if err := do(ctx, w, todo[n]); err != nil {
					return fmt.Errorf("tensor %s: %w", text.Quote(e.plan.Tensors[todo[n]].Name), err)
				}
			}
		})
	}
	return g.Wait()
}

// largeFirst sorts what is larger than a worker's share of all to the front.
func largeFirst(todo []int, workers int, size func(i int) int64) []int {
	all := int64(0)
	for _, i := range todo {
		all += size(i)
	}
	share := all / int64(workers)
	todo = slices.Clone(todo)
	slices.SortStableFunc(todo, func(a, b int) int { return cmp.Compare(max(size(b), share), max(size(a), share)) })
	return todo
}

// write writes all tensors that are not complete.
func (e *execution) write(ctx context.Context) error {
	e.phase = "writing"
	var todo []int
	for i := range e.states {
		if e.states[i].done < e.plan.Tensors[i].Bytes() || e.Unverified && e.states[i].proof == nil {
			todo = append(todo, i)
		}
	}
	return e.journaled(ctx, todo, e.writeTensor)
}

// When the journal is told.
const (
	flushBytes = 256 << 20
	flushTime  = 5 * time.Second
)

// journaled does a task for each tensor of todo, and tells the journal as it goes.
func (e *execution) journaled(ctx context.Context, todo []int, do task) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	stop := make(chan struct{})
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		if err := e.flushRegularly(stop); err != nil {
			cancel(err)
		}
	}()
	err := e.each(ctx, todo, do)
	close(stop)
	<-stopped
	if cause := context.Cause(ctx); err != nil && cause != nil {
		err = cause
	}
	return errors.Join(err, e.flush())
}

// state returns how far a tensor has come.
func (e *execution) state(i int) tensorState {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.states[i]
}

// mark takes note of a tensor's new state.
func (e *execution) mark(i int, s tensorState) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.states[i] = s
	e.changed[i] = true
}

// advance takes note of n bytes that were written or compared.
func (e *execution) advance(n int64) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.ahead += n
	e.done += n
	e.Progress(e.phase, e.done, e.total)
}

// lost lists the tensors that a cast could not keep whole.
func (e *execution) lost() (lost []LostTensor) {
	for i := range e.states {
		if e.states[i].lost.Any() {
			lost = append(lost, LostTensor{e.plan.Tensors[i].Name, e.states[i].lost})
		}
	}
	return lost
}

// flushRegularly tells the journal what was done, until stop is closed.
func (e *execution) flushRegularly(stop chan struct{}) error {
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	last := time.Now()
	for {
		select {
		case <-stop:
			return nil
		case <-tick.C:
		}
		e.mu.Lock()
		due := e.ahead >= flushBytes || e.ahead > 0 && time.Since(last) > flushTime
		e.mu.Unlock()
		if !due {
			continue
		}
		if err := e.flush(); err != nil {
			return err
		}
		last = time.Now()
	}
}

// flush makes what was written durable, then says so in the journal.
func (e *execution) flush() error {
	e.flushMu.Lock()
	defer e.flushMu.Unlock()
	lines, files := e.news()
	if lines == nil {
		return nil
	}
	for _, i := range files {
		if err := e.files[i].Sync(); err != nil {
			return err
		}
	}
	return e.journal.append(lines...)
}

// news returns what the journal does not know, and which files it is about.
func (e *execution) news() (lines []any, files []int) {
	e.mu.Lock()
	defer e.mu.Unlock()
	inFile := map[int]bool{}
	for _, i := range slices.Sorted(maps.Keys(e.changed)) {
		s := &e.states[i]
		lines = append(lines, record{Tensor: i, Done: s.done, Lost: s.lost, Proof: s.proof})
		inFile[e.plan.Tensors[i].File] = true
	}
	clear(e.changed)
	e.ahead = 0
	return lines, slices.Sorted(maps.Keys(inFile))
}

// apply takes over what a journal says.
func (e *execution) apply(r record) {
	if r.Ready || r.Tensor < 0 || r.Tensor >= len(e.states) {
		return
	}
	e.states[r.Tensor] = tensorState{done: r.Done, lost: r.Lost, proof: r.Proof}
}
