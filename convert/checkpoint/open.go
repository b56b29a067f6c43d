package checkpoint

// What opens a checkpoint, or describes one, from its path.

import (
	"errors"
	"strings"
	"sync"

	"dsmoe/config"
	"dsmoe/convert/format"
	"dsmoe/convert/remote"
	"dsmoe/text/problem"
)

// Opener opens checkpoints, those on a server with its Client. The zero Opener has a new client for each.
type Opener struct{ Client *remote.Client }

// Open opens the checkpoint at path with the zero Opener.
func Open(path string) (*Checkpoint, error) { return Opener{}.Open(path) }

// Open opens the checkpoint at path: a directory with config.json and either
// model.safetensors or shards with model.safetensors.index.json, the path of one
// .safetensors file, or the path of an index; likewise for PyTorch's files. PyTorch's shards
// are read without an index if their names prove the set complete. Open follows links, as in
// a Hugging Face cache, and opens a snapshot of the cache itself (models--x--y), which the
// model's name in the hub (x/y) stands for, too: see Snapshot.
// It reads the headers and touches no weight.
//
// It returns all problems of all files in one *problem.Error: a bad config, index or header, a
// missing shard, a tensor that is missing from its shard, is in two shards, or is not in the
// index. Open does not compare tensors and shapes with the config; model.Load does.
// A model that is not computed is refused: see config.Config.Computable.
func (o Opener) Open(path string) (*Checkpoint, error) {
	c, err := o.OpenPart(path, nil)
	if err == nil && c.Config.Computable() != nil {
		c.Close()
		return nil, problem.In(c.Path, problem.Of(c.ConfigFile(), c.Config.Computable())...)
	}
	return c, err
}

// OpenPart is Open for a command that reads what need returns: a weight file may be absent if
// the index puts nothing of that into it, and on a server it is not opened. Tensors yields the
// tensors of such a file as entries of dtype tensor.Invalid without a shape, and a note of the
// inventory counts the files. Without an index every file is needed, and so it is if need is nil.
func (o Opener) OpenPart(path string, need Need) (*Checkpoint, error) {
	s, err := o.scan(path, need)
	if err != nil {
		return nil, err
	}
	if len(s.inv.Problems) > 0 {
		s.close()
		return nil, problem.In(s.inv.Path, s.inv.Problems...)
	}
	c := s.checkpoint()
	for i := range c.Inventory.Files {
		c.Inventory.Files[i].Infos = nil
	}
	return c, nil
}

// ScanPart reads the config, the index and the headers of the checkpoint at path (see Open for
// the forms of path), as far as a command needs them that reads what need returns: see OpenPart. It
// collects all problems. It returns an error, of type *problem.Error, only if path is not a checkpoint at all.
// Inventory.Unread has the files of the index that were not read, whether needed or not.
func (o Opener) ScanPart(path string, need Need) (*Inventory, error) {
	s, err := o.scan(path, need)
	if err != nil {
		return nil, err
	}
	s.close()
	return s.inv, nil
}

// RemoteConfig reads the config of the checkpoint, or the config, at a URL, and returns its text too.
func (o Opener) RemoteConfig(path string) (*config.Config, []byte, error) {
	l, err := o.locateRemote(strings.TrimSuffix(path, ConfigName))
	var e *problem.Error
	switch {
	case errors.As(err, &e):
		return nil, nil, err
	case l.format.Dialect == nil:
		return computable(l.dir, l.format.Config)
	}
	c, err := o.Open(path)
	if err != nil {
		return nil, nil, err
	}
	defer c.Close()
	document, err := c.ConfigText()
	return c.Config, document, err
}

// HasConfigInside reports whether the checkpoint at path has a format with the config inside
// the weight files.
func (o Opener) HasConfigInside(path string) bool {
	l, err := o.locate(path)
	return err == nil && l.format.Dialect != nil
}

// Examine opens the readable parts of the checkpoint at path. Inventory.Problems lists the
// problems, and Config may be nil. It returns an error, of type *problem.Error, only if path is not
// a checkpoint at all.
func (o Opener) Examine(path string) (*Checkpoint, error) {
	s, err := o.scan(path, nil)
	if err != nil {
		return nil, err
	}
	return s.checkpoint(), nil
}

// checkpoint returns the scanned files as an open Checkpoint.
func (s *scanner) checkpoint() *Checkpoint {
	total := int64(0)
	for i := range s.inv.Files {
		total += s.inv.Files[i].Size
	}
	return &Checkpoint{Path: s.inv.Path, Source: s.dir, Dir: s.dir.Path(""), Alone: s.alone,
		Config: s.inv.Config, Inventory: s.inv,
		hasViews: sync.OnceValue(func() bool { return s.dir.OnDisk() && format.Room(2*total) == nil }),
		format:   s.location.format, files: s.opened, where: s.where, assembly: s.assembly}
}
