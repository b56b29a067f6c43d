package engine

// The workers, and how often the journal records their progress.

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
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

// work writes and proves all unfinished spans. A worker proves a span when it has written it, while others write theirs:
// the source's bytes are still in memory, and so are the output's.
func (e *execution) work(ctx context.Context) error {
	readable, err := e.out.Start()
	if err != nil {
		return err
	}
	writing, _ := e.openSpans()
	do := (*worker).writeSpan // without readable in their order: few parts are begun at once
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
		if !e.Unverified {
			do = func(w *worker, ctx context.Context, i int) error {
				if err := w.writeSpan(ctx, i); err != nil {
					return err
				}
				return w.proveSpan(ctx, i)
			}
		}
	}
	err = e.workThrough(ctx, writing, do)
	if err == nil && !readable {
		err = e.flush()
		if err == nil {
			err = e.out.CompleteFiles()
		}
		e.shape = ofStore(e.plan, e.Settings)
	}
	if err != nil {
		return err
	}
	_, proving := e.openSpans()
	return e.workThrough(ctx, proving, (*worker).proveSpan)
}

// workThrough has the workers take one of the spans after the other.
func (e *execution) workThrough(ctx context.Context, spans []int, do func(*worker, context.Context, int) error) error {
	var next atomic.Int64
	g, ctx := errgroup.WithContext(ctx)
	for _, memory := range disk.NewTileMemories(min(e.shape.workers, len(spans)), e.shape.largest) {
		g.Go(func() error {
			w := e.newWorker(memory)
			for {
				n := int(next.Add(1)) - 1
				if err := ctx.Err(); err != nil || n >= len(spans) {
					return err
				}
				if err := do(w, ctx, spans[n]); err != nil {
					return fmt.Errorf("tensor %s: %w", text.Quote(w.Spans[spans[n]].Name), err)
				}
			}
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
