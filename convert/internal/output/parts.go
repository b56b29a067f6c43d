package output

// Outputs in parts: runs that share a file system, on any machines, write and prove an output together,
// each its share of it, and one more joins what they recorded. No lock keeps two runs of a part apart: both write the
// same bytes, each with a journal of its own.

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"dsmoe/convert/internal/disk"
	"dsmoe/convert/internal/progress"
	"dsmoe/text"
	"dsmoe/text/problem"
)

// partOutput is an output on the disk that a run writes a part of.
type partOutput struct {
	*diskOutput
	head progress.Head // of this run's journal
}

// Begin takes over what earlier runs of the part did. It refuses to write a part where an output without parts, or with
// other parts, is unfinished.
func (o *partOutput) Begin(apply func(progress.Record), _ func() error) (Stage, error) {
	if err := o.check(nil); err != nil {
		return Fresh, err
	}
	if progress.HasRecords(o.journalPath) {
		return Fresh, problem.New(o.Path, "an unfinished conversion that is not in parts is in "+text.Quote(o.dir),
			"the same command without --part finishes it")
	}
	assembled := exists(o.dir) // before the parts are looked at: another run may begin meanwhile
	parts, err := o.journals()
	switch {
	case err != nil:
		return Fresh, err
	case len(parts) == 0 && assembled && !exists(o.partsDir):
		return Fresh, fmt.Errorf("%s exists, and no journal says that a conversion left it: remove it", text.Quote(o.dir))
	case len(parts) == 0 && !assembled:
		err = checkFree(filepath.Dir(o.dir), o.plan.Size())
	}
	for _, j := range parts {
		if j.N != o.Part.N {
			return Fresh, o.otherParts(fmt.Sprintf("holds part %d of %d; this is part %d of %d", j.I, j.N, o.Part.I, o.Part.N))
		}
	}
	var head *progress.Head // the first that is whole
	for i := 0; err == nil && head == nil && i < len(parts); i++ {
		if head, err = o.readJournalOf(parts[i], nil); head != nil {
			err = o.samePart(parts[i].Part, head)
		}
	}
	if err != nil {
		return Fresh, err
	}
	runs, err := o.runsOf(o.Part, parts, o.Spans)
	if err != nil {
		return Fresh, err
	}
	states, ends := o.merge(runs, o.Spans)
	for i := range states {
		apply(states[i].Record(o.Spans[i].Index))
	}
	if ends != nil || len(o.Spans) == 0 {
		return Ended, nil
	}
	return Resumed, nil
}

// Start makes the directories, if no other part has, and opens the weight files that the part has spans in. It gives
// each file its size, unless another part has, and writes the file's identity into the head. The part with the first
// byte of the first tensor writes the header.
func (o *partOutput) Start() (readable bool, err error) {
	for _, dir := range []string{o.partsDir, o.dir} {
		if err := o.Disk.Mkdir(dir); err != nil && !errors.Is(err, fs.ErrExist) {
			return false, err
		}
	}
	o.weights = make([]*disk.TileFile, len(o.plan.Files))
	o.head.Files = map[string]string{}
	for i := range o.Spans {
		first := &o.Spans[i]
		file := first.File
		if o.weights[file] != nil {
			continue
		}
		f, err := o.Disk.OpenTiles(o.PathOf(file), disk.ReadWrite|os.O_SYNC)
		if err != nil {
			return false, err
		}
		o.weights[file] = f
		size := o.plan.Files[file].Size
		if stat, err := f.Stat(); err != nil || stat.Size() != size {
			if err := f.Reserve(size); err != nil {
				return false, err
			}
		}
		if first.From == 0 && (first.Index == 0 || o.plan.Tensors[first.Index-1].File != file) {
			if err := o.writeHeader(file); err != nil {
				return false, err
			}
		}
		o.head.Files[o.plan.Files[file].Name], err = disk.Inode(o.PathOf(file))
		if err := errors.Join(err, f.Sync()); err != nil {
			return false, err
		}
	}
	if err := errors.Join(o.Disk.SyncDir(o.dir), o.Disk.SyncDir(filepath.Dir(o.dir))); err != nil {
		return false, err
	}
	return o.diskOutput.Start()
}

// Commit hashes the ends of the part, which is proven, and records that: a block more than to the first multiple of
// disk.Block, and than from the last one on. A part of a file that was removed, and made again, differs in them.
func (o *partOutput) Commit(func(name string) func(io.Writer) error) (replaced bool, err error) {
	if len(o.Spans) == 0 {
		return false, nil
	}
	first, last := &o.Spans[0], &o.Spans[len(o.Spans)-1]
	begin, end := first.Offset+first.From, last.Offset+last.To
	tail := min(end&(disk.Block-1)+disk.Block, last.Size())
	r := progress.Record{Tensor: -1}
	for _, g := range []progress.Edge{
		{File: first.File, Offset: begin, Bytes: min(-begin&(disk.Block-1)+disk.Block, first.Size())},
		{File: last.File, Offset: end - tail, Bytes: tail},
	} {
		g, err := hashed(g, o.weights[g.File])
		if err != nil {
			return false, err
		}
		r.Edges = append(r.Edges, g)
	}
	return false, o.Record(progress.Unrecorded{Lines: []progress.Record{r}})
}

// Record makes the bytes of progress durable, and then the progress itself, in a journal of this run.
func (o *partOutput) Record(n progress.Unrecorded) error {
	for run := 1; o.journal == nil; run++ {
		j, err := progress.CreateJournal(o.Disk, filepath.Join(o.partsDir, partJournal{o.Part, run}.name()))
		if errors.Is(err, fs.ErrExist) {
			continue
		}
		if err != nil {
			return err
		}
		o.journal = j
		if err := errors.Join(j.Begin(o.head), o.Disk.SyncDir(o.partsDir)); err != nil {
			return err
		}
	}
	return o.diskOutput.Record(n)
}
