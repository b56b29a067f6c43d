package engine

// The work on tensors: how it is cut, and when the journal is told of it.

import (
	"context"
	"errors"
	"sync"
	"time"

	"golang.org/x/sync/semaphore"

	"dsmoe/convert/internal/disk"
	"dsmoe/convert/plan"
)

// execution is a plan that is being carried out.
type execution struct {
	Settings
	plan      *plan.Plan
	source    Source
	format    string // of the manifest: of what its losses count
	key       string // of the source's state
	place            // of the target
	replaces  bool   // an older output is in the target's place, and is to be replaced
	journal   *journal
	files     []*disk.TileFile    // as plan.Files
	published []string            // files that a run has begun to move into the target; nil if it has not come so far
	compute   *semaphore.Weighted // held by a goroutine while it computes
	shape     shape
	carried   map[string]string // hashes of the files that were copied from the source, by name
	queue     *queue
	flushing  sync.Mutex
	*ledger
}

func newExecution(dst string, p *plan.Plan, src Source, s Settings) (*execution, error) {
	key, err := src.Key()
	if err != nil {
		return nil, err
	}
	e := &execution{Settings: s, plan: p, source: src, format: manifestFormat, key: key, place: placeOf(dst), shape: newShape(p, s),
		compute: semaphore.NewWeighted(int64(s.Compute)), carried: map[string]string{}, ledger: newLedger(p, s.Progress)}
	if s.Overwrite && checkReplaceable(dst) == nil {
		e.place = besideOf(dst)
	}
	_, e.total = p.Bytes()
	if !s.Unverified {
		e.phase = "writing and verifying"
		e.total *= 2
	}
	return e, nil
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
	room := int(min(s.Memory/2, usable(s.Memory)-held(p)))
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

// When the journal is told.
const (
	flushBytes = 256 << 20
	flushTime  = 5 * time.Second
)

// journaled writes and proves all that is left, and tells the journal as it goes.
func (e *execution) journaled(ctx context.Context) error {
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
	err := e.work(ctx)
	close(stop)
	<-stopped
	if cause := context.Cause(ctx); err != nil && cause != nil {
		err = cause
	}
	return errors.Join(err, e.flush())
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
		if ahead := e.unflushed(); ahead == 0 || ahead < flushBytes && time.Since(last) <= flushTime {
			continue
		}
		if err := e.flush(); err != nil {
			return err
		}
		last = time.Now()
	}
}

// flush makes what was written durable, then says so in the journal. What is to be proven
// is then read from the disk.
func (e *execution) flush() error {
	e.flushing.Lock()
	defer e.flushing.Unlock()
	n := e.take(e.Unverified)
	if n.lines == nil {
		return nil
	}
	for _, i := range n.files {
		if err := e.files[i].Sync(); err != nil {
			return err
		}
		e.files[i].DropCache()
	}
	if err := e.journal.append(n.lines...); err != nil {
		return err
	}
	e.queue.durable(n.written)
	return nil
}
