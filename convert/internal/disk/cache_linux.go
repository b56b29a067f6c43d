package disk

import (
	"os"
	"unsafe"

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

// DropCache asks the system to drop the clean pages of n bytes of the file from the cache, so that the next read comes
// from the disk; n = 0 is all bytes from at on.
func (f *File) DropCache(at, n int64) { unix.Fadvise(int(f.file.Fd()), at, n, unix.FADV_DONTNEED) }

// startWriting asks the system to begin to write n bytes of the file to the disk. Sync waits for them, and has the errors.
func (f *File) startWriting(at, n int64) {
	unix.SyncFileRange(int(f.file.Fd()), at, n, unix.SYNC_FILE_RANGE_WRITE)
}

// largePage is the size of a large page of x86-64 and of most others. The system ignores a request that it cannot fulfil.
const largePage = 2 << 20

// wantLargePages asks the system for large pages for the memory, as far as it consists of whole ones.
func wantLargePages(b []byte) {
	if len(b) < 2*largePage {
		return
	}
	begin := -uintptr(unsafe.Pointer(&b[0])) % largePage
	unix.Madvise(b[begin:][:(len(b)-int(begin))&^(largePage-1)], unix.MADV_HUGEPAGE)
}
