package disk

import (
	"errors"
	"os"
	"syscall"
)

// reserve allocates the file's blocks, so that a full disk shows before any work
// is done. File systems that cannot get the size alone.
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
