//go:build unix

package format

import "golang.org/x/sys/unix"

const (
	willNeed = unix.MADV_WILLNEED
	dontNeed = unix.MADV_DONTNEED
)

// madvise hints at the use of pages; the system may ignore it.
func madvise(pages []byte, advice int) { _ = unix.Madvise(pages, advice) }
