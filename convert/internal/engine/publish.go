package engine

// How a finished output gets its final name. A replaced output and its replacement are
// never both incomplete: where the system can exchange two names at once, one of them is the
// target at every moment. Elsewhere a crash between two renames leaves the old output hidden
// beside the target; the next run renames it back.

import (
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"dsmoe/convert/internal/progress"
)

// commit closes the weight files, writes the others and publishes the output. content
// returns the function that writes a named file, nil for a weight file.
func (o *diskOutput) commit(content func(name string) func(io.Writer) error) (replaced bool, err error) {
	for i, f := range o.weights {
		o.weights[i] = nil
		if err := f.Finish(); err != nil {
			return false, err
		}
	}
	for _, name := range o.plan.FinishOrder() {
		if write := content(name); write != nil {
			if err := o.disk.WriteFile(filepath.Join(o.dir, name), write); err != nil {
				return false, err
			}
		}
	}
	if err := o.disk.SyncDir(o.dir); err != nil {
		return false, err
	}
	if err := o.check(nil); err != nil {
		return false, err
	}
	if o.replaces {
		if err := o.unchanged(); err != nil {
			return false, err
		}
	}
	return o.replaces, o.publish()
}

// publish moves the finished output to the target and removes the journal.
func (o *diskOutput) publish() error {
	appear := o.rename
	switch {
	case o.fills:
		appear = o.fill
	case o.replaces:
		appear = o.replace
	}
	if err := appear(); err != nil {
		return err
	}
	return o.disk.Remove(o.journalPath)
}

// rename gives the hidden directory the target's name. An empty target is replaced.
func (o *diskOutput) rename() error {
	if exists(o.dst) {
		if err := o.disk.Remove(o.dst); err != nil {
			return err
		}
	}
	if err := o.disk.Rename(o.dir, o.dst); err != nil {
		return err
	}
	return o.disk.SyncDir(filepath.Dir(o.dst))
}

// fill moves the files from the hidden directory into the target around it, or beside it. The
// journal records the move first, so that the next run can continue it.
func (o *diskOutput) fill() error {
	if o.published == nil {
		o.published = o.plan.FinishOrder()
		if err := o.journal.Append(progress.Record{Published: o.published, Tensor: -1}); err != nil {
			return err
		}
	}
	for i, name := range o.published {
		if i == len(o.published)-1 {
			if err := o.disk.SyncDir(o.home); err != nil {
				return err
			}
		}
		err := o.disk.Rename(filepath.Join(o.dir, name), filepath.Join(o.home, name))
		if err != nil && !(errors.Is(err, fs.ErrNotExist) && exists(filepath.Join(o.home, name))) {
			return err
		}
	}
	if err := o.disk.SyncDir(o.home); err != nil {
		return err
	}
	if err := o.disk.Remove(o.dir); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return o.disk.SyncDir(o.home)
}

// replace exchanges the finished directory, given the old mode, with an older output, and
// removes that. The journal's records are voided first: their bytes are about to be in the
// directory with the final name, and the hidden directory will hold others.
func (o *diskOutput) replace() error {
	if err := o.journal.Append(progress.Record{Void: true, Tensor: -1}); err != nil {
		return err
	}
	stat, err := os.Stat(o.dst)
	if err != nil {
		return err
	}
	if err := o.disk.Chmod(o.dir, stat.Mode().Perm()); err != nil {
		return err
	}
	err = o.disk.Exchange(o.dir, o.dst)
	if errors.Is(err, errors.ErrUnsupported) {
		err = o.renameAside()
	}
	if err != nil {
		return err
	}
	if err := o.disk.SyncDir(filepath.Dir(o.dst)); err != nil {
		return err
	}
	return removeReplaced(o.disk, o.dst)
}

// renameAside replaces the target by two renames; if the second fails, the first is undone.
func (o *diskOutput) renameAside() error {
	aside := replacedName(o.dst)
	if err := o.disk.Rename(o.dst, aside); err != nil {
		return err
	}
	if err := o.disk.Rename(o.dir, o.dst); err != nil {
		return errors.Join(err, o.disk.Rename(aside, o.dst))
	}
	return nil
}

// removeOrphan removes the journal of a run that died after the output got its name. It
// keeps other files and journals of other conversions.
func (o *diskOutput) removeOrphan() error {
	if !exists(o.journalPath) {
		return nil
	}
	j, err := progress.LockJournal(o.disk, o.journalPath)
	if err != nil {
		return nil
	}
	defer j.Close()
	old, err := j.Read(func(progress.Record) {})
	ours := old != nil && old.Plan == o.plan.Hash
	if err != nil || !ours && (old != nil || !j.IsOurs()) {
		return err
	}
	if ours && !o.fills {
		if err := removeReplaced(o.disk, o.dst); err != nil { // the run died while it removed the replaced output
			return err
		}
	}
	return o.disk.Remove(o.journalPath)
}
