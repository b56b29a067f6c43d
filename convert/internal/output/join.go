package output

// Parts become one output: their journals are joined, and the hashes of the spans that they wrote.

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"

	"dsmoe/convert/internal/progress"
	"dsmoe/convert/plan"
	"dsmoe/model/digest"
	"dsmoe/text"
	"dsmoe/text/problem"
)

// RefuseParts refuses to make the output in one run while parts of one are unfinished.
func RefuseParts(t *Target, p *plan.Plan, s Options) error {
	o := newDiskOutput(t, p, s)
	if parts, err := o.journals(); err != nil || len(parts) == 0 || t.IsOutputOf(p) {
		return err
	}
	return problem.New(o.Path, "parts of an unfinished conversion are in "+text.Quote(o.partsDir),
		"--part and --finish complete it; to start over, remove it by dsmoe convert --discard DST")
}

// JoinParts makes the journal of a run that wrote and proved everything from the journals of all n parts. n is 0 if
// they were joined before, and are gone or are parts of another plan. remove removes their journals: call it when
// that run has published the output.
func JoinParts(t *Target, p *plan.Plan, s Options, unverified bool) (n int, remove func() error, err error) {
	o := newDiskOutput(t, p, s)
	parts, err := o.journals()
	if err != nil {
		return 0, nil, err
	}
	if progress.HasRecords(o.journalPath) || t.IsOutputOf(p) { // they were joined already
		for _, j := range parts {
			head, err := o.readJournalOf(j, nil)
			if errors.Is(err, fs.ErrNotExist) { // the run that joined them is done
				return 0, nil, nil
			}
			if err != nil || head != nil && head.Plan != p.Hash { // the journals of another plan are not removed
				return 0, nil, err
			}
		}
	} else {
		var states []progress.State
		if err = o.check(nil); err == nil {
			states, err = o.join(parts, unverified)
		}
		switch {
		case err == nil:
			if err = o.writeJoined(states); err != nil && t.IsOutputOf(p) {
				return 0, nil, nil
			}
		case progress.HasRecords(o.journalPath): // another run has joined them meanwhile
			return 0, nil, progress.ErrBusy
		case t.IsOutputOf(p): // and published the output
			return 0, nil, nil
		}
	}
	if err != nil || len(parts) == 0 {
		return 0, nil, err
	}
	return parts[0].N, func() error {
		return errors.Join(o.Disk.RemoveAll(o.partsDir), o.Disk.SyncDir(filepath.Dir(o.partsDir)))
	}, nil
}

// writeJoined writes the journal of a run that did what all parts did.
func (o *diskOutput) writeJoined(states []progress.State) (err error) {
	if o.journal, err = progress.LockJournal(o.Disk, o.journalPath); err != nil {
		return err
	}
	defer o.Close()
	if err := o.check(nil); err != nil { // another run has published the output since the parts were read
		if !progress.HasRecords(o.journalPath) {
			err = errors.Join(err, o.Disk.Remove(o.journalPath))
		}
		return err
	}
	lines := []progress.Record{{Ready: true, Tensor: -1}}
	for i := range states {
		lines = append(lines, states[i].Record(i))
	}
	if err := o.journal.Begin(progress.HeadOf(o.plan, o.Key)); err != nil {
		return err
	}
	return errors.Join(o.journal.Append(lines...), o.Disk.SyncDir(filepath.Dir(o.dir)))
}

// join reads all parts and returns the states of the tensors. Parts that are missing or not done are one error.
func (o *diskOutput) join(parts []partJournal, unverified bool) ([]progress.State, error) {
	if len(parts) == 0 {
		return nil, problem.New(o.Path, "there are no parts that --finish could join", "--part I/N writes them")
	}
	n := parts[0].N
	if last := parts[len(parts)-1].N; last != n {
		return nil, o.otherParts(fmt.Sprintf("holds parts of %d and parts of %d", n, last))
	}
	var missing, undone []int
	tensors := make([]joint, len(o.plan.Tensors))
	share := o.plan.Shares(n)
	for i := 1; i <= n; i++ {
		part, spans := plan.Part{I: i, N: n}, share(i)
		runs, err := o.runsOf(part, parts, spans)
		if err != nil {
			return nil, err
		}
		l := progress.NewLedger(spans, nil)
		var ends []progress.Edge
		l.States, ends = o.merge(runs, spans)
		switch done := l.Complete(unverified) && (ends != nil || len(spans) == 0); {
		case !done && runs == nil:
			missing = append(missing, i)
			continue
		case !done:
			undone = append(undone, i)
			continue
		}
		for k := range spans {
			tensors[spans[k].Index].add(&spans[k], l.States[k])
		}
		if err := o.checkEdges(part, ends); err != nil {
			return nil, err
		}
	}
	var which []string
	if missing != nil {
		which = append(which, text.Ranges(missing)+" (no run recorded anything)")
	}
	if undone != nil {
		which = append(which, text.Ranges(undone)+" (no run ended and verified it, or its files are gone)")
	}
	if which != nil {
		return nil, problem.New(o.Path, fmt.Sprintf("parts that are not done: %s, of %d; nothing was published",
			strings.Join(which, ", "), n), "run these parts, then --finish")
	}
	states := make([]progress.State, len(tensors))
	for i := range tensors {
		if err := tensors[i].join(&o.plan.Tensors[i]); err != nil {
			return nil, fmt.Errorf("tensor %s: %w", text.Quote(o.plan.Tensors[i].Name), err)
		}
		states[i] = tensors[i].State
	}
	return states, nil
}

// joint is a tensor whose spans were written by parts.
type joint struct {
	progress.State
	hashes   []string   // of the spans; nil if one is the whole tensor
	segments [][]string // hashes of the spans' runs of each segment
}

// add adds the next span.
func (j *joint) add(t *plan.Span, s progress.State) {
	if t.Whole() {
		j.State = s
		return
	}
	if j.hashes == nil {
		j.segments = make([][]string, len(t.Segments))
		j.Proof = &progress.Proof{Compared: true}
	}
	j.Done += s.Done
	j.Lost = append(j.Lost, s.Lost...)
	j.Proof.Compared = j.Proof.Compared && s.Proof.Compared
	j.hashes = append(j.hashes, s.Proof.Hash)
	first, _ := t.FirstSegment()
	for i, name := range s.Proof.Segments[:min(len(s.Proof.Segments), len(j.segments)-first)] {
		j.segments[first+i] = append(j.segments[first+i], name)
	}
}

// join joins the hashes of the spans and, if the source was hashed, the hashes of the segments.
func (j *joint) join(t *plan.Tensor) (err error) {
	if j.hashes == nil {
		return nil
	}
	if j.Proof.Hash, err = digest.Join(j.hashes...); err != nil {
		return err
	}
	if slices.ContainsFunc(j.segments, func(names []string) bool { return len(names) == 0 }) {
		return nil
	}
	j.Proof.Segments = make([]string, len(t.Segments))
	for i, names := range j.segments {
		if t.Segments[i].Operation.Unit().In > 0 { // else nothing was read
			if j.Proof.Segments[i], err = digest.Join(names...); err != nil {
				return err
			}
		}
	}
	return nil
}
