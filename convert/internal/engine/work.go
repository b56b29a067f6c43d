package engine

// The workers, and how often the journal records their progress.

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"

	"dsmoe/convert/internal/disk"
	"dsmoe/text"
)

// The journal is flushed when either is reached.
const (
	flushBytes = 256 << 20
	flushTime  = 5 * time.Second
)

// writeAndProve finishes all spans, and flushes the journal meanwhile.
func (e *execution) writeAndProve(ctx context.Context) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	stop := make(chan struct{})
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		tick := time.NewTicker(50 * time.Millisecond)
		defer tick.Stop()
		for last := time.Now(); ; {
			select {
			case <-stop:
				return
			case <-tick.C:
			}
			if ahead := e.Unflushed(); ahead == 0 || ahead < flushBytes && time.Since(last) <= flushTime {
				continue
			}
			if err := e.flush(); err != nil {
				cancel(err)
				return
			}
			last = time.Now()
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

// work writes and proves all unfinished spans.
func (e *execution) work(ctx context.Context) error {
	readable, err := e.out.Start()
	if err != nil {
		return err
	}
	writing, proving := e.openSpans()
	if readable {
		// Spans larger than a worker's share of all bytes go first: one worker writes a span from begin to end.
		share := int64(0)
		for _, i := range writing {
			share += e.Spans[i].Size()
		}
		share /= int64(e.shape.workers)
		slices.SortStableFunc(writing, func(a, b int) int {
			return cmp.Compare(max(e.Spans[b].Size(), share), max(e.Spans[a].Size(), share))
		})
		return e.workThrough(ctx, newQueue(writing, proving), false)
	}
	err = e.workThrough(ctx, newQueue(writing, nil), true) // in their order: few parts are begun at once
	if err == nil {
		err = e.flush()
	}
	if err == nil {
		err = e.out.CompleteFiles()
	}
	if err != nil {
		return err
	}
	e.shape = ofStore(e.plan, e.Settings)
	_, proving = e.openSpans()
	return e.workThrough(ctx, newQueue(nil, proving), false)
}

// workThrough does the work of a queue; writesOnly says that what it writes is proven later.
func (e *execution) workThrough(ctx context.Context, q *queue, writesOnly bool) error {
	e.flushing.Lock()
	e.queue, e.writesOnly = q, writesOnly
	e.flushing.Unlock()
	g, ctx := errgroup.WithContext(ctx)
	for _, memory := range disk.NewTileMemories(min(e.shape.workers, e.queue.open), e.shape.largest) {
		g.Go(func() error {
			err := e.newWorker(memory).work(ctx)
			if err != nil {
				q.update(func() { q.stopped = true })
			}
			return err
		})
	}
	return g.Wait()
}

// openSpans lists the spans that are not complete and, with verification, those that were not compared with
// the source.
func (e *execution) openSpans() (writing, proving []int) {
	for i := range e.States {
		s := &e.States[i]
		switch {
		case s.Done < e.Spans[i].Size() || e.Unverified && s.Proof == nil:
			writing = append(writing, i)
		case !e.Unverified && !s.Proven():
			proving = append(proving, i)
		}
	}
	return writing, proving
}

// work does jobs until the queue is empty.
func (w *worker) work(ctx context.Context) error {
	q := w.queue
	for {
		do, i := q.next()
		if err := ctx.Err(); err != nil {
			return err
		}
		var err error
		switch do {
		case noJob:
			return nil
		case flushAll:
			if err := w.flush(); err != nil {
				return err
			}
			continue
		case writeSpan:
			if err = w.writeSpan(ctx, i); err == nil {
				q.update(func() {
					if w.Unverified || w.writesOnly {
						q.open--
					} else {
						q.volatile++
					}
				})
			}
		case proveSpan:
			err = w.proveSpan(ctx, i)
			q.update(func() { q.open-- })
		}
		if err != nil {
			return fmt.Errorf("tensor %s: %w", text.Quote(w.Spans[i].Name), err)
		}
	}
}
