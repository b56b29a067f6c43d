package gguf

import (
	"bufio"
	"bytes"
	"fmt"
	"io"

	"dsmoe/convert/format"
	"dsmoe/model/tensor"
	"dsmoe/text"
	"dsmoe/text/problem"
)

// readHeader reads the header of the GGUF file of the given size from r and checks all that
// can be checked without the data. file is the name for errors. An error is a *problem.Error,
// or several of them joined.
func readHeader(r io.ReaderAt, size int64, file string) (*Header, error) {
	var head [len(magic)]byte
	if n, err := r.ReadAt(head[:], 0); n < len(head) && err != io.EOF {
		return nil, problem.System(file, "first bytes", err)
	}
	if string(head[:]) != magic {
		pointer := make([]byte, len(format.LFSPointer))
		r.ReadAt(pointer, 0)
		switch {
		case string(pointer) == format.LFSPointer:
			return nil, problem.New(file, format.LFSCause, format.LFSHint)
		case string(head[:]) == "FUGG":
			return nil, problem.New(file, "is a big-endian GGUF file: this program reads little-endian ones", "")
		case len(bytes.Trim(head[:], "\x00")) == 0:
			return nil, problem.New(file, "is not a GGUF file: it is empty, or begins with zeros", hintDownload)
		}
		return nil, problem.New(file, fmt.Sprintf("is not a GGUF file: it begins with %s, not GGUF",
			text.Quote(string(head[:]))), "")
	}
	h := &Header{values: map[string]value{}}
	p := parser{r: bufio.NewReaderSize(io.NewSectionReader(r, 0, size), 1<<16), file: file, size: size, h: h}
	if err := p.parse(); err != nil {
		return nil, err
	}
	return h, nil
}

// File is an open GGUF file with a checked header. It is safe for concurrent use. Its
// tensors have GGUF names.
type File struct {
	*Header
	format.Data
}

// Open checks the header of the file at path on the disk: see read.
func Open(path string) (*File, error) { return format.OpenFile(path, read) }

// read checks the header of d. It reads no weights. An error is a *problem.Error, or several of
// them joined.
func read(d format.Data) (*File, error) {
	h, err := readHeader(d, d.Size(), d.Path())
	if err != nil {
		return nil, err
	}
	return &File{h, d}, nil
}

// Tensor returns a view of the named tensor, valid until Close.
func (f *File) Tensor(name string) (tensor.Tensor, error) {
	info, offset, ok := f.Lookup(name)
	return f.View(name, info, offset, ok)
}

// Stat describes the file.
func (f *File) Stat() format.Stat {
	return format.Stat{Size: f.Size(), Header: f.DataStart, Tensors: len(f.Entries), Notes: f.notes}
}

// Identify writes the header's bytes.
func (f *File) Identify(w io.Writer) error {
	return format.WriteHead(w, f.Data, min(f.DataStart, f.Size()))
}
