// Package checkpoint opens checkpoints, of any format. Open gives a Checkpoint, a
// weights.Source with its config, after checking everything but the weights themselves;
// ScanPart collects the same findings for a report.
package checkpoint

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"iter"
	"slices"
	"strings"
	"sync"
	"unsafe"

	"dsmoe/config"
	"dsmoe/convert/format"
	"dsmoe/convert/source"
	"dsmoe/model/digest"
	"dsmoe/model/tensor"
	"dsmoe/model/weights"
	"dsmoe/text"
	"dsmoe/text/problem"
)

// Checkpoint is an open checkpoint: its config and, as a weights.Source, views of its weights. A
// weight file is mapped at the first view. It is safe for concurrent use.
type Checkpoint struct {
	Path      string         // as it was given; of a model of the hub with the commit
	Source    source.Dir     // the directory of its files
	Dir       string         // its path or URL
	Alone     bool           // Path is one weight file; other files beside it do not belong to the checkpoint
	Config    *config.Config // its config.json
	Inventory *Inventory     // its files, with Notes and without Problems

	format   *format.Format // of files
	files    []format.File
	where    map[string]int // the file of each tensor
	assembly *assembly      // the tensors of a format with a dialect; nil for others
	document []byte         // the text of an imagined checkpoint's config; nil for others

	hasViews func() bool
	asides   sync.Map // of format.Data: what Aside mapped
}

var (
	_ weights.Source   = (*Checkpoint)(nil)
	_ weights.ReaderAt = (*Checkpoint)(nil)
	_ weights.Unviewed = (*Checkpoint)(nil)
)

// Tensors yields the tensors of one file after the other, each in file order. Tensors of files that were not read come
// last, without dtype and shape: see OpenPart.
func (c *Checkpoint) Tensors() iter.Seq[tensor.Info] {
	return func(yield func(tensor.Info) bool) {
		if c.assembly != nil {
			for i := range c.assembly.Tensors {
				if !yield(c.assembly.Tensors[i].Info) {
					return
				}
			}
			return
		}
		for _, f := range c.files {
			for info := range f.Tensors() {
				if !yield(info) {
					return
				}
			}
		}
		for _, f := range c.Inventory.Unread {
			for _, info := range f.Infos {
				if !yield(info) {
					return
				}
			}
		}
	}
}

// Tensor returns a view of the named tensor's mapped bytes, valid until Close. A tensor in
// parts, or in another order, has no view.
func (c *Checkpoint) Tensor(name string) (tensor.Tensor, error) {
	if c.assembly == nil {
		i, ok := c.where[name]
		if !ok {
			return tensor.Tensor{}, c.unknown(name)
		}
		return c.files[i].Tensor(name)
	}
	x := c.assembly.find(name)
	switch {
	case x == nil:
		return tensor.Tensor{}, c.unknown(name)
	case !x.Whole():
		return tensor.Tensor{}, fmt.Errorf("%s: tensor %s: is stored in another order, which has no view",
			text.Quote(c.Path), text.Quote(name))
	}
	part := x.Parts[0]
	t, err := c.files[part.File].Tensor(part.Tensor)
	if err != nil {
		return t, err
	}
	begin, end := x.DType.Bytes(part.First), x.DType.Bytes(part.First+part.N)
	return tensor.Tensor{DType: x.DType, Shape: x.Shape, Data: t.Data[begin:end:end]}, nil
}

// HasViews reports whether the address space has room for twice the bytes of all files. If
// not, package weights reads tensors instead of viewing them.
func (c *Checkpoint) HasViews() bool { return c.hasViews() }

// HasView reports whether the named tensor has a view: it is one run of stored elements, and
// HasViews is true.
func (c *Checkpoint) HasView(name string) bool {
	if !c.HasViews() || c.assembly == nil {
		return c.HasViews()
	}
	x := c.assembly.find(name)
	return x != nil && x.Whole()
}

// Room fails, with a *problem.Error, if n bytes cannot be read into memory.
func (c *Checkpoint) Room(n int64) error {
	if err := format.Room(n); err != nil {
		return problem.New(c.Path, err.Error(), "`ulimit -v unlimited` lifts the shell's limit")
	}
	return nil
}

// Aside moves data into a file that has no name: see format.Aside. Without room on the disk data stays in memory.
func (c *Checkpoint) Aside(data []byte) (view []byte, free func()) {
	aside, view, err := format.Aside(data)
	if err != nil {
		return data, func() {}
	}
	c.asides.Store(aside, nil)
	return view, func() {
		c.asides.Delete(aside)
		aside.Close()
	}
}

// FilesIn returns the open weight files if they have the format f, and nil otherwise.
func (c *Checkpoint) FilesIn(f *format.Format) []format.File {
	if c.format == f {
		return c.files
	}
	return nil
}

func (c *Checkpoint) unknown(name string) error {
	for _, f := range c.Inventory.Unread {
		if slices.ContainsFunc(f.Infos, func(t tensor.Info) bool { return t.Name == name }) {
			return fmt.Errorf("%s: tensor %s: is in %s, which was not read", text.Quote(c.Path), text.Quote(name),
				text.Quote(f.Name))
		}
	}
	return fmt.Errorf("%s: tensor %s: not in this checkpoint", text.Quote(c.Path), text.Quote(name))
}

// Place returns the file that holds the named stored tensor, an index in Inventory.Files, and
// the offset of the tensor's first byte in the file.
func (c *Checkpoint) Place(stored string) (file int, offset int64, err error) {
	file, ok := c.where[stored]
	if !ok {
		return 0, 0, c.unknown(stored)
	}
	_, offset, _ = c.files[file].Lookup(stored)
	return file, offset, nil
}

// ReadFile fills dst from a weight file, an index in Inventory.Files. A file that became
// shorter is an error.
func (c *Checkpoint) ReadFile(file int, dst []byte, offset int64) error {
	return readFull(c.files[file], dst, offset)
}

// readFull fills dst from f.
func readFull(f format.File, dst []byte, offset int64) error {
	n, err := f.ReadAt(dst, offset)
	if err == io.EOF {
		if err = nil; n < len(dst) {
			err = fmt.Errorf("%s: byte %d: %w", text.Quote(f.Path()), offset, io.ErrUnexpectedEOF)
		}
	}
	return err
}

// Identity names a weight file's tensors and their offsets, usually by hashing its header.
func (c *Checkpoint) Identity(file int) (string, error) {
	h := digest.New()
	if err := c.files[file].Identify(h); err != nil {
		return "", err
	}
	return h.Name(), nil
}

// Key names the state that the weight files are in, as cheaply as it can be told: see
// source.Dir. Another key may mean other weights. It begins with source.Unknown if a file's state does.
func (c *Checkpoint) Key() (string, error) {
	states, err := c.States()
	if err != nil {
		return "", err
	}
	h, unknown := digest.New(), ""
	for _, f := range c.Inventory.Files {
		fmt.Fprintf(h, "%q %s\n", f.Name, states[f.Name])
		if strings.HasPrefix(states[f.Name], source.Unknown) {
			unknown = source.Unknown
		}
	}
	return unknown + h.Name(), nil
}

// States returns the state of each weight file, by its name.
func (c *Checkpoint) States() (map[string]string, error) {
	states := map[string]string{}
	for _, f := range c.Inventory.Files {
		state, err := c.Source.State(f.Name)
		if err != nil {
			return nil, err
		}
		states[f.Name] = state
	}
	return states, nil
}

// OpenOther opens a file of the checkpoint's directory that holds no weights.
func (c *Checkpoint) OpenOther(name string) (fs.File, error) { return c.Source.Open(name) }

// ConfigFile returns the name of the file with the config; empty for a format with the config inside.
func (c *Checkpoint) ConfigFile() string {
	if c.format == nil { // a config alone
		return ConfigName
	}
	return c.format.Config
}

// Rewritten returns f, or the format that is f with the names that the checkpoint's own files have.
func (c *Checkpoint) Rewritten(f *format.Format) *format.Format {
	if c.format != nil && c.format.Name == f.Name {
		return c.format
	}
	return f
}

// ConfigText returns config.json as it is written, or as the weight files' keys say it.
func (c *Checkpoint) ConfigText() ([]byte, error) {
	switch {
	case c.assembly != nil:
		return c.assembly.Config, nil
	case c.document != nil:
		return c.document, nil
	}
	f, err := c.OpenOther(c.ConfigFile())
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return io.ReadAll(io.LimitReader(f, config.MaxSize+1))
}

// perTensor is the bytes of memory that an opened checkpoint keeps of a tensor beside its
// name and shape: its entry in the header, and where it is found by name.
const perTensor = 136

// Memory returns the bytes of memory that the headers take at most while c is open.
func (c *Checkpoint) Memory() (n int64) {
	for info := range c.Tensors() {
		n += perTensor + NameMemory(info.Name) + 8*int64(len(info.Shape))
	}
	if c.assembly != nil {
		for i := range c.assembly.Tensors {
			n += int64(unsafe.Sizeof(format.Assembled{})) + int64(len(c.assembly.Tensors[i].Parts))*partMemory
		}
	}
	if d, ok := c.Source.(interface{ Memory() int64 }); ok {
		n += d.Memory()
	}
	return n
}

// NameMemory returns the bytes of memory that a name takes at most, beside what points to
// it.
func NameMemory(name string) int64 { return int64(len(name)+15) &^ 15 }

// WillNeed announces to the system that a part of a tensor's view is about to be read.
func (c *Checkpoint) WillNeed(data []byte) { c.advise(data, format.Data.WillNeed) }

// DontNeed announces that a part will not be read for a while, so that its pages need not
// stay in memory. Views stay valid.
func (c *Checkpoint) DontNeed(data []byte) { c.advise(data, format.Data.DontNeed) }

func (c *Checkpoint) advise(data []byte, advice func(format.Data, []byte) bool) {
	for _, f := range c.files {
		if advice(f, data) {
			return
		}
	}
	for aside := range c.asides.Range {
		if advice(aside.(format.Data), data) {
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
	for aside := range c.asides.Range {
		errs = append(errs, aside.(format.Data).Close())
	}
	return errors.Join(errs...)
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
