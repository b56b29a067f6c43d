package checkpoint

import (
	"errors"
	"fmt"
	"io"
	"path/filepath"

	"dsmoe/config"
	"dsmoe/convert/format"
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
	return &Checkpoint{Path: path, Dir: filepath.Dir(path), Alone: true, Config: c, document: document,
		Inventory: &Inventory{Path: path, Config: c, Files: []FileInfo{{Name: filepath.Base(path), Size: f.size}}},
		hasViews:  func() bool { return false }, files: []format.File{f}, where: where}
}

// imagined is a weight file without data.
type imagined struct {
	format.Directory
	size int64
}

// Tensor fails: there is no data.
func (*imagined) Tensor(string) (tensor.Tensor, error) {
	return tensor.Tensor{}, errors.New("a config alone has no weights")
}

// Stat describes the file.
func (f *imagined) Stat() format.Stat { return format.Stat{Size: f.size, Tensors: len(f.Entries)} }

// Identify writes the names and shapes.
func (f *imagined) Identify(w io.Writer) (err error) {
	for _, e := range f.Entries {
		_, err = fmt.Fprintln(w, e.Info)
	}
	return err
}

// WillNeed reports false.
func (*imagined) WillNeed([]byte) bool { return false }

// DontNeed reports false.
func (*imagined) DontNeed([]byte) bool { return false }

// Close does nothing.
func (*imagined) Close() error { return nil }
