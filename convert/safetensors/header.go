// Package safetensors reads and lays out safetensors files. Open checks a file's whole
// header. NewLayout gives the header bytes and the data offsets of a file to be written.
//
// The reader is stricter than the format's own library: it accepts nothing that
// two readers could understand differently (duplicate names, unknown keys, holes,
// trailing bytes), and it bounds the memory that a hostile header can ask for.
// The package never reads or copies tensor data, and writes no file.
package safetensors

import (
	"bufio"
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"iter"
	"slices"
	"strings"

	"dsmoe/convert/format"
	"dsmoe/model/tensor"
	"dsmoe/text"
	"dsmoe/text/problem"
)

// The limits on a header. No model comes near them; a hostile file would
// otherwise make its reader allocate gigabytes.
const (
	maxHeader   = 100_000_000 // bytes of JSON, as in the format's own library
	maxRank     = 16          // dimensions of a tensor
	maxDim      = 1 << 40     // elements along one dimension
	maxMetadata = 32 << 20    // bytes of __metadata__, counting 64 for each pair
	maxToken    = 16 << 20    // bytes of one string, and of white space between two tokens
)

// prefixSize is the size of the header length that a file begins with.
const prefixSize = 8

// metadataName is the one name in a header that is not a tensor's.
const metadataName = "__metadata__"

// header is the checked header of a file. It is safe for concurrent use.
type header struct {
	Metadata  map[string]string // the free-form __metadata__; nil if the file has none
	DataStart int64             // offset in the file of the first tensor byte

	entries []entry // by offset, empty tensors before others, then by name
	byName  []int32 // indices of entries, sorted by name
}

// entry is one tensor of a header, its offsets relative to DataStart.
type entry struct {
	info       tensor.Info
	begin, end int64
}

// readHeader reads the header of the safetensors file of the given size from r
// and checks everything that can be checked without the data. It reads the length and the
// header only, or a few bytes more to name the kind of another file. file is the name for
// errors, which are of type *problem.Error.
func readHeader(r io.ReaderAt, size int64, file string) (*header, error) {
	n, err := headerLength(r, size, file)
	if err != nil {
		return nil, err
	}
	head := bufio.NewReaderSize(io.NewSectionReader(r, prefixSize, n), 64<<10)
	p := &parser{file: file, src: &source{r: head, base: prefixSize}}
	if err := format.Parse(p.header); err != nil {
		return nil, err
	}
	h := &header{Metadata: p.metadata, DataStart: prefixSize + n, entries: p.entries}
	if err := h.index(file); err != nil {
		return nil, err
	}
	if err := h.checkContiguous(size-h.DataStart, file); err != nil {
		return nil, err
	}
	return h, nil
}

// headerLength reads the length of the JSON header and checks it against the file.
func headerLength(r io.ReaderAt, size int64, file string) (int64, error) {
	if size == 0 {
		return 0, problem.New(file, "file is empty", hintDownload)
	}
	if size < prefixSize {
		if err := sniff(r, size, file); err != nil {
			return 0, err
		}
		return 0, problem.New(file, fmt.Sprintf("file has %d bytes, too few for a safetensors header", size), hintDownload)
	}
	var prefix [prefixSize]byte
	if _, err := r.ReadAt(prefix[:], 0); err != nil {
		return 0, problem.System(file, "header length", err)
	}
	n := binary.LittleEndian.Uint64(prefix[:])
	var first [1]byte // of the header
	got, _ := r.ReadAt(first[:], prefixSize)
	beginsJSON := got == 0 || first[0] == '{' || isSpace(first[0])
	if n == 0 || n > maxHeader || int64(n) > size-prefixSize && !beginsJSON {
		if err := sniff(r, size, file); err != nil {
			return 0, err
		}
	}
	switch {
	case n == 0:
		return 0, problem.New(file, "header is empty: its length is 0", "")
	case n > maxHeader:
		return 0, problem.New(file, fmt.Sprintf(
			"not a safetensors file: it would have a header of %d bytes, more than the limit of %s", n,
			text.Bytes(maxHeader)), "")
	case int64(n) > size-prefixSize:
		return 0, problem.New(file, fmt.Sprintf("file is cut off inside its header: the header has %s, the file %s in all",
			text.ExactBytes(int64(n)), text.ExactBytes(size)), hintDownload)
	}
	return int64(n), nil
}

// index sorts the tensors and refuses a name that occurs twice.
func (h *header) index(file string) error {
	slices.SortFunc(h.entries, func(a, b entry) int {
		return cmp.Or(cmp.Compare(a.begin, b.begin), cmp.Compare(a.end, b.end), strings.Compare(a.info.Name, b.info.Name))
	})
	h.byName = make([]int32, len(h.entries))
	for i := range h.byName {
		h.byName[i] = int32(i)
	}
	slices.SortFunc(h.byName, func(a, b int32) int {
		return strings.Compare(h.entries[a].info.Name, h.entries[b].info.Name)
	})
	for i := 1; i < len(h.byName); i++ {
		name := h.entries[h.byName[i]].info.Name
		if name == h.entries[h.byName[i-1]].info.Name {
			return problem.In(file, problem.Problem{Tensor: name, Cause: "name occurs twice in the header"})
		}
	}
	return nil
}

// checkContiguous refuses data that overlaps, leaves holes, or does not end where
// the file does; size is the number of data bytes that the file holds.
func (h *header) checkContiguous(size int64, file string) error {
	end := int64(0)
	for i, e := range h.entries {
		if e.begin == end {
			end = e.end
			continue
		}
		before := "the data begins"
		if i > 0 {
			before = fmt.Sprintf("tensor %s ends", text.Quote(h.entries[i-1].info.Name))
		}
		kind, n := "a hole", e.begin-end
		if n < 0 {
			kind, n = "an overlap", -n
		}
		return problem.In(file, problem.Problem{Tensor: e.info.Name,
			Cause: fmt.Sprintf("data begins at offset %d, but %s at %d: %s of %d bytes", e.begin, before, end, kind, n)})
	}
	if end < size {
		after := "the header, which names no tensor"
		if n := len(h.entries); n > 0 {
			after = "the last tensor, " + text.Quote(h.entries[n-1].info.Name)
		}
		return problem.New(file, fmt.Sprintf("%s too many, behind %s", text.ExactBytes(size-end), after), "")
	}
	if i := slices.IndexFunc(h.entries, func(e entry) bool { return e.end > size }); i >= 0 {
		return problem.In(file, problem.Problem{Tensor: h.entries[i].info.Name, Hint: hintDownload,
			Cause: fmt.Sprintf("file is cut off: %s of its %s of data are missing; this is the first tensor that is not whole",
				text.ExactBytes(end-size), text.ExactBytes(end))})
	}
	return nil
}

// Len returns the number of tensors.
func (h *header) Len() int { return len(h.entries) }

// Tensors yields the tensors in the order of their data; empty tensors, which
// share an offset, come by name. Shapes are shared: do not change them.
func (h *header) Tensors() iter.Seq[tensor.Info] {
	return func(yield func(tensor.Info) bool) {
		for i := range h.entries {
			if !yield(h.entries[i].info) {
				return
			}
		}
	}
}

// Lookup returns the named tensor and the offset of its first byte in the file.
func (h *header) Lookup(name string) (info tensor.Info, offset int64, ok bool) {
	i, ok := slices.BinarySearchFunc(h.byName, name, func(i int32, name string) int {
		return strings.Compare(h.entries[i].info.Name, name)
	})
	if !ok {
		return tensor.Info{}, 0, false
	}
	e := h.entries[h.byName[i]]
	return e.info, h.DataStart + e.begin, true
}

// checkName refuses what no tensor may be called, and the one name that is reserved.
func checkName(name string) error {
	if name == metadataName {
		return errors.New("name is reserved")
	}
	return format.CheckName(name)
}
