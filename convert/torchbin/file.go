// Package torchbin reads the files that torch.save writes of a state dict
// (pytorch_model.bin) since version 1.6 of torch: a zip archive of raw storages, and of a
// pickle that maps tensors to storages. The tensors of an opened file are views of the mapped file.
//
// A pickle is a program, and loading one the usual way runs it. This package runs
// nothing: it accepts the few opcodes and names that a state dict needs, and refuses
// every other by its name. It never imports, calls or unpickles anything, and its memory is
// bounded by the pickle's size.
package torchbin

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"dsmoe/convert/format"
	"dsmoe/model/tensor"
	"dsmoe/text/problem"
)

// The limits on a file, far above those of any checkpoint.
const (
	maxPickle  = 64 << 20 // bytes of data.pkl
	maxEntries = 1 << 19  // files in the archive
)

// Format is what torch.save writes: only read.
func Format() *format.Format {
	return &format.Format{
		Name:      "PyTorch",
		Recognise: func(file string) bool { return slices.Contains([]string{".bin", ".pt", ".pth"}, filepath.Ext(file)) },
		Single:    "pytorch_model.bin",
		Index:     "pytorch_model.bin.index.json",
		Config:    "config.json",
		// or a variant of it
		IsIndex: func(file string) bool {
			return strings.HasSuffix(file, ".json") && strings.Contains(file, ".bin.index.")
		},
		// the names that transformers gives: a directory may hold other pickles, such as the state of an optimiser
		Belongs: func(file string) bool {
			return strings.HasSuffix(file, ".bin") && (strings.HasPrefix(file, "pytorch_model") || shard.MatchString(file))
		},
		Open: format.Opener(readData),
	}
}

var shard = regexp.MustCompile(`-[0-9]{5,}-of-[0-9]{5,}\.bin$`)

// file is an open file with checked pickle and storages. It is safe for concurrent use.
type file struct {
	format.Data
	format.Directory
	notes []string // parts of the pickle that are not read
}

const hintSafe = "save the model with safe_serialization=True, or load it where you trust it and save it again"

// readData reads the archive and the pickle of d. It touches no weight. Errors are of type *problem.Error, and have the
// file's name and, where only the file can be at fault, a hint.
func readData(d format.Data) (*file, error) {
	opened, err := read(d, d.Size())
	if err != nil {
		return nil, of(d.Path(), err)
	}
	opened.Data = d
	return opened, nil
}

// of is an error about the file at path.
func of(path string, err error) error {
	var known *problem.Error
	var system *fs.PathError
	switch {
	case errors.As(err, &known):
		known.Path = path
		return known
	case errors.As(err, &system):
		return problem.System(path, "", err)
	}
	return problem.New(path, err.Error(), hintDamaged)
}

const hintDownload = "the download did not finish: fetch the file again"

const hintDamaged = "the file is damaged, or another program than torch.save wrote it: fetch it again"

// unpickle reads the archive and the pickle in it.
func unpickle(f io.ReaderAt, size int64) (z *archive, value any, err error) {
	if z, err = openArchive(f, size); err != nil {
		return nil, nil, err
	}
	pickle := z.entries["data.pkl"]
	if pickle == nil {
		return nil, nil, errors.New("archive holds no data.pkl: not written by torch.save")
	}
	program, err := z.content(pickle, maxPickle)
	if err != nil {
		return nil, nil, err
	}
	value, end, err := execute(program)
	if rest := len(program) - end; rest > 0 && err == nil {
		err = fmt.Errorf("data.pkl: byte %d: the pickle ends here, and %d bytes follow", end, rest)
	}
	return z, value, err
}

// Leaves reads the file at path, which torch.save wrote of any value, and calls f for each tensor, text and number in its
// dicts and lists. A leaf's name is the keys and positions that lead to it, joined by dots. Of a tensor f gets dtype and shape,
// and where its elements begin in the file, or as value the error that says why they cannot be read.
func Leaves(path string, f func(name string, t *tensor.Info, offset int64, value any)) error {
	m, err := format.NewMapping(path)
	if err != nil {
		return err
	}
	defer m.Close()
	z, value, err := unpickle(m, m.Size())
	left := format.MaxTensors
	var visit func(name string, v any, depth int) error
	visit = func(name string, v any, depth int) (err error) {
		if left--; left < 0 || depth > maxRank {
			return fmt.Errorf("data.pkl: more than %d values, or in more than %d lists in one another", format.MaxTensors, maxRank)
		}
		items, names := []any(nil), []any(nil)
		switch v := v.(type) {
		case *dict:
			items, names = v.values, v.keys
		case *list:
			items = v.items
		case tuple:
			items = v
		case *pickled:
			if e, err := z.place(*v); err != nil {
				f(name, nil, 0, err)
			} else {
				f(name, &e.Info, e.Offset, nil)
			}
		default:
			f(name, nil, 0, v)
		}
		for i, item := range items {
			within := strconv.Itoa(i)
			if names != nil {
				within = fmt.Sprint(names[i])
			}
			if err = visit(strings.TrimPrefix(name+"."+within, "."), item, depth+1); err != nil {
				return err
			}
		}
		return nil
	}
	if err == nil {
		err = visit("", value, 0)
	}
	if err != nil {
		return of(path, err)
	}
	return nil
}

// read checks the storages and the pickle, and finds every tensor's bytes.
func read(f io.ReaderAt, size int64) (*file, error) {
	z, value, err := unpickle(f, size)
	if err != nil {
		return nil, err
	}
	s, err := stateDict(value)
	if err != nil {
		return nil, err
	}
	file := &file{notes: s.notes}
	if len(s.tensors) > format.MaxTensors {
		return nil, fmt.Errorf("holds %d tensors, more than the limit of %d", len(s.tensors), format.MaxTensors)
	}
	for _, t := range s.tensors {
		if err := format.CheckName(t.name); err != nil {
			return nil, problem.In("", problem.Problem{Tensor: t.name, Cause: err.Error()})
		}
		e, err := z.place(t)
		if err != nil {
			return nil, problem.In("", problem.Problem{Tensor: t.name, Cause: err.Error()})
		}
		file.Add(e)
	}
	return file, nil
}

// Tensor returns a view of the named tensor, valid until Close.
func (f *file) Tensor(name string) (tensor.Tensor, error) {
	info, offset, ok := f.Lookup(name)
	return f.View(name, info, offset, ok)
}

// Stat describes the file.
func (f *file) Stat() format.Stat {
	return format.Stat{Size: f.Size(), Tensors: len(f.Entries), Notes: f.notes}
}

// Identify writes the tensors and their places.
func (f *file) Identify(w io.Writer) error {
	for _, e := range f.Entries {
		if _, err := fmt.Fprintf(w, "%q %s %v %d\n", e.Info.Name, e.Info.DType, e.Info.Shape, e.Offset); err != nil {
			return err
		}
	}
	return nil
}
