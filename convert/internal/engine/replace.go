package engine

// Replacing a finished output: whatever happens, the old one or the new one is whole.
// Where the system can exchange two names at once, one of them is the target at every
// moment. Elsewhere there is a moment between two renames when a crash leaves the old one
// beside the target, hidden; the next run gives it its name back.

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"dsmoe/convert/checkpoint"
	"dsmoe/convert/internal/disk"
	"dsmoe/convert/plan"
	"dsmoe/text"
)

// replacedName is where a replaced output waits to be removed.
func replacedName(dst string) string {
	return filepath.Join(filepath.Dir(dst), "."+filepath.Base(dst)+".replaced")
}

// checkTarget refuses a target that holds anything but the files named own; an output that
// is to be overwritten may be there too.
func (e *execution) checkTarget(own []string) error {
	e.replaces = e.Overwrite && !e.place.inside && exists(filepath.Join(e.dst, plan.ManifestName))
	if e.replaces {
		return checkReplaceable(e.dst)
	}
	err := e.place.check(own)
	if err == nil {
		return nil
	}
	because := checkReplaceable(e.dst)
	switch {
	case e.Overwrite:
		return cmp.Or(because, err)
	case because == nil && own == nil:
		return &checkpoint.Error{Path: e.dst, Problems: []checkpoint.Problem{{
			Cause: "directory is not empty: it holds the finished output of another conversion", Hint: "--overwrite replaces it"}}}
	}
	return err
}

// checkReplaceable demands that dst is an output of this program and holds nothing else.
func checkReplaceable(dst string) error {
	stat, err := os.Lstat(dst)
	if err != nil {
		return err
	}
	here, err := os.Stat(".")
	switch {
	case stat.Mode()&fs.ModeSymlink != 0:
		return errors.New("cannot be overwritten, as it is a link: give the path of the directory itself")
	case !stat.IsDir():
		return errors.New("cannot be overwritten, as it is no directory")
	case err == nil && os.SameFile(here, stat):
		return errors.New("cannot be overwritten, as it is the current directory")
	case disk.IsMountPoint(dst):
		return errors.New("cannot be overwritten, as it is a mount point: remove what is in it, and it is filled")
	}
	m, err := readManifest(filepath.Join(dst, plan.ManifestName), nil)
	if err != nil {
		return fmt.Errorf("cannot be overwritten, as it is no finished output: %w", err)
	}
	entries, err := os.ReadDir(dst)
	if err != nil {
		return err
	}
	known := append(m.fileNames(), plan.ManifestName)
	for _, entry := range entries {
		if !entry.Type().IsRegular() || !slices.Contains(known, entry.Name()) {
			return fmt.Errorf("cannot be overwritten: it holds %s, which its manifest does not list", text.Quote(entry.Name()))
		}
	}
	return nil
}

// replace puts the finished directory in the place of an older output, and removes that.
// The new directory gets the old one's mode. The journal is told before: what it says was
// done is about to be in the directory with the final name, and must not be looked for in
// the other.
func (e *execution) replace() error {
	if err := e.journal.append(record{Void: true, Tensor: -1}); err != nil {
		return err
	}
	stat, err := os.Stat(e.dst)
	if err != nil {
		return err
	}
	if err := e.Disk.Chmod(e.dir, stat.Mode().Perm()); err != nil {
		return err
	}
	err = e.Disk.Exchange(e.dir, e.dst)
	if errors.Is(err, errors.ErrUnsupported) {
		err = e.renameAside()
	}
	if err != nil {
		return err
	}
	if err := e.Disk.SyncDir(filepath.Dir(e.dst)); err != nil {
		return err
	}
	return removeReplaced(e.Disk, e.dst)
}

// renameAside replaces the target by two renames; if the second fails, the first is undone.
func (e *execution) renameAside() error {
	aside := replacedName(e.dst)
	if err := e.Disk.Rename(e.dst, aside); err != nil {
		return err
	}
	if err := e.Disk.Rename(e.dir, e.dst); err != nil {
		return errors.Join(err, e.Disk.Rename(aside, e.dst))
	}
	return nil
}

// removeReplaced removes what was replaced, from either place, when dst is whole.
func removeReplaced(d *disk.Disk, dst string) error {
	return errors.Join(d.RemoveAll(besideOf(dst).dir), d.RemoveAll(replacedName(dst)))
}

// takeBack undoes a replacement that a crash cut short: an output that waits beside the
// target gets its name back, or goes if the new one has it.
func takeBack(d *disk.Disk, dst string) error {
	aside := replacedName(dst)
	if _, err := os.Lstat(aside); err != nil {
		return nil
	}
	if _, err := os.Lstat(dst); errors.Is(err, fs.ErrNotExist) {
		return d.Rename(aside, dst)
	}
	if err := checkReplaceable(dst); err != nil {
		return fmt.Errorf("an older output is in %s, and %w", text.Quote(aside), err)
	}
	return d.RemoveAll(aside)
}
