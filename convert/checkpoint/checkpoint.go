// Package checkpoint opens checkpoints, of any format. Open gives a Checkpoint, a
// weights.Source with its config, after checking everything but the weights themselves;
// Scan collects the same findings for a report.
package checkpoint

import (
	"errors"
	"fmt"
	"io"
	"iter"
	"os"
	"path/filepath"
	"sync"

	"dsmoe/config"
	"dsmoe/convert/format"
	"dsmoe/convert/internal/digest"
	"dsmoe/model/tensor"
	"dsmoe/model/weights"
	"dsmoe/text"
)

// Checkpoint is an open checkpoint: its config and, as a weights.Source, its mapped
// weights. It is safe for concurrent use.
type Checkpoint struct {
	Path      string         // as it was given
	Dir       string         // the directory of its files
	Config    *config.Config // its config.json
	Inventory *Inventory     // what it consists of, with Notes and without Problems

	files []format.File
	where map[string]int // the file of each tensor

	mu      sync.Mutex
	readers []*os.File // as files; opened when they are read
}

var (
	_ weights.Source   = (*Checkpoint)(nil)
	_ weights.ReaderAt = (*Checkpoint)(nil)
)

// Open opens the checkpoint at path: a directory with config.json and either
// model.safetensors or shards with model.safetensors.index.json, the path of one
// .safetensors file, or that of an index; likewise for PyTorch's files. Links, as in a
// Hugging Face cache, are followed. It reads the headers and touches no weight.
//
// Everything that is wrong, in all files, is in the one *Error that it returns:
// a bad config, index or header, a missing shard, a tensor that is missing from
// its shard, is in two, or is not in the index. Each tensor's shape and whether
// the config asks for it are not checked here but by model.Load.
func Open(path string) (*Checkpoint, error) {
	s, err := scan(path)
	if err != nil {
		return nil, err
	}
	if len(s.inv.Problems) > 0 {
		s.close()
		return nil, &Error{Path: path, Problems: s.inv.Problems}
	}
	return s.checkpoint(), nil
}

// Tensors yields the tensors of one file after the other, each in file order.
func (c *Checkpoint) Tensors() iter.Seq[tensor.Info] {
	return func(yield func(tensor.Info) bool) {
		for _, f := range c.files {
			for info := range f.Tensors() {
				if !yield(info) {
					return
				}
			}
		}
	}
}

// Tensor returns a view of the named tensor's mapped bytes, valid until Close.
func (c *Checkpoint) Tensor(name string) (tensor.Tensor, error) {
	i, ok := c.where[name]
	if !ok {
		return tensor.Tensor{}, c.unknown(name)
	}
	return c.files[i].Tensor(name)
}

func (c *Checkpoint) unknown(name string) error {
	return fmt.Errorf("%s: tensor %s: not in this checkpoint", text.Quote(c.Path), text.Quote(name))
}

// Place returns the index in Inventory.Files of the file that holds the named tensor, and
// the offset there of its first byte.
func (c *Checkpoint) Place(name string) (file int, offset int64, err error) {
	file, ok := c.where[name]
	if !ok {
		return 0, 0, c.unknown(name)
	}
	_, offset, _ = c.files[file].Lookup(name)
	return file, offset, nil
}

// ReadAt fills dst with the named tensor's bytes from offset on. It reads the file, not
// its mapping, so that memory stays what the caller gives.
func (c *Checkpoint) ReadAt(name string, dst []byte, offset int64) error {
	file, start, err := c.Place(name)
	if err != nil {
		return err
	}
	return c.ReadFile(file, dst, start+offset)
}

// ReadFile fills dst from a weight file, an index in Inventory.Files. A file that became
// shorter is an error.
func (c *Checkpoint) ReadFile(file int, dst []byte, offset int64) error {
	f, err := c.reader(file)
	if err != nil {
		return err
	}
	if _, err = f.ReadAt(dst, offset); err == io.EOF {
		err = fmt.Errorf("%s: byte %d: %w", text.Quote(f.Name()), offset, io.ErrUnexpectedEOF)
	}
	return err
}

func (c *Checkpoint) reader(file int) (*os.File, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.readers[file] == nil {
		f, _, err := format.OpenRegular(filepath.Join(c.Dir, c.Inventory.Files[file].Name))
		if err != nil {
			return nil, err
		}
		c.readers[file] = f
	}
	return c.readers[file], nil
}

// Identity names what a weight file holds and where: its header, as a rule.
func (c *Checkpoint) Identity(file int) (string, error) {
	h := digest.New()
	if err := c.files[file].Identify(h); err != nil {
		return "", err
	}
	return h.Name(), nil
}

// Key names the state that the weight files are in: it follows from their names, sizes
// and times.
func (c *Checkpoint) Key() (string, error) {
	h := digest.New()
	for _, f := range c.Inventory.Files {
		stat, err := os.Stat(filepath.Join(c.Dir, f.Name))
		if err != nil {
			return "", err
		}
		fmt.Fprintf(h, "%q %d %d\n", f.Name, stat.Size(), stat.ModTime().UnixNano())
	}
	return h.Name(), nil
}

// OpenOther opens a file of the checkpoint's directory that holds no weights.
func (c *Checkpoint) OpenOther(name string) (io.ReadCloser, error) {
	f, _, err := format.OpenRegular(filepath.Join(c.Dir, name))
	if err != nil {
		return nil, err
	}
	return f, nil
}

// ConfigText returns config.json as it is written.
func (c *Checkpoint) ConfigText() ([]byte, error) {
	f, err := c.OpenOther(ConfigName)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return io.ReadAll(io.LimitReader(f, config.MaxSize+1))
}

// WillNeed tells the system that a part of a tensor's view is about to be read.
func (c *Checkpoint) WillNeed(data []byte) { c.advise(data, format.File.WillNeed) }

// DontNeed tells it that a part is not read for a while, so that its pages need not
// stay in memory. Views stay valid.
func (c *Checkpoint) DontNeed(data []byte) { c.advise(data, format.File.DontNeed) }

func (c *Checkpoint) advise(data []byte, advice func(format.File, []byte) bool) {
	for _, f := range c.files {
		if advice(f, data) {
			return
		}
	}
}

// Close unmaps and closes all files; views of their tensors must not be used any more.
func (c *Checkpoint) Close() error {
	var errs []error
	for _, f := range c.files {
		errs = append(errs, f.Close())
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for i, f := range c.readers {
		if f != nil {
			errs = append(errs, f.Close())
			c.readers[i] = nil
		}
	}
	return errors.Join(errs...)
}
