package engine

// The order of work: all spans are written first, then those that are durable are proven.
// Disks that read and write at once do either more slowly.

import (
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
