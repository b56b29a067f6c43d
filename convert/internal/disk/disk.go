// Package disk makes every call that changes the file system, and hides the differences
// between systems: locks, free space, reserved blocks, files that bypass the page cache. A
// test can make any call of a Disk fail.
package disk

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// State names the state of a file without reading it: another state may mean other bytes.
// The name consists of the file's size and modification time and, where the system has
// them, its inode and the time of its last change of any kind.
func State(path string) (string, error) {
	stat, err := os.Stat(path)
	if err != nil {
		return "", err
	}
	id, err := identity(path)
	return fmt.Sprintf("%d %d %s", stat.Size(), stat.ModTime().UnixNano(), id), err
}

// Inode names a file, not its content, on every machine that has its file system. A file in its place has
// another name. It is empty on a system that has no inodes.
func Inode(path string) (string, error) {
	id, err := identity(path)
	inode, _, _ := strings.Cut(id, " ")
	return inode, err
}

// Used returns the bytes on disk that the files of a directory take.
func Used(dir string) (n int64) {
	entries, _ := os.ReadDir(dir)
	for _, e := range entries {
		if info, err := e.Info(); err == nil {
			n += allocated(info)
		}
	}
	return n
}

// Disk makes the calls that change the file system. The zero value is the real disk.
type Disk struct {
	// Fail is called before each call with the name of the system call and the path. An error
	// refuses the call. Tests set it.
	Fail func(call, path string) error
	// NoSync omits the calls that make data durable. A test that crashes no machine sets it.
	NoSync bool
}

func (d *Disk) ask(call, path string) error {
	if d.Fail == nil {
		return nil
	}
	if err := d.Fail(call, path); err != nil {
		return &os.PathError{Op: call, Path: path, Err: err}
	}
	return nil
}

// call makes a system call that Fail does not refuse.
func (d *Disk) call(name, path string, do func() error) error {
	if err := d.ask(name, path); err != nil {
		return err
	}
	return do()
}

// ReadWrite is the flags of Open for reading and writing a file, which is made if it is missing.
const ReadWrite = os.O_RDWR | os.O_CREATE

// Open opens a file with flags of package os.
func (d *Disk) Open(path string, flag int) (*File, error) {
	if err := d.ask("open", path); err != nil {
		return nil, err
	}
	f, err := os.OpenFile(path, flag, 0o666)
	if err != nil {
		return nil, err
	}
	return &File{f, d}, nil
}

// Mkdir makes a directory in an existing parent.
func (d *Disk) Mkdir(path string) error {
	return d.call("mkdir", path, func() error { return os.Mkdir(path, 0o777) })
}

// Rename gives a file or directory another name.
func (d *Disk) Rename(from, to string) error {
	return d.call("rename", to, func() error { return os.Rename(from, to) })
}

// Chmod sets the mode of a directory.
func (d *Disk) Chmod(path string, mode os.FileMode) error {
	return d.call("chmod", path, func() error { return os.Chmod(path, mode) })
}

// Remove removes a file or an empty directory.
func (d *Disk) Remove(path string) error {
	return d.call("remove", path, func() error { return os.Remove(path) })
}

// RemoveAll removes a directory and its content.
func (d *Disk) RemoveAll(path string) error {
	return d.call("remove", path, func() error { return os.RemoveAll(path) })
}

// WriteFile makes a durable file with the content that fill writes.
func (d *Disk) WriteFile(path string, fill func(w io.Writer) error) error {
	f, err := d.Open(path, ReadWrite)
	if err != nil {
		return err
	}
	err = f.Truncate(0)
	if err == nil {
		err = fill(f)
	}
	if err == nil {
		err = f.Sync()
	}
	return errors.Join(err, f.Finish())
}

// ReplaceFile is WriteFile for a file that may exist: after a crash it is the old or the new
// file.
func (d *Disk) ReplaceFile(path string, fill func(w io.Writer) error) error {
	dir, name := filepath.Split(path)
	partial := filepath.Join(dir, "."+name+".partial")
	err := d.WriteFile(partial, fill)
	if err == nil {
		err = d.Rename(partial, path)
	}
	if err == nil {
		return d.SyncDir(dir)
	}
	if gone := d.Remove(partial); !errors.Is(gone, fs.ErrNotExist) {
		err = errors.Join(err, gone)
	}
	return err
}

// File is a file open for writing.
type File struct {
	file *os.File
	disk *Disk
}

// Name returns the path that the file was opened by.
func (f *File) Name() string { return f.file.Name() }

// Stat describes the file.
func (f *File) Stat() (os.FileInfo, error) { return f.file.Stat() }

// Write implements io.Writer.
func (f *File) Write(b []byte) (int, error) {
	if err := f.disk.ask("write", f.Name()); err != nil {
		return 0, err
	}
	return f.file.Write(b)
}

// WriteAt implements io.WriterAt.
func (f *File) WriteAt(b []byte, at int64) (int, error) {
	if err := f.disk.ask("write", f.Name()); err != nil {
		return 0, err
	}
	return f.file.WriteAt(b, at)
}

// ReadAt implements io.ReaderAt.
func (f *File) ReadAt(b []byte, at int64) (int, error) { return f.file.ReadAt(b, at) }

// Sync makes the written bytes durable.
func (f *File) Sync() error {
	if err := f.disk.ask("fsync", f.Name()); err != nil || f.disk.NoSync {
		return err
	}
	return f.file.Sync()
}

// Truncate sets the file's size.
func (f *File) Truncate(size int64) error {
	return f.disk.call("ftruncate", f.Name(), func() error { return f.file.Truncate(size) })
}

// Finish closes a written file: an error may mean lost bytes.
func (f *File) Finish() error {
	err := f.disk.ask("close", f.Name())
	return errors.Join(err, f.file.Close())
}

// Close closes a file whose content no longer matters.
func (f *File) Close() error { return f.file.Close() }
