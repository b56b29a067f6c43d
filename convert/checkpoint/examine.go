package checkpoint

import (
	"os"
	"sync"

	"dsmoe/convert/format"
)

// Examine opens what can be read of the checkpoint at path, whatever is wrong with it:
// Inventory.Problems says what is, and Config may be nil. It returns an error, of type
// *Error, only if path is no checkpoint at all.
func Examine(path string) (*Checkpoint, error) {
	s, err := scan(path)
	if err != nil {
		return nil, err
	}
	return s.checkpoint(), nil
}

// checkpoint is what was scanned, opened.
func (s *scanner) checkpoint() *Checkpoint {
	total := int64(0)
	for i := range s.inv.Files {
		total += s.inv.Files[i].Size
	}
	return &Checkpoint{Path: s.inv.Path, Dir: s.dir, Alone: s.alone, Config: s.inv.Config, Inventory: s.inv,
		hasViews: sync.OnceValue(func() bool { return format.Room(2*total) == nil }),
		files:    s.opened, where: s.where, assembly: s.assembly, readers: make([]*os.File, len(s.opened))}
}

// Checksums returns what a weight file, an index in Inventory.Files, says of its bytes;
// most formats say nothing.
func (c *Checkpoint) Checksums(file int) ([]format.Checksum, error) {
	f, ok := c.files[file].(format.Checksummed)
	if !ok {
		return nil, nil
	}
	r, err := c.reader(file)
	if err != nil {
		return nil, err
	}
	return f.Checksums(r)
}
