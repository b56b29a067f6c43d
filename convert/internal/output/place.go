package output

// Where an output is assembled on the disk, and which targets may be filled.

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"dsmoe/convert/internal/disk"
	"dsmoe/text"
)

// place is where an output is assembled: beside the target or, if the target is a directory
// that exists, inside it. An existing directory is filled, not replaced: it may be the root of a
// file system, a working directory or a link, and has an owner and a mode. A file moves into its
// directory as files move into an existing target.
type place struct {
	Target
	dir         string // hidden directory in which the output is assembled
	journalPath string
	partsDir    string // directory with the journals of the parts
	fills       bool   // the files move one by one from dir to home
}

func besideOf(t *Target) place {
	return place{*t, hidden(t.Path, "partial"), hidden(t.Path, "journal"), hidden(t.Path, "parts"), t.IsFile()}
}

func insideOf(t *Target) place {
	prefix := filepath.Join(t.Path, hiddenPrefix)
	return place{*t, prefix + "partial", prefix + "journal", prefix + "parts", true}
}

// replacedName is the directory in which a replaced output waits for its removal.
func replacedName(dst string) string { return hidden(dst, "replaced") }

func hidden(dst, suffix string) string {
	parent, name := filepath.Split(dst)
	return filepath.Join(parent, "."+name+"."+suffix)
}

func exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}

// check refuses a target that holds other files than those named own and a run's leftovers.
func (p *place) check(own []string) error {
	if p.IsFile() {
		for _, path := range []string{p.Path, p.Manifest} {
			if exists(path) && !slices.Contains(own, filepath.Base(path)) {
				return fmt.Errorf("%s exists already", text.Quote(filepath.Base(path)))
			}
		}
	}
	if p.IsFile() || !exists(p.Path) {
		if _, err := os.Stat(filepath.Dir(p.Path)); errors.Is(err, fs.ErrNotExist) {
			return errors.New("the directory to write it in does not exist")
		}
		return nil
	}
	stat, err := os.Stat(p.Path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return errors.New("is a link to a place that does not exist")
	case err != nil:
		return err
	case !stat.IsDir():
		return errors.New("exists and is not an empty directory")
	}
	entries, err := os.ReadDir(p.Path)
	if err != nil {
		return err
	}
	leftovers := []string{p.dir, p.journalPath, p.partsDir}
	for _, e := range entries {
		ofFileSystem := e.Name() == "lost+found" && e.IsDir()
		if !slices.Contains(own, e.Name()) && !slices.Contains(leftovers, filepath.Join(p.Path, e.Name())) && !ofFileSystem {
			return fmt.Errorf("directory is not empty: it holds %s", text.Quote(e.Name()))
		}
	}
	return nil
}

// removeReplaced removes the replaced output, from either place, once dst is complete.
func removeReplaced(d *disk.Disk, dst string) error {
	return errors.Join(d.RemoveAll(hidden(dst, "partial")), d.RemoveAll(replacedName(dst)))
}

// takeBack undoes a replacement that a crash interrupted: the older output beside the target
// gets its name back or, if the new output has it, is removed.
func takeBack(d *disk.Disk, dst string) error {
	older := replacedName(dst)
	if !exists(older) {
		return nil
	}
	if _, err := os.Lstat(dst); errors.Is(err, fs.ErrNotExist) {
		return d.Rename(older, dst)
	}
	if err := directoryAt(dst).CheckReplaceable(); err != nil {
		return fmt.Errorf("an older output is in %s, and %w", text.Quote(older), err)
	}
	return d.RemoveAll(older)
}

// checkFree compares the needed bytes with the free space of the disk.
func checkFree(dir string, need int64) error {
	if free, ok := disk.FreeSpace(dir); ok && free < uint64(need) {
		return fmt.Errorf("needs %s of disk, but only %s are free", text.ExactBytes(need), text.ExactBytes(int64(free)))
	}
	return nil
}
