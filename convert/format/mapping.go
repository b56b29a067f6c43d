package format

import (
	"math"
	"os"
	"unsafe"

	"github.com/edsrzf/mmap-go"

	"dsmoe/model/tensor"
	"dsmoe/text"
)

// Mapping is a weight file in the address space: reading a view of it reads the file.
// The file must not be cut shorter while it is mapped: touching the lost part kills
// the process (SIGBUS), as for every mapped file.
type Mapping struct {
	path string
	size int64
	data mmap.MMap
}

// Map maps a file of the given size; the mapping outlives the descriptor. Errors are
// of type *Error.
func Map(f *os.File, size int64, path string) (*Mapping, error) {
	if size > math.MaxInt {
		return nil, &Error{File: path, Cause: text.Bytes(size) + " do not fit in the address space of this platform"}
	}
	data, err := mmap.MapRegion(f, int(size), mmap.RDONLY, 0, 0)
	if err != nil {
		return nil, SystemError(path, "mapping "+text.Bytes(size), err)
	}
	return &Mapping{path: path, size: size, data: data}, nil
}

// Size returns the bytes of the file.
func (m *Mapping) Size() int64 { return m.size }

// View returns the tensor that info describes, whose data begins at offset. found says
// whether the file has it. The data starts at any byte: formats do not align it.
func (m *Mapping) View(name string, info tensor.Info, offset int64, found bool) (tensor.Tensor, error) {
	switch {
	case !found:
		return tensor.Tensor{}, &Error{File: m.path, Tensor: name, Cause: "no such tensor in this file"}
	case m.data == nil:
		return tensor.Tensor{}, &Error{File: m.path, Tensor: name, Cause: "file is closed"}
	}
	end := offset + info.Bytes()
	return tensor.Tensor{DType: info.DType, Shape: info.Shape, Data: m.data[offset:end:end]}, nil
}

// Head returns the first n bytes of the file.
func (m *Mapping) Head(n int64) []byte { return m.data[:n] }

// WillNeed tells the system that data, a part of a tensor's view, is about to be
// read, and DontNeed that it is not for a while: its pages leave the process's
// resident memory and are read again when touched. Both are hints; they return false
// if data is not of this mapping.
func (m *Mapping) WillNeed(data []byte) bool { return m.advise(data, willNeed) }

// DontNeed: see WillNeed.
func (m *Mapping) DontNeed(data []byte) bool { return m.advise(data, dontNeed) }

// advise passes the pages that hold data on, if they lie in the mapping.
func (m *Mapping) advise(data []byte, advice int) bool {
	if len(data) == 0 || len(m.data) == 0 {
		return false
	}
	base, at := uintptr(unsafe.Pointer(&m.data[0])), uintptr(unsafe.Pointer(&data[0]))
	if at < base || at+uintptr(len(data)) > base+uintptr(len(m.data)) {
		return false
	}
	page := uintptr(os.Getpagesize())
	first := (at - base) / page * page // the mapping begins on a page
	end := min(at-base+uintptr(len(data)), uintptr(len(m.data)))
	madvise(m.data[first:end], advice)
	return true
}

// Close unmaps the file; views must not be used any more. A second Close does nothing.
func (m *Mapping) Close() error {
	if m.data == nil {
		return nil
	}
	return m.data.Unmap()
}
