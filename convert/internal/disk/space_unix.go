//go:build linux || darwin || freebsd

package disk

import (
	"errors"
	"os"
	"syscall"
)

// FreeSpace returns the bytes that can still be written to the disk of dir; ok is
// false where that is not known.
func FreeSpace(dir string) (free uint64, ok bool) {
	var st syscall.Statfs_t
	if err := syscall.Statfs(dir, &st); err != nil {
		return 0, false
	}
	return uint64(max(st.Bavail, 0)) * uint64(st.Bsize), true
}

// syncDir makes the names in dir durable. File systems that cannot do it are
// excused.
func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	err = d.Sync()
	if errors.Is(err, syscall.EINVAL) || errors.Is(err, syscall.ENOTSUP) {
		err = nil
	}
	return errors.Join(err, d.Close())
}
