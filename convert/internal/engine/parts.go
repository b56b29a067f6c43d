package engine

// Outputs in parts: runs that share a file system, on any machines, write and prove an output together,
// each its share of it, and one more joins what they recorded. No lock keeps two runs of a part apart: both write the
// same bytes, each with a journal of its own.

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"dsmoe/convert/checkpoint"
	"dsmoe/convert/format"
	"dsmoe/convert/internal/digest"
	"dsmoe/convert/internal/disk"
	"dsmoe/convert/internal/manifest"
	"dsmoe/convert/internal/progress"
	"dsmoe/convert/plan"
	"dsmoe/text"
)

// partOutput is an output on the disk that a run writes a part of.
type partOutput struct {
	*diskOutput
	part  plan.Part
	spans []plan.Span
	head  progress.Head // of this run's journal
	edges bool          // recorded by an earlier run
}

func newPartOutput(o *diskOutput, part plan.Part, spans []plan.Span) *partOutput {
	p := o.plan
	head := progress.Head{Format: progress.Format, Plan: p.Hash, Key: o.key, Options: p.Options, Sources: p.Sources, States: o.states}
	return &partOutput{diskOutput: o, part: part, spans: spans, head: head}
}

// partsDir is the directory with the journals of the parts, beside the directory that the output is assembled in.
func (p *place) partsDir() string { return strings.TrimSuffix(p.dir, "partial") + "parts" }

// partJournal is the journal of a run of a part.
type partJournal struct {
	plan.Part
	run int // from 1 on
}

// name is the name of the journal's file.
func (j partJournal) name() string { return fmt.Sprintf("%d-of-%d.%d.journal", j.I, j.N, j.run) }

// begin takes over what earlier runs of the part did.
func (o *partOutput) begin(apply func(progress.Record), _ func() error) (resumed bool, err error) {
	if err := o.checkParts(); err != nil {
		return false, err
	}
	all, err := o.journals()
	if err != nil {
		return false, err
	}
	runs, err := o.runsOf(o.part, all, o.spans)
	if err != nil {
		return false, err
	}
	states, ends := o.merge(runs, o.spans)
	for i := range states {
		apply(states[i].Record(o.spans[i].Index))
	}
	o.edges = ends != nil
	return true, nil
}

// open makes the directories, if no other part has, and opens the weight files that the part has spans in.
func (o *partOutput) open() error {
	for _, dir := range []string{o.partsDir(), o.dir} {
		if err := o.disk.Mkdir(dir); err != nil && !errors.Is(err, fs.ErrExist) {
			return err
		}
	}
	o.weights = make([]*disk.TileFile, len(o.plan.Files))
	o.head.Files = map[string]string{}
	for i := range o.spans {
		if at := o.spans[i].File; o.weights[at] == nil {
			if err := o.openFile(at, &o.spans[i]); err != nil {
				return err
			}
		}
	}
	return errors.Join(o.disk.SyncDir(o.dir), o.disk.SyncDir(filepath.Dir(o.dir)))
}

// openFile opens a weight file and gives it its size, unless another part has, and its identity to the head. The
// part with the first byte of the first tensor writes the header.
func (o *partOutput) openFile(i int, first *plan.Span) (err error) {
	f, err := o.disk.OpenSharedTiles(o.path(i))
	if err != nil {
		return err
	}
	o.weights[i] = f
	size := o.plan.Files[i].Size
	if stat, err := f.Stat(); err != nil || stat.Size() != size {
		if err := f.Reserve(size); err != nil {
			return err
		}
	}
	if first.From == 0 && (first.Index == 0 || o.plan.Tensors[first.Index-1].File != i) {
		if err := o.writeHeader(i); err != nil {
			return err
		}
	}
	o.head.Files[o.plan.Files[i].Name], err = disk.Inode(o.path(i))
	return errors.Join(err, f.Sync())
}

// edges returns the ends of a part, without hashes: a block more than to the first multiple of disk.Block, and than
// from the last one on. A part of a file that was removed, and made again, differs in them.
func edges(spans []plan.Span) []progress.Edge {
	first, last := &spans[0], &spans[len(spans)-1]
	begin, end := first.Offset+first.From, last.Offset+last.To
	tail := min(end&(disk.Block-1)+disk.Block, last.Size())
	return []progress.Edge{
		{File: first.File, Offset: begin, Bytes: min(-begin&(disk.Block-1)+disk.Block, first.Size())},
		{File: last.File, Offset: end - tail, Bytes: tail},
	}
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

// recordEdges hashes the ends of the part, which is proven, and records that.
func (o *partOutput) recordEdges() error {
	if len(o.spans) == 0 {
		return nil
	}
	r := progress.Record{Tensor: -1}
	for _, g := range edges(o.spans) {
		g, err := hashed(g, o.weights[g.File])
		if err != nil {
			return err
		}
		r.Edges = append(r.Edges, g)
	}
	return o.record(progress.Unrecorded{Lines: []progress.Record{r}})
}

// checkEdges compares the ends of a part with what it recorded: a network file system may lose what is written to one
// page by two machines.
func (o *diskOutput) checkEdges(part plan.Part, recorded []progress.Edge) error {
	for _, want := range recorded {
		f, err := os.Open(o.path(want.File))
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
				text.ExactBytes(want.Bytes), want.Offset, text.Quote(o.path(want.File))))
		}
	}
	return nil
}

// record makes the bytes of progress durable, and then the progress itself, in a journal of this run.
func (o *partOutput) record(n progress.Unrecorded) error {
	if o.journal == nil {
		if err := o.newJournal(); err != nil {
			return err
		}
	}
	return o.diskOutput.record(n)
}

// newJournal makes a journal for this run.
func (o *partOutput) newJournal() error {
	for run := 1; ; run++ {
		j, err := progress.CreateJournal(o.disk, filepath.Join(o.partsDir(), partJournal{o.part, run}.name()))
		if errors.Is(err, fs.ErrExist) {
			continue
		}
		if err != nil {
			return err
		}
		o.journal = j
		return errors.Join(o.journal.Begin(o.head), o.disk.SyncDir(o.partsDir()))
	}
}

// checkParts refuses to write a part where an output without parts, or with other parts, is unfinished.
func (o *partOutput) checkParts() error {
	if err := o.check(nil); err != nil {
		return err
	}
	if progress.Begun(o.journalPath) {
		return checkpoint.Refusal(o.dst, "an unfinished conversion that is not in parts is in "+text.Quote(o.dir),
			"the same command without --part finishes it")
	}
	assembled := exists(o.dir) // before the parts are looked at: another run may begin meanwhile
	parts, err := o.journals()
	switch {
	case err != nil:
		return err
	case len(parts) == 0 && assembled && !exists(o.partsDir()):
		return fmt.Errorf("%s exists, and no journal says that a conversion left it: remove it", text.Quote(o.dir))
	case len(parts) == 0 && !assembled:
		return checkFree(filepath.Dir(o.dir), o.plan.Size())
	}
	for _, p := range parts {
		if p.N != o.part.N {
			return o.otherParts(fmt.Sprintf("holds part %d of %d; this is part %d of %d", p.I, p.N, o.part.I, o.part.N))
		}
	}
	for _, j := range parts {
		if head, err := o.readJournalOf(j, nil); err != nil || head != nil {
			return cmp.Or(err, o.samePart(j.Part, head))
		}
	}
	return nil
}

// otherParts is the error for parts of another conversion.
func (o *diskOutput) otherParts(cause string) error {
	return checkpoint.Refusal(o.partsDir(), cause, "to start over, remove it and "+text.Quote(o.dir))
}

// samePart refuses a part of another plan, or of a source in another state, and says what differs.
func (o *diskOutput) samePart(p plan.Part, head *progress.Head) error {
	const most = 20
	name := fmt.Sprintf("part %d of %d", p.I, p.N)
	switch {
	case head.Plan != o.plan.Hash:
		list := append(manifest.OptionDifferences(head.Options, o.plan.Options),
			manifest.SourceDifferences(head.Sources, o.plan.Sources)...)
		return o.otherParts(name + " is of another conversion: " +
			cmp.Or(text.Some(list, most, "; "), "files without weights would be others"))
	case head.Key != o.key:
		changed := []string{}
		for _, file := range slices.Sorted(maps.Keys(head.States)) {
			if o.states[file] != head.States[file] {
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
	entries, err := os.ReadDir(o.partsDir())
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	for _, entry := range entries {
		var j partJournal
		if n, _ := fmt.Sscanf(entry.Name(), "%d-of-%d.%d.", &j.I, &j.N, &j.run); n < 3 || entry.Name() != j.name() {
			return nil, fmt.Errorf("%s is not the journal of a part: remove it",
				text.Quote(filepath.Join(o.partsDir(), entry.Name())))
		}
		list = append(list, j)
	}
	slices.SortFunc(list, func(a, b partJournal) int {
		return cmp.Or(cmp.Compare(a.N, b.N), cmp.Compare(a.I, b.I), cmp.Compare(a.run, b.run))
	})
	return list, err
}

// readJournalOf is readJournal: it hands the records of a run to apply and returns the head of its journal, nil without a whole head.
func (o *diskOutput) readJournalOf(j partJournal, apply func(progress.Record)) (*progress.Head, error) {
	f, _, err := format.OpenRegular(filepath.Join(o.partsDir(), j.name()))
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

// merge returns what is known to be done of each span, and the ends that were recorded last. Runs that wrote into other files than are there count for
// nothing, and bytes that a run rejected only if another has proven them since.
func (o *diskOutput) merge(runs []partRun, spans []plan.Span) (states []progress.State, ends []progress.Edge) {
	states = make([]progress.State, len(spans))
	runs = slices.DeleteFunc(runs, func(r partRun) bool { return !o.haveFiles(r.files) })
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

// haveFiles reports whether the files that are assembled have these identities.
func (o *diskOutput) haveFiles(identities map[string]string) bool {
	for name, inode := range identities {
		if now, err := disk.Inode(filepath.Join(o.dir, name)); err != nil || now != inode {
			return false
		}
	}
	return true
}

// runPart writes and proves a part of the output, and leaves its journal.
func runPart(ctx context.Context, dst string, p *plan.Plan, src Source, s Settings) (*Result, error) {
	if t := diskTarget(dst, p); isOutputOf(&t, p) {
		return &Result{Finished: true}, nil
	}
	e, err := newExecution(dst, p, src, s)
	if err != nil {
		return nil, err
	}
	all := newDiskOutput(dst, p, e.key, s)
	if all.states, err = src.States(); err != nil {
		return nil, err
	}
	o := newPartOutput(all, s.Part, e.Spans)
	e.out = o
	defer o.close()
	if err := e.begin(ctx); err != nil {
		return nil, err
	}
	already := e.Complete(e.Unverified) && (o.edges || len(e.Spans) == 0)
	for _, step := range []func() error{o.open, func() error { return e.writeAndProve(ctx) }, e.checkSource, o.recordEdges} {
		if err == nil && !already {
			err = step()
		}
	}
	return &Result{Already: already, Verified: !s.Unverified, Resumed: e.Resumed, Lost: e.lost()}, e.interrupted(err)
}

// refuseParts refuses to make the output in one run while parts of one are unfinished.
func refuseParts(dst string, p *plan.Plan, s Settings) error {
	o := newDiskOutput(dst, p, "", s)
	if parts, err := o.journals(); err != nil || len(parts) == 0 || isOutputOf(o.at(), p) {
		return err
	}
	return checkpoint.Refusal(dst, "parts of an unfinished conversion are in "+text.Quote(o.partsDir()),
		"--part and --finish complete it; to start over, remove that directory and "+text.Quote(o.dir))
}

// finishParts publishes the output that all parts have written: it makes the journal of a run that wrote and
// proved everything from the parts' journals, and continues that run.
func finishParts(ctx context.Context, dst string, p *plan.Plan, src Source, s Settings) (*Result, error) {
	key, err := src.Key()
	if err != nil {
		return nil, err
	}
	o := newDiskOutput(dst, p, key, s)
	if o.states, err = src.States(); err != nil {
		return nil, err
	}
	parts, err := o.journals()
	if err != nil {
		return nil, err
	}
	if progress.Begun(o.journalPath) || isOutputOf(o.at(), p) { // they were joined already
		if parts, err = o.ours(parts); err != nil {
			return nil, err
		}
	} else {
		if err := o.check(nil); err != nil {
			return nil, err
		}
		if len(parts) == 0 {
			return nil, checkpoint.Refusal(dst, "there are no parts that --finish could join", "--part I/N writes them")
		}
		if err := o.joinParts(parts, s.Unverified); err != nil {
			return nil, err
		}
	}
	r, err := run(ctx, dst, p, src, s)
	if err == nil && parts != nil {
		r.Parts, r.Resumed = parts[0].N, 0
		err = errors.Join(o.disk.RemoveAll(o.partsDir()), o.disk.SyncDir(filepath.Dir(o.partsDir())))
	}
	return r, err
}

// ours returns the parts if they are of this plan: those of another are not to be removed.
func (o *diskOutput) ours(parts []partJournal) ([]partJournal, error) {
	for _, j := range parts {
		if head, err := o.readJournalOf(j, nil); err != nil || head != nil && head.Plan != o.plan.Hash {
			return nil, err
		}
	}
	return parts, nil
}

// joinParts writes the journal of a run that did what all parts did.
func (o *diskOutput) joinParts(parts []partJournal, unverified bool) error {
	states, err := o.join(parts, unverified)
	if err != nil {
		return err
	}
	if o.journal, err = progress.LockJournal(o.disk, o.journalPath); err != nil {
		return err
	}
	defer o.close()
	lines := []progress.Record{{Ready: true, Tensor: -1}}
	for i := range states {
		lines = append(lines, states[i].Record(i))
	}
	if err := o.journal.Begin(progress.Head{Format: progress.Format, Plan: o.plan.Hash, Key: o.key}); err != nil {
		return err
	}
	return errors.Join(o.journal.Append(lines...), o.disk.SyncDir(filepath.Dir(o.dir)))
}

// join reads all parts and returns the states of the tensors. Parts that are missing or not done are one error.
func (o *diskOutput) join(parts []partJournal, unverified bool) ([]progress.State, error) {
	n := parts[0].N
	if last := parts[len(parts)-1].N; last != n {
		return nil, o.otherParts(fmt.Sprintf("holds parts of %d and parts of %d", n, last))
	}
	var missing, undone []int
	tensors := make([]joint, len(o.plan.Tensors))
	for i, spans := range o.plan.Shares(n) {
		part := plan.Part{I: i + 1, N: n}
		runs, err := o.runsOf(part, parts, spans)
		if err != nil {
			return nil, err
		}
		done, err := o.joinPart(part, runs, spans, tensors, unverified)
		switch {
		case err != nil:
			return nil, err
		case done:
		case runs == nil:
			missing = append(missing, part.I)
		default:
			undone = append(undone, part.I)
		}
	}
	if missing != nil || undone != nil {
		return nil, o.incomplete(n, missing, undone)
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

// joinPart adds the spans of a part to their tensors, and reports whether all are done.
func (o *diskOutput) joinPart(part plan.Part, runs []partRun, spans []plan.Span, tensors []joint,
	unverified bool) (done bool, err error) {
	l := progress.NewLedger(spans, nil)
	var ends []progress.Edge
	if l.States, ends = o.merge(runs, spans); !l.Complete(unverified) || ends == nil && len(spans) > 0 {
		return false, nil
	}
	for i := range spans {
		tensors[spans[i].Index].add(&spans[i], l.States[i])
	}
	return true, o.checkEdges(part, ends)
}

// incomplete is the error for parts that are missing, or not done.
func (o *diskOutput) incomplete(n int, missing, undone []int) error {
	var which []string
	if missing != nil {
		which = append(which, text.Ranges(missing)+" (no run recorded anything)")
	}
	if undone != nil {
		which = append(which, text.Ranges(undone)+" (no run ended and verified it, or its files are gone)")
	}
	return checkpoint.Refusal(o.dst, fmt.Sprintf("parts that are not done: %s, of %d; nothing was published",
		strings.Join(which, ", "), n), "run these parts, then --finish")
}

// joint is a tensor of which parts have written spans.
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
