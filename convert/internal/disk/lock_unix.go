//go:build linux || darwin || freebsd

package disk

import (
	"errors"
	"syscall"
)

// TryLock locks the file for this process alone, until the file is closed or the process
// ends.
func (f *File) TryLock() (locked bool, err error) {
	err = syscall.Flock(int(f.file.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
	if errors.Is(err, syscall.EWOULDBLOCK) {
		return false, nil
	}
	return err == nil, err
}
