package disk

import (
	"errors"
	"os"

	"golang.org/x/sys/unix"
)

// Exchange swaps the directories of two existing names atomically. The error is
// errors.ErrUnsupported if this file system, or this kernel, cannot.
func (d *Disk) Exchange(a, b string) error {
	if err := d.ask("exchange", b); err != nil {
		return err
	}
	err := unix.Renameat2(unix.AT_FDCWD, a, unix.AT_FDCWD, b, unix.RENAME_EXCHANGE)
	if err == unix.EINVAL || err == unix.ENOSYS {
		err = errors.ErrUnsupported
	}
	if err != nil {
		return &os.LinkError{Op: "exchange", Old: a, New: b, Err: err}
	}
	return nil
}
