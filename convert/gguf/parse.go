package gguf

// The strict parser of a header. Every length in the file is checked against the bytes left
// before it is used, so that memory is bounded by the file's size and by the limits below.

import (
	"bufio"
	"encoding/binary"
	"fmt"
	"io"
	"maps"
	"math"
	"slices"

	"dsmoe/convert/format"
	"dsmoe/model/tensor"
	"dsmoe/text"
	"dsmoe/text/problem"
)

// magic is the beginning of every file.
const magic = "GGUF"

const hintDownload = "the download did not finish: fetch the file again"

// The limits on a header, far above those of any model.
const (
	maxHeader = 128 << 20 // bytes
	maxKeys   = 1 << 16   // key-value pairs
	maxKey    = 1 << 16   // bytes of a key, the format's own limit
	maxText   = 16 << 20  // bytes of any other string
	maxName   = 63        // bytes of a tensor's name: GGML_MAX_NAME less the NUL
	maxDims   = 4         // GGML_MAX_DIMS
	maxDim    = 1 << 40   // elements along one dimension
	maxAlign  = 1 << 20   // general.alignment
)

// Header is the checked header of a file. It is safe for concurrent use.
type Header struct {
	format.Directory // its entries follow each other as their data does

	Version   uint32 // of the format: 2 or 3
	DataStart int64  // offset in the file of the first tensor

	alignment int64
	values    map[string]value
	keys      []string // in the order of the file
	notes     []string
}

// parser reads a header from its begin to its end.
type parser struct {
	r    *bufio.Reader
	file string
	at   int64 // of the next byte
	size int64 // of the file
	h    *Header
	bad  []problem.Problem // of tensors; any other problem ends the reading

	unread map[string][]string // tensors of each type whose blocks are not decoded
}

// fail ends the reading with an error at a byte of the file.
func (p *parser) fail(at int64, cause string, args ...any) {
	format.Fail(problem.In(p.file, problem.Problem{Cause: problem.Byte(at, fmt.Sprintf(cause, args...))}))
}

// failTensor records a problem of the current tensor.
func (p *parser) failTensor(name, cause string, args ...any) {
	p.bad = append(p.bad, problem.Problem{Tensor: name, Cause: fmt.Sprintf(cause, args...)})
}

// need fails unless n more bytes remain in the file; what names them.
func (p *parser) need(n uint64, what string) {
	if n > uint64(p.size-p.at) {
		cause := fmt.Sprintf("file is cut off, or damaged: %s needs %s, and %s are left", what,
			text.ExactBytes(int64(min(n, math.MaxInt64))), text.ExactBytes(p.size-p.at))
		format.Fail(problem.New(p.file, problem.Byte(p.at, cause), hintDownload))
	}
	if p.at+int64(n) > maxHeader {
		p.fail(p.at, "header has more than %s", text.Bytes(maxHeader))
	}
}

// read fills b with bytes that are in the file.
func (p *parser) read(b []byte, what string) {
	p.need(uint64(len(b)), what)
	if _, err := io.ReadFull(p.r, b); err != nil {
		format.Fail(problem.System(p.file, "header", err))
	}
	p.at += int64(len(b))
}

func (p *parser) uint32(what string) uint32 {
	var b [4]byte
	p.read(b[:], what)
	return binary.LittleEndian.Uint32(b[:])
}

func (p *parser) uint64(what string) uint64 {
	var b [8]byte
	p.read(b[:], what)
	return binary.LittleEndian.Uint64(b[:])
}

// text reads a string of at most limit bytes.
func (p *parser) text(limit int, what string) string {
	at := p.at
	n := p.uint64("the length of " + what)
	if n > uint64(limit) {
		p.fail(at, "%s has %d bytes, more than the limit of %d", what, n, limit)
	}
	p.need(n, what)
	b := make([]byte, n)
	p.read(b, what)
	return string(b)
}

// skip reads over n bytes.
func (p *parser) skip(n uint64, what string) {
	p.need(n, what)
	if _, err := p.r.Discard(int(n)); err != nil {
		format.Fail(problem.System(p.file, "header", err))
	}
	p.at += int64(n)
}

// parse reads the header, whose magic the caller checked.
func (p *parser) parse() error {
	err := format.Parse(func() {
		p.skip(uint64(len(magic)), "the magic")
		p.h.Version = p.uint32("the version")
		switch v := p.h.Version; {
		case v == 2 || v == 3:
		case v&0xffff == 0 && v != 0:
			format.Fail(problem.New(p.file,
				"is big-endian, for machines such as IBM's z: this program reads little-endian files",
				"gguf-convert-endian, of llama.cpp's gguf-py, changes it"))
		case v == 1:
			p.fail(4, "is of version 1 of GGUF, which llama.cpp gave up in 2023: 2 and 3 are read")
		default:
			p.fail(4, "is of version %d of GGUF: 2 and 3 are read", v)
		}
		tensors, keys := p.count("tensors", format.MaxTensors, 24), p.count("keys", maxKeys, 13)
		for range keys {
			at := p.at
			key := p.text(maxKey, "a key")
			if key == "" || !text.Printable(key) {
				p.fail(at, "key %s is empty, or has characters that cannot be printed", text.Quote(key))
			}
			if _, twice := p.h.values[key]; twice {
				p.fail(at, "key %s occurs twice", text.Quote(key))
			}
			v := p.value(key)
			v.at, v.end = at, p.at
			p.h.values[key] = v
			p.h.keys = append(p.h.keys, key)
		}
		p.h.alignment = 32
		if v, present := p.h.values[alignmentKey]; present {
			n, is := v.one.(uint64)
			if v.kind != u32 || !is || n == 0 || n&(n-1) != 0 || n > maxAlign {
				p.fail(v.at, "key %s is %v: a u32 that is a power of two, of at most %d, is expected", alignmentKey, v.one,
					maxAlign)
			}
			p.h.alignment = int64(n)
		}
		offsets := make([]uint64, 0, min(tensors, 1<<12))
		for range tensors {
			offsets = append(offsets, p.tensor())
		}
		for _, kind := range slices.Sorted(maps.Keys(p.unread)) {
			names := p.unread[kind]
			p.bad = append(p.bad, problem.Problem{Cause: fmt.Sprintf("type %s of ggml is not read here: %s, the first %s",
				kind, text.Plural(len(names), "tensor"), text.Quote(names[0])),
				Hint: "the file may be whole; give one of other types, such as Q4_K"})
		}
		p.h.DataStart = padded(p.at, p.h.alignment)
		p.places(offsets)
	})
	if p.bad == nil {
		return err
	}
	return problem.In(p.file, append(p.bad, problem.Of("", err)...)...)
}

// count reads the number of items, each of at least least bytes.
func (p *parser) count(what string, limit, least uint64) uint64 {
	at := p.at
	n := p.uint64("the number of " + what)
	if n > limit {
		p.fail(at, "%d %s, more than the limit of %d", n, what, limit)
	}
	p.need(n*least, fmt.Sprintf("a list of %d %s", n, what))
	return n
}

// value reads the value of a key. Of an array it keeps the elements if they are few.
func (p *parser) value(key string) (v value) {
	at := p.at
	what := "key " + text.Quote(key)
	if v.kind = kind(p.uint32("the type of " + what)); v.kind != array {
		v.one = p.one(v.kind, at, what)
		return v
	}
	if v.of = kind(p.uint32("the type of " + what)); v.of == array || v.of >= kinds {
		p.fail(at, "%s is an array of %s, which no array can hold", what, v.of)
	}
	if v.n = p.uint64("the length of " + what); v.n > maxHeader {
		p.fail(at, "%s is an array of %d elements, more than fit in a header", what, v.n)
	}
	p.need(v.n*uint64(kindTable[v.of].size), what)
	keep := v.n <= maxList
	if v.of != str && v.of != boolean && !keep {
		p.skip(v.n*uint64(kindTable[v.of].size), what)
		return v
	}
	for range v.n {
		if one := p.one(v.of, p.at, what); keep {
			v.many = append(v.many, one)
		}
	}
	return v
}

// one reads a single value.
func (p *parser) one(k kind, at int64, what string) any {
	switch {
	case k == array || k >= kinds:
		p.fail(at, "%s: unknown value of %s", what, k)
	case k == str:
		return p.text(maxText, what)
	}
	var b [8]byte
	p.read(b[:kindTable[k].size], what)
	bits := binary.LittleEndian.Uint64(b[:])
	unused := 64 - 8*kindTable[k].size
	switch k {
	case i8, i16, i32, i64:
		return int64(bits) << unused >> unused
	case f32:
		return float64(math.Float32frombits(uint32(bits)))
	case f64:
		return math.Float64frombits(bits)
	case boolean:
		if bits > 1 {
			p.fail(at, "%s: %d is not a boolean", what, bits)
		}
		return bits == 1
	}
	return bits
}

// alignmentKey is the key of the alignment of tensors.
const alignmentKey = "general.alignment"

// tensor reads the entry of a tensor, adds it and records its problems. Only what keeps the next from being found ends
// the reading.
func (p *parser) tensor() (offset uint64) {
	at := p.at
	name := p.text(maxName, "a tensor's name")
	n := p.uint32("the number of dimensions of " + text.Quote(name))
	if n > maxDims {
		format.Fail(problem.In(p.file, problem.Problem{Tensor: name,
			Cause: problem.Byte(at, fmt.Sprintf("%d dimensions, more than the limit of %d", n, maxDims))}))
	}
	shape := make([]int, n) // outermost first; the file has the innermost first
	for i := range slices.Backward(shape) {
		d := p.uint64("a dimension of " + text.Quote(name))
		if d > maxDim || uint64(int(d)) != d {
			p.failTensor(name, "dimension %d exceeds the limit of %d", d, min(int64(maxDim), math.MaxInt))
			d = 0
		}
		shape[i] = int(d)
	}
	number := p.uint32("the type of " + text.Quote(name))
	offset = p.uint64("the offset of " + text.Quote(name))
	if err := format.CheckName(name); err != nil {
		p.failTensor(name, "%v", err)
	}
	if _, _, twice := p.h.Lookup(name); twice {
		p.failTensor(name, "name occurs twice")
	}
	t, known := types[number]
	if !known {
		p.failTensor(name, "type %d is not a type of ggml", number)
	} else if t.dtype == tensor.Invalid {
		if p.unread == nil {
			p.unread = map[string][]string{}
		}
		p.unread[t.name] = append(p.unread[t.name], name)
	} else if _, err := tensor.Size(t.dtype, shape); err != nil {
		p.failTensor(name, "%v", err)
	}
	p.h.Add(format.Entry{Info: tensor.Info{Name: name, DType: t.dtype, Shape: shape}})
	return offset
}

// places checks that the tensors lie one behind the other, each aligned, as ggml demands,
// and in the file. Where types are not known that cannot be told.
func (p *parser) places(offsets []uint64) {
	if p.bad != nil {
		return
	}
	end := int64(0) // of the tensors before, padded
	for i := range p.h.Entries {
		e := &p.h.Entries[i]
		size := e.Info.Bytes()
		if offsets[i] != uint64(end) {
			p.failTensor(e.Info.Name, "data begins at offset %d, but the tensors before it end at %d, the padding included",
				offsets[i], end)
			return
		}
		if size > p.size-p.h.DataStart-end {
			p.bad = append(p.bad, problem.Problem{Tensor: e.Info.Name, Hint: hintDownload,
				Cause: fmt.Sprintf("file is cut off: the tensor's %s begin at byte %d, but the file has %s. "+
					"It is the first tensor that is not whole",
					text.ExactBytes(size), p.h.DataStart+end, text.ExactBytes(p.size))})
			return
		}
		e.Offset = p.h.DataStart + end
		end = padded(end+size, p.h.alignment)
	}
	if more := p.size - p.h.DataStart - end; more > 0 && len(p.h.Entries) > 0 {
		p.h.notes = append(p.h.notes, text.ExactBytes(more)+" behind the last tensor are not read")
	}
}

// padded rounds up to a multiple of the alignment.
func padded(n, alignment int64) int64 { return (n + alignment - 1) / alignment * alignment }
