package convert

import (
	"errors"
	"os"
	"path/filepath"
)

// disk is every call that a conversion makes to change the file system. A test
// sets fail, which is asked before each call and may refuse it.
type disk struct {
	fail func(call, path string) error
}

func (d *disk) ask(call, path string) error {
	if d.fail == nil {
		return nil
	}
	if err := d.fail(call, path); err != nil {
		return &os.PathError{Op: call, Path: path, Err: err}
	}
	return nil
}

// open opens a file for reading and writing, and makes it if it is not there.
func (d *disk) open(path string) (*diskFile, error) { return d.openWith(path, os.O_CREATE) }

// openWith opens a file for reading and writing.
func (d *disk) openWith(path string, flag int) (*diskFile, error) {
	if err := d.ask("open", path); err != nil {
		return nil, err
	}
	f, err := os.OpenFile(path, os.O_RDWR|flag, 0o666)
	if err != nil {
		return nil, err
	}
	return &diskFile{f, d}, nil
}

func (d *disk) mkdir(path string) error {
	if err := d.ask("mkdir", path); err != nil {
		return err
	}
	return os.Mkdir(path, 0o777)
}

func (d *disk) rename(from, to string) error {
	if err := d.ask("rename", to); err != nil {
		return err
	}
	return os.Rename(from, to)
}

func (d *disk) remove(path string) error {
	if err := d.ask("remove", path); err != nil {
		return err
	}
	return os.Remove(path)
}

func (d *disk) removeAll(path string) error {
	if err := d.ask("remove", path); err != nil {
		return err
	}
	return os.RemoveAll(path)
}

// syncDir makes the names in a directory durable.
func (d *disk) syncDir(path string) error {
	if err := d.ask("fsync", path); err != nil {
		return err
	}
	return syncDir(path)
}

// write makes a file with the given content, durably.
func (d *disk) write(path string, fill func(f *diskFile) error) error {
	f, err := d.open(path)
	if err != nil {
		return err
	}
	err = f.truncate(0)
	if err == nil {
		err = fill(f)
	}
	if err == nil {
		err = f.sync()
	}
	return errors.Join(err, f.close())
}

// diskFile is a file that a conversion writes.
type diskFile struct {
	*os.File
	disk *disk
}

// Write implements io.Writer.
func (f *diskFile) Write(b []byte) (int, error) {
	if err := f.disk.ask("write", f.Name()); err != nil {
		return 0, err
	}
	return f.File.Write(b)
}

// WriteAt implements io.WriterAt.
func (f *diskFile) WriteAt(b []byte, at int64) (int, error) {
	if err := f.disk.ask("write", f.Name()); err != nil {
		return 0, err
	}
	return f.File.WriteAt(b, at)
}

func (f *diskFile) sync() error {
	if err := f.disk.ask("fsync", f.Name()); err != nil {
		return err
	}
	return f.Sync()
}

func (f *diskFile) truncate(size int64) error {
	if err := f.disk.ask("ftruncate", f.Name()); err != nil {
		return err
	}
	return f.Truncate(size)
}

// reserve gives the file its size and, where the system can, its place on disk.
func (f *diskFile) reserve(size int64) error {
	if err := f.disk.ask("fallocate", f.Name()); err != nil {
		return err
	}
	return reserve(f.File, size)
}

func (f *diskFile) close() error {
	err := f.disk.ask("close", f.Name())
	return errors.Join(err, f.Close())
}

// partialName and journalName are what an unfinished conversion leaves beside its
// target: hidden, and never mistaken for a checkpoint.
func partialName(dst string) string {
	return filepath.Join(filepath.Dir(dst), "."+filepath.Base(dst)+".partial")
}

func journalName(dst string) string {
	return filepath.Join(filepath.Dir(dst), "."+filepath.Base(dst)+".journal")
}
