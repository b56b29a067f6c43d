package disk

import (
	"errors"
	"os"
	"syscall"
)

// reserve allocates the file's blocks, so that a full disk fails before any work. A file
// system that cannot allocate sets the size alone.
func reserve(f *os.File, size int64) error {
	for {
		err := syscall.Fallocate(int(f.Fd()), 0, 0, size)
		switch {
		case err == nil:
			return f.Truncate(size)
		case errors.Is(err, syscall.EINTR):
			continue
		case errors.Is(err, syscall.EOPNOTSUPP), errors.Is(err, syscall.ENOSYS):
			return f.Truncate(size)
		}
		return &os.PathError{Op: "fallocate", Path: f.Name(), Err: err}
	}
}
