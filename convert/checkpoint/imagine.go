package checkpoint

import (
	"errors"
	"fmt"
	"io"
	"path/filepath"

	"dsmoe/config"
	"dsmoe/convert/format"
	"dsmoe/convert/source"
	"dsmoe/model/tensor"
)

// Imagine returns the checkpoint of a config, at path and with document as its text, and of
// tensors without data. Conversions of it can be planned, not carried out.
func Imagine(path string, document []byte, c *config.Config, tensors []tensor.Info) *Checkpoint {
	f, where := &imagined{}, map[string]int{}
	for _, info := range tensors {
		f.Add(format.Entry{Info: info, Offset: f.size})
		f.size += info.Bytes()
		where[info.Name] = 0
	}
	return &Checkpoint{Path: path, Source: source.Disk(filepath.Dir(path)), Dir: filepath.Dir(path), Alone: true,
		Config: c, document: document,
		Inventory: &Inventory{Path: path, Config: c, Files: []FileInfo{{Name: filepath.Base(path), Size: f.size}}},
		hasViews:  func() bool { return false }, files: []format.File{f}, where: where}
}

// imagined is a weight file without data.
type imagined struct {
	format.Directory
	format.Unmapped
	size int64
}

var errNoWeights = errors.New("a config alone has no weights")

// Tensor fails: there is no data.
func (*imagined) Tensor(string) (tensor.Tensor, error) { return tensor.Tensor{}, errNoWeights }

// Stat describes the file.
func (f *imagined) Stat() format.Stat { return format.Stat{Size: f.size, Tensors: len(f.Entries)} }

// Identify writes the names and shapes.
func (f *imagined) Identify(w io.Writer) (err error) {
	for _, e := range f.Entries {
		_, err = fmt.Fprintln(w, e.Info)
	}
	return err
}

// ReadAt fails.
func (*imagined) ReadAt([]byte, int64) (int, error) { return 0, errNoWeights }

// Path returns what the file is called in messages.
func (*imagined) Path() string { return "config" }

// Size returns the bytes that the file would have.
func (f *imagined) Size() int64 { return f.size }

// Close does nothing.
func (*imagined) Close() error { return nil }
