// Package gguf reads and lays out the files of llama.cpp. Open checks a file's whole header.
// A checkpoint's files together hold its config.json and the weights of the table, whose rows
// have GGUF names (table.GGUF). GGUF names occur only in this package, in that column, and in
// reports about such files.
//
// The reader accepts the versions that llama.cpp's own reader accepts, 2 and 3, and nothing
// else. It checks every length in a file before it allocates memory for it. The package
// writes no file.
package gguf

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"path/filepath"
	"strings"

	"dsmoe/convert/format"
	"dsmoe/model/tensor"
	"dsmoe/text"
)

// magic is what every file begins with.
const magic = "GGUF"

const hintDownload = "the download did not finish: fetch the file again"

// Format is GGUF, as llama.cpp reads and writes it.
func Format() *format.Format {
	return &format.Format{
		Name:      "GGUF",
		Recognise: isWeights,
		Single:    "model.gguf",
		Shard:     func(i, n int) string { return fmt.Sprintf("model-%05d-of-%05d.gguf", i+1, n) },
		IsIndex:   func(string) bool { return false },
		Belongs:   isWeights,
		Open:      format.Opener(Open),
		Layout: func(tensors []tensor.Info, head format.Head) (format.Layout, error) {
			return NewLayout(tensors, head)
		},
		Dialect: &format.Dialect{Assemble: assemble, Arrange: arrange, Types: mixtureWords(), Describe: describe,
			Consumes: consumes},
	}
}

func isWeights(file string) bool { return strings.EqualFold(filepath.Ext(file), ".gguf") }

// Header is the checked header of a file. It is safe for concurrent use.
type Header struct {
	format.Directory // its entries follow each other as their data does

	Version   uint32 // of the format: 2 or 3
	DataStart int64  // offset in the file of the first tensor

	alignment int64
	values    map[string]value
	keys      []string // in the order of the file
	notes     []string
}

// ReadHeader reads the header of the GGUF file of the given size from r and checks all that
// can be checked without the data. file is the name for errors. An error is a *format.Error,
// or several of them joined.
func ReadHeader(r io.ReaderAt, size int64, file string) (*Header, error) {
	var head [len(magic)]byte
	if n, err := r.ReadAt(head[:], 0); n < len(head) && err != io.EOF {
		return nil, format.SystemError(file, "first bytes", err)
	}
	if string(head[:]) != magic {
		return nil, notGGUF(r, head[:], file)
	}
	h := &Header{values: map[string]value{}}
	p := parser{r: bufio.NewReaderSize(io.NewSectionReader(r, 0, size), 1<<16), file: file, size: size, h: h}
	if err := p.parse(); err != nil {
		return nil, err
	}
	return h, nil
}

// notGGUF is the error for a file without GGUF's magic; it names the kind of file.
func notGGUF(r io.ReaderAt, head []byte, file string) error {
	pointer := make([]byte, len(format.LFSPointer))
	r.ReadAt(pointer, 0)
	switch {
	case string(pointer) == format.LFSPointer:
		return &format.Error{File: file, Cause: format.LFSCause, Hint: format.LFSHint}
	case string(head) == "FUGG":
		return &format.Error{File: file, Cause: "is a big-endian GGUF file: this program reads little-endian ones"}
	case len(bytes.Trim(head, "\x00")) == 0:
		return &format.Error{File: file, Cause: "is not a GGUF file: it is empty, or begins with zeros", Hint: hintDownload}
	}
	return &format.Error{File: file, Cause: fmt.Sprintf("is not a GGUF file: it begins with %s, not GGUF",
		text.Quote(string(head)))}
}

// File is an open GGUF file with a checked header. It is safe for concurrent use. Its
// tensors have GGUF names.
type File struct {
	*Header
	*format.Mapping
	path string
}

// Open checks the header of the file at path. It reads no weights. An error is a
// *format.Error, or several of them joined.
func Open(path string) (*File, error) {
	f, size, err := format.OpenRegular(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	h, err := ReadHeader(f, size, path)
	if err != nil {
		return nil, err
	}
	m, err := format.NewMapping(f, path)
	if err != nil {
		return nil, err
	}
	return &File{h, m, path}, nil
}

// Tensor returns a view of the named tensor, valid until Close.
func (f *File) Tensor(name string) (tensor.Tensor, error) {
	info, offset, ok := f.Lookup(name)
	return f.View(name, info, offset, ok)
}

// Stat describes the file.
func (f *File) Stat() format.Stat {
	return format.Stat{Size: f.Size(), Tensors: len(f.Entries), Notes: f.notes}
}

// Identify writes the header's bytes.
func (f *File) Identify(w io.Writer) error {
	file, err := f.Reopen()
	if err != nil {
		return err
	}
	defer file.Close()
	_, err = io.CopyN(w, file, min(f.DataStart, f.Size()))
	return err
}
