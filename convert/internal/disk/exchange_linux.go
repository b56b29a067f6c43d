package disk

import (
	"errors"

	"golang.org/x/sys/unix"
)

// exchange swaps the directories of two names atomically.
func exchange(a, b string) error {
	err := unix.Renameat2(unix.AT_FDCWD, a, unix.AT_FDCWD, b, unix.RENAME_EXCHANGE)
	if err == unix.EINVAL || err == unix.ENOSYS {
		return errors.ErrUnsupported // by this file system, or by this kernel
	}
	return err
}
