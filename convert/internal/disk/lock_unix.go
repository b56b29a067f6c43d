//go:build linux || darwin || freebsd

package disk

import (
	"errors"
	"os"
	"syscall"
)

// tryLock locks an open file for this process alone; it is let go when the file is
// closed, or when the process ends however it ends.
func tryLock(f *os.File) (locked bool, err error) {
	err = syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
	if errors.Is(err, syscall.EWOULDBLOCK) {
		return false, nil
	}
	return err == nil, err
}
