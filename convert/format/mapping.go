package format

import (
	"fmt"
	"io"
	"math"
	"os"
	"sync"
	"unsafe"

	"github.com/edsrzf/mmap-go"

	"dsmoe/model/tensor"
	"dsmoe/text"
)

// Mapping is a weight file that is mapped into the address space at the first view: reading
// the view reads the file. The file must not be cut shorter while it is mapped: touching the
// lost part kills the process (SIGBUS), as for every mapped file. All methods except Close
// are safe for concurrent use.
type Mapping struct {
	path string
	stat os.FileInfo // of the file as it was opened

	mu     sync.Mutex
	data   mmap.MMap
	closed bool
}

// NewMapping is a Mapping of the file, which may be closed: the path is opened again.
// Errors, here and of the methods, are of type *Error.
func NewMapping(f *os.File, path string) (*Mapping, error) {
	stat, err := f.Stat()
	if err != nil {
		return nil, SystemError(path, "", err)
	}
	return &Mapping{path: path, stat: stat}, nil
}

// Size returns the bytes of the file.
func (m *Mapping) Size() int64 { return m.stat.Size() }

// Reopen opens the file again. One that was put in its place since is an error.
func (m *Mapping) Reopen() (*os.File, error) {
	f, _, err := OpenRegular(m.path)
	if err != nil {
		return nil, err
	}
	if stat, err := f.Stat(); err != nil || !os.SameFile(stat, m.stat) {
		f.Close()
		return nil, &Error{File: m.path, Cause: "was replaced since its header was read"}
	}
	return f, nil
}

// View returns the tensor that info describes, with data from offset on. found reports
// whether the file has it. The data starts at any byte: formats do not align it.
func (m *Mapping) View(name string, info tensor.Info, offset int64, found bool) (tensor.Tensor, error) {
	if !found {
		return tensor.Tensor{}, &Error{File: m.path, Tensor: name, Cause: "no such tensor in this file"}
	}
	data, err := m.mapped()
	if err != nil {
		return tensor.Tensor{}, err
	}
	end := offset + info.Bytes()
	return tensor.Tensor{DType: info.DType, Shape: info.Shape, Data: data[offset:end:end]}, nil
}

// mapped maps the file, if it is not yet.
func (m *Mapping) mapped() (mmap.MMap, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closed {
		return nil, &Error{File: m.path, Cause: "file is closed"}
	}
	if m.data != nil {
		return m.data, nil
	}
	f, err := m.Reopen()
	if err != nil {
		return nil, err
	}
	defer f.Close() // the mapping outlives the descriptor
	if stat, err := f.Stat(); err != nil || stat.Size() != m.Size() {
		return nil, &Error{File: m.path, Cause: "had " + text.Bytes(m.Size()) +
			" when its header was read, and has another size now"}
	}
	if err := Room(m.Size()); err != nil {
		return nil, &Error{File: m.path, Cause: err.Error(), Hint: "`ulimit -v unlimited` lifts the shell's limit"}
	}
	if m.data, err = mmap.MapRegion(f, int(m.Size()), mmap.RDONLY, 0, 0); err != nil {
		return nil, SystemError(m.path, "mapping "+text.Bytes(m.Size()), err)
	}
	return m.data, nil
}

// WriteHead writes the first n bytes of the file.
func (m *Mapping) WriteHead(w io.Writer, n int64) error {
	file, err := m.Reopen()
	if err != nil {
		return err
	}
	defer file.Close()
	_, err = io.CopyN(w, file, n)
	return err
}

// spareSpace is the address space, in bytes, that is left to everything else: without address
// space the Go runtime ends the process.
const spareSpace = 512 << 20

// Room fails if n more bytes, mapped or in memory, do not fit in the address space. Space that
// the runtime has taken and does not use counts as free.
func Room(n int64) error {
	free, limit, ok := freeSpace()
	if !ok {
		free, limit = math.MaxInt, math.MaxInt
	}
	if n > free-spareSpace {
		return fmt.Errorf("no room for %s: the address space is limited to %s (ulimit -v), of which %s are free",
			text.Bytes(n), text.Bytes(limit), text.Bytes(max(free, 0)))
	}
	return nil
}

// WillNeed announces to the system that data, a part of a tensor's view, is about to be
// read, and DontNeed that it will not be read for a while: its pages leave the process's
// resident memory and are read again when touched. Both are hints; they return false
// if data is not of this mapping.
func (m *Mapping) WillNeed(data []byte) bool { return m.advise(data, willNeed) }

// DontNeed: see WillNeed.
func (m *Mapping) DontNeed(data []byte) bool { return m.advise(data, dontNeed) }

// advise passes the pages that hold data on, if they lie in the mapping.
func (m *Mapping) advise(data []byte, advice int) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
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
	m.mu.Lock()
	defer m.mu.Unlock()
	m.closed = true
	if m.data == nil {
		return nil
	}
	return m.data.Unmap()
}
