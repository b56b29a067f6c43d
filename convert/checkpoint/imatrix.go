package checkpoint

import (
	"context"
	"io"
	"os"

	"dsmoe/convert/format"
	"dsmoe/convert/gguf"
	"dsmoe/model/digest"
)

// Imatrix is an open importance matrix of llama.cpp's.
type Imatrix struct {
	*gguf.Imatrix
	Hash string // of the file's bytes
	file *os.File
}

// OpenImatrix opens an importance matrix, checks all of it and hashes it.
func OpenImatrix(path string) (*Imatrix, error) {
	f, size, err := format.OpenRegular(path)
	if err != nil {
		return nil, err
	}
	m := &Imatrix{file: f}
	if m.Imatrix, err = gguf.ReadImatrix(f, size, path); err == nil {
		m.Hash, _, err = digest.Copy(context.Background(), io.Discard, io.NewSectionReader(f, 0, size), func(int64) {})
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	return m, nil
}

// Close closes the file, after which no importance can be read.
func (m *Imatrix) Close() error { return m.file.Close() }
