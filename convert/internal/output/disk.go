package output

// An output on the disk: its lock and journal, its weight files, and how a run takes up the unfinished output of an
// earlier one.

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"dsmoe/convert/internal/disk"
	"dsmoe/convert/internal/progress"
	"dsmoe/convert/plan"
	"dsmoe/convert/source"
	"dsmoe/text"
	"dsmoe/text/problem"
)

// diskOutput is an output on the disk.
type diskOutput struct {
	place
	Options
	plan      *plan.Plan
	replaces  bool // the target holds an older output, to be replaced
	journal   *progress.Journal
	weights   []*disk.TileFile // open weight files, as plan.Files
	published []string         // files on their way from dir to dst; nil before publishing starts

	unchanged func() error // refuses to replace files that changed since they were written
}

func newDiskOutput(t *Target, p *plan.Plan, s Options) *diskOutput {
	o := &diskOutput{place: besideOf(t), Options: s, plan: p}
	stat, err := os.Stat(t.Path)
	if err != nil || !stat.IsDir() || t.IsFile() || exists(o.journalPath) || exists(o.partsDir) ||
		s.Overwrite && t.CheckReplaceable() == nil {
		return o
	}
	o.place = insideOf(t)
	return o
}

// Unfinished reports whether a journal is there, and whether the files move into the target one by one.
func (o *diskOutput) Unfinished() (unfinished, filling bool) {
	unfinished = progress.HasRecords(o.journalPath)
	return unfinished, unfinished && o.fills
}

// Begin locks the journal and opens the files, or moves those of a complete output into the target.
func (o *diskOutput) Begin(apply func(progress.Record), unchanged func() error) (Stage, error) {
	o.unchanged = unchanged
	var own []string
	if progress.HasRecords(o.journalPath) {
		own = o.plan.FinishOrder()
	}
	if err := o.check(own); err != nil {
		return Fresh, err
	}
	var err error
	if o.journal, err = progress.LockJournal(o.Disk, o.journalPath); err != nil {
		return Fresh, err
	}
	if !progress.HasRecords(o.journalPath) { // another run has finished meanwhile
		if err := o.check(nil); err != nil {
			err = errors.Join(err, o.Disk.Remove(o.journalPath))
			o.Close()
			return Fresh, err
		}
	}
	reached, err := o.open(apply)
	if err == nil {
		err = o.check(o.published) // another run may have finished meanwhile
	}
	if err == nil && reached == Ended {
		err = o.publish()
	}
	if err != nil {
		o.Close()
	}
	return reached, err
}

// check refuses a target that holds other files than those named own, unless it is an older
// output to be replaced.
func (o *diskOutput) check(own []string) error {
	if o.replaces = o.replacing(own); o.replaces {
		return o.CheckReplaceable()
	}
	err := o.place.check(own)
	if err == nil {
		return nil
	}
	irreplaceable := o.CheckReplaceable()
	switch {
	case o.Overwrite:
		return cmp.Or(irreplaceable, err)
	case irreplaceable == nil && own == nil:
		return o.AnotherOutput("--overwrite replaces it")
	}
	return err
}

// replacing reports whether the target holds an older output that is to be replaced; own are the
// files that may be of an unfinished run.
func (o *diskOutput) replacing(own []string) bool {
	return o.Overwrite && exists(o.Manifest) && (!o.fills || o.IsFile() && own == nil)
}

// Close closes the files and releases the lock.
func (o *diskOutput) Close() {
	o.closeFiles()
	if o.journal != nil {
		o.journal.Close()
	}
}

// Leftovers returns the hidden directory.
func (o *diskOutput) Leftovers() (dir string, bytes int64) {
	if !exists(o.dir) {
		return "", 0
	}
	return o.dir, disk.Used(o.dir)
}

// PathOf names a weight file in the hidden directory.
func (o *diskOutput) PathOf(file int) string { return filepath.Join(o.dir, o.plan.Files[file].Name) }

// WriteTile writes a run of bytes of a weight file.
func (o *diskOutput) WriteTile(file int, tile []byte, at int64) error {
	return o.weights[file].WriteTile(tile, at)
}

// ReadTile reads a run of bytes of a weight file.
func (o *diskOutput) ReadTile(file int, tile []byte, at int64) error {
	return o.weights[file].ReadTile(tile, at)
}

// Start has reads come from the disk.
func (o *diskOutput) Start() (readable bool, err error) {
	for _, f := range o.weights {
		if f != nil { // a part has not all
			f.DropCache(0, 0)
		}
	}
	return true, nil
}

// CompleteFiles does nothing: files can be read while they are written.
func (o *diskOutput) CompleteFiles() error { return nil }

// ReplaceManifest replaces the manifest: after a crash it is the old or the new one.
func (o *diskOutput) ReplaceManifest(write func(io.Writer) error) error {
	return o.Disk.ReplaceFile(o.Manifest, write)
}

func (o *diskOutput) closeFiles() {
	for _, f := range o.weights {
		if f != nil {
			f.Close()
		}
	}
}

// open reads the journal, then opens the files of the run that wrote it, or makes new ones.
func (o *diskOutput) open(apply func(progress.Record)) (Stage, error) {
	head := progress.HeadOf(o.plan, o.Key)
	ready := false
	old, err := o.journal.Read(func(r progress.Record) {
		ready = (ready || r.Ready) && !r.Void
		if r.Published != nil {
			o.published = r.Published
		}
		apply(r)
	})
	if err != nil {
		return Fresh, err
	}
	if old == nil && !o.journal.IsOurs() {
		return Fresh, fmt.Errorf("%s is not a journal of an unfinished conversion: remove it", text.Quote(o.journalPath))
	}
	if old != nil && !o.fills {
		if err := takeBack(o.Disk, o.Path); err != nil {
			return Fresh, err
		}
	}
	if o.replacing(o.published) || o.StartOver && o.replacing(nil) {
		if err := o.unchanged(); err != nil {
			if old == nil {
				err = errors.Join(err, o.Disk.Remove(o.journalPath))
			}
			return Fresh, err
		}
	}
	o.StartOver = o.StartOver || startsOver(old, &head)
	if old != nil && !o.StartOver {
		if old.Plan != head.Plan || old.Key != head.Key {
			return Fresh, refuseUnfinished(old, &head, o.Path, o.dir)
		}
		switch {
		case ready && o.published != nil:
			return Ended, nil
		case ready && o.reopen():
			return Resumed, nil
		}
	}
	return Fresh, o.create(head, old != nil)
}

// startsOver reports whether an unfinished output of the plan is begun again: nothing tells whether its source's files
// are the same now. old may be nil.
func startsOver(old, now *progress.Head) bool {
	return old != nil && old.Plan == now.Plan && strings.HasPrefix(now.Key, source.Unknown)
}

// refuseUnfinished is the error for an unfinished output in dir that is of another plan or another source than now.
func refuseUnfinished(old, now *progress.Head, dst, dir string) error {
	change := "with other options, or of another source"
	if old.Plan == now.Plan {
		change = "of these files, which were changed since"
	}
	return problem.New(dst, "an unfinished conversion "+change+" is in "+text.Quote(dir),
		"--no-resume starts over, dsmoe convert --discard DST removes it")
}

// reopen opens the files of the unfinished output if each has its planned size.
func (o *diskOutput) reopen() bool {
	for _, planned := range o.plan.Files {
		stat, err := os.Lstat(filepath.Join(o.dir, planned.Name))
		if err != nil || !stat.Mode().IsRegular() || stat.Size() != planned.Size {
			return false
		}
	}
	return o.openFiles(disk.ReadWrite) == nil
}

// OpenFinished opens the weight files of a finished output to read them.
func (o *diskOutput) OpenFinished() error {
	o.dir = o.home
	return o.openFiles(os.O_RDONLY)
}

func (o *diskOutput) openFiles(flag int) error {
	o.closeFiles()
	o.weights = make([]*disk.TileFile, len(o.plan.Files))
	for i, planned := range o.plan.Files {
		f, err := o.Disk.OpenTiles(filepath.Join(o.dir, planned.Name), flag)
		if err != nil {
			return err
		}
		o.weights[i] = f
	}
	return nil
}

// create makes new files. It removes files of an earlier run only if ours is true: the journal proves that a run left
// them. A target that is one file stays until the new file replaces it, and so does its manifest.
func (o *diskOutput) create(head progress.Head, ours bool) error {
	if ours {
		for _, name := range o.published {
			if o.IsFile() && exists(o.Path) {
				break
			}
			if err := o.Disk.Remove(filepath.Join(o.home, name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
				return err
			}
		}
		if err := o.Disk.RemoveAll(o.dir); err != nil {
			return err
		}
	}
	o.published = nil
	parent := filepath.Dir(o.dir)
	if err := checkFree(parent, o.plan.Size()); err != nil {
		o.Disk.Remove(o.journalPath)
		return err
	}
	if err := o.journal.Begin(head); err != nil {
		return err
	}
	if err := o.Disk.SyncDir(parent); err != nil {
		return err
	}
	if err := o.Disk.Mkdir(o.dir); err != nil {
		if errors.Is(err, fs.ErrExist) {
			o.Disk.Remove(o.journalPath)
			err = fmt.Errorf("%s exists, and no journal says that a conversion left it: remove it", text.Quote(o.dir))
		}
		return err
	}
	return o.layOut()
}

// layOut gives every file its size and its header, then records that in the journal.
func (o *diskOutput) layOut() error {
	if err := o.openFiles(disk.ReadWrite); err != nil {
		return err
	}
	for i, f := range o.weights {
		if err := f.Reserve(o.plan.Files[i].Size); err != nil {
			return err
		}
		if err := o.writeHeader(i); err != nil {
			return err
		}
		if err := f.Sync(); err != nil {
			return err
		}
	}
	if err := o.Disk.SyncDir(o.dir); err != nil {
		return err
	}
	return o.journal.Append(progress.Record{Ready: true, Tensor: -1})
}

func (o *diskOutput) writeHeader(i int) error {
	header, err := o.plan.Header(i)
	if err == nil {
		_, err = o.weights[i].WriteAt(header, 0)
	}
	return err
}

// Record makes the data of these files durable, then appends the lines about them to the
// journal. Finished tensors leave the page cache: the next ones take their memory, and not that of other files.
func (o *diskOutput) Record(n progress.Unrecorded) error {
	for _, i := range n.Files {
		if err := o.weights[i].Sync(); err != nil {
			return err
		}
	}
	for _, r := range n.Lines {
		if r.Proof != nil {
			t := &o.plan.Tensors[r.Tensor]
			o.weights[t.File].DropCache(t.Offset, t.Bytes())
		}
	}
	return o.journal.Append(n.Lines...)
}
