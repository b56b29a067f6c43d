package disk

import (
	"errors"
	"os"
	"syscall"
)

// Reserve gives the file its size and allocates its blocks, so that a full disk fails before any work. A file
// system that cannot allocate sets the size alone.
func (f *File) Reserve(size int64) error {
	if err := f.disk.ask("fallocate", f.Name()); err != nil {
		return err
	}
	for {
		err := syscall.Fallocate(int(f.file.Fd()), 0, 0, size)
		switch {
		case errors.Is(err, syscall.EINTR):
		case err == nil, errors.Is(err, syscall.EOPNOTSUPP), errors.Is(err, syscall.ENOSYS):
			return f.file.Truncate(size)
		default:
			return &os.PathError{Op: "fallocate", Path: f.Name(), Err: err}
		}
	}
}
