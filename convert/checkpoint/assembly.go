package checkpoint

// Checkpoints of a format with a dialect: their tensors in HuggingFace's terms, and the
// reading of tensors that are stored in parts or in another order.

import (
	"slices"
	"strings"
	"unsafe"

	"dsmoe/convert/format"
	"dsmoe/model/tensor"
	"dsmoe/text/problem"
)

// assembly is what weight files hold in HuggingFace's terms.
type assembly struct {
	*format.Assembly
	byName map[string]int // index in Tensors
}

// find returns the named tensor, or nil; a may be nil.
func (a *assembly) find(name string) *format.Assembled {
	if a != nil {
		if i, ok := a.byName[name]; ok {
			return &a.Tensors[i]
		}
	}
	return nil
}

// partMemory is the bytes that a part takes, and its view.
const partMemory = int64(unsafe.Sizeof(format.Part{})) + int64(unsafe.Sizeof(tensor.View{})) + 8*8

// Parts returns where the elements of the named tensor are, one part behind the other. Most
// tensors are one part, in the order in which it is stored.
func (c *Checkpoint) Parts(name string) ([]format.Part, error) {
	if x := c.assembly.find(name); x != nil {
		return x.Parts, nil
	}
	file, ok := c.where[name]
	if !ok || c.assembly != nil {
		return nil, c.unknown(name)
	}
	info, _, _ := c.files[file].Lookup(name)
	return []format.Part{{File: file, Tensor: name, N: int64(info.Len())}}, nil
}

// Tokenizer returns the tokenizer that the weight files hold, as files, and a note about it. A format without a dialect
// holds no tokenizer.
func (c *Checkpoint) Tokenizer() (texts []format.Text, note string, err error) {
	if c.assembly == nil {
		return nil, "", nil
	}
	return c.format.Dialect.Tokenizer(c.files)
}

// HeaderBytes returns the bytes of the headers of a format with the config inside, else 0.
func (c *Checkpoint) HeaderBytes() (n int64) {
	for _, f := range c.files {
		n += f.Stat().Header
	}
	return n
}

// IsTranslation reports whether a note says what a format with a dialect has otherwise than the
// checkpoint in HuggingFace's terms.
func (c *Checkpoint) IsTranslation(note problem.Problem) bool {
	return c.assembly != nil && slices.Contains(c.assembly.Notes, note.Cause)
}

// ConfigInside reports whether the config comes from the weight files' keys instead of
// config.json.
func (c *Checkpoint) ConfigInside() bool { return c.assembly != nil }

// Named re-keys a map from stored names to the names that Tensors yields.
func (c *Checkpoint) Named(stored map[string]tensor.Rounding) map[string]tensor.Rounding {
	if c.assembly == nil || len(stored) == 0 {
		return stored
	}
	named := make(map[string]tensor.Rounding, len(stored))
	for i := range c.assembly.Tensors {
		x, r := &c.assembly.Tensors[i], tensor.Rounding{}
		for _, part := range x.Parts {
			r = r.And(stored[part.Tensor])
		}
		if r.By != "" {
			named[x.Name] = r
		}
	}
	return named
}

// Was returns the dtype of the named tensor before its format widened it without loss; Invalid
// if the format did not, or the files do not record it.
func (c *Checkpoint) Was(name string) tensor.DType {
	if x := c.assembly.find(name); x != nil {
		return x.Was
	}
	return tensor.Invalid
}

// ReadAt fills dst with the named tensor's bytes from offset on, in whole elements. It reads the file, not its mapping,
// so that it needs no memory beside dst, except some MiB for a tensor in another order.
func (c *Checkpoint) ReadAt(name string, dst []byte, offset int64) error {
	if c.assembly == nil {
		file, start, err := c.Place(name)
		if err != nil {
			return err
		}
		return c.ReadFile(file, dst, start+offset)
	}
	x := c.assembly.find(name)
	if x == nil {
		return c.unknown(name)
	}
	begin := int64(0) // of the part in the tensor
	for i := range x.Parts {
		part := &x.Parts[i]
		size := x.DType.Bytes(part.N)
		from, to := max(offset, begin), min(offset+int64(len(dst)), begin+size)
		if from < to {
			if err := c.readPart(x.DType, part, dst[from-offset:to-offset], from-begin); err != nil {
				return err
			}
		}
		begin += size
	}
	return nil
}

// readPart fills dst with a part's bytes from offset on.
func (c *Checkpoint) readPart(d tensor.DType, part *format.Part, dst []byte, offset int64) error {
	_, start, err := c.Place(part.Tensor)
	if err != nil {
		return err
	}
	start += part.Stored(d).Bytes(part.First)
	if part.View == nil && part.Decode == tensor.Invalid {
		return c.ReadFile(part.File, dst, start+offset)
	}
	for from, end := d.Elements(offset), d.Elements(offset+int64(len(dst))); from < end; {
		to := min(from+d.Elements(atOnce), end)
		n := d.Bytes(to - from)
		if err := c.readView(d, part, dst[:n], start, from, to); err != nil {
			return err
		}
		dst, from = dst[n:], to
	}
	return nil
}

// Of a view, so many bytes are read at once, if they lie in a window of the file that is no
// larger than the other.
const (
	atOnce    = 256 << 10
	maxWindow = 4 << 20
)

// readView fills dst with the elements from, …, to-1 of a part's view; start is where in the
// file the part begins.
func (c *Checkpoint) readView(d tensor.DType, part *format.Part, dst []byte, start, from, to int64) error {
	read := func(dst []byte, first, n int64) error {
		return format.ReadElements(func(dst []byte, offset int64) error { return c.ReadFile(part.File, dst, start+offset) },
			dst, d, part.Decode, first, n)
	}
	if part.View == nil {
		return read(dst, from, to-from)
	}
	first, last := part.View.Extent(from, to)
	var window []byte
	if d.Bytes(last-first) <= maxWindow {
		window = make([]byte, d.Bytes(last-first))
		if err := read(window, first, last-first); err != nil {
			return err
		}
	}
	for r := range part.View.Runs(from, to) {
		run := dst[:d.Bytes(r.N)]
		if window != nil {
			copy(run, window[d.Bytes(r.At-first):])
		} else if err := read(run, r.At, r.N); err != nil {
			return err
		}
		dst = dst[len(run):]
	}
	return nil
}

// DecodedFrom returns the dtypes of a tensor's parts, such as "F16 and Q8_0", if it is decoded to
// F32 and one of them is a block type: then its elements were rounded. For other tensors it
// returns "".
func (c *Checkpoint) DecodedFrom(name string) string {
	x := c.assembly.find(name)
	if x == nil || !slices.ContainsFunc(x.Parts, func(p format.Part) bool { return p.Decode.Blocked() }) {
		return ""
	}
	var types []string
	for i := range x.Parts {
		if d := x.Parts[i].Stored(x.DType).String(); !slices.Contains(types, d) {
			types = append(types, d)
		}
	}
	return strings.Join(types, " and ")
}

// HalfSteps returns, for each element of a decoded tensor, half the distance between the
// neighbouring numbers of its stored dtype: tensor.HalfSteps.
func (c *Checkpoint) HalfSteps(name string) ([]float32, error) {
	x := c.assembly.find(name)
	if x == nil {
		return nil, c.unknown(name)
	}
	steps := make([]float32, 0, x.Len())
	for i := range x.Parts {
		part := &x.Parts[i]
		_, start, err := c.Place(part.Tensor)
		if err != nil {
			return nil, err
		}
		d := part.Stored(x.DType)
		stored := tensor.Tensor{DType: d, Shape: []int{int(part.N)}, Data: make([]byte, d.Bytes(part.N))}
		if err := c.ReadFile(part.File, stored.Data, start+d.Bytes(part.First)); err != nil {
			return nil, err
		}
		h := stored.HalfSteps(nil)
		if part.View == nil {
			steps = append(steps, h...)
			continue
		}
		for r := range part.View.Runs(0, part.View.Len()) {
			steps = append(steps, h[r.At:r.At+r.N]...)
		}
	}
	return steps, nil
}
