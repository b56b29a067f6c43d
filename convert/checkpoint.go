// Package convert opens checkpoints and writes new ones. Open gives a Checkpoint,
// a model.Source with its config, after checking everything but the weights
// themselves; Scan collects the same findings for a report; Write writes a
// checkpoint directory that is either complete or not there.
package convert

import (
	"errors"
	"fmt"
	"iter"

	"dsmoe/config"
	"dsmoe/convert/safetensors"
	"dsmoe/model"
	"dsmoe/model/tensor"
)

// Checkpoint is an open checkpoint: its config and, as a model.Source, its mapped
// weights. It is safe for concurrent use.
type Checkpoint struct {
	Path      string
	Config    *config.Config
	Inventory *Inventory // what it consists of, with Notes and without Problems

	dir   string
	files []weightFile
	where map[string]int // the file of each tensor
}

// weightFile is an open file of any format: *safetensors.File, *torchbin.File.
type weightFile interface {
	Tensors() iter.Seq[tensor.Info]
	Tensor(name string) (tensor.Tensor, error)
	Lookup(name string) (info tensor.Info, offset int64, ok bool) // offset in the file of the first byte
	Len() int
	Close() error
}

var _ model.Source = (*Checkpoint)(nil)

// Open opens the checkpoint at path: a directory with config.json and either
// model.safetensors or shards with model.safetensors.index.json, the path of one
// .safetensors file, or that of an index. Links, as in a Hugging Face cache, are
// followed. It reads the headers and touches no weight.
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
	return &Checkpoint{Path: path, Config: s.inv.Config, Inventory: s.inv, dir: s.dir, files: s.files, where: s.where}, nil
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
		return tensor.Tensor{}, fmt.Errorf("%s: tensor %s: not in this checkpoint", safetensors.Quote(c.Path), safetensors.Quote(name))
	}
	return c.files[i].Tensor(name)
}

// Close unmaps all files; views of their tensors must not be used any more.
func (c *Checkpoint) Close() error {
	var errs []error
	for _, f := range c.files {
		errs = append(errs, f.Close())
	}
	return errors.Join(errs...)
}
