// Package plan settles everything that writing a checkpoint will do before the first
// weight is read: the same sources and options give the same plan, and a plan gives the
// same bytes. Conversion plans the output from a checkpoint's headers, Synthesis from a
// config. A Plan can be printed and hashed; package engine carries it out.
package plan

import (
	"encoding/json"
	"io"
	"slices"
	"time"

	"dsmoe/convert/format"
	"dsmoe/convert/operation"
	"dsmoe/model/digest"
	"dsmoe/model/tensor"
)

// ManifestName is the file that binds an output's bytes to its sources. The manifest of an output
// that is one file lies beside it, and has FileManifest behind the file's name.
const (
	ManifestName = "dsmoe.manifest.json"
	FileManifest = ".manifest.json"
)

// Manifest returns the name of the manifest.
func (p *Plan) Manifest() string {
	if p.File != "" {
		return p.File + FileManifest
	}
	return ManifestName
}

// Plan is everything that will be done. It is JSON as it stands.
type Plan struct {
	Hash    string   `json:"plan"`            // names the rest
	Weights string   `json:"weights"`         // names Sources and Tensors, offsets left out: names the weights' bytes
	Options any      `json:"options"`         // that decide the bytes of the output
	Sources []Source `json:"sources"`         // weight files that are read
	Files   []File   `json:"files"`           // weight files to be written
	Others  []Other  `json:"others"`          // config.json, the index and the copied files
	Left    []string `json:"left_behind"`     // files of the source that are neither copied nor read whole
	Dropped int      `json:"dropped_tensors"` // left out on request
	// Vocabulary is what the files tell programs that read and write texts; null if they hold no tokens.
	Vocabulary *format.Vocabulary `json:"vocabulary"`
	// Missing counts the weights that the output's config.json implies and the output lacks.
	// An output with missing weights is part of a model and does not load.
	Missing []Missing `json:"missing"`
	Notes   []string  `json:"notes"`   // for the user
	Tensors []Tensor  `json:"tensors"` // by file, then offset

	// Index is the name, in Others, of the index of the shards, which is written last; empty
	// for a single file.
	Index string `json:"-"`

	Format *format.Format `json:"-"` // of the files to be written

	// File is the name of the one file that the output is; empty if the output is a directory.
	File string `json:"-"`

	described format.Described // the weight files' content beside their tensors
	order     []int32          // Tensors in the order of the model
	source    int64            // bytes of memory that the headers of the source take
}

// Source is a weight file that is read.
type Source struct {
	Name     string `json:"file"`     // in the source's directory
	Size     int64  `json:"size"`     // bytes of the file
	Identity string `json:"identity"` // hash of its header or, for a format without one, of a substitute
}

// File is a weight file to be written.
type File struct {
	Name    string `json:"file"`    // in the output's directory
	Size    int64  `json:"size"`    // bytes of the file
	Tensors int    `json:"tensors"` // how many it holds
	Header  string `json:"header"`  // hash of the bytes before the data
}

// Other is a file that holds no weights.
type Other struct {
	Name    string    `json:"file"`              // in the output's directory
	Size    int64     `json:"size"`              // bytes of the file
	Hash    string    `json:"hash,omitempty"`    // hash of its bytes; empty for a copied file
	Carried bool      `json:"carried,omitempty"` // copied from the source's directory
	Text    []byte    `json:"-"`                 // the bytes of a file that is neither carried nor the index
	ModTime time.Time `json:"-"`                 // of a file that is carried, when it was planned
}

// Missing counts weights of one kind.
type Missing struct {
	Module  string `json:"module"`  // as the table has it: "mlp.experts"; "mtp" is all of a multi-token prediction layer
	Tensors int    `json:"tensors"` // how many, experts counted one by one
}

// Tensor is a tensor to be written: its segments one after the other.
type Tensor struct {
	Name       string       `json:"name"`       // as it is written
	DType      tensor.DType `json:"dtype"`      // as it is written
	Shape      []int        `json:"shape"`      // as it is written
	File       int          `json:"file"`       // index in Files
	Offset     int64        `json:"offset"`     // of its first byte in the file
	Operations []string     `json:"operations"` // operations, for a reader: "stack-experts", "cast BF16"
	Segments   []Segment    `json:"segments"`   // where its elements come from

	// Codes is the plan's tensor of codes whose scales these are; nil for other tensors.
	Codes *Tensor `json:"-"`
}

// Info returns the tensor's header entry.
func (t *Tensor) Info() tensor.Info {
	return tensor.Info{Name: t.Name, DType: t.DType, Shape: t.Shape}
}

// Bytes returns the size of the tensor's data.
func (t *Tensor) Bytes() int64 { return t.Info().Bytes() }

// Copies reports whether the tensor is one run of the source's bytes.
func (t *Tensor) Copies() bool {
	return len(t.Segments) == 1 && t.Segments[0].Copies() && t.Segments[0].View == nil
}

// Encodes reports whether all elements of the tensor are encoded in blocks.
func (t *Tensor) Encodes() bool {
	for i := range t.Segments {
		if _, is := t.Segments[i].Operation.(*operation.Quantise); !is {
			return false
		}
	}
	return true
}

// Segment is a run of the output's elements that come from one stored tensor, put
// through one operation.
type Segment struct {
	// as it is stored; empty if no element is read: of synthetic tensors and of scales that are made
	Tensor    string              `json:"tensor,omitempty"`
	DType     tensor.DType        `json:"dtype"`            // as it is stored
	File      int                 `json:"file"`             // index in Sources
	Offset    int64               `json:"offset"`           // in the file, of the first byte that the segment may read
	Begin     int64               `json:"begin"`            // that byte in the stored tensor
	End       int64               `json:"end"`              // the byte behind the last
	First     int64               `json:"first"`            // index of the first element in the operation's matrix
	View      *tensor.View        `json:"view,omitempty"`   // selection of these elements; nil for all in stored order
	Decode    tensor.DType        `json:"decode,omitempty"` // stored dtype of elements decoded to DType; else Invalid
	Sides     []Side              `json:"sides,omitempty"`  // tensors that the operation needs beside the elements
	Bytes     int64               `json:"bytes"`            // that it has in the output
	Operation operation.Operation `json:"operation"`        // operation on each element
}

// Copies reports whether the operation keeps elements unchanged.
func (s *Segment) Copies() bool {
	_, is := s.Operation.(operation.Copy)
	return is
}

// Counted reports whether every element that is not the source's value is counted as lost.
func (t *Tensor) Counted() bool {
	return !slices.ContainsFunc(t.Segments, func(s Segment) bool { return !operation.Counts(s.Operation) })
}

// Side is a stored tensor beside the elements, such as scales.
type Side struct {
	Tensor string `json:"tensor"` // as it is stored
	File   int    `json:"file"`   // index in Sources
	Offset int64  `json:"offset"` // of its first byte in the file
}

// Places returns where the elements of the whole stored tensors lie: of the segment's, which Begin, End and
// First count in order, and of each side.
func (s *Segment) Places() *tensor.Placement {
	if op, is := s.Operation.(interface{ Places() *tensor.Placement }); is {
		return op.Places()
	}
	return &tensor.Placement{}
}

// Bytes returns the bytes of weights that are read, sides left out, and written.
func (p *Plan) Bytes() (in, out int64) {
	for i := range p.Tensors {
		out += p.Tensors[i].Bytes()
		for _, s := range p.Tensors[i].Segments {
			in += s.End - s.Begin
		}
	}
	return in, out
}

// Size returns the bytes of disk that the output needs, the manifest left out.
func (p *Plan) Size() (n int64) {
	for _, f := range p.Files {
		n += f.Size
	}
	for _, f := range p.Others {
		n += f.Size
	}
	return n
}

// OperationCounts returns how many tensors each operation is done to.
func (p *Plan) OperationCounts() map[string]int {
	counts := map[string]int{}
	for _, t := range p.Tensors {
		for _, op := range t.Operations {
			counts[op]++
		}
	}
	return counts
}

// CarriedNames lists the files that are copied from the source's directory.
func (p *Plan) CarriedNames() []string {
	names := []string{}
	for _, f := range p.Others {
		if f.Carried {
			names = append(names, f.Name)
		}
	}
	return names
}

// FinishOrder lists the files of the output in the order in which they are finished and
// appear in an existing directory: config.json and the index last, because a directory
// without them does not look like a checkpoint. A format with the config inside has its
// first file last.
func (p *Plan) FinishOrder() (names []string) {
	last := []string{p.Format.Config, p.Index}
	configured := false
	for _, f := range p.Others {
		configured = configured || f.Name == p.Format.Config
		if !slices.Contains(last, f.Name) {
			names = append(names, f.Name)
		}
	}
	var files []string
	for _, f := range p.Files {
		files = append(files, f.Name)
	}
	if !configured {
		slices.Reverse(files)
		return append(append(names, p.Manifest()), files...)
	}
	names = append(append(names, files...), ManifestName, p.Format.Config)
	if p.Index != "" {
		names = append(names, p.Index)
	}
	return names
}

// seal gives the plan its hashes, over the canonical encoding: its parts as JSON.
func (p *Plan) seal() {
	h, weights := digest.New(), digest.New()
	e, w := json.NewEncoder(h), json.NewEncoder(weights)
	io.WriteString(h, "dsmoe plan 1\n")
	for _, part := range []any{p.Options, p.Sources, p.Files, p.Others} {
		e.Encode(part) // plain structs: nothing can fail
	}
	w.Encode(p.Sources)
	for i := range p.Tensors {
		t := p.Tensors[i]
		e.Encode(&t)
		t.Offset = 0
		w.Encode(&t)
	}
	p.Hash, p.Weights = h.Name(), weights.Name()
}
