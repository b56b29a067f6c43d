package engine

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

	"dsmoe/convert/checkpoint"
	"dsmoe/convert/internal/disk"
	"dsmoe/convert/internal/progress"
	"dsmoe/convert/plan"
	"dsmoe/text"
)

// diskOutput is an output on the disk.
type diskOutput struct {
	place
	options
	plan      *plan.Plan
	replaces  bool // the target holds an older output, to be replaced
	journal   *progress.Journal
	weights   []*disk.TileFile // open weight files, as plan.Files
	published []string         // files on their way from dir to dst; nil before publishing starts

	unchanged func() error // refuses to replace files that changed since they were written
}

func newDiskOutput(t *target, p *plan.Plan, s options) *diskOutput {
	o := &diskOutput{place: placeOf(t), options: s, plan: p}
	if s.overwrite && t.checkReplaceable() == nil {
		o.place = besideOf(t)
	}
	return o
}

// unfinished reports whether a journal is there, and whether the files move into the target one by one.
func (o *diskOutput) unfinished() (begins, filling bool) {
	begins = progress.Begun(o.journalPath)
	return begins, begins && o.fills
}

// begin locks the journal and opens the files.
func (o *diskOutput) begin(apply func(progress.Record), unchanged func() error) (stage, error) {
	o.unchanged = unchanged
	var own []string
	if progress.Begun(o.journalPath) {
		own = o.plan.FinishOrder()
	}
	if err := o.check(own); err != nil {
		return fresh, err
	}
	var err error
	if o.journal, err = progress.LockJournal(o.disk, o.journalPath); err != nil {
		return fresh, err
	}
	reached, err := o.open(apply)
	if err == nil {
		err = o.check(o.published) // another run may have finished meanwhile
	}
	if err == nil && reached == ended {
		err = o.publish()
	}
	if err != nil {
		o.close()
	}
	return reached, err
}

// check refuses a target that holds other files than those named own, unless it is an older
// output to be replaced.
func (o *diskOutput) check(own []string) error {
	if o.replaces = o.replacing(own); o.replaces {
		return o.checkReplaceable()
	}
	err := o.place.check(own)
	if err == nil {
		return nil
	}
	irreplaceable := o.checkReplaceable()
	switch {
	case o.overwrite:
		return cmp.Or(irreplaceable, err)
	case irreplaceable == nil && own == nil:
		return o.isAnother("--overwrite replaces it")
	}
	return err
}

// replacing reports whether the target holds an older output that is to be replaced; own are the
// files that may be of an unfinished run.
func (o *diskOutput) replacing(own []string) bool {
	return o.overwrite && exists(o.manifest) && (!o.fills || o.isFile() && own == nil)
}

// close closes the files and releases the lock.
func (o *diskOutput) close() {
	o.closeFiles()
	if o.journal != nil {
		o.journal.Close()
	}
}

// leftovers returns the hidden directory.
func (o *diskOutput) leftovers() (dir string, bytes int64) {
	if !exists(o.dir) {
		return "", 0
	}
	return o.dir, disk.Used(o.dir)
}

func (o *diskOutput) path(file int) string { return filepath.Join(o.dir, o.plan.Files[file].Name) }

func (o *diskOutput) writeTile(file int, tile []byte, at int64) error {
	return o.weights[file].WriteTile(tile, at)
}

func (o *diskOutput) readTile(file int, tile []byte, at int64) error {
	return o.weights[file].ReadTile(tile, at)
}

// start has reads come from the disk.
func (o *diskOutput) start() (readable bool, err error) {
	for _, f := range o.weights {
		if f != nil { // a part has not all
			f.DropCache()
		}
	}
	return true, nil
}

func (o *diskOutput) completeFiles() error { return nil }

func (o *diskOutput) replaceManifest(write func(io.Writer) error) error {
	return o.disk.ReplaceFile(o.manifest, write)
}

func (o *diskOutput) closeFiles() {
	for _, f := range o.weights {
		if f != nil {
			f.Close()
		}
	}
}

// open reads the journal, then opens the files of the run that wrote it, or makes new ones.
func (o *diskOutput) open(apply func(progress.Record)) (stage, error) {
	head := progress.Head{Format: progress.Format, Plan: o.plan.Hash, Key: o.key}
	ready := false
	old, err := o.journal.Read(func(r progress.Record) {
		ready = (ready || r.Ready) && !r.Void
		if r.Published != nil {
			o.published = r.Published
		}
		apply(r)
	})
	if err != nil {
		return fresh, err
	}
	if old == nil && !o.journal.IsOurs() {
		return fresh, fmt.Errorf("%s is not a journal of an unfinished conversion: remove it", text.Quote(o.journalPath))
	}
	if old != nil && !o.fills {
		if err := takeBack(o.disk, o.dst); err != nil {
			return fresh, err
		}
	}
	if o.replacing(o.published) || o.startOver && o.replacing(nil) {
		if err := o.unchanged(); err != nil {
			if old == nil {
				err = errors.Join(err, o.disk.Remove(o.journalPath))
			}
			return fresh, err
		}
	}
	if old != nil && !o.startOver {
		if old.Plan != head.Plan || old.Key != head.Key {
			return fresh, refuseUnfinished(old, &head, o.dst, o.dir)
		}
		switch {
		case ready && o.published != nil:
			return ended, nil
		case ready && o.reopen():
			return resumed, nil
		}
	}
	return fresh, o.create(head, old != nil)
}

// refuseUnfinished is the error for an unfinished output in dir that is of another plan or another source than now.
func refuseUnfinished(old, now *progress.Head, dst, dir string) error {
	change := "with other options, or of another source"
	if old.Plan == now.Plan {
		change = "of these files, which were changed since"
	}
	return checkpoint.Refusal(dst, "an unfinished conversion "+change+" is in "+text.Quote(dir),
		"--no-resume starts over")
}

// reopen opens the files of the unfinished output if each has its planned size.
func (o *diskOutput) reopen() bool {
	for _, planned := range o.plan.Files {
		stat, err := os.Lstat(filepath.Join(o.dir, planned.Name))
		if err != nil || !stat.Mode().IsRegular() || stat.Size() != planned.Size {
			return false
		}
	}
	return o.openFiles(o.disk.OpenTiles) == nil
}

// openFinished opens the weight files of a finished output to read them.
func (o *diskOutput) openFinished() error {
	o.dir = o.home
	return o.openFiles(o.disk.OpenTilesToRead)
}

func (o *diskOutput) openFiles(open func(path string) (*disk.TileFile, error)) error {
	o.closeFiles()
	o.weights = make([]*disk.TileFile, len(o.plan.Files))
	for i, planned := range o.plan.Files {
		f, err := open(filepath.Join(o.dir, planned.Name))
		if err != nil {
			return err
		}
		o.weights[i] = f
	}
	return nil
}

// create makes new files. It removes existing files only if ours is true: the journal
// proves that a run left them.
func (o *diskOutput) create(head progress.Head, ours bool) error {
	if ours {
		if err := o.discard(); err != nil {
			return err
		}
	}
	o.published = nil
	parent := filepath.Dir(o.dir)
	if err := checkFree(parent, o.plan.Size()); err != nil {
		o.disk.Remove(o.journalPath)
		return err
	}
	if err := o.journal.Begin(head); err != nil {
		return err
	}
	if err := o.disk.SyncDir(parent); err != nil {
		return err
	}
	if err := o.disk.Mkdir(o.dir); err != nil {
		if errors.Is(err, fs.ErrExist) {
			o.disk.Remove(o.journalPath)
			err = fmt.Errorf("%s exists, and no journal says that a conversion left it: remove it", text.Quote(o.dir))
		}
		return err
	}
	return o.layOut()
}

// discard removes the files of an earlier run. A target that is one file stays until the new file
// replaces it, and so does its manifest.
func (o *diskOutput) discard() error {
	for _, name := range o.published {
		if o.isFile() && exists(o.dst) {
			break
		}
		if err := o.disk.Remove(filepath.Join(o.home, name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return o.disk.RemoveAll(o.dir)
}

// layOut gives every file its size and its header, then records that in the journal.
func (o *diskOutput) layOut() error {
	if err := o.openFiles(o.disk.OpenTiles); err != nil {
		return err
	}
	for i := range o.weights {
		if err := o.layOutFile(i); err != nil {
			return err
		}
	}
	if err := o.disk.SyncDir(o.dir); err != nil {
		return err
	}
	return o.journal.Append(progress.Record{Ready: true, Tensor: -1})
}

// layOutFile gives an open weight file its size and its header.
func (o *diskOutput) layOutFile(i int) error {
	if err := o.weights[i].Reserve(o.plan.Files[i].Size); err != nil {
		return err
	}
	if err := o.writeHeader(i); err != nil {
		return err
	}
	return o.weights[i].Sync()
}

func (o *diskOutput) writeHeader(i int) error {
	header, err := o.plan.Header(i)
	if err == nil {
		_, err = o.weights[i].WriteAt(header, 0)
	}
	return err
}

// record makes the data of these files durable, then appends the lines about them to the
// journal. Later reads come from the disk.
func (o *diskOutput) record(n progress.Unrecorded) error {
	for _, i := range n.Files {
		if err := o.weights[i].Sync(); err != nil {
			return err
		}
		o.weights[i].DropCache()
	}
	return o.journal.Append(n.Lines...)
}
