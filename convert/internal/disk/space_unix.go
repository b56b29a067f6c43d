//go:build linux || darwin || freebsd

package disk

import (
	"errors"
	"fmt"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// identity returns the file's inode and the time of its last change of any kind. A program
// can set the modification time back, but not this time.
func identity(path string) (string, error) {
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil {
		return "", &os.PathError{Op: "stat", Path: path, Err: err}
	}
	sec, nsec := st.Ctim.Unix()
	return fmt.Sprintf("%d %d.%09d", st.Ino, sec, nsec), nil
}

// FreeSpace returns the free bytes on the disk of dir; ok is false if they are unknown.
func FreeSpace(dir string) (free uint64, ok bool) {
	var st syscall.Statfs_t
	if err := syscall.Statfs(dir, &st); err != nil {
		return 0, false
	}
	return uint64(max(st.Bavail, 0)) * uint64(st.Bsize), true
}

// allocated returns the bytes on disk that a file takes.
func allocated(info os.FileInfo) int64 {
	if st, ok := info.Sys().(*syscall.Stat_t); ok {
		return st.Blocks * 512
	}
	return info.Size()
}

// SyncDir makes the names in a directory durable, on file systems that can.
func (d *Disk) SyncDir(path string) error {
	if err := d.ask("fsync", path); err != nil || d.NoSync {
		return err
	}
	dir, err := os.Open(path)
	if err != nil {
		return err
	}
	err = dir.Sync()
	if errors.Is(err, syscall.EINVAL) || errors.Is(err, syscall.ENOTSUP) {
		err = nil
	}
	return errors.Join(err, dir.Close())
}
