// Package inspect tells what is in a checkpoint: Summarize and List say what it
// holds, Audit whether its parts fit together, AuditValues whether its numbers can be
// weights, Stats what they are, Hash by which names, ExamineExperts and ExamineRouters what
// sets experts and rows of routers apart, ExpertsAgainst how far experts are from their
// originals, the Route functions which experts tokens get, MakeReport all of that at once; Describe
// what its config implies, MemoryOf how much memory that takes, Compare what the DeepSeekMoE paper says
// of its experts. Each returns a report that is JSON as it stands and that WriteText prints; a
// Report is a page, too, and those with a method Figure are a drawing.
// The package opens no file; what reads weights does so through its caller's reader.
package inspect

import (
	"iter"

	"dsmoe/config"
	"dsmoe/model/tensor"
)

// Checkpoint is what there is to inspect: everything that opening a checkpoint
// told, which may be in any state of disrepair.
type Checkpoint struct {
	Path     string         // as it was given
	Config   *config.Config // nil if it cannot be read; a Finding says why
	Index    *Index         // nil if there is none, or it cannot be read
	Files    []File         // the weight files whose headers could be read
	Findings []Finding      // what was found while the files were read
}

// Index is the index of a sharded checkpoint.
type Index struct {
	File    string `json:"file"`    // relative to the checkpoint
	Tensors int    `json:"tensors"` // names that it lists
	Shards  int    `json:"shards"`  // files that it names
}

// File is a weight file, by its header.
type File struct {
	Name    string        // relative to the checkpoint
	Size    int64         // in bytes, header included
	Tensors []tensor.Info // in file order
}

// Finding is one thing that is wrong, or odd, and where.
type Finding struct {
	Kind   Kind   `json:"kind"`             // how the parts of the checkpoint disagree
	File   string `json:"file,omitempty"`   // relative to the checkpoint; empty for all of it
	Tensor string `json:"tensor,omitempty"` // empty when it is not about one
	Cause  string `json:"cause"`            // what is wrong
	Hint   string `json:"hint,omitempty"`   // where to look, or what can be done about it
}

// Kind says how config, index and files disagree.
type Kind string

// The kinds of findings. All but Note keep the checkpoint from being used.
const (
	Broken     Kind = "broken"     // a file cannot be read, or contradicts the index
	Missing    Kind = "missing"    // the config asks for a tensor that no file holds
	Shape      Kind = "shape"      // a tensor has another shape than the config asks for
	DType      Kind = "dtype"      // the model does not compute with a tensor's dtype, or not without the scales that it lacks
	Unexpected Kind = "unexpected" // the config has no use for a tensor
	Value      Kind = "value"      // numbers that weights cannot be, or that cannot be meant
	Note       Kind = "note"       // odd, but a reader can live with it
)

// Tensor is one tensor of a checkpoint.
type Tensor struct {
	Name  string       `json:"name"`  // as the file spells it
	DType tensor.DType `json:"dtype"` // of its elements
	Shape []int        `json:"shape"` // outermost first
	Bytes int64        `json:"bytes"` // of its data
	File  string       `json:"file"`  // relative to the checkpoint
}

// tensors returns all tensors, file after file.
func (c *Checkpoint) tensors() []Tensor {
	all := []Tensor{}
	for _, f := range c.Files {
		for _, i := range f.Tensors {
			all = append(all, Tensor{i.Name, i.DType, i.Shape, i.Bytes(), f.Name})
		}
	}
	return all
}

// headers is the checkpoint as weights.Headers.
type headers struct{ *Checkpoint }

// Tensors yields the header entries, file after file.
func (h headers) Tensors() iter.Seq[tensor.Info] {
	return func(yield func(tensor.Info) bool) {
		for _, f := range h.Files {
			for _, i := range f.Tensors {
				if !yield(i) {
					return
				}
			}
		}
	}
}
