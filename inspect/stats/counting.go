package stats

// Statistics of the weights. Every byte is read once, and the bytes of F32 and FP8 weights a second time if
// quantiles are asked for. F16 and BF16 are counted by their bit patterns; other weights, and those too small
// for that to pay, by their numbers.

import (
	"errors"
	"slices"
	"sync"

	"dsmoe/inspect"
	"dsmoe/model/tensor"
	"dsmoe/model/weights"
)

// counting is the state of one Compute run.
type counting struct {
	inspect.Weights
	*weights.Reading
	options  Options
	groups   []*group
	byName   map[string]*group
	decoded  map[tensor.DType]*[halves]float32 // the number of each bit pattern
	scratch  sync.Pool                         // of *scratch
	counters sync.Pool                         // of *[halves]int64, all zeros
}

// scratch is the memory of a worker.
type scratch struct {
	patterns tensor.Patterns
	upper    [halves]int64
	decoded  []counted // for sumUp
}

// group is weights that are counted together. Its counters are in memory only while its weights are being read.
type group struct {
	name string
	list []*countedWeight

	mu       sync.Mutex // guards the fields below
	jobsLeft int
	patterns map[tensor.DType]*[halves]int64
	upper    *[halves]int64 // upper halves of the keys of decoded numbers; for quantiles
	parts    []sums         // of decoded numbers, job by job
	numbers  Numbers
	rows     *rowSpread
	search   *search
}

// countedWeight is a weight of a group.
type countedWeight struct {
	*weights.Weight
	byPattern bool      // F16 or BF16, and large enough
	firstPart int       // index in group.parts of its first job
	rows      []float32 // the largest magnitude of each row; nil if rows are not counted
	err       error     // of reading it
}

// jobs is the number of parts that the weight is read in.
func (w *countedWeight) jobs() (n int) {
	for range w.Jobs() {
		n++
	}
	return n
}

// take adds a weight to the group of that name.
func (s *counting) take(name string, w *weights.Weight) {
	g := s.byName[name]
	if g == nil {
		g = &group{name: name, patterns: map[tensor.DType]*[halves]int64{}}
		s.byName[name], s.groups = g, append(s.groups, g)
	}
	x := &countedWeight{Weight: w, firstPart: len(g.parts), byPattern: s.decoded[w.DType] != nil &&
		w.Len() >= patternsFrom}
	g.list = append(g.list, x)
	g.jobsLeft += x.jobs()
	s.Expect(w.Bytes())
	if x.byPattern {
		return
	}
	g.parts = append(g.parts, make([]sums, x.jobs())...)
	if len(s.options.Quantiles) > 0 { // it may be read again
		s.Expect(w.Bytes())
	}
}

// countAll reads everything once.
func (s *counting) countAll() {
	for _, g := range s.groups {
		for _, w := range g.list {
			part := w.firstPart
			for at, n := range w.Jobs() {
				i := part
				s.Go(func() error { s.count(g, w, i, at, n); return nil })
				part++
			}
		}
	}
}

// count counts part i of a group, n elements of a weight from at on. The last part of a group sums up.
func (s *counting) count(g *group, w *countedWeight, i int, at, n int64) {
	memory := s.scratch.Get().(*scratch)
	defer s.scratch.Put(memory)
	rows := newRowPeaks(w, at, n, s.options.By == inspect.ByTensor)
	part := newSums()
	var err error
	if w.byPattern {
		err = s.countPatterns(w, at, n, memory, rows)
	} else {
		err = s.countNumbers(w, at, n, &part, memory, rows)
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if rows != nil { // two parts may share a row
		if w.rows == nil {
			w.rows = make([]float32, w.Shape[0])
		}
		for i, p := range rows.peaks {
			row := &w.rows[rows.first+int64(i)]
			*row = max(*row, p)
		}
	}
	if w.err == nil {
		w.err = err
	}
	if w.byPattern {
		if g.patterns[w.DType] == nil {
			g.patterns[w.DType] = s.counters.Get().(*[halves]int64)
		}
		memory.patterns.Take(g.patterns[w.DType])
	} else {
		g.parts[i] = part
	}
	if !w.byPattern && len(s.options.Quantiles) > 0 {
		if g.upper == nil {
			g.upper = s.counters.Get().(*[halves]int64)
		}
		for i, n := range memory.upper {
			g.upper[i] += n
		}
		clear(memory.upper[:])
	}
	if g.jobsLeft--; g.jobsLeft == 0 {
		s.sumUp(g, memory)
	}
}

// countPatterns counts n elements of a weight from at on by their bit patterns.
func (s *counting) countPatterns(w *countedWeight, at, n int64, memory *scratch, rows *rowPeaks) error {
	size := w.DType.Bytes(1)
	for tile, err := range s.Bytes(s.Reader, w.Weight, at, n) {
		if err != nil {
			return err
		}
		for len(tile) > 0 {
			row := min(int64(len(tile)), size*rows.toRowEnd(at)) // stays in the nearest cache for LargestFinite
			memory.patterns.Add(tile[:row])
			if rows != nil {
				rows.raise(at, tensor.LargestFinite(tile[:row], w.DType))
			}
			tile, at = tile[row:], at+row/size
		}
	}
	return nil
}

// countNumbers counts n elements of a weight from at on number by number.
func (s *counting) countNumbers(w *countedWeight, at, n int64, part *sums, memory *scratch, rows *rowPeaks) error {
	for values, err := range s.Numbers(s.Reader, w.Weight, at, n) {
		if err != nil {
			return err
		}
		if !part.addOrdinary(values, rows, at) {
			part.addValues(values)
			rows.raiseAll(at, values)
		}
		at += int64(len(values))
		if len(s.options.Quantiles) == 0 {
			continue
		}
		for _, v := range values {
			if tensor.IsFinite(v) {
				memory.upper[keyOf(v)>>16]++
			}
		}
	}
	return nil
}

// sumUp turns the counts of a group into its numbers, and gives their memory back.
func (s *counting) sumUp(g *group, memory *scratch) {
	all, known := newSums(), memory.decoded[:0]
	for _, d := range []tensor.DType{tensor.BF16, tensor.F16} {
		if counts := g.patterns[d]; counts != nil {
			known = all.addCounts(counts, s.decoded[d], known)
			clear(counts[:])
			s.counters.Put(counts)
		}
	}
	memory.decoded = known
	for i := range g.parts {
		all.merge(&g.parts[i])
	}
	g.numbers = all.numbers()
	if len(s.options.Quantiles) > 0 {
		g.search = newSearch(s.options.Quantiles, known, g.upper)
	}
	if g.upper != nil {
		clear(g.upper[:])
		s.counters.Put(g.upper)
	}
	if len(g.list) == 1 && s.options.By == inspect.ByTensor {
		g.rows = rowStats(g.list[0].rows)
		g.list[0].rows = nil
	}
	g.patterns, g.parts, g.upper = nil, nil, nil
}

// findQuantiles reads the numbers again among which quantiles are.
func (s *counting) findQuantiles() {
	for _, g := range s.groups {
		if g.search == nil || len(g.search.open) == 0 {
			continue
		}
		again := slices.DeleteFunc(slices.Clone(g.list), func(w *countedWeight) bool { return w.byPattern })
		for _, w := range again {
			g.jobsLeft += w.jobs()
		}
		for _, w := range again {
			for at, n := range w.Jobs() {
				s.Go(func() error { s.narrow(g, w, at, n); return nil })
			}
		}
	}
}

// narrow counts n elements of a weight from at on for the quantiles of its group. The last part of a group
// finds them.
func (s *counting) narrow(g *group, w *countedWeight, at, n int64) {
	g.search.begin()
	var failed error
	for values, err := range s.Numbers(s.Reader, w.Weight, at, n) {
		failed = err
		for _, v := range values {
			if tensor.IsFinite(v) {
				g.search.add(v, 1)
			}
		}
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if w.err == nil {
		w.err = failed
	}
	if g.jobsLeft--; g.jobsLeft == 0 && !s.Ended() && g.err() == nil {
		g.search.finish()
	}
}

// err names the weights of the group that cannot be read.
func (g *group) err() error {
	var errs []error
	for _, w := range g.list {
		errs = append(errs, w.Failed(w.err))
	}
	return errors.Join(errs...)
}
