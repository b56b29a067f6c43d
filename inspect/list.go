package inspect

import (
	"fmt"
	"io"
	"slices"
	"strconv"

	"dsmoe/model/tensor"
	"dsmoe/text"
)

// Listing is every tensor whose header could be read, in the order of names,
// numbers by value. It does not need a config.
type Listing struct {
	Path    string    `json:"path"`    // of the checkpoint, as it was given
	Tensors []Tensor  `json:"tensors"` // by text.CompareNames
	Bytes   int64     `json:"bytes"`   // of all tensors
	Broken  []Finding `json:"broken"`  // why the list is not complete, or not what the index has
}

// List lists the tensors of c. Broken says which files are not in the list, or not
// as the index has them; what the config says does not matter.
func List(c *Checkpoint) *Listing {
	l := &Listing{Path: c.Path, Tensors: c.tensors(), Broken: c.brokenFiles()}
	slices.SortStableFunc(l.Tensors, func(a, b Tensor) int { return text.CompareNames(a.Name, b.Name) })
	for _, t := range l.Tensors {
		l.Bytes += t.Bytes
	}
	return l
}

// Select returns the listing of the selected tensors, or says what of the selection is not
// there.
func (l *Listing) Select(s Selection) (*Listing, error) {
	picked, err := pick(s, l.Tensors, func(t Tensor) string { return t.Name })
	if err != nil {
		return nil, err
	}
	selected := &Listing{Path: l.Path, Tensors: picked, Broken: l.Broken}
	for _, t := range picked {
		selected.Bytes += t.Bytes
	}
	return selected, nil
}

// brokenFiles returns the findings that are about weight files and the index.
func (c *Checkpoint) brokenFiles() []Finding {
	found := []Finding{}
	for _, f := range c.Findings {
		if f.Kind == Broken && f.File != configFile {
			found = append(found, f)
		}
	}
	return found
}

const configFile = "config.json"

// WriteText writes a line per tensor and a total.
func (l *Listing) WriteText(w io.Writer) error {
	t := text.Table{Align: "lllrl"}
	for _, x := range l.Tensors {
		t.Add(text.Word(x.Name), x.DType.String(), fmt.Sprint(x.Shape), text.Bytes(x.Bytes), text.Word(x.File))
	}
	if err := t.WriteText(w); err != nil {
		return err
	}
	return writeTotal(w, len(l.Tensors), l.Bytes, l.Broken)
}

// Sheet is a row per tensor.
func (l *Listing) Sheet() *text.Sheet {
	s := text.NewSheet("tensor", "dtype", "shape", ">bytes", "file")
	for _, x := range l.Tensors {
		s.Add(text.Foreign(x.Name), text.Plain(x.DType.String()), text.Plain(fmt.Sprint(x.Shape)), text.Size(x.Bytes), text.Foreign(x.File))
	}
	return s
}

// Fold returns the listing with a row per pattern.
func (l *Listing) Fold() *Patterns {
	p := &Patterns{Path: l.Path, Patterns: []Pattern{}, Tensors: len(l.Tensors), Bytes: l.Bytes, Broken: l.Broken}
	for _, alike := range l.alike() {
		p.Patterns = append(p.Patterns, foldAlike(alike)...)
	}
	slices.SortStableFunc(p.Patterns, func(a, b Pattern) int { return text.CompareNames(a.first, b.first) })
	return p
}

// alike divides the tensors by dtype and shape.
func (l *Listing) alike() [][]Tensor {
	var groups [][]Tensor
	at := map[string]int{}
	for _, t := range l.Tensors {
		key := fmt.Sprint(t.DType, t.Shape)
		i, ok := at[key]
		if !ok {
			i = len(groups)
			at[key] = i
			groups = append(groups, nil)
		}
		groups[i] = append(groups[i], t)
	}
	return groups
}

// foldAlike folds tensors of one dtype and shape.
func foldAlike(alike []Tensor) []Pattern {
	files := map[string][]string{}
	var names []string
	for _, t := range alike {
		names = append(names, t.Name)
		files[t.Name] = append(files[t.Name], t.File)
	}
	var rows []Pattern
	for _, p := range fold(names) {
		row := Pattern{Name: p.name, DType: alike[0].DType, Shape: alike[0].Shape, first: p.names[0]}
		for _, name := range p.names {
			row.Files = append(row.Files, files[name]...)
		}
		row.Count = len(row.Files)
		row.Bytes = int64(row.Count) * alike[0].Bytes
		slices.Sort(row.Files)
		row.Files = slices.Compact(row.Files)
		rows = append(rows, row)
	}
	return rows
}

// Patterns is a listing in which tensors that differ only in the numbers of their
// names share a row.
type Patterns struct {
	Path     string    `json:"path"`     // of the checkpoint, as it was given
	Patterns []Pattern `json:"patterns"` // in the order of the first of their names
	Tensors  int       `json:"tensors"`  // number of tensors in all patterns
	Bytes    int64     `json:"bytes"`    // of all tensors
	Broken   []Finding `json:"broken"`   // as in Listing
}

// Pattern is tensors of one dtype and one shape. Name holds sets of numbers, each
// combination of which is a tensor:
//
//	model.layers.{1..27}.mlp.experts.{0..63}.up_proj.weight
type Pattern struct {
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
		t.Add(text.Word(x.Name), "x"+strconv.Itoa(x.Count), x.DType.String(), fmt.Sprint(x.Shape), text.Bytes(x.Bytes), x.where())
	}
	if err := t.WriteText(w); err != nil {
		return err
	}
	return writeTotal(w, p.Tensors, p.Bytes, p.Broken)
}

// Sheet is a row per pattern.
func (p *Patterns) Sheet() *text.Sheet {
	s := text.NewSheet("pattern", ">count", "dtype", "shape", ">bytes", ">files")
	for _, x := range p.Patterns {
		s.Add(text.Foreign(x.Name), text.Whole(x.Count), text.Plain(x.DType.String()), text.Plain(fmt.Sprint(x.Shape)), text.Size(x.Bytes), text.Whole(len(x.Files)))
	}
	return s
}

// where names the file that holds the pattern, or how many do.
func (p *Pattern) where() string {
	if len(p.Files) == 1 {
		return text.Word(p.Files[0])
	}
	return text.Plural(len(p.Files), "shard")
}

// writeTotal ends a listing.
func writeTotal(w io.Writer, tensors int, bytes int64, broken []Finding) error {
	if _, err := fmt.Fprintf(w, "%s, %s\n", text.Plural(tensors, "tensor"), text.Bytes(bytes)); err != nil {
		return err
	}
	return writeFindings(w, broken, maxLines)
}
