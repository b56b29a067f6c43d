package main

// Files that a command writes beside what it prints: pages, drawings, JUnit.

import (
	"bufio"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"dsmoe/text"
)

// outFile is a file that a command is going to write. Until commit it has another name, so
// that what has the right one is always whole: what was there before, or what is new.
type outFile struct {
	path string   // as it was given
	name string   // where it is to be, links resolved
	temp *os.File // hidden, beside it; nil once it is done with
}

// createFile makes sure that a file can be written, before the work whose result it is to
// hold. What is there must be a regular file, or a link to one, and is replaced by commit.
func createFile(path string) (*outFile, error) {
	f := &outFile{path: path, name: path}
	if resolved, err := filepath.EvalSymlinks(path); err == nil {
		f.name = resolved
	}
	info, err := os.Lstat(f.name)
	switch {
	case errors.Is(err, fs.ErrNotExist):
	case err != nil:
		return nil, fileError(path, err)
	case !info.Mode().IsRegular():
		return nil, fmt.Errorf("%s: %w", text.Quote(path), errors.New("cannot be replaced: not a regular file"))
	}
	dir, base := filepath.Split(f.name)
	if base == "" {
		return nil, fmt.Errorf("%s: %w", text.Quote(path), errors.New("not the name of a file"))
	}
	f.temp, err = os.OpenFile(filepath.Join(dir, "."+base+".partial-"+rand.Text()[:8]), os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o666)
	if err != nil {
		return nil, fileError(path, err)
	}
	return f, nil
}

// commit gives the file its content and its name.
func (f *outFile) commit(fill func(w io.Writer) error) error {
	w := bufio.NewWriter(f.temp)
	err := fill(w)
	if err == nil {
		err = w.Flush()
	}
	if err == nil {
		err = f.temp.Sync()
	}
	if err = errors.Join(err, f.temp.Close()); err == nil {
		err = os.Rename(f.temp.Name(), f.name)
	}
	if err != nil {
		return fileError(f.path, errors.Join(err, os.Remove(f.temp.Name())))
	}
	f.temp = nil
	return nil
}

// discard leaves what was there before, unless the file was committed.
func (f *outFile) discard() {
	if f.temp != nil {
		f.temp.Close()
		os.Remove(f.temp.Name())
	}
}
