package convert

import (
	"context"
	"crypto/sha256"
	"encoding"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"maps"
	"path/filepath"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

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
	files   []*diskFile // as plan.Files
	workers int
	tile    int

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
	hash  []byte // with NoVerify: the state of the hash of what was written
	proof *proof
}

// The shape of the work: tiles small enough to overlap, large enough for the disk.
const (
	minTile    = 256 << 10
	maxTile    = 4 << 20
	flushBytes = 256 << 20
	flushTime  = 5 * time.Second
)

// budget divides the memory among workers. Each has a tile and up to twice as much
// of source; an equal share stays for what the plan itself holds.
func (e *execution) budget() {
	e.workers = min(2*runtime.GOMAXPROCS(0), 16)
	e.tile = int(e.o.MaxMemory) / 4 / e.workers / 4
	e.tile = min(max(e.tile, minTile), maxTile) &^ 63
}

// each runs do for every tensor of todo, some at once, in the order of the files.
func (e *execution) each(ctx context.Context, todo []int, do func(ctx context.Context, w *worker, i int) error) error {
	g, ctx := errgroup.WithContext(ctx)
	var next atomic.Int64
	for range min(e.workers, len(todo)) {
		g.Go(func() error {
			w := e.newWorker()
			for {
				n := int(next.Add(1)) - 1
				if n >= len(todo) || ctx.Err() != nil {
					return ctx.Err()
				}
				if err := do(ctx, w, todo[n]); err != nil {
					return fmt.Errorf("tensor %s: %w", safetensors.Quote(e.plan.Tensors[todo[n]].Name), err)
				}
			}
		})
	}
	return g.Wait()
}

// worker is one goroutine's buffers.
type worker struct {
	assembler
	tile []byte
}

func (e *execution) newWorker() *worker {
	return &worker{assembler{source: e.view, codecs: e.codecs, in: make([]byte, e.sourceBytes())}, make([]byte, e.tile)}
}

// sourceBytes is how much source a tile needs at once.
func (e *execution) sourceBytes() int {
	if len(e.codecs.bounds) == 0 && e.o.NoVerify {
		return 0 // only copies, straight into the tile
	}
	return e.tile
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
	file := e.files[t.File]
	e.mu.Lock()
	s := e.states[i]
	e.mu.Unlock()
	h, err := e.startHash(&s)
	if err != nil {
		return err
	}
	for size := t.Bytes(); s.done < size; {
		if err := ctx.Err(); err != nil {
			return err
		}
		tile := w.tile[:min(int64(len(w.tile)), size-s.done)]
		lost, err := w.fill(t, tile, s.done)
		if err != nil {
			return err
		}
		if _, err := file.WriteAt(tile, t.Offset+s.done); err != nil {
			return err
		}
		s.done += int64(len(tile))
		s.lost.Add(lost)
		if h != nil {
			h.Write(tile)
			s.hash, _ = h.(encoding.BinaryMarshaler).MarshalBinary()
		}
		e.mark(i, s)
		e.advance(int64(len(tile)))
	}
	if h != nil {
		s.proof, s.hash = proofOfWriting(t, h), nil
		e.mark(i, s)
	}
	return nil
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
	return record{Tensor: i, Done: s.done, Lost: s.lost, Hash: s.hash, Proof: s.proof}
}

// apply takes over what a journal says.
func (e *execution) apply(r record) {
	if !r.Ready && r.Tensor >= 0 && r.Tensor < len(e.states) {
		e.states[r.Tensor] = tensorState{done: r.Done, lost: r.Lost, hash: r.Hash, proof: r.Proof}
	}
}

// startHash takes up the hash of what was written where the journal left it. With
// verification there is none: the proof makes it from what it reads again.
func (e *execution) startHash(s *tensorState) (hash.Hash, error) {
	if !e.o.NoVerify {
		return nil, nil
	}
	h := sha256.New()
	if s.hash == nil {
		s.done, s.lost = 0, tensor.Loss{} // whatever was written without a hash
		return h, nil
	}
	return h, h.(encoding.BinaryUnmarshaler).UnmarshalBinary(s.hash)
}

// proofOfWriting is what is known without verification: the output's hash and,
// where that is the same, the source's.
func proofOfWriting(t *PlannedTensor, h hash.Hash) *proof {
	p := &proof{SHA256: hex.EncodeToString(h.Sum(nil))}
	if t.isCopy() {
		p.Segments = []string{p.SHA256}
	}
	return p
}

// isCopy says whether the tensor's bytes are those of one segment.
func (t *PlannedTensor) isCopy() bool {
	return len(t.Segments) == 1 && t.Segments[0].copies(t.DType)
}

// hasher hashes a tensor and its segments' sources while they pass by.
type hasher struct {
	tensor   *PlannedTensor
	whole    hash.Hash
	segment  hash.Hash
	index    int // of the segment
	segments []string
}

func newHasher(t *PlannedTensor) *hasher {
	return &hasher{tensor: t, whole: sha256.New(), segment: sha256.New()}
}

// source takes the source bytes of a piece.
func (h *hasher) source(p piece, src []byte) {
	if h.tensor.isCopy() {
		return // it is the output's hash
	}
	for h.index < p.index { // segments without elements
		h.next()
	}
	h.segment.Write(src)
	if p.to == p.segment.End-p.segment.Begin {
		h.next()
	}
}

func (h *hasher) next() {
	h.segments = append(h.segments, hex.EncodeToString(h.segment.Sum(nil)))
	h.segment.Reset()
	h.index++
}

// finish returns the hashes of a tensor that was compared with its source.
func (h *hasher) finish() *proof {
	p := &proof{SHA256: hex.EncodeToString(h.whole.Sum(nil)), Compared: true}
	if h.tensor.isCopy() {
		p.Segments = []string{p.SHA256}
		return p
	}
	for h.index < len(h.tensor.Segments) {
		h.next()
	}
	p.Segments = h.segments
	return p
}

// prove reads every tensor again and compares it with the source. One that differs
// is forgotten, so that the next run writes it anew.
func (e *execution) prove(ctx context.Context) error {
	for _, f := range e.files {
		dropCache(f.File)
	}
	e.phase, e.done = "verifying", 0
	var todo []int
	for i := range e.states {
		if p := e.states[i].proof; p == nil || !p.Compared {
			todo = append(todo, i)
		} else {
			e.done += e.plan.Tensors[i].Bytes()
		}
	}
	return e.journaled(ctx, todo, e.proveTensor)
}

func (e *execution) proveTensor(ctx context.Context, w *worker, i int) error {
	t := &e.plan.Tensors[i]
	h := newHasher(t)
	e.mu.Lock()
	s := e.states[i]
	e.mu.Unlock()
	for at, size := int64(0), t.Bytes(); at < size; at += int64(len(w.tile)) {
		if err := ctx.Err(); err != nil {
			return err
		}
		tile := w.tile[:min(int64(len(w.tile)), size-at)]
		if _, err := e.files[t.File].ReadAt(tile, t.Offset+at); err != nil {
			return err
		}
		h.whole.Write(tile)
		if err := w.proveTile(t, h, tile, at); err != nil {
			e.mark(i, tensorState{})
			return fmt.Errorf("%s: %w", safetensors.Quote(filepath.Join(e.dir, e.plan.Files[t.File].Name)), err)
		}
		e.advance(int64(len(tile)))
	}
	s.proof, s.hash = h.finish(), nil
	e.mark(i, s)
	return nil
}

// proveTile compares a tile that was read again, piece by piece.
func (w *worker) proveTile(t *PlannedTensor, h *hasher, tile []byte, offset int64) error {
	return t.pieces(offset, int64(len(tile)), int64(len(w.in)), func(p piece) error {
		src, out := w.in[:p.to-p.from], tile[p.at-offset:][:p.size]
		if err := w.load(p, src); err != nil {
			return err
		}
		h.source(p, src)
		if p.segment.copies(t.DType) {
			return proveCopy(out, src)
		}
		return w.prove(t.DType, p, out, src)
	})
}

// proveCopy demands equal bytes.
func proveCopy(out, src []byte) error {
	if string(out) == string(src) {
		return nil
	}
	for i := range out {
		if out[i] != src[i] {
			return disagree(i, fmt.Sprintf("%02x", out[i]), fmt.Sprintf("%02x", src[i]))
		}
	}
	return nil
}
