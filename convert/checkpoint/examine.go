package checkpoint

import (
	"sync"

	"dsmoe/convert/format"
)

// Examine opens the readable parts of the checkpoint at path. Inventory.Problems lists the
// problems, and Config may be nil. It returns an error, of type *Error, only if path is not
// a checkpoint at all.
func Examine(path string) (*Checkpoint, error) {
	s, err := scan(path, nil)
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

// Checksums returns the checksums that a weight file, an index in Inventory.Files, holds of
// its bytes; in most formats a file holds no checksums.
func (c *Checkpoint) Checksums(file int) ([]format.Checksum, error) {
	f, ok := c.files[file].(format.Checksummed)
	if !ok {
		return nil, nil
	}
	return f.Checksums(f)
}
