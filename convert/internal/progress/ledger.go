package progress

// The progress of all spans.

import (
	"maps"
	"slices"
	"sync"

	"dsmoe/convert/plan"
)

// Ledger is the progress of all spans of a run. Its methods are safe for concurrent use by the workers; States is
// used directly only while no worker runs.
type Ledger struct {
	Spans    []plan.Span
	States   []State // as Spans
	Resumed  int64   // bytes that an earlier run wrote
	progress func(phase string, done, total int64)

	mu      sync.Mutex
	changed map[int]bool // spans whose state is not in the journal
	phase   string       // for progress
	ahead   int64        // bytes written or compared that the journal does not record
	done    int64        // bytes written plus bytes compared
	total   int64        // done at the end of the phase
}

// NewLedger returns a ledger of spans without any progress.
func NewLedger(spans []plan.Span, progress func(phase string, done, total int64)) *Ledger {
	return &Ledger{Spans: spans, progress: progress, States: make([]State, len(spans)), changed: map[int]bool{}}
}

// Bytes returns the bytes of all spans.
func (l *Ledger) Bytes() (n int64) {
	for i := range l.Spans {
		n += l.Spans[i].Size()
	}
	return n
}

// StartPhase starts the progress of a phase with total bytes.
func (l *Ledger) StartPhase(phase string, total int64) { l.phase, l.done, l.total = phase, 0, total }

// Apply takes over a record of the journal.
func (l *Ledger) Apply(r Record) {
	if r.Ready || r.Tensor < 0 || len(l.Spans) == 0 {
		return
	}
	if i := r.Tensor - l.Spans[0].Index; i >= 0 && i < len(l.Spans) { // the spans are of neighbours
		l.States[i] = State{Done: r.Done, Lost: r.Lost, Proof: r.Proof, Partial: r.Partial}
	}
}

// Resume counts the bytes of the applied records. A span that is hashed while it is
// written, and has no hash of what was written, starts over.
func (l *Ledger) Resume(hashesWriting func(*plan.Tensor) bool) {
	for i := range l.States {
		s := &l.States[i]
		if s.Proof == nil && s.Partial == nil && hashesWriting(l.Spans[i].Tensor) {
			*s = State{}
		}
		l.Resumed += s.Done
		if s.Proven() {
			l.done += s.Done
		}
	}
	l.done += l.Resumed
}

// State returns the state of a span.
func (l *Ledger) State(i int) State {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.States[i]
}

// Mark sets the state of a span.
func (l *Ledger) Mark(i int, s State) {
	l.mu.Lock()
	defer l.mu.Unlock()
	s.Lost = slices.Clone(s.Lost) // the caller goes on adding
	l.States[i] = s
	l.changed[i] = true
}

// Advance counts n more bytes written or compared.
func (l *Ledger) Advance(n int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.ahead += n
	l.done += n
	l.progress(l.phase, l.done, l.total)
}

// Complete reports whether every span is written and proven or, unverified, hashed.
func (l *Ledger) Complete(unverified bool) bool {
	for i := range l.States {
		s := &l.States[i]
		if s.Done < l.Spans[i].Size() || s.Proof == nil || !unverified && !s.Proof.Compared {
			return false
		}
	}
	return true
}

// Unflushed returns the bytes written or compared that the journal does not record.
func (l *Ledger) Unflushed() int64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.ahead
}

// Unrecorded is the progress that the journal does not record.
type Unrecorded struct {
	Lines []Record // for the journal
	Files []int    // weight files with their bytes
}

// Take returns the progress that the journal does not record, and counts it as recorded.
func (l *Ledger) Take() (n Unrecorded) {
	l.mu.Lock()
	defer l.mu.Unlock()
	inFile := map[int]bool{}
	for _, i := range slices.Sorted(maps.Keys(l.changed)) {
		s, t := &l.States[i], &l.Spans[i]
		n.Lines = append(n.Lines, s.Record(t.Index))
		inFile[t.File] = true
	}
	clear(l.changed)
	l.ahead = 0
	n.Files = slices.Sorted(maps.Keys(inFile))
	return n
}
