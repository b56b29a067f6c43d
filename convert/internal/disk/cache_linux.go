package disk

import (
	"os"

	"golang.org/x/sys/unix"
)

// directFlag returns the flag that bypasses the page cache, 0 if pages or the file system's
// blocks are larger than Block.
func directFlag(f *os.File) int {
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil || int64(st.Blksize) > Block || os.Getpagesize() > Block {
		return 0
	}
	return unix.O_DIRECT
}

// dropCache asks the system to drop the file's clean pages from the cache.
func dropCache(f *os.File) { unix.Fadvise(int(f.Fd()), 0, 0, unix.FADV_DONTNEED) }
