package format

import (
	"iter"

	"dsmoe/model/tensor"
)

// Directory lists the tensors of a file by position and by name. The zero value is empty.
type Directory struct {
	Entries []Entry // in the order of the file
	byName  map[string]int
}

// Entry is a tensor and the place of its first byte in the file.
type Entry struct {
	Info   tensor.Info // shape outermost first
	Offset int64
}

// Add adds a tensor behind the others. Of several of one name Lookup finds the last.
func (d *Directory) Add(e Entry) {
	if d.byName == nil {
		d.byName = map[string]int{}
	}
	d.byName[e.Info.Name] = len(d.Entries)
	d.Entries = append(d.Entries, e)
}

// Tensors yields the tensors in the order of the file. Shapes are shared: do not change them.
func (d *Directory) Tensors() iter.Seq[tensor.Info] {
	return func(yield func(tensor.Info) bool) {
		for i := range d.Entries {
			if !yield(d.Entries[i].Info) {
				return
			}
		}
	}
}

// Lookup returns the named tensor and the offset of its first byte in the file.
func (d *Directory) Lookup(name string) (info tensor.Info, offset int64, ok bool) {
	i, ok := d.byName[name]
	if !ok {
		return tensor.Info{}, 0, false
	}
	return d.Entries[i].Info, d.Entries[i].Offset, true
}
