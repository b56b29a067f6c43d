package header

import (
	"fmt"
	"io"
	"slices"
	"strconv"

	"dsmoe/config"
	"dsmoe/inspect"
	"dsmoe/model/tensor"
	"dsmoe/text"
)

// Listing is every tensor whose header could be read, in the order of names, numbers by value. It needs no config.
type Listing struct {
	Path    string           `json:"path"`    // of the checkpoint, as the user gave it
	Tensors []inspect.Tensor `json:"tensors"` // by text.CompareNames
	Bytes   int64            `json:"bytes"`   // of all tensors
	inspect.BrokenFiles

	unread []inspect.Tensor // in files of the index that were not read
	config *config.Config   // nil if there is none
}

// List lists the tensors of c.
func List(c *inspect.Checkpoint) *Listing {
	all := inspect.TensorsIn(c.Files)
	slices.SortStableFunc(all, func(a, b inspect.Tensor) int { return text.CompareNames(a.Name, b.Name) })
	l := &Listing{c.Path, all, bytesOf(all), inspect.BrokenFiles{Broken: []inspect.Finding{}},
		inspect.TensorsIn(c.Unread), c.Config}
	for _, f := range c.Findings {
		if f.Kind == inspect.Broken && f.File != inspect.ConfigFile {
			l.Broken = append(l.Broken, f)
		}
	}
	return l
}

// Select returns the listing of the selected tensors. Selected layers, experts or globs that neither the tensors
// nor the index have are an error.
func (l *Listing) Select(s inspect.Selection) (*Listing, error) {
	all := slices.Concat(l.Tensors, l.unread)
	picked, err := inspect.Pick(s, all, func(t inspect.Tensor) string { return t.Name })
	if err != nil {
		return nil, err
	}
	picked = slices.DeleteFunc(picked, func(t inspect.Tensor) bool { return t.DType == tensor.Invalid })
	return &Listing{l.Path, picked, bytesOf(picked), l.BrokenFiles, nil, l.config}, nil
}

// WriteText writes a line per tensor and a total.
func (l *Listing) WriteText(w io.Writer) error {
	t := text.Table{Align: "lllrl"}
	for _, x := range l.Tensors {
		t.Add(text.Word(x.Name), x.DType.String(), fmt.Sprint(x.Shape), text.Bytes(x.Bytes), text.Word(x.File))
	}
	t.WriteText(w)
	fmt.Fprintf(w, "%s, %s\n", text.Plural(len(l.Tensors), "tensor"), text.Bytes(l.Bytes))
	return l.WriteNotes(w)
}

// Sheet is a row per tensor.
func (l *Listing) Sheet() *text.Sheet {
	s := text.NewSheet("tensor", "dtype", "shape", ">bytes", "file")
	for _, x := range l.Tensors {
		s.Row(text.Foreign(x.Name), x.DType, fmt.Sprint(x.Shape), text.Size(x.Bytes), text.Foreign(x.File))
	}
	return s
}

// Fold returns the listing with a row per pattern.
func (l *Listing) Fold() *Patterns {
	p := &Patterns{Path: l.Path, Patterns: []pattern{}, Tensors: len(l.Tensors), Bytes: l.Bytes, BrokenFiles: l.BrokenFiles}
	for _, alike := range inspect.GroupBy(l.Tensors, func(t inspect.Tensor) string { return fmt.Sprint(t.DType, t.Shape) }) {
		files := map[string][]string{}
		var names []string
		for _, t := range alike {
			names = append(names, t.Name)
			files[t.Name] = append(files[t.Name], t.File)
		}
		for _, folded := range inspect.Fold(names) {
			row := pattern{Name: folded.Name, DType: alike[0].DType, Shape: alike[0].Shape, first: folded.Names[0]}
			for _, name := range folded.Names {
				row.Files = append(row.Files, files[name]...)
			}
			row.Count = len(row.Files)
			row.Bytes = int64(row.Count) * alike[0].Bytes
			slices.Sort(row.Files)
			row.Files = slices.Compact(row.Files)
			p.Patterns = append(p.Patterns, row)
		}
	}
	slices.SortStableFunc(p.Patterns, func(a, b pattern) int { return text.CompareNames(a.first, b.first) })
	return p
}

// Patterns is a listing in which tensors that differ only in the numbers of their
// names share a row.
type Patterns struct {
	Path     string    `json:"path"`     // of the checkpoint, as the user gave it
	Patterns []pattern `json:"patterns"` // in the order of the first of their names
	Tensors  int       `json:"tensors"`  // number of tensors in all patterns
	Bytes    int64     `json:"bytes"`    // of all tensors
	inspect.BrokenFiles
}

// pattern is tensors of one dtype and one shape. Name holds sets of numbers, each
// combination of which is a tensor:
//
//	model.layers.{1..27}.mlp.experts.{0..63}.up_proj.weight
type pattern struct {
	Name  string       `json:"pattern"` // with sets of numbers
	Count int          `json:"count"`   // number of tensors; one that several files hold counts once for each file
	DType tensor.DType `json:"dtype"`   // of each
	Shape []int        `json:"shape"`   // of each
	Bytes int64        `json:"bytes"`   // of all of them
	Files []string     `json:"files"`   // files that hold them, sorted

	first string // of the names, for the order of rows
}

// WriteText writes a line per pattern and a total.
func (p *Patterns) WriteText(w io.Writer) error {
	t := text.Table{Align: "lrllrl"}
	for _, x := range p.Patterns {
		files := text.Plural(len(x.Files), "shard")
		if len(x.Files) == 1 {
			files = text.Word(x.Files[0])
		}
		t.Add(text.Word(x.Name), "x"+strconv.Itoa(x.Count), x.DType.String(), fmt.Sprint(x.Shape), text.Bytes(x.Bytes), files)
	}
	t.WriteText(w)
	fmt.Fprintf(w, "%s, %s\n", text.Plural(p.Tensors, "tensor"), text.Bytes(p.Bytes))
	return p.WriteNotes(w)
}

// Sheet is a row per pattern.
func (p *Patterns) Sheet() *text.Sheet {
	s := text.NewSheet("pattern", ">count", "dtype", "shape", ">bytes", ">files")
	for _, x := range p.Patterns {
		s.Row(text.Foreign(x.Name), x.Count, x.DType, fmt.Sprint(x.Shape), text.Size(x.Bytes), len(x.Files))
	}
	return s
}
