package convert

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"iter"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"

	"dsmoe/convert/safetensors"
	"dsmoe/model"
	"dsmoe/model/tensor"
)

// View is a checkpoint seen tensor by tensor in the per-expert layout, whichever
// layout it is stored in, in the order of the model. Its data is read with
// ReadAt, never through the mapping, so that memory stays what the caller gives.
// It is safe for concurrent use.
type View struct {
	c     *Checkpoint
	parts []part
	index map[string]int  // of parts, by name
	fused map[string]bool // the fused tensors of the checkpoint
	order map[string]int  // the place in the model of every name that the table has

	mu     sync.Mutex
	files  []*os.File        // opened when they are needed
	onRead func(file string) // told of every read, for tests
}

// part is one tensor of a View: a run of the elements of a stored tensor.
type part struct {
	tensor.Info
	source string // the stored tensor
	offset int64  // in elements
}

// NewView looks at c, which must stay open. A fused tensor that does not fit the
// config is an error, all of them in one *Error.
func NewView(c *Checkpoint) (*View, error) {
	v := &View{c: c, index: map[string]int{}, fused: map[string]bool{}, order: map[string]int{}, files: make([]*os.File, len(c.files))}
	slots := map[string][]int{}
	for s := range model.FamilyOf(c.Config).Slots(c.Config) {
		v.order[s.Name] = len(v.order)
		slots[s.Name] = s.Shape
	}
	var problems []Problem
	for info := range c.Tensors() {
		if err := v.add(info, slots); err != nil {
			problems = append(problems, Problem{Tensor: info.Name, Cause: err.Error()})
		}
	}
	slices.SortStableFunc(v.parts, func(a, b part) int { return v.compare(a.Name, b.Name) })
	for i, p := range v.parts {
		if _, twin := v.index[p.Name]; twin {
			problems = append(problems, Problem{Tensor: p.Name, Cause: "is there twice: fused and per expert"})
		}
		v.index[p.Name] = i
	}
	if problems != nil {
		return nil, &Error{Path: c.Path, Problems: problems}
	}
	return v, nil
}

func (v *View) add(info tensor.Info, slots map[string][]int) error {
	f, ok := parseFused(info.Name)
	if !ok {
		v.parts = append(v.parts, part{Info: info, source: info.Name})
		return nil
	}
	parts, err := splitFused(info, f, v.c.Config.NRoutedExperts, func(name string) []int { return slots[name] })
	v.fused[info.Name] = true
	v.parts = append(v.parts, parts...)
	return err
}

// compare orders names as the table does, scales behind their weight, and what it
// does not know last, numbers by value.
func (v *View) compare(a, b string) int {
	x, y := v.rank(a), v.rank(b)
	return cmp.Or(cmp.Compare(x, y), compareNames(strings.TrimSuffix(a, scaleSuffix), strings.TrimSuffix(b, scaleSuffix)), cmp.Compare(len(a), len(b)))
}

func (v *View) rank(name string) int {
	if i, ok := v.order[strings.TrimSuffix(name, scaleSuffix)]; ok {
		return i
	}
	return len(v.order)
}

// compareNames orders names component by component: numbers by value, before text.
func compareNames(a, b string) int {
	for a != "" && b != "" {
		var x, y string
		x, a, _ = strings.Cut(a, ".")
		y, b, _ = strings.Cut(b, ".")
		if c := compareComponents(x, y); c != 0 {
			return c
		}
	}
	return cmp.Compare(len(a), len(b))
}

func compareComponents(a, b string) int {
	x, errX := strconv.Atoi(a)
	y, errY := strconv.Atoi(b)
	switch {
	case errX == nil && errY == nil:
		return cmp.Or(cmp.Compare(x, y), strings.Compare(a, b))
	case errX == nil:
		return -1
	case errY == nil:
		return 1
	}
	return strings.Compare(a, b)
}

// Tensors yields the tensors in the order of the model.
func (v *View) Tensors() iter.Seq[tensor.Info] {
	return func(yield func(tensor.Info) bool) {
		for _, p := range v.parts {
			if !yield(p.Info) {
				return
			}
		}
	}
}

// ReadAt fills dst with the bytes of the named tensor from offset on.
func (v *View) ReadAt(name string, dst []byte, offset int64) error {
	i, ok := v.index[name]
	if !ok {
		return fmt.Errorf("%s: tensor %s: not in this checkpoint", safetensors.Quote(v.c.Path), safetensors.Quote(name))
	}
	p := v.parts[i]
	at := p.offset * int64(p.DType.Bits()) / 8
	return v.readStored(p.source, dst, at+offset)
}

// readStored fills dst with the bytes of a stored tensor.
func (v *View) readStored(name string, dst []byte, offset int64) error {
	file := v.c.where[name]
	_, start, _ := v.c.files[file].Lookup(name)
	return v.readFile(file, dst, start+offset)
}

// readFile fills dst from a weight file. A file that became shorter is an error.
func (v *View) readFile(file int, dst []byte, offset int64) error {
	f, err := v.open(file)
	if err != nil {
		return err
	}
	if v.onRead != nil {
		v.onRead(f.Name())
	}
	if _, err = f.ReadAt(dst, offset); err == io.EOF {
		err = fmt.Errorf("%s: byte %d: %w", safetensors.Quote(f.Name()), offset, io.ErrUnexpectedEOF)
	}
	return err
}

func (v *View) open(file int) (*os.File, error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.files[file] == nil {
		f, _, err := safetensors.OpenRegular(filepath.Join(v.c.dir, v.c.Inventory.Files[file].Name))
		if err != nil {
			return nil, err
		}
		v.files[file] = f
	}
	return v.files[file], nil
}

// Close closes the files; the checkpoint stays open.
func (v *View) Close() error {
	v.mu.Lock()
	defer v.mu.Unlock()
	for i, f := range v.files {
		if f != nil {
			f.Close()
			v.files[i] = nil
		}
	}
	return nil
}

// Block returns the rows and columns of an FP8 weight that share a scale.
func (v *View) Block() [2]int {
	if b := v.c.Config.FP8Block; b != [2]int{} {
		return b
	}
	return [2]int{128, 128}
}

// slots yields the weights that the config implies, in the order of the model.
func (v *View) slots() iter.Seq2[string, []int] {
	return func(yield func(string, []int) bool) {
		for s := range model.FamilyOf(v.c.Config).Slots(v.c.Config) {
			if !yield(s.Name, s.Shape) {
				return
			}
		}
	}
}

// headerHash identifies what a weight file holds and where: the sha256 of the
// header's bytes, or of a pickle's tensors and their places.
func (v *View) headerHash(file int) (string, error) {
	h := sha256.New()
	if f, ok := v.c.files[file].(*safetensors.File); ok {
		data := make([]byte, min(f.DataStart, 1<<16))
		for at := int64(0); at < f.DataStart; at += int64(len(data)) {
			data = data[:min(int64(len(data)), f.DataStart-at)]
			if err := v.readFile(file, data, at); err != nil {
				return "", err
			}
			h.Write(data)
		}
	} else {
		for info := range v.c.files[file].Tensors() {
			_, offset, _ := v.c.files[file].Lookup(info.Name)
			fmt.Fprintf(h, "%q %s %v %d\n", info.Name, info.DType, info.Shape, offset)
		}
	}
	return hex.EncodeToString(h.Sum(nil)), nil
}
