package output

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

// Commit closes the weight files, writes the others and publishes the output. content
// returns the function that writes a named file, nil for a weight file.
func (o *diskOutput) Commit(content func(name string) func(io.Writer) error) (replaced bool, err error) {
	for i, f := range o.weights {
		o.weights[i] = nil
		if err := f.Finish(); err != nil {
			return false, err
		}
	}
	for _, name := range o.plan.FinishOrder() {
		if write := content(name); write != nil {
			if err := o.Disk.WriteFile(filepath.Join(o.dir, name), write); err != nil {
				return false, err
			}
		}
	}
	if err := o.Disk.SyncDir(o.dir); err != nil {
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
func (o *diskOutput) publish() (err error) {
	switch {
	case o.fills:
		err = o.fill()
	case o.replaces:
		err = o.replace()
	default: // the hidden directory gets the target's name; an empty target is replaced
		if exists(o.Path) {
			err = o.Disk.Remove(o.Path)
		}
		if err == nil {
			err = o.Disk.Rename(o.dir, o.Path)
		}
		if err == nil {
			err = o.Disk.SyncDir(filepath.Dir(o.Path))
		}
	}
	if err != nil {
		return err
	}
	return o.Disk.Remove(o.journalPath)
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
			if err := o.Disk.SyncDir(o.home); err != nil {
				return err
			}
		}
		err := o.Disk.Rename(filepath.Join(o.dir, name), filepath.Join(o.home, name))
		if err != nil && !(errors.Is(err, fs.ErrNotExist) && exists(filepath.Join(o.home, name))) {
			return err
		}
	}
	if err := o.Disk.SyncDir(o.home); err != nil {
		return err
	}
	if err := o.Disk.Remove(o.dir); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return o.Disk.SyncDir(o.home)
}

// replace exchanges the finished directory, given the old mode, with an older output, and
// removes that. The journal's records are voided first: their bytes are about to be in the
// directory with the final name, and the hidden directory will hold others.
func (o *diskOutput) replace() error {
	if err := o.journal.Append(progress.Record{Void: true, Tensor: -1}); err != nil {
		return err
	}
	stat, err := os.Stat(o.Path)
	if err != nil {
		return err
	}
	if err := o.Disk.Chmod(o.dir, stat.Mode().Perm()); err != nil {
		return err
	}
	err = o.Disk.Exchange(o.dir, o.Path)
	if errors.Is(err, errors.ErrUnsupported) { // by two renames; if the second fails, the first is undone
		older := replacedName(o.Path)
		if err = o.Disk.Rename(o.Path, older); err == nil {
			if err = o.Disk.Rename(o.dir, o.Path); err != nil {
				err = errors.Join(err, o.Disk.Rename(older, o.Path))
			}
		}
	}
	if err != nil {
		return err
	}
	if err := o.Disk.SyncDir(filepath.Dir(o.Path)); err != nil {
		return err
	}
	return removeReplaced(o.Disk, o.Path)
}

// RemoveOrphan removes the journal of a run that died after the output got its name. It
// keeps other files and journals of other conversions.
func (o *diskOutput) RemoveOrphan() error {
	if !exists(o.journalPath) {
		return nil
	}
	j, err := progress.LockJournal(o.Disk, o.journalPath)
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
		if err := removeReplaced(o.Disk, o.Path); err != nil { // the run died while it removed the replaced output
			return err
		}
	}
	return o.Disk.Remove(o.journalPath)
}
