package engine

// The progress of each tensor and of all.

import (
	"maps"
	"slices"
	"sync"

	"dsmoe/convert/plan"
	"dsmoe/model/tensor"
)

// tensorState is the progress of one tensor.
type tensorState struct {
	done  int64 // bytes written
	lost  tensor.Loss
	proof *proof // nil until all bytes are written and hashed
	begun *proof // of the bytes written, of a tensor that is hashed while it is written; nil for others
}

// proven reports whether the tensor was compared with its source.
func (s *tensorState) proven() bool { return s.proof != nil && s.proof.Compared }

// ledger is safe for concurrent use by the workers.
type ledger struct {
	plan     *plan.Plan
	progress func(phase string, done, total int64)

	mu      sync.Mutex
	states  []tensorState // as plan.Tensors
	changed map[int]bool  // tensors whose state is not in the journal
	phase   string        // for progress
	ahead   int64         // bytes written or compared that the journal does not record
	done    int64         // bytes written plus bytes compared
	total   int64         // done at the end of the phase
	resumed int64         // bytes that an earlier run wrote
}

func newLedger(p *plan.Plan, progress func(phase string, done, total int64)) *ledger {
	return &ledger{plan: p, progress: progress, states: make([]tensorState, len(p.Tensors)), changed: map[int]bool{}}
}

// startPhase starts the progress of a phase with total bytes.
func (l *ledger) startPhase(phase string, total int64) { l.phase, l.done, l.total = phase, 0, total }

// apply takes over a record of the journal.
func (l *ledger) apply(r record) {
	if r.Ready || r.Tensor < 0 || r.Tensor >= len(l.states) {
		return
	}
	l.states[r.Tensor] = tensorState{done: r.Done, lost: r.Lost, proof: r.Proof, begun: r.Begun}
}

// reset forgets the applied records.
func (l *ledger) reset() { clear(l.states) }

// resume counts the bytes of the applied records. A tensor that is hashed while it is
// written, and has no hash of what was written, starts over.
func (l *ledger) resume(hashesWriting func(*plan.Tensor) bool) {
	for i := range l.states {
		s := &l.states[i]
		if s.proof == nil && s.begun == nil && hashesWriting(&l.plan.Tensors[i]) {
			*s = tensorState{}
		}
		l.resumed += s.done
		if s.proven() {
			l.done += s.done
		}
	}
	l.done += l.resumed
}

// state returns the state of a tensor.
func (l *ledger) state(i int) tensorState {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.states[i]
}

// mark sets the state of a tensor.
func (l *ledger) mark(i int, s tensorState) {
	l.mu.Lock()
	defer l.mu.Unlock()
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
		if l.states[i].lost.Any() {
			lost = append(lost, LostTensor{l.plan.Tensors[i].Name, l.states[i].lost})
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
	written []int // complete tensors that still need a proof
}

// take returns the progress that the journal does not record, and counts it as recorded.
func (l *ledger) take(unverified bool) (n unrecorded) {
	l.mu.Lock()
	defer l.mu.Unlock()
	inFile := map[int]bool{}
	for _, i := range slices.Sorted(maps.Keys(l.changed)) {
		s, t := &l.states[i], &l.plan.Tensors[i]
		n.lines = append(n.lines, record{Tensor: i, Done: s.done, Lost: s.lost, Proof: s.proof, Begun: s.begun})
		inFile[t.File] = true
		if !unverified && s.done == t.Bytes() && !s.proven() {
			n.written = append(n.written, i)
		}
	}
	clear(l.changed)
	l.ahead = 0
	n.files = slices.Sorted(maps.Keys(inFile))
	return n
}
