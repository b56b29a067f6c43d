package convert

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"io"

	"dsmoe/model/tensor"
)

// Plan is everything that a conversion will do, settled before the first weight is
// read: the same sources and options give the same plan, and a plan gives the same
// bytes. It is JSON as it stands.
type Plan struct {
	Hash    string          `json:"plan"` // sha256 of the rest
	Options PlanOptions     `json:"options"`
	Sources []SourceFile    `json:"sources"`
	Files   []PlannedFile   `json:"files"`           // weight files
	Others  []OtherFile     `json:"others"`          // config.json, the index and what is carried along
	Left    []string        `json:"left_behind"`     // files of the source that are neither read nor copied
	Dropped int             `json:"dropped_tensors"` // by --layers, --include, --exclude
	Notes   []string        `json:"notes"`
	Tensors []PlannedTensor `json:"tensors"` // by file, then offset

	order  []tensor.Info // in the order of the model
	shards []shard
	config []byte
}

// PlanOptions are the options that decide the bytes of the output.
type PlanOptions struct {
	DType         string   `json:"dtype"` // "keep", or a dtype
	Experts       string   `json:"experts"`
	MaxShardBytes int64    `json:"max_shard_bytes"`
	Layers        string   `json:"layers,omitempty"`
	Include       []string `json:"include,omitempty"`
	Exclude       []string `json:"exclude,omitempty"`
}

// SourceFile is a weight file that is read; the hash is of its header, or of the
// pickle's tensors and their places.
type SourceFile struct {
	Name   string `json:"file"`
	Size   int64  `json:"size"`
	Header string `json:"header_sha256"`
}

// PlannedFile is a weight file to be written.
type PlannedFile struct {
	Name    string `json:"file"`
	Size    int64  `json:"size"`
	Tensors int    `json:"tensors"`
	Header  string `json:"header_sha256"`
}

// OtherFile is a file that holds no weights. Its bytes are known to the plan.
type OtherFile struct {
	Name    string `json:"file"`
	Size    int64  `json:"size"`
	SHA256  string `json:"sha256"`
	Carried bool   `json:"carried,omitempty"` // copied from the source

	data []byte // of a file that is not carried
}

// PlannedTensor is a tensor to be written: the segments one after the other, each
// put through the operation.
type PlannedTensor struct {
	Name       string       `json:"name"`
	DType      tensor.DType `json:"dtype"`
	Shape      []int        `json:"shape"`
	File       int          `json:"file"`   // index in Files
	Offset     int64        `json:"offset"` // in the file
	Operations []string     `json:"operations"`
	Segments   []Segment    `json:"segments"`
}

// Info returns the tensor's header entry.
func (t *PlannedTensor) Info() tensor.Info {
	return tensor.Info{Name: t.Name, DType: t.DType, Shape: t.Shape}
}

// Segment is a run of the elements of one stored tensor of the source, which is a
// tensor of its own in the per-expert layout.
type Segment struct {
	Tensor string       `json:"tensor"` // as it is stored
	DType  tensor.DType `json:"dtype"`
	File   int          `json:"file"`   // index in Sources
	Offset int64        `json:"offset"` // in the file
	Begin  int64        `json:"begin"`  // bytes of the stored tensor
	End    int64        `json:"end"`
	Scale  *Scale       `json:"scale,omitempty"` // FP8 that is dequantised
}

// Scale is where the scales of an FP8 matrix are.
type Scale struct {
	Tensor string        `json:"tensor"` // as it is stored
	DType  tensor.DType  `json:"dtype"`
	File   int           `json:"file"`
	Offset int64         `json:"offset"`
	Blocks tensor.Blocks `json:"blocks"`
}

// The operations, as a plan names them. Each has an inverse, which Prove applies.
const (
	opCopy       = "copy"
	opCast       = "cast"
	opDequantise = "fp8-dequantise"
	opStack      = "stack-experts"
	opUnstack    = "unstack-experts"
)

// NewPlan works out the conversion of the checkpoint that v looks at. It reads no
// weight. Everything that keeps the conversion from being right is in the one
// *Error that it returns.
func NewPlan(v *View, o Options) (*Plan, error) {
	o = o.withDefaults()
	if err := o.check(); err != nil {
		return nil, err
	}
	p := planner{view: v, o: o, filter: newFilter(o), groups: map[string]int{}, plan: &Plan{Options: planOptions(o), Left: []string{}, Notes: []string{}}}
	for _, step := range []func() error{p.choose, p.arrange, p.layout, p.sources, p.others} {
		if err := step(); err != nil {
			return nil, err
		}
		if len(p.problems) > 0 {
			return nil, &Error{Path: v.c.Path, Problems: p.problems}
		}
	}
	p.plan.Hash = p.plan.hash()
	return p.plan, nil
}

func planOptions(o Options) PlanOptions {
	dtype := "keep"
	if o.DType != tensor.Invalid {
		dtype = o.DType.String()
	}
	return PlanOptions{dtype, o.Experts.String(), o.MaxShardBytes, o.Layers.String(), o.Include, o.Exclude}
}

// Bytes returns the bytes of weights that are read, scales left out, and written.
func (p *Plan) Bytes() (in, out int64) {
	for i := range p.Tensors {
		out += p.Tensors[i].Bytes()
		for _, s := range p.Tensors[i].Segments {
			in += s.End - s.Begin
		}
	}
	return in, out
}

// Bytes returns the size of the tensor's data.
func (t *PlannedTensor) Bytes() int64 { return t.Info().Bytes() }

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

// hash is over the canonical encoding: the plan as JSON, part by part.
func (p *Plan) hash() string {
	h := sha256.New()
	e := json.NewEncoder(h)
	io.WriteString(h, "dsmoe plan 1\n")
	for _, part := range []any{p.Options, p.Sources, p.Files, p.Others} {
		e.Encode(part) // plain structs: nothing can fail
	}
	for i := range p.Tensors {
		e.Encode(&p.Tensors[i])
	}
	return hex.EncodeToString(h.Sum(nil))
}

func sum(data []byte) string {
	h := sha256.Sum256(data)
	return hex.EncodeToString(h[:])
}
