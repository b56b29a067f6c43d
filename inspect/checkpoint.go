// Package inspect holds what all inspections of a checkpoint share: the Checkpoint as its headers describe
// it, the Weights that are read, the Selection of some of them, Findings and Observations, and the cells of
// heatmaps. The inspections are its sub-packages:
//
//   - header: what a checkpoint holds, whether its parts fit together, what its config implies
//   - stats: whether the numbers can be weights, what they are, and hashes of them
//   - diff: two checkpoints compared: the measures of a pair, by tensor and by rank of the change
//   - experts: norms, ranks, likeness and twins of experts, and how far they are from originals
//   - router: rows of routers, and which choices they allow
//   - routing: which experts tokens get
//   - report: all of that at once, as a page
//
// An inspection returns a report that is JSON as it stands and that WriteText writes into memory, where no write fails;
// those with a method Figure are a drawing, too. No package opens a file: the caller reads weights.
package inspect

import (
	"iter"
	"slices"

	"dsmoe/config"
	"dsmoe/model/tensor"
	"dsmoe/model/weights"
	"dsmoe/text"
	"dsmoe/text/problem"
)

// Checkpoint is what was found when a checkpoint, which may be damaged, was opened.
type Checkpoint struct {
	Path     string         // as the user gave it
	Config   *config.Config // nil if it cannot be read; a Finding says why
	Index    *Index         // nil if the checkpoint has no index that can be read
	Files    []File         // the weight files whose headers could be read
	Unread   []File         // other files of the index; of their tensors only the names are known
	Findings []Finding      // about reading the files
}

// Index is the index of a sharded checkpoint.
type Index struct {
	File    string `json:"file"`    // relative to the checkpoint
	Tensors int    `json:"tensors"` // number of names in it
	Shards  int    `json:"shards"`  // number of files in it
}

// File is a weight file, by its header.
type File struct {
	Name    string        // relative to the checkpoint
	Size    int64         // in bytes, header included
	Tensors []tensor.Info // in file order
}

// Tensor is one tensor of a checkpoint.
type Tensor struct {
	Name  string       `json:"name"`  // as the file spells it
	DType tensor.DType `json:"dtype"` // of its elements
	Shape []int        `json:"shape"` // outermost first
	Bytes int64        `json:"bytes"` // of its data
	File  string       `json:"file"`  // relative to the checkpoint
}

// TensorsIn lists the tensors of files, file after file.
func TensorsIn(files []File) []Tensor {
	all := []Tensor{}
	for _, f := range files {
		for _, i := range f.Tensors {
			all = append(all, Tensor{i.Name, i.DType, i.Shape, i.Bytes(), f.Name})
		}
	}
	return all
}

// Tensors implements weights.Headers: it yields the header entries, file after file.
func (c *Checkpoint) Tensors() iter.Seq[tensor.Info] {
	return func(yield func(tensor.Info) bool) {
		for _, f := range c.Files {
			for _, i := range f.Tensors {
				if !yield(i) {
					return
				}
			}
		}
	}
}

// Weights are the tensors under the names of the table; nil without a config.
func (c *Checkpoint) Weights() *weights.Set {
	if c.Config == nil {
		return nil
	}
	return weights.New(c.Config, c)
}

// WrongSides finds what the few bytes beside codes say wrong; see weights.Set.WrongShapes and UnequalSeconds.
func (c *Checkpoint) WrongSides(read func(side *weights.Weight) ([]byte, error)) (found []Finding) {
	set := c.Weights()
	if set == nil {
		return nil
	}
	shapes, seconds := set.WrongShapes(read), set.UnequalSeconds(read)
	if shapes == nil && seconds == nil {
		return nil
	}
	files := c.Holders(set)
	for _, w := range shapes {
		found = append(found, Shape.Of(problem.Problem{File: files[w.Got.Name], Tensor: w.Got.Name, Cause: w.Cause}))
	}
	if n := len(seconds); n > 0 {
		w := seconds[0]
		found = append(found, Note.Of(problem.Problem{File: files[w.Got.Name], Tensor: set.StoredName(c.Config, w.Got.Name),
			Cause: w.Cause, Hint: text.Plural(n, "weight") + " like this: see that the engine has a scale for each"}))
	}
	return found
}

// Holders maps each tensor, by its own name and by the table's, to the file that holds it. set is Weights.
func (c *Checkpoint) Holders(set *weights.Set) map[string]string {
	files := map[string]string{}
	for _, t := range TensorsIn(c.Files) {
		files[t.Name] = t.File
	}
	if set != nil {
		for _, w := range set.All() {
			files[w.Name] = files[w.Stored]
		}
	}
	return files
}

// Complete reports whether every weight file that there should be was read.
func (c *Checkpoint) Complete() bool {
	for _, f := range c.Findings {
		isIndex := c.Index != nil && f.File == c.Index.File
		wasRead := slices.ContainsFunc(c.Files, func(w File) bool { return w.Name == f.File })
		if f.Kind == Broken && f.File != ConfigFile && !isIndex && !wasRead {
			return false
		}
	}
	return len(c.Files) > 0
}

// ConfigFile is the name of a checkpoint's config.
const ConfigFile = "config.json"
