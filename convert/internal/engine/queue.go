package engine

// The order of work: all spans are written first, then those that are durable are proven.
// Disks that read and write at once do either more slowly.

import (
	"cmp"
	"slices"
	"sync"
)

// queue hands out the work on spans, by their indices.
type queue struct {
	mu       sync.Mutex
	changed  sync.Cond // of mu: signals new jobs, or the end
	writing  []int     // spans to write
	proving  []int     // written and durable spans to prove
	volatile int       // spans to prove that are written, but not durable
	open     int       // spans that are not finished
	stopped  bool      // a worker failed
}

func newQueue(writing, proving []int) *queue {
	q := &queue{writing: writing, proving: proving, open: len(writing) + len(proving)}
	q.changed.L = &q.mu
	return q
}

// job is one piece of work.
type job int

// The jobs.
const (
	noJob job = iota
	writeSpan
	proveSpan
	flushAll
)

// next waits for a job and returns it with its span.
func (q *queue) next() (job, int) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for ; ; q.changed.Wait() {
		switch {
		case q.stopped || q.open == 0:
			return noJob, 0
		case len(q.writing) > 0:
			return writeSpan, pop(&q.writing)
		case len(q.proving) > 0:
			return proveSpan, pop(&q.proving)
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

// update calls change and wakes the goroutines that wait for a job.
func (q *queue) update(change func()) {
	q.mu.Lock()
	defer q.mu.Unlock()
	change()
	q.changed.Broadcast()
}

// wrote records that a span was written.
func (q *queue) wrote(needsProof bool) {
	q.update(func() {
		if needsProof {
			q.volatile++
		} else {
			q.open--
		}
	})
}

// durable records that written spans are on the disk and can be proven.
func (q *queue) durable(spans []int) {
	q.update(func() {
		q.volatile -= len(spans)
		q.proving = append(q.proving, spans...)
	})
}

func (q *queue) proved() { q.update(func() { q.open-- }) }

func (q *queue) stop() { q.update(func() { q.stopped = true }) }

// largeFirst moves spans larger than a worker's share of all bytes to the front: one
// worker writes a span from begin to end.
func largeFirst(spans []int, workers int, size func(i int) int64) []int {
	all := int64(0)
	for _, i := range spans {
		all += size(i)
	}
	share := all / int64(workers)
	slices.SortStableFunc(spans, func(a, b int) int { return cmp.Compare(max(size(b), share), max(size(a), share)) })
	return spans
}
