//go:build linux || darwin || freebsd

package disk

import (
	"errors"
	"os"
	"syscall"
)

// tryLock locks an open file for this process alone, until the file is closed or the process
// ends.
func tryLock(f *os.File) (locked bool, err error) {
	err = syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
	if errors.Is(err, syscall.EWOULDBLOCK) {
		return false, nil
	}
	return err == nil, err
}
