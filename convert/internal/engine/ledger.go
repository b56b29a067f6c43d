package engine

// The progress of each span and of all.

import (
	"maps"
	"slices"
	"sync"

	"dsmoe/convert/plan"
	"dsmoe/model/tensor"
)

// spanState is the progress of one span: a tensor or, of an output in parts, a run of it.
type spanState struct {
	done  int64 // bytes written
	lost  losses
	proof *proof // nil until all bytes are written and hashed
	begun *proof // of the bytes written, of a span that is hashed while it is written; nil for others
}

// proven reports whether the span was compared with its source.
func (s *spanState) proven() bool { return s.proof != nil && s.proof.Compared }

// record is the line of the journal about the span of a tensor.
func (s *spanState) record(tensor int) record {
	return record{Tensor: tensor, Done: s.done, Lost: s.lost, Proof: s.proof, Begun: s.begun}
}

// losses is what a span lost, with an entry per segment: sums of floating point depend on how they are grouped, and
// an output can be cut between segments. A segment that lost nothing has no entry, unless it is the last.
type losses []tensor.Loss

// next begins the entry of the next segment.
func (l *losses) next() {
	if n := len(*l); n > 0 && (*l)[n-1].Any() {
		*l = append(*l, tensor.Loss{})
	}
}

// current returns the entry of the segment in work.
func (l losses) current() (lost tensor.Loss) {
	if len(l) > 0 {
		lost = l[len(l)-1]
	}
	return lost
}

// set replaces the entry of the segment in work.
func (l *losses) set(lost tensor.Loss) {
	switch n := len(*l); {
	case n > 0:
		(*l)[n-1] = lost
	case lost.Any():
		*l = losses{lost}
	}
}

// total adds them up.
func (l losses) total() (sum tensor.Loss) {
	for _, lost := range l {
		sum.Add(lost)
	}
	return sum
}

// ledger is safe for concurrent use by the workers.
type ledger struct {
	spans    []plan.Span
	progress func(phase string, done, total int64)

	mu      sync.Mutex
	states  []spanState  // as spans
	changed map[int]bool // spans whose state is not in the journal
	phase   string       // for progress
	ahead   int64        // bytes written or compared that the journal does not record
	done    int64        // bytes written plus bytes compared
	total   int64        // done at the end of the phase
	resumed int64        // bytes that an earlier run wrote
}

func newLedger(spans []plan.Span, progress func(phase string, done, total int64)) *ledger {
	return &ledger{spans: spans, progress: progress, states: make([]spanState, len(spans)), changed: map[int]bool{}}
}

// bytes returns the bytes of all spans.
func (l *ledger) bytes() (n int64) {
	for i := range l.spans {
		n += l.spans[i].Size()
	}
	return n
}

// startPhase starts the progress of a phase with total bytes.
func (l *ledger) startPhase(phase string, total int64) { l.phase, l.done, l.total = phase, 0, total }

// apply takes over a record of the journal.
func (l *ledger) apply(r record) {
	if r.Ready || r.Tensor < 0 || len(l.spans) == 0 {
		return
	}
	if i := r.Tensor - l.spans[0].Index; i >= 0 && i < len(l.spans) { // the spans are of neighbours
		l.states[i] = spanState{done: r.Done, lost: r.Lost, proof: r.Proof, begun: r.Begun}
	}
}

// reset forgets the applied records.
func (l *ledger) reset() { clear(l.states) }

// resume counts the bytes of the applied records. A span that is hashed while it is
// written, and has no hash of what was written, starts over.
func (l *ledger) resume(hashesWriting func(*plan.Tensor) bool) {
	for i := range l.states {
		s := &l.states[i]
		if s.proof == nil && s.begun == nil && hashesWriting(l.spans[i].Tensor) {
			*s = spanState{}
		}
		l.resumed += s.done
		if s.proven() {
			l.done += s.done
		}
	}
	l.done += l.resumed
}

// state returns the state of a span.
func (l *ledger) state(i int) spanState {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.states[i]
}

// mark sets the state of a span.
func (l *ledger) mark(i int, s spanState) {
	l.mu.Lock()
	defer l.mu.Unlock()
	s.lost = slices.Clone(s.lost) // the caller goes on adding
	l.states[i] = s
	l.changed[i] = true
}

// advance counts n more bytes written or compared.
func (l *ledger) advance(n int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.ahead += n
	l.done += n
	l.progress(l.phase, l.done, l.total)
}

// lost lists the tensors with elements that changed or are not finite.
func (l *ledger) lost() (lost []LostTensor) {
	for i := range l.states {
		if total := l.states[i].lost.total(); total.Any() {
			lost = append(lost, LostTensor{l.spans[i].Name, total})
		}
	}
	return lost
}

// unflushed returns the bytes written or compared that the journal does not record.
func (l *ledger) unflushed() int64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.ahead
}

// unrecorded is the progress that the journal does not record.
type unrecorded struct {
	lines   []any // records for the journal
	files   []int // weight files with their bytes
	written []int // complete spans that still need a proof
}

// take returns the progress that the journal does not record, and counts it as recorded.
func (l *ledger) take(unverified bool) (n unrecorded) {
	l.mu.Lock()
	defer l.mu.Unlock()
	inFile := map[int]bool{}
	for _, i := range slices.Sorted(maps.Keys(l.changed)) {
		s, t := &l.states[i], &l.spans[i]
		n.lines = append(n.lines, s.record(t.Index))
		inFile[t.File] = true
		if !unverified && s.done == t.Size() && !s.proven() {
			n.written = append(n.written, i)
		}
	}
	clear(l.changed)
	l.ahead = 0
	n.files = slices.Sorted(maps.Keys(inFile))
	return n
}
