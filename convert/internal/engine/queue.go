package engine

// Who does what: tensors are written in the order of the plan, and when none is left to be
// begun, those of which all is durable are proven. Disks that read and write at once do
// either more slowly.

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"sync"

	"golang.org/x/sync/errgroup"

	"dsmoe/text"
)

// queue hands out the work on tensors, by their indices in the plan.
type queue struct {
	mu       sync.Mutex
	news     sync.Cond // of mu: there may be something to do, or the end
	writing  []int     // to be written
	proving  []int     // written and durable, to be proven
	volatile int       // tensors to be proven that are written, but not durable
	left     int       // tensors that are not finished
	stopped  bool      // a worker failed
}

// job is one piece of work.
type job int

// The jobs.
const (
	nothingLeft job = iota
	writeTensor
	proveTensor
	flushAll
)

// newQueue lists what is left to do: tensors that are not complete, and unless Unverified
// is set those that were not compared with the source.
func (e *execution) newQueue() *queue {
	q := &queue{}
	q.news.L = &q.mu
	for i := range e.states {
		s := &e.states[i]
		switch {
		case s.done < e.plan.Tensors[i].Bytes() || e.Unverified && s.proof == nil:
			q.writing = append(q.writing, i)
		case !e.Unverified && (s.proof == nil || !s.proof.Compared):
			q.proving = append(q.proving, i)
		}
	}
	q.left = len(q.writing) + len(q.proving)
	q.writing = largeFirst(q.writing, e.shape.workers, func(i int) int64 { return e.plan.Tensors[i].Bytes() })
	return q
}

// next waits for a job and says for which tensor it is.
func (q *queue) next() (job, int) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for ; ; q.news.Wait() {
		switch {
		case q.stopped || q.left == 0:
			return nothingLeft, 0
		case len(q.writing) > 0:
			return writeTensor, pop(&q.writing)
		case len(q.proving) > 0:
			return proveTensor, pop(&q.proving)
		case q.volatile > 0:
			return flushAll, 0
		}
	}
}

func pop(list *[]int) int {
	i := (*list)[0]
	*list = (*list)[1:]
	return i
}

// tell changes what there is to do and wakes those who wait for it.
func (q *queue) tell(change func()) {
	q.mu.Lock()
	defer q.mu.Unlock()
	change()
	q.news.Broadcast()
}

// wrote takes note of a tensor that was written; proof says whether it is to be proven.
func (q *queue) wrote(proof bool) {
	q.tell(func() {
		if proof {
			q.volatile++
		} else {
			q.left--
		}
	})
}

// durable takes note of tensors to be proven that are on the disk.
func (q *queue) durable(tensors []int) {
	q.tell(func() {
		q.volatile -= len(tensors)
		q.proving = append(q.proving, tensors...)
	})
}

func (q *queue) proved() { q.tell(func() { q.left-- }) }

func (q *queue) stop() { q.tell(func() { q.stopped = true }) }

// work writes and proves whatever is left, some tensors at once.
func (e *execution) work(ctx context.Context) error {
	e.queue = e.newQueue()
	for _, f := range e.files {
		f.DropCache()
	}
	g, ctx := errgroup.WithContext(ctx)
	for range min(e.shape.workers, e.queue.left) {
		g.Go(func() error {
			err := e.newWorker().work(ctx)
			if err != nil {
				e.queue.stop()
			}
			return err
		})
	}
	return g.Wait()
}

// work does jobs until nothing is left.
func (w *worker) work(ctx context.Context) error {
	for {
		do, i := w.queue.next()
		if err := ctx.Err(); err != nil {
			return err
		}
		switch do {
		case nothingLeft:
			return nil
		case flushAll:
			if err := w.flush(); err != nil {
				return err
			}
			continue
		}
		if err := w.tensor(ctx, do, i); err != nil {
			return fmt.Errorf("tensor %s: %w", text.Quote(w.plan.Tensors[i].Name), err)
		}
	}
}

// tensor writes or proves a tensor.
func (w *worker) tensor(ctx context.Context, do job, i int) (err error) {
	if do == proveTensor {
		err = w.proveTensor(ctx, i)
		w.queue.proved()
	} else if err = w.writeTensor(ctx, i); err == nil {
		w.queue.wrote(!w.Unverified)
	}
	return err
}

// largeFirst sorts what is larger than a worker's share of all to the front: each tensor
// is written by one worker from its begin to its end.
func largeFirst(todo []int, workers int, size func(i int) int64) []int {
	all := int64(0)
	for _, i := range todo {
		all += size(i)
	}
	share := all / int64(workers)
	slices.SortStableFunc(todo, func(a, b int) int { return cmp.Compare(max(size(b), share), max(size(a), share)) })
	return todo
}
