package convert

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"dsmoe/convert/internal/lanes"
	"dsmoe/convert/safetensors"
	"dsmoe/model/tensor"
)

// execution is a conversion under way.
type execution struct {
	plan    *Plan
	view    *View
	o       Options
	codecs  *codecs
	dir     string // the partial directory
	journal *journal
	files   []*tileFile // as plan.Files
	pool    *lanes.Pool
	workers int
	limit   int // of the bytes of a tile
	tile    int // the bytes of the largest

	mu      sync.Mutex
	states  []tensorState // as plan.Tensors
	changed map[int]bool
	phase   string
	ahead   int64 // bytes written or compared since the journal was last told
	done    int64 // bytes, for Progress
	total   int64
	flushMu sync.Mutex
}

// tensorState is how far one tensor has come.
type tensorState struct {
	done  int64 // bytes written
	lost  tensor.Loss
	hash  *lanes.Digest // with NoVerify: of what was written, until there is a proof; never changed
	proof *proof
}

// The shape of the work: tiles large enough for the disk, larger ones of a tensor
// that has many, so that it keeps up with the others, as it is written and hashed by
// one worker from its begin to its end.
const (
	minTile    = 1 << 20
	maxTile    = 4 << 20
	tiles      = 64
	flushBytes = 256 << 20
	flushTime  = 5 * time.Second
)

// budget divides half the memory among workers, each with a tile and a piece of
// source; the other half stays for what the plan itself holds.
func (e *execution) budget() {
	half := int(e.o.MaxMemory / 2)
	e.workers = min(maxWorkers(), half/(minTile+maxSource))
	e.limit = min(half/e.workers-maxSource, maxTile) &^ (block - 1)
	for i := range e.plan.Tensors {
		e.tile = max(e.tile, e.tileBytes(e.plan.Tensors[i].Bytes()))
	}
}

// tileBytes returns the size of the tiles of a tensor of so many bytes.
func (e *execution) tileBytes(size int64) int {
	n := min(max(size/tiles, minTile), int64(e.limit), size)
	return int(n+block-1) &^ (block - 1)
}

// tileEnd returns where the tile of a tensor ends that begins at from.
func (e *execution) tileEnd(t *PlannedTensor, from int64) int64 {
	size := t.Bytes()
	return tileEnd(t.Offset+from, int64(e.tileBytes(size)), t.Offset+size) - t.Offset
}

// each runs do for every tensor of todo, some at once.
func (e *execution) each(ctx context.Context, todo []int, do func(ctx context.Context, w *worker, i int) error) error {
	sizes := make([]int64, len(todo))
	for n, i := range todo {
		sizes[n] = e.plan.Tensors[i].Bytes()
	}
	return inParallel(ctx, e.pool, e.workers, sizes, func() func(ctx context.Context, n int) error {
		w := e.newWorker()
		return func(ctx context.Context, n int) error {
			if err := do(ctx, w, todo[n]); err != nil {
				return fmt.Errorf("tensor %s: %w", safetensors.Quote(e.plan.Tensors[todo[n]].Name), err)
			}
			return nil
		}
	})
}

// worker is one goroutine's buffers.
type worker struct {
	assembler
	memory tileMemory
}

func (e *execution) newWorker() *worker {
	return &worker{assembler{source: e.view, codecs: e.codecs, in: make([]byte, e.sourceBytes())}, newTileMemory(e.tile)}
}

// sourceBytes is how much source a worker holds at once.
func (e *execution) sourceBytes() int {
	if len(e.codecs.bounds) == 0 && e.o.NoVerify {
		return 0 // only copies, straight into the tile
	}
	return maxSource
}

// write writes all tensors that are not complete.
func (e *execution) write(ctx context.Context) error {
	e.phase = "writing"
	return e.journaled(ctx, e.unwritten(), e.writeTensor)
}

// journaled does something for each tensor of todo, and tells the journal as it goes.
func (e *execution) journaled(ctx context.Context, todo []int, do func(ctx context.Context, w *worker, i int) error) error {
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

func (e *execution) unwritten() (todo []int) {
	for i := range e.states {
		if e.states[i].done < e.plan.Tensors[i].Bytes() || e.o.NoVerify && e.states[i].proof == nil {
			todo = append(todo, i)
		}
	}
	return todo
}

// writeTensor writes what is left of a tensor, tile by tile.
func (e *execution) writeTensor(ctx context.Context, w *worker, i int) error {
	t := &e.plan.Tensors[i]
	e.mu.Lock()
	s := e.states[i]
	e.mu.Unlock()
	hash := e.startHash(&s)
	for size := t.Bytes(); s.done < size; {
		if err := ctx.Err(); err != nil {
			return err
		}
		end := e.tileEnd(t, s.done)
		tile := w.memory.tile(t.Offset+s.done, t.Offset+end)
		lost, err := w.fill(t, tile, s.done)
		if err != nil {
			return err
		}
		if err := e.writeTile(e.files[t.File], tile, t.Offset+s.done, hash); err != nil {
			return err
		}
		e.advance(end - s.done)
		s.done = end
		s.lost.Add(lost)
		if hash != nil {
			s.hash = new(*hash)
		}
		e.mark(i, s)
	}
	if hash != nil {
		s.proof, s.hash = proofOfWriting(t, hash), nil
		e.mark(i, s)
	}
	return nil
}

// writeTile writes a tile, and hashes it meanwhile if there is a hash.
func (e *execution) writeTile(f *tileFile, tile []byte, at int64, hash *lanes.Digest) error {
	if hash == nil {
		return f.writeTile(tile, at)
	}
	written := make(chan error)
	go func() { written <- f.writeTile(tile, at) }()
	e.pool.Write(hash, tile)
	return <-written
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
	e.o.Progress(e.phase, e.done, e.total)
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
	e.mu.Lock()
	var lines []any
	files := map[int]bool{}
	for _, i := range slices.Sorted(maps.Keys(e.changed)) {
		lines = append(lines, e.states[i].record(i))
		files[e.plan.Tensors[i].File] = true
	}
	clear(e.changed)
	e.ahead = 0
	e.mu.Unlock()
	if lines == nil {
		return nil
	}
	for _, i := range slices.Sorted(maps.Keys(files)) {
		if err := e.files[i].sync(); err != nil {
			return err
		}
	}
	return e.journal.append(lines...)
}

// record is what the journal is told of a state.
func (s *tensorState) record(i int) record {
	r := record{Tensor: i, Done: s.done, Lost: s.lost, Proof: s.proof}
	if s.hash != nil {
		r.Hash, _ = s.hash.MarshalBinary() // never fails
	}
	return r
}

// apply takes over what a journal says.
func (e *execution) apply(r record) {
	if r.Ready || r.Tensor < 0 || r.Tensor >= len(e.states) {
		return
	}
	s := tensorState{done: r.Done, lost: r.Lost, proof: r.Proof}
	if hash := new(lanes.Digest); r.Hash != nil && hash.UnmarshalBinary(r.Hash) == nil {
		s.hash = hash
	}
	e.states[r.Tensor] = s
}

// startHash takes up the hash of what was written where the journal left it. With
// verification there is none: the proof makes it from what it reads again.
func (e *execution) startHash(s *tensorState) *lanes.Digest {
	switch {
	case !e.o.NoVerify:
		return nil
	case s.hash == nil:
		s.done, s.lost = 0, tensor.Loss{} // whatever was written without a hash
		return new(lanes.Digest)
	}
	return new(*s.hash)
}

// proofOfWriting is what is known without verification: the output's hash and,
// where that is the same, the source's.
func proofOfWriting(t *PlannedTensor, hash *lanes.Digest) *proof {
	p := &proof{SHA256: sumOf(hash)}
	if t.isCopy() {
		p.Segments = []string{p.SHA256}
	}
	return p
}

// isCopy says whether the tensor's bytes are those of one segment.
func (t *PlannedTensor) isCopy() bool {
	return len(t.Segments) == 1 && t.Segments[0].copies(t.DType)
}
