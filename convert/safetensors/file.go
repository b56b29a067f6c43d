package safetensors

import (
	"fmt"
	"math"

	"github.com/edsrzf/mmap-go"

	"dsmoe/model/tensor"
)

// File is an open, mapped safetensors file whose header was checked. It is safe
// for concurrent use. The file must not be cut shorter while it is open: touching
// the lost part of a mapping kills the process (SIGBUS), as for every mapped file.
type File struct {
	*Header
	Path string
	Size int64

	data mmap.MMap
}

// Open checks the header of the file at path and maps the file. It touches no
// page of the weights. Errors are of type *FormatError and wrap the system's.
func Open(path string) (*File, error) {
	f, size, err := OpenRegular(path)
	if err != nil {
		return nil, err
	}
	defer f.Close() // the mapping outlives the descriptor
	h, err := ReadHeader(f, size, path)
	if err != nil {
		return nil, err
	}
	if size > math.MaxInt {
		return nil, &FormatError{File: path, Cause: fmt.Sprintf("%d bytes do not fit in the address space of this platform", size)}
	}
	data, err := mmap.MapRegion(f, int(size), mmap.RDONLY, 0, 0)
	if err != nil {
		return nil, systemError(path, fmt.Sprintf("mapping %d bytes", size), err)
	}
	return &File{Header: h, Path: path, Size: size, data: data}, nil
}

// Tensor returns a view of the named tensor, valid until Close. Its data starts
// at any byte: the format does not align it.
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

// Close unmaps the file; views of its tensors must not be used any more. A
// second Close does nothing.
func (f *File) Close() error {
	if f.data == nil {
		return nil
	}
	return f.data.Unmap()
}
