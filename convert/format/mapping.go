package format

import (
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"sync"
	"unsafe"

	"github.com/edsrzf/mmap-go"

	"dsmoe/model/tensor"
	"dsmoe/text"
	"dsmoe/text/problem"
)

// Data is the bytes of a weight file. All methods except Close are safe for concurrent use.
type Data interface {
	// ReadAt reads the file, not its views.
	io.ReaderAt
	// Path names the file in messages.
	Path() string
	// Size returns the bytes of the file.
	Size() int64
	// View returns the tensor that info describes, with data from offset on. found reports
	// whether the file has it. The data starts at any byte: formats do not align it. It fails if
	// the file cannot be mapped.
	View(name string, info tensor.Info, offset int64, found bool) (tensor.Tensor, error)
	// WillNeed announces to the system that data, a part of a view, is about to be read. It
	// reports whether data is of this file.
	WillNeed(data []byte) bool
	// DontNeed announces that data will not be read for a while, and reports the same.
	DontNeed(data []byte) bool
	// Close ends reading; views must not be used any more.
	Close() error
}

// Unmapped has the methods of a Data without views.
type Unmapped struct{}

// View fails.
func (Unmapped) View(string, tensor.Info, int64, bool) (tensor.Tensor, error) {
	return tensor.Tensor{}, errors.New("cannot be mapped: it is not on the disk")
}

// WillNeed reports false.
func (Unmapped) WillNeed([]byte) bool { return false }

// DontNeed reports false.
func (Unmapped) DontNeed([]byte) bool { return false }

// mapping is a weight file on the disk. It is mapped into the address space at the first view:
// reading the view reads the file. The file must not be cut shorter while it is mapped: touching
// the lost part kills the process (SIGBUS), as for every mapped file. All methods except Close
// are safe for concurrent use.
type mapping struct {
	path string
	stat os.FileInfo // of the file as it was opened

	mu     sync.RWMutex
	file   *os.File // nil if it is to be opened again; reads hold the lock, so that it stays open
	data   mmap.MMap
	closed bool
}

var _ Data = (*mapping)(nil)

// NewMapping opens the file at path. Errors, here and of the methods, are of type *problem.Error.
func NewMapping(path string) (*mapping, error) {
	f, _, err := OpenRegular(path)
	if err != nil {
		return nil, err
	}
	stat, err := f.Stat()
	if err != nil {
		f.Close()
		return nil, problem.System(path, "", err)
	}
	return &mapping{path: path, stat: stat, file: f}, nil
}

// Path returns the path that the file was opened by.
func (m *mapping) Path() string { return m.path }

// Size returns the bytes of the file.
func (m *mapping) Size() int64 { return m.stat.Size() }

// ReadAt reads the file. It opens the file again if it was not read before.
func (m *mapping) ReadAt(dst []byte, offset int64) (int, error) {
	m.mu.RLock()
	for m.file == nil {
		m.mu.RUnlock()
		if err := m.wake(); err != nil {
			return 0, err
		}
		m.mu.RLock()
	}
	defer m.mu.RUnlock()
	return m.file.ReadAt(dst, offset)
}

// wake opens the file that Rest closed.
func (m *mapping) wake() (err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	switch {
	case m.closed:
		return problem.New(m.path, "file is closed", "")
	case m.file == nil:
		m.file, err = m.reopen()
	}
	return err
}

// Rest closes the file until it is read again.
func (m *mapping) Rest() {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.file != nil {
		m.file.Close()
		m.file = nil
	}
}

// reopen opens the file again. One that was put in its place since is an error.
func (m *mapping) reopen() (*os.File, error) {
	f, _, err := OpenRegular(m.path)
	if err != nil {
		return nil, err
	}
	if stat, err := f.Stat(); err != nil || !os.SameFile(stat, m.stat) {
		f.Close()
		return nil, problem.New(m.path, "was replaced since its header was read", "")
	}
	return f, nil
}

// View maps the file, if it is not yet.
func (m *mapping) View(name string, info tensor.Info, offset int64, found bool) (t tensor.Tensor, err error) {
	if !found {
		return t, problem.In(m.path, problem.Problem{Tensor: name, Cause: "no such tensor in this file"})
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closed {
		return t, problem.New(m.path, "file is closed", "")
	}
	if m.data == nil {
		f, err := m.reopen()
		if err != nil {
			return t, err
		}
		defer f.Close() // the mapping outlives the descriptor
		if stat, err := f.Stat(); err != nil || stat.Size() != m.Size() {
			return t, problem.New(m.path, "had "+text.Bytes(m.Size())+
				" when its header was read, and has another size now", "")
		}
		if err := Room(m.Size()); err != nil {
			return t, problem.New(m.path, err.Error(), "`ulimit -v unlimited` lifts the shell's limit")
		}
		if m.data, err = mmap.MapRegion(f, int(m.Size()), mmap.RDONLY, 0, 0); err != nil {
			return t, problem.System(m.path, "mapping "+text.Bytes(m.Size()), err)
		}
	}
	end := offset + info.Bytes()
	return tensor.Tensor{DType: info.DType, Shape: info.Shape, Data: m.data[offset:end:end]}, nil
}

// Aside moves data to a file without a name, in the directory of temporary files, and maps it: the system keeps it in memory
// while there is room. The file ends with the mapping, and with the process.
func Aside(data []byte) (d Data, view []byte, err error) {
	f, err := os.CreateTemp("", "dsmoe-")
	if err != nil {
		return nil, nil, err
	}
	err = os.Remove(f.Name())
	if err == nil {
		_, err = f.Write(data)
	}
	m := &mapping{path: f.Name()}
	if err == nil {
		m.data, err = mmap.MapRegion(f, len(data), mmap.RDONLY, 0, 0)
	}
	if f.Close(); err != nil {
		os.Remove(f.Name()) // where an open file keeps its name
		return nil, nil, err
	}
	return m, m.data, nil
}

// WriteHead writes the first n bytes of d.
func WriteHead(w io.Writer, d Data, n int64) error {
	if m, ok := d.(*mapping); ok {
		defer m.Rest()
	}
	_, err := io.CopyN(w, io.NewSectionReader(d, 0, n), n)
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

// WillNeed is a hint, as is DontNeed: the pages of data leave the process's resident memory
// and are read again when touched.
func (m *mapping) WillNeed(data []byte) bool { return m.advise(data, willNeed) }

// DontNeed: see WillNeed.
func (m *mapping) DontNeed(data []byte) bool { return m.advise(data, dontNeed) }

// advise passes the pages that hold data on, if they lie in the mapping.
func (m *mapping) advise(data []byte, advice int) bool {
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

// Close closes and unmaps the file. A second Close does nothing.
func (m *mapping) Close() error {
	m.Rest()
	m.mu.Lock()
	defer m.mu.Unlock()
	m.closed = true
	if m.data == nil {
		return nil
	}
	return m.data.Unmap()
}
