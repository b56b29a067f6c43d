package engine

// How far each tensor has come, and how much is done in all.

import (
	"maps"
	"slices"
	"sync"

	"dsmoe/convert/plan"
	"dsmoe/model/tensor"
)

// tensorState is how far one tensor has come.
type tensorState struct {
	done  int64 // bytes written
	lost  tensor.Loss
	proof *proof // nil until all is written and hashed
}

// ledger is safe for concurrent use while workers are at work.
type ledger struct {
	plan     *plan.Plan
	progress func(phase string, done, total int64)

	mu      sync.Mutex
	states  []tensorState // as plan.Tensors
	changed map[int]bool  // tensors whose state the journal does not have
	phase   string        // for progress
	ahead   int64         // bytes written or compared since the journal was last told
	done    int64         // bytes written and bytes compared
	total   int64         // that done grows to
	resumed int64         // bytes that an earlier run wrote
}

func newLedger(p *plan.Plan, progress func(phase string, done, total int64)) *ledger {
	return &ledger{plan: p, progress: progress, phase: "writing", states: make([]tensorState, len(p.Tensors)), changed: map[int]bool{}}
}

// state returns how far a tensor has come.
func (l *ledger) state(i int) tensorState {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.states[i]
}

// mark takes note of a tensor's new state.
func (l *ledger) mark(i int, s tensorState) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.states[i] = s
	l.changed[i] = true
}

// advance takes note of n bytes that were written or compared.
func (l *ledger) advance(n int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.ahead += n
	l.done += n
	l.progress(l.phase, l.done, l.total)
}

// lost lists the tensors with elements that are not finite, or not the source's.
func (l *ledger) lost() (lost []LostTensor) {
	for i := range l.states {
		if l.states[i].lost.Any() {
			lost = append(lost, LostTensor{l.plan.Tensors[i].Name, l.states[i].lost})
		}
	}
	return lost
}

// unflushed returns the bytes that were written or compared since the journal was last told.
func (l *ledger) unflushed() int64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.ahead
}

// unrecorded is what the journal does not know.
type unrecorded struct {
	lines   []any // for the journal
	files   []int // that hold the tensors
	written []int // tensors that are complete and to be proven; none without verification
}

// take returns what the journal does not know, and takes it for known.
func (l *ledger) take(unverified bool) (n unrecorded) {
	l.mu.Lock()
	defer l.mu.Unlock()
	inFile := map[int]bool{}
	for _, i := range slices.Sorted(maps.Keys(l.changed)) {
		s, t := &l.states[i], &l.plan.Tensors[i]
		lost := s.lost // a copy: the tensor goes on
		n.lines = append(n.lines, record{Tensor: i, Done: s.done, Lost: &lost, Proof: s.proof})
		inFile[t.File] = true
		if !unverified && s.done == t.Bytes() && (s.proof == nil || !s.proof.Compared) {
			n.written = append(n.written, i)
		}
	}
	clear(l.changed)
	l.ahead = 0
	n.files = slices.Sorted(maps.Keys(inFile))
	return n
}

// apply takes over what a journal says.
func (l *ledger) apply(r record) {
	if r.Ready || r.Tensor < 0 || r.Tensor >= len(l.states) {
		return
	}
	if r.Lost == nil {
		l.states[r.Tensor] = tensorState{}
		return
	}
	l.states[r.Tensor] = tensorState{done: r.Done, lost: *r.Lost, proof: r.Proof}
}
