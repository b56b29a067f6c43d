// Package torchbin reads the files that torch.save writes of a state dict
// (pytorch_model.bin): a zip archive of raw storages and one pickle that says
// which tensor is where. Open gives a File whose tensors are views of the mapped
// file.
//
// A pickle is a program, and loading one the usual way runs it. This package runs
// nothing: it knows the few opcodes and names that a state dict needs, and refuses
// every other by its name, whatever it may do. It never imports, calls or
// unpickles anything, and its memory is bounded by the pickle's size.
package torchbin

import (
	"archive/zip"
	"errors"
	"fmt"
	"io"
	"iter"
	"math"
	"os"
	"path"
	"strconv"
	"strings"

	"github.com/edsrzf/mmap-go"

	"dsmoe/model/tensor"
)

// The limits on a file, far above those of any checkpoint.
const (
	maxPickle  = 64 << 20 // bytes of data.pkl
	maxEntries = 1 << 19  // files in the archive
)

// File is an open, mapped file whose pickle and archive were checked. It is safe
// for concurrent use.
type File struct {
	Path string
	Size int64

	entries []entry
	byName  map[string]int
	data    mmap.MMap
}

// entry is a tensor and its place in the file.
type entry struct {
	info   tensor.Info
	offset int64
}

// FormatError says why a file cannot be read.
type FormatError struct {
	File   string // the path as it was given
	Tensor string // the tensor at fault; empty when it is the whole file
	Cause  string
	Hint   string

	err error
}

// Error returns "file: tensor: cause".
func (e *FormatError) Error() string {
	text := quote(e.File) + ": "
	if e.Tensor != "" {
		text += "tensor " + quote(e.Tensor) + ": "
	}
	return text + e.Cause
}

// Unwrap returns the system's error, if there is one.
func (e *FormatError) Unwrap() error { return e.err }

const hintSafe = "save the model with safe_serialization=True, or load it where you trust it and save it again"

// Open reads the archive and the pickle of the file at path and maps the file. It
// touches no weight. Errors are of type *FormatError.
func Open(path string) (*File, error) {
	f, size, err := openRegular(path)
	if err != nil {
		return nil, wrap(path, err)
	}
	defer f.Close() // the mapping outlives the descriptor
	entries, err := read(f, size)
	if err != nil {
		return nil, wrap(path, err)
	}
	file := &File{Path: path, Size: size, entries: entries, byName: make(map[string]int, len(entries))}
	for i, e := range entries {
		file.byName[e.info.Name] = i
	}
	if size > math.MaxInt {
		return nil, wrap(path, fmt.Errorf("%d bytes do not fit in the address space of this platform", size))
	}
	if file.data, err = mmap.MapRegion(f, int(size), mmap.RDONLY, 0, 0); err != nil {
		return nil, wrap(path, err)
	}
	return file, nil
}

func openRegular(path string) (*os.File, int64, error) {
	stat, err := os.Stat(path)
	if err != nil {
		return nil, 0, err
	}
	if !stat.Mode().IsRegular() {
		return nil, 0, errors.New("is not a regular file")
	}
	f, err := os.Open(path)
	return f, stat.Size(), err
}

func wrap(path string, err error) error {
	var format *FormatError
	if errors.As(err, &format) {
		format.File = path
		return format
	}
	cause := err
	var perr *os.PathError
	if errors.As(err, &perr) {
		cause = perr.Err
	}
	return &FormatError{File: path, Cause: cause.Error(), err: err}
}

// read checks the archive and the pickle, and finds every tensor's bytes.
func read(f io.ReaderAt, size int64) ([]entry, error) {
	z, err := openArchive(f, size)
	if err != nil {
		return nil, err
	}
	text, err := z.pickle()
	if err != nil {
		return nil, err
	}
	tensors, err := unpickle(text)
	if err != nil {
		return nil, err
	}
	entries := make([]entry, len(tensors))
	for i, t := range tensors {
		if entries[i], err = z.place(t); err != nil {
			return nil, &FormatError{Tensor: t.name, Cause: err.Error()}
		}
	}
	return entries, nil
}

// archive is the zip file: its entries by name, without the folder they all share.
type archive struct {
	size    int64
	entries map[string]*zip.File
}

func openArchive(f io.ReaderAt, size int64) (*archive, error) {
	z, err := zip.NewReader(f, size)
	if err != nil {
		return nil, notArchive(f, size)
	}
	if len(z.File) > maxEntries {
		return nil, fmt.Errorf("archive has %d entries, more than the limit of %d", len(z.File), maxEntries)
	}
	a := &archive{size: size, entries: map[string]*zip.File{}}
	root := ""
	for i, e := range z.File {
		folder, rest, _ := strings.Cut(e.Name, "/")
		if i == 0 {
			root = folder
		}
		if folder != root || rest == "" {
			return nil, fmt.Errorf("archive entry %s is outside the folder %s that torch.save puts all in", quote(e.Name), quote(root))
		}
		if a.entries[rest] != nil {
			return nil, fmt.Errorf("archive entry %s is there twice", quote(e.Name))
		}
		a.entries[rest] = e
	}
	return a, a.checkByteOrder()
}

// notArchive says what a file is that is no zip archive.
func notArchive(f io.ReaderAt, size int64) error {
	var head [4]byte
	n, _ := f.ReadAt(head[:], 0)
	switch {
	case size == 0:
		return errors.New("file is empty")
	case n > 1 && head[0] == 0x80 && head[1] <= 5:
		return &FormatError{Cause: "is a bare pickle, as torch.save wrote before version 1.6: not read", Hint: hintSafe}
	case n == 4 && string(head[:]) == "PK\x03\x04":
		return &FormatError{Cause: "archive is cut off: its directory is missing", Hint: "the download did not finish: fetch the file again"}
	case strings.HasPrefix("version https://git-lfs", string(head[:n])):
		return &FormatError{Cause: "is a Git LFS pointer: the weights were not downloaded", Hint: "run `git lfs pull` in the checkpoint's repository"}
	}
	return errors.New("is not a zip archive, as torch.save writes")
}

// checkByteOrder refuses files written on big-endian machines.
func (a *archive) checkByteOrder() error {
	e := a.entries["byteorder"]
	if e == nil {
		return nil
	}
	order, err := a.content(e, 16)
	if err == nil && string(order) != "little" {
		err = fmt.Errorf("byte order is %s, not little", quote(string(order)))
	}
	return err
}

func (a *archive) pickle() ([]byte, error) {
	e := a.entries["data.pkl"]
	if e == nil {
		return nil, errors.New("archive holds no data.pkl: not written by torch.save")
	}
	return a.content(e, maxPickle)
}

// content reads an entry of at most limit bytes and checks its checksum.
func (a *archive) content(e *zip.File, limit uint64) ([]byte, error) {
	if e.UncompressedSize64 > limit {
		return nil, fmt.Errorf("archive entry %s has %d bytes, more than the limit of %d", quote(e.Name), e.UncompressedSize64, limit)
	}
	r, err := e.Open()
	if err != nil {
		return nil, fmt.Errorf("archive entry %s: %w", quote(e.Name), err)
	}
	defer r.Close()
	text, err := io.ReadAll(io.LimitReader(r, int64(limit)))
	if err != nil {
		return nil, fmt.Errorf("archive entry %s: %w", quote(e.Name), err)
	}
	return text, nil
}

// place finds the bytes of a tensor.
func (a *archive) place(t pickled) (entry, error) {
	e := entry{info: tensor.Info{Name: t.name, DType: t.dtype, Shape: t.shape}}
	size, err := tensor.Size(t.dtype, t.shape)
	if err != nil {
		return e, err
	}
	if err := t.checkContiguous(); err != nil {
		return e, err
	}
	name := path.Join("data", t.storage.key)
	z := a.entries[name]
	if z == nil {
		return e, fmt.Errorf("its storage %s is not in the archive", quote(name))
	}
	if z.Method != zip.Store || z.CompressedSize64 != z.UncompressedSize64 {
		return e, fmt.Errorf("its storage %s is compressed, which torch.save never does", quote(name))
	}
	start, err := z.DataOffset()
	if err != nil {
		return e, fmt.Errorf("its storage %s: %w", quote(name), err)
	}
	held := z.UncompressedSize64
	if start < 0 || held > uint64(a.size) || start > a.size-int64(held) {
		return e, fmt.Errorf("its storage %s lies beyond the end of the file", quote(name))
	}
	width := int64(t.dtype.Bits() / 8)
	if t.offset > math.MaxInt64/8/width || t.offset*width+size > int64(held) {
		return e, fmt.Errorf("it needs %d bytes from element %d of its storage %s on, which has %d", size, t.offset, quote(name), held)
	}
	e.offset = start + t.offset*width
	return e, nil
}

// Tensors yields the tensors in the order of the pickle.
func (f *File) Tensors() iter.Seq[tensor.Info] {
	return func(yield func(tensor.Info) bool) {
		for _, e := range f.entries {
			if !yield(e.info) {
				return
			}
		}
	}
}

// Len returns the number of tensors.
func (f *File) Len() int { return len(f.entries) }

// Lookup returns the named tensor and the offset of its first byte in the file.
func (f *File) Lookup(name string) (info tensor.Info, offset int64, ok bool) {
	i, ok := f.byName[name]
	if !ok {
		return tensor.Info{}, 0, false
	}
	return f.entries[i].info, f.entries[i].offset, true
}

// Tensor returns a view of the named tensor, valid until Close.
func (f *File) Tensor(name string) (tensor.Tensor, error) {
	info, offset, ok := f.Lookup(name)
	switch {
	case !ok:
		return tensor.Tensor{}, &FormatError{File: f.Path, Tensor: name, Cause: "no such tensor in this file"}
	case f.data == nil:
		return tensor.Tensor{}, &FormatError{File: f.Path, Tensor: name, Cause: "file is closed"}
	}
	end := offset + info.Bytes()
	return tensor.Tensor{DType: info.DType, Shape: info.Shape, Data: f.data[offset:end:end]}, nil
}

// Close unmaps the file; views of its tensors must not be used any more.
func (f *File) Close() error {
	if f.data == nil {
		return nil
	}
	return f.data.Unmap()
}

// quote makes untrusted text fit for one line of an error.
func quote(s string) string {
	if len(s) > 200 {
		s = strings.ToValidUTF8(s[:200], "") + "…"
	}
	q := strconv.Quote(s)
	if q[1:len(q)-1] == s && s != "" && !strings.ContainsAny(s, " '") {
		return s
	}
	return q
}
