//go:build linux && (amd64 || arm64)

package convert

import (
	"os"
	"syscall"
)

// dropCache asks the system to forget the file's pages, which are on disk, so that
// the next reader gets what the disk holds.
func dropCache(f *os.File) {
	const dontNeed = 4 // POSIX_FADV_DONTNEED
	syscall.Syscall6(syscall.SYS_FADVISE64, f.Fd(), 0, 0, dontNeed, 0, 0)
}
