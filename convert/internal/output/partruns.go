package output

// What the runs of parts recorded in their journals, and whether it holds.

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"

	"dsmoe/convert/format"
	"dsmoe/convert/internal/disk"
	"dsmoe/convert/internal/manifest"
	"dsmoe/convert/internal/progress"
	"dsmoe/convert/plan"
	"dsmoe/model/digest"
	"dsmoe/text"
	"dsmoe/text/problem"
)

// partJournal is the journal of a run of a part.
type partJournal struct {
	plan.Part
	run int // from 1 on
}

// name is the name of the journal's file.
func (j partJournal) name() string { return fmt.Sprintf("%d-of-%d.%d.journal", j.I, j.N, j.run) }

// otherParts is the error for parts of another conversion.
func (o *diskOutput) otherParts(cause string) error {
	return problem.In(o.Path, problem.Problem{File: o.partsDir, Cause: cause,
		Hint: "to start over, remove it by dsmoe convert --discard DST"})
}

// samePart refuses a part of another plan, or of a source in another state, and says what differs.
func (o *diskOutput) samePart(p plan.Part, head *progress.Head) error {
	const most = 20
	name := fmt.Sprintf("part %d of %d", p.I, p.N)
	switch {
	case head.Plan != o.plan.Hash:
		list := manifest.Differences(head.Options, head.Sources, o.plan)
		return o.otherParts(name + " is of another conversion: " +
			cmp.Or(text.Some(list, most, "; "), "files without weights would be others"))
	case head.Key != o.Key:
		changed := []string{}
		for _, file := range slices.Sorted(maps.Keys(head.States)) {
			if o.States[file] != head.States[file] {
				changed = append(changed, text.Quote(file))
			}
		}
		return o.otherParts(name + " was written when these files of the source were others, or before they changed: " +
			text.Some(changed, most, ", "))
	}
	return nil
}

// journals lists the journals of all parts, in order.
func (o *diskOutput) journals() (list []partJournal, err error) {
	entries, err := os.ReadDir(o.partsDir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	for _, entry := range entries {
		var j partJournal
		if n, _ := fmt.Sscanf(entry.Name(), "%d-of-%d.%d.", &j.I, &j.N, &j.run); n < 3 || entry.Name() != j.name() ||
			j.I < 1 || j.I > j.N || j.N > plan.MaxParts {
			return nil, fmt.Errorf("%s is not the journal of a part: remove it",
				text.Quote(filepath.Join(o.partsDir, entry.Name())))
		}
		list = append(list, j)
	}
	slices.SortFunc(list, func(a, b partJournal) int {
		return cmp.Or(cmp.Compare(a.N, b.N), cmp.Compare(a.I, b.I), cmp.Compare(a.run, b.run))
	})
	return list, err
}

// readJournalOf hands the records of a run to apply and returns the head of its journal, nil without a whole head.
func (o *diskOutput) readJournalOf(j partJournal, apply func(progress.Record)) (*progress.Head, error) {
	f, _, err := format.OpenRegular(filepath.Join(o.partsDir, j.name()))
	if err != nil {
		return nil, err
	}
	defer f.Close()
	head, _, err := progress.ReadJournal(f, apply)
	return head, err
}

// partRun is what a run of a part recorded.
type partRun struct {
	files    map[string]string // identities of the weight files
	states   []progress.State
	edges    []progress.Edge
	rejected map[int]bool // spans whose bytes were found to be others than the source gives
}

// runsOf reads the journals of a part. One of another conversion is an error.
func (o *diskOutput) runsOf(p plan.Part, all []partJournal, spans []plan.Span) (runs []partRun, err error) {
	for _, j := range all {
		if j.Part != p {
			continue
		}
		l, run := progress.NewLedger(spans, nil), partRun{rejected: map[int]bool{}}
		head, err := o.readJournalOf(j, func(r progress.Record) {
			l.Apply(r)
			if r.Edges != nil {
				run.edges = r.Edges
			}
			if r.Done == 0 && r.Proof == nil {
				run.rejected[r.Tensor] = true
			}
		})
		if err == nil && head != nil {
			err = o.samePart(p, head)
		}
		if err != nil {
			return nil, err
		}
		if head != nil {
			run.files, run.states = head.Files, l.States
			runs = append(runs, run)
		}
	}
	return runs, nil
}

// merge returns what is known to be done of each span, and the ends that were recorded last. Runs that wrote into
// other files than are there count for nothing, and bytes that a run rejected only if another has proven them since.
func (o *diskOutput) merge(runs []partRun, spans []plan.Span) (states []progress.State, ends []progress.Edge) {
	states = make([]progress.State, len(spans))
	runs = slices.DeleteFunc(runs, func(r partRun) bool {
		for name, inode := range r.files {
			if now, err := disk.Inode(filepath.Join(o.dir, name)); err != nil || now != inode {
				return true
			}
		}
		return false
	})
	for i := range spans {
		rejected := slices.ContainsFunc(runs, func(r partRun) bool { return r.rejected[spans[i].Index] })
		for _, r := range runs {
			if s := r.states[i]; s.Proven() || !rejected && !states[i].Proven() && s.Done >= states[i].Done {
				states[i] = s
			}
		}
	}
	for _, r := range runs {
		if r.edges != nil {
			ends = r.edges
		}
	}
	return states, ends
}

// hashed returns an edge with the hash of the bytes that f has there; a file that is cut short has fewer.
func hashed(g progress.Edge, f io.ReaderAt) (progress.Edge, error) {
	data := make([]byte, g.Bytes)
	n, err := f.ReadAt(data, g.Offset)
	if g.Hash = digest.Of(data[:n]); err == io.EOF {
		err = nil
	}
	return g, err
}

// checkEdges compares the ends of a part with what it recorded: a network file system may lose what is written to one
// page by two machines.
func (o *diskOutput) checkEdges(part plan.Part, recorded []progress.Edge) error {
	for _, want := range recorded {
		f, err := os.Open(o.PathOf(want.File))
		if err != nil {
			return err
		}
		got, err := hashed(want, f)
		if err = errors.Join(err, f.Close()); err != nil {
			return err
		}
		if got != want {
			return o.otherParts(fmt.Sprintf("part %d of %d has written %s that are others now, at %d of %s: "+
				"the file was changed, or the file system does not keep what several machines write into one page", part.I, part.N,
				text.ExactBytes(want.Bytes), want.Offset, text.Quote(o.PathOf(want.File))))
		}
	}
	return nil
}
