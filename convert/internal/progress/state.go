// Package progress records how far each tensor of an output is: in memory for the workers of a run, and in the
// journal of an unfinished output for the run that continues it.
package progress

// The progress of one span, and its line in the journal.

import "dsmoe/model/tensor"

// State is the progress of one span: a tensor or, of an output in parts, a run of it.
type State struct {
	Done    int64 // bytes written
	Lost    Losses
	Proof   *Proof // nil until all bytes are written and hashed
	Partial *Proof // of the bytes written, of a span that is hashed while it is written; nil for others
}

// Proven reports whether the span was compared with its source.
func (s *State) Proven() bool { return s.Proof != nil && s.Proof.Compared }

// Record is the line of the journal about the span of a tensor.
func (s *State) Record(tensor int) Record {
	return Record{Tensor: tensor, Done: s.Done, Lost: s.Lost, Proof: s.Proof, Partial: s.Partial}
}

// Losses is what a span lost, with an entry per segment: sums of floating point depend on how they are grouped, and
// an output can be cut between segments. A segment that lost nothing has no entry, unless it is the last.
type Losses []tensor.Loss

// Next begins the entry of the next segment.
func (l *Losses) Next() {
	if n := len(*l); n > 0 && (*l)[n-1].Any() {
		*l = append(*l, tensor.Loss{})
	}
}

// Current returns the entry of the segment in work.
func (l Losses) Current() (lost tensor.Loss) {
	if len(l) > 0 {
		lost = l[len(l)-1]
	}
	return lost
}

// Set replaces the entry of the segment in work.
func (l *Losses) Set(lost tensor.Loss) {
	switch n := len(*l); {
	case n > 0:
		(*l)[n-1] = lost
	case lost.Any():
		*l = Losses{lost}
	}
}

// Total adds them up.
func (l Losses) Total() (sum tensor.Loss) {
	for _, lost := range l {
		sum.Add(lost)
	}
	return sum
}

// Proof is the proof of a finished tensor.
type Proof struct {
	Hash     string   `json:"hash"`
	Segments []string `json:"segments,omitempty"` // hashes of the sources' elements; nil if they were not hashed
	Compared bool     `json:"compared"`           // the output was read again and agrees with the source
}

// Edge is a run of bytes at an end of a part: those in a page that it shares with other parts, and some more.
type Edge struct {
	File   int    `json:"file"` // index in plan.Files
	Offset int64  `json:"offset"`
	Bytes  int64  `json:"bytes"`
	Hash   string `json:"hash"`
}

// Record is a line. A later line about a tensor replaces an earlier one.
type Record struct {
	Ready  bool  `json:"ready,omitempty"` // all files have their size and header
	Void   bool  `json:"void,omitempty"`  // earlier lines are void: an older output is being replaced
	Tensor int   `json:"t"`               // index in the plan; -1 for a line about no tensor
	Done   int64 `json:"n"`               // bytes written

	Lost    Losses `json:"losses,omitempty"` // of casts so far
	Proof   *Proof `json:"proof,omitempty"`  // of a finished tensor
	Partial *Proof `json:"begun,omitempty"`  // of the bytes written of another, if they were hashed

	Edges []Edge `json:"edges,omitempty"` // of a part that is done

	Published []string `json:"published,omitempty"` // the output is complete; these files are being moved into the target

	// Of an output in an object store.
	Run   string   `json:"run,omitempty"`   // names the run that writes the next lines
	ETags []string `json:"etags,omitempty"` // of the complete weight files, as plan.Files
	Older []string `json:"older,omitempty"` // files of the output that Published replaces
}
