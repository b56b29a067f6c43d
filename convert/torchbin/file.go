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
	"path"
	"path/filepath"
	"strings"

	"dsmoe/convert/format"
	"dsmoe/model/tensor"
	"dsmoe/text"
)

// The limits on a file, far above those of any checkpoint.
const (
	maxPickle  = 64 << 20 // bytes of data.pkl
	maxEntries = 1 << 19  // files in the archive
)

// Format is what torch.save writes: only read.
func Format() *format.Format {
	return &format.Format{
		Name:      "PyTorch",
		Recognise: isWeights,
		Single:    "pytorch_model.bin",
		Shard:     func(i, n int) string { return fmt.Sprintf("pytorch_model-%05d-of-%05d.bin", i+1, n) },
		Index:     "pytorch_model.bin.index.json",
		IsIndex:   isIndex,
		Belongs:   belongs,
		Open:      format.Opener(Open),
	}
}

func isWeights(file string) bool {
	switch filepath.Ext(file) {
	case ".bin", ".pt", ".pth":
		return true
	}
	return false
}

// isIndex accepts pytorch_model.bin.index.json and its variants.
func isIndex(file string) bool {
	return strings.HasSuffix(file, ".json") && strings.Contains(file, ".bin.index.")
}

// belongs knows the names that transformers gives: a directory may hold other pickles,
// such as the state of an optimiser.
func belongs(file string) bool {
	return strings.HasPrefix(file, "pytorch_model") && strings.HasSuffix(file, ".bin")
}

// File is an open, mapped file whose pickle and archive were checked. It is safe
// for concurrent use.
type File struct {
	*format.Mapping
	entries []entry
	byName  map[string]int
}

// entry is a tensor and its place in the file.
type entry struct {
	info   tensor.Info
	offset int64
}

const hintSafe = "save the model with safe_serialization=True, or load it where you trust it and save it again"

// Open reads the archive and the pickle of the file of that path and maps the file. It
// touches no weight. Errors are of type *format.Error.
func Open(name string) (*File, error) {
	f, size, err := format.OpenRegular(name)
	if err != nil {
		return nil, err
	}
	defer f.Close() // the mapping outlives the descriptor
	entries, err := read(f, size)
	if err != nil {
		return nil, named(name, err)
	}
	file := &File{entries: entries, byName: make(map[string]int, len(entries))}
	for i, e := range entries {
		file.byName[e.info.Name] = i
	}
	if file.Mapping, err = format.Map(f, size, name); err != nil {
		return nil, err
	}
	return file, nil
}

// named gives an error the file's name.
func named(file string, err error) error {
	var known *format.Error
	if errors.As(err, &known) {
		known.File = file
		return known
	}
	return format.SystemError(file, "", err)
}

// read checks the archive and the pickle, and finds every tensor's bytes.
func read(f io.ReaderAt, size int64) ([]entry, error) {
	z, err := openArchive(f, size)
	if err != nil {
		return nil, err
	}
	program, err := z.pickle()
	if err != nil {
		return nil, err
	}
	tensors, err := unpickle(program)
	if err != nil {
		return nil, err
	}
	entries := make([]entry, len(tensors))
	for i, t := range tensors {
		if entries[i], err = z.place(t); err != nil {
			return nil, &format.Error{Tensor: t.name, Cause: err.Error()}
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
			return nil, fmt.Errorf("archive entry %s is outside the folder %s that torch.save puts all in", text.Quote(e.Name), text.Quote(root))
		}
		if a.entries[rest] != nil {
			return nil, fmt.Errorf("archive entry %s is there twice", text.Quote(e.Name))
		}
		a.entries[rest] = e
	}
	return a, a.checkByteOrder()
}

// notArchive says what a file is that is no zip archive.
func notArchive(f io.ReaderAt, size int64) error {
	var head [64]byte
	n, _ := f.ReadAt(head[:], 0)
	switch {
	case size == 0:
		return errors.New("file is empty")
	case n > 1 && head[0] == 0x80 && head[1] <= 5:
		return &format.Error{Cause: "is a bare pickle, as torch.save wrote before version 1.6: not read", Hint: hintSafe}
	case strings.HasPrefix(string(head[:n]), "PK\x03\x04"):
		return &format.Error{Cause: "archive is cut off: its directory is missing", Hint: "the download did not finish: fetch the file again"}
	case strings.HasPrefix(string(head[:n]), "version https://git-lfs"):
		return &format.Error{Cause: "is a Git LFS pointer: the weights were not downloaded", Hint: "run `git lfs pull` in the checkpoint's repository"}
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
		err = fmt.Errorf("byte order is %s, not little", text.Quote(string(order)))
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
		return nil, fmt.Errorf("archive entry %s has %s, more than the limit of %s", text.Quote(e.Name), text.ExactBytes(int64(e.UncompressedSize64)), text.Bytes(int64(limit)))
	}
	r, err := e.Open()
	if err != nil {
		return nil, fmt.Errorf("archive entry %s: %w", text.Quote(e.Name), err)
	}
	defer r.Close()
	data, err := io.ReadAll(io.LimitReader(r, int64(limit)))
	if err != nil {
		return nil, fmt.Errorf("archive entry %s: %w", text.Quote(e.Name), err)
	}
	return data, nil
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
		return e, fmt.Errorf("its storage %s is not in the archive", text.Quote(name))
	}
	if z.Method != zip.Store || z.CompressedSize64 != z.UncompressedSize64 {
		return e, fmt.Errorf("its storage %s is compressed, which torch.save never does", text.Quote(name))
	}
	start, err := z.DataOffset()
	if err != nil {
		return e, fmt.Errorf("its storage %s: %w", text.Quote(name), err)
	}
	held := z.UncompressedSize64
	if start < 0 || held > uint64(a.size) || start > a.size-int64(held) {
		return e, fmt.Errorf("its storage %s lies beyond the end of the file", text.Quote(name))
	}
	width := int64(t.dtype.Bits() / 8)
	if t.offset > math.MaxInt64/8/width || t.offset*width+size > int64(held) {
		return e, fmt.Errorf("it needs %s from element %d of its storage %s on, which has %s", text.ExactBytes(size), t.offset, text.Quote(name), text.ExactBytes(int64(held)))
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
	return f.View(name, info, offset, ok)
}

// Stat describes the file.
func (f *File) Stat() format.Stat { return format.Stat{Size: f.Size(), Tensors: len(f.entries)} }

// Identify writes the tensors and their places.
func (f *File) Identify(w io.Writer) error {
	for _, e := range f.entries {
		if _, err := fmt.Fprintf(w, "%q %s %v %d\n", e.info.Name, e.info.DType, e.info.Shape, e.offset); err != nil {
			return err
		}
	}
	return nil
}
