//go:build linux || darwin || freebsd

package disk

import (
	"errors"
	"fmt"
	"os"
	"strconv"
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

// Inode names a file, not its content, on every machine that has its file system. A file in its place has
// another name.
func Inode(path string) (string, error) {
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil {
		return "", &os.PathError{Op: "stat", Path: path, Err: err}
	}
	return strconv.FormatUint(st.Ino, 10), nil
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

// syncDir makes the names in dir durable, on file systems that can.
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
