package safetensors

import (
	"os"
	"unsafe"
)

// WillNeed tells the system that data, a part of a tensor's view, is about to be
// read, and DontNeed that it is not for a while: its pages leave the process's
// resident memory and are read again when touched. Both are hints; they return false
// if data is not mapped from this file.
func (f *File) WillNeed(data []byte) bool { return f.advise(data, willNeed) }

// DontNeed: see WillNeed.
func (f *File) DontNeed(data []byte) bool { return f.advise(data, dontNeed) }

// advise passes the pages that hold data on, if they lie in the mapping.
func (f *File) advise(data []byte, advice int) bool {
	if len(data) == 0 || len(f.data) == 0 {
		return false
	}
	base, at := uintptr(unsafe.Pointer(&f.data[0])), uintptr(unsafe.Pointer(&data[0]))
	if at < base || at+uintptr(len(data)) > base+uintptr(len(f.data)) {
		return false
	}
	page := uintptr(os.Getpagesize())
	first := (at - base) / page * page // the mapping begins on a page
	end := min(at-base+uintptr(len(data)), uintptr(len(f.data)))
	madvise(f.data[first:end], advice)
	return true
}
