package inspect

// Statistics of the weights. Every byte is read once, and those of F32 and FP8 weights a second
// time if quantiles are asked for. F16 and BF16 are counted by their bit patterns; other
// weights, and those too small for that to pay, number by number.

import (
	"errors"
	"slices"
	"sync"

	"dsmoe/model/tensor"
	"dsmoe/model/weights"
)

// counting is the weights of a checkpoint while they are counted.
type counting struct {
	Weights
	*weights.Reading
	o      StatsOptions
	heaps  []*heap
	values map[tensor.DType]*[halves]float32 // what patterns stand for
	tables spare[scratch]
	counts spare[[halves]int64] // zeros
}

// heap is weights that are counted together. Only while some of them are read it takes
// memory.
type heap struct {
	name   string
	list   []*load
	values int64 // number of elements that are not counted by patterns

	mu       sync.Mutex // guards what follows
	left     int        // jobs that are not done
	patterns map[tensor.DType]*[halves]int64
	upper    *[halves]int64 // of the keys of numbers that are not counted by patterns; for quantiles
	few      []counted      // those numbers instead, of a small heap
	parts    []sums         // of those numbers, job by job
	numbers  Numbers
	rows     *RowStats
	search   *search
}

func newHeap(name string) *heap {
	return &heap{name: name, patterns: map[tensor.DType]*[halves]int64{}}
}

// isSmall says whether quantiles are looked for among all numbers at once.
func (h *heap) isSmall() bool { return h.values <= halves }

// load is a weight that is counted.
type load struct {
	*weights.Weight
	patterns bool      // it is counted by them
	part     int       // index in heap.parts of its first job
	rows     []float32 // the largest magnitude of each row; nil if rows are not looked at
	err      error     // of reading it
}

// take adds a weight to a heap.
func (s *counting) take(h *heap, w *weights.Weight) {
	l := &load{Weight: w, part: len(h.parts), patterns: (w.DType == tensor.F16 || w.DType == tensor.BF16) && w.Len() >= patternsFrom}
	h.list = append(h.list, l)
	jobs := l.jobs()
	h.left += jobs
	if !l.patterns {
		h.parts = append(h.parts, make([]sums, jobs)...)
		h.values += int64(w.Len())
	}
	s.Expect(w.Bytes())
	if !l.patterns && len(s.o.Quantiles) > 0 { // it may be read again
		s.Expect(w.Bytes())
	}
}

// jobs is the number of the weight's parts.
func (l *load) jobs() (n int) {
	for range l.Jobs() {
		n++
	}
	return n
}

// scratch is the memory of a goroutine, beside its tile.
type scratch struct {
	patterns tensor.Patterns
	upper    [halves]int64
	known    []counted // of sumUp
}

// spare is memory that is used again.
type spare[T any] struct {
	mu   sync.Mutex
	free []*T
}

// get returns memory that was put back, or new one.
func (s *spare[T]) get() *T {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := len(s.free)
	if n == 0 {
		return new(T)
	}
	x := s.free[n-1]
	s.free = s.free[:n-1]
	return x
}

// put gives it back.
func (s *spare[T]) put(x *T) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.free = append(s.free, x)
}

// count reads everything once.
func (s *counting) count() {
	for _, h := range s.heaps {
		for _, l := range h.list {
			part := l.part
			for at, n := range l.Jobs() {
				i := part
				s.Go(func() error { s.job(h, l, i, at, n); return nil })
				part++
			}
		}
	}
}

// job counts part i of a heap, n elements of a weight from at on. The last of a heap sums up.
func (s *counting) job(h *heap, l *load, i int, at, n int64) {
	table := s.tables.get()
	defer s.tables.put(table)
	rows := newRowPeaks(l, at, n, s.o.By == ByTensor)
	var part sums
	var few []counted
	var err error
	if l.patterns {
		err = s.byPattern(l, at, n, table, rows)
	} else {
		part, few, err = s.byNumber(h, l, at, n, table, rows)
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	rows.merge(l)
	if l.err == nil {
		l.err = err
	}
	if l.patterns {
		table.patterns.Take(s.zeros(&h.patterns, l.DType))
	} else {
		h.parts[i] = part
		switch {
		case h.isSmall():
			h.few = append(h.few, few...)
		case len(s.o.Quantiles) > 0:
			h.addUpper(s, table)
		}
	}
	if h.left--; h.left == 0 {
		s.sumUp(h, table)
	}
}

// zeros returns the counts of a dtype, zeros at first.
func (s *counting) zeros(counts *map[tensor.DType]*[halves]int64, d tensor.DType) *[halves]int64 {
	if (*counts)[d] == nil {
		(*counts)[d] = s.counts.get()
	}
	return (*counts)[d]
}

// addUpper moves what a job counted for quantiles into the heap.
func (h *heap) addUpper(s *counting, table *scratch) {
	if h.upper == nil {
		h.upper = s.counts.get()
	}
	for i, n := range table.upper {
		h.upper[i] += n
	}
	clear(table.upper[:])
}

// byPattern counts n elements of a weight from at on.
func (s *counting) byPattern(l *load, at, n int64, table *scratch, rows *rowPeaks) error {
	size := l.DType.Bytes(1)
	for tile, err := range s.Bytes(s.Reader, l.Weight, at, n) {
		if err != nil {
			return err
		}
		for len(tile) > 0 {
			row := min(int64(len(tile)), size*rows.rest(at)) // stays in the nearest cache for the second look
			table.patterns.Add(tile[:row])
			if rows != nil {
				rows.see(at, tensor.LargestFinite(tile[:row], l.DType))
			}
			tile, at = tile[row:], at+row/size
		}
	}
	return nil
}

// byNumber is byPattern for the dtypes that are decoded.
// Numbers of a small heap are kept for quantiles.
func (s *counting) byNumber(h *heap, l *load, at, n int64, table *scratch, rows *rowPeaks) (part sums, few []counted, err error) {
	part = newSums()
	for values, err := range s.Numbers(s.Reader, l.Weight, at, n) {
		if err != nil {
			return part, few, err
		}
		part.addValues(values)
		rows.seeAll(at, values)
		at += int64(len(values))
		if len(s.o.Quantiles) == 0 {
			continue
		}
		for _, v := range values {
			switch {
			case v-v != 0:
			case h.isSmall():
				few = append(few, counted{v, 1})
			default:
				table.upper[keyOf(v)>>16]++
			}
		}
	}
	return part, few, nil
}

// sumUp turns the counts of a heap into its numbers, and gives their memory back.
func (s *counting) sumUp(h *heap, table *scratch) {
	all, known := newSums(), table.known[:0]
	for _, d := range []tensor.DType{tensor.BF16, tensor.F16} {
		if counts := h.patterns[d]; counts != nil {
			known = all.addCounts(counts, s.values[d], known)
			s.giveBack(counts)
		}
	}
	table.known = known
	for i := range h.parts {
		all.merge(&h.parts[i])
	}
	h.numbers = all.numbers()
	if len(s.o.Quantiles) > 0 {
		h.search = newSearch(s.o.Quantiles, append(known, h.few...), h.upper)
		if h.upper != nil {
			s.giveBack(h.upper)
		}
	}
	if len(h.list) == 1 && s.o.By == ByTensor {
		h.rows = rowStats(h.list[0].rows)
		h.list[0].rows = nil
	}
	h.patterns, h.parts, h.upper, h.few = nil, nil, nil, nil
}

// giveBack keeps counts for the next heap.
func (s *counting) giveBack(counts *[halves]int64) {
	clear(counts[:])
	s.counts.put(counts)
}

// again reads the numbers among which quantiles are.
func (s *counting) again() {
	for _, h := range s.heaps {
		if h.search == nil || len(h.search.open) == 0 {
			continue
		}
		loads := slices.DeleteFunc(slices.Clone(h.list), func(l *load) bool { return l.patterns })
		for _, l := range loads {
			h.left += l.jobs()
		}
		for _, l := range loads {
			for at, n := range l.Jobs() {
				s.Go(func() error { s.narrow(h, l, at, n); return nil })
			}
		}
	}
}

// narrow is job for numbers that are read again.
func (s *counting) narrow(h *heap, l *load, at, n int64) {
	h.search.begin()
	var failed error
	for values, err := range s.Numbers(s.Reader, l.Weight, at, n) {
		failed = err
		for _, v := range values {
			if v-v == 0 {
				h.search.add(v, 1)
			}
		}
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if l.err == nil {
		l.err = failed
	}
	if h.left--; h.left == 0 && !s.Ended() && h.err() == nil {
		h.search.finish()
	}
}

// err says which of the heap's weights cannot be read.
func (h *heap) err() error {
	var errs []error
	for _, l := range h.list {
		errs = append(errs, l.Failed(l.err))
	}
	return errors.Join(errs...)
}

// errors says which weights cannot be read.
func (s *counting) errors() error {
	var errs []error
	for _, h := range s.heaps {
		errs = append(errs, h.err())
	}
	return errors.Join(errs...)
}
