package plan

// How much memory plans take. The constants were measured with runtime.ReadMemStats after
// a collection, on conversions of DeepSeek-V3's 91,991 tensors; TestMemory_every measures again.

import (
	"strings"
	"unsafe"

	"dsmoe/convert/checkpoint"
	"dsmoe/convert/operation"
	"dsmoe/model/table"
	"dsmoe/model/tensor"
	"dsmoe/model/weights"
)

// perWeight is the most memory, in bytes, that planning takes for a weight beside the source's
// headers: as a member of a weights.Set, as an output with its position in a file, and as a
// Tensor with its segment. Carrying the plan out takes less per tensor.
const perWeight = 584

// PlanningMemory returns the bytes of memory that the conversion of src takes at most
// before a weight is read, src's headers included.
func PlanningMemory(src *checkpoint.Checkpoint, o Options) int64 {
	consumed := src.HeaderBytes() // bytes of the files that go into the keys, and of the source's keys
	if f, err := checkpoint.Written(o.Format); err == nil && f.Dialect != nil && !src.Alone {
		files, _ := src.Source.List("")
		for _, name := range files {
			if f.Dialect.Consumes(name) {
				if stat, err := src.Source.Stat(name); err == nil {
					consumed += stat.Size()
				}
			}
		}
	}
	n, names := int64(0), consumed*perConsumed
	for info := range src.Tensors() {
		n++
		if o.encodes() { // it may get scales
			n, names = n+1, names+checkpoint.NameMemory(info.Name+tensor.FP8.Parts[0])
		}
		// a decoder's alone, probably, or of an expert with another number: its name is a new string
		if !strings.HasPrefix(info.Name, "model.") || o.Prune.some() {
			names += checkpoint.NameMemory("model." + info.Name)
		}
		name, _ := table.FamilyOf(src.Config).Spell(src.Config, weights.OwnerOf(info.Name))
		if f, _ := table.FusedAt(name); f != nil {
			experts := src.Config.MoE.NRoutedExperts
			if len(info.Shape) > 0 {
				experts = min(experts, info.Shape[0])
			}
			n += int64(experts*len(f.Roles)) - 1
			if o.encodes() {
				n += int64(experts*len(f.Roles)) - 1
			}
		}
	}
	if o.Adapter != nil {
		names += o.Adapter.Memory()
		n += int64(len(o.Adapter.Changes))
	}
	return src.Memory() + n*perWeight + names
}

// perConsumed is the memory, in bytes, that each byte of a file such as a tokenizer takes
// while it becomes keys of weight files, or a key while it becomes another's or a file: its text,
// the decoded values and the encoded keys.
const perConsumed = 8

// Memory returns the bytes of memory that the plan takes at most, and the headers of the
// source, which stay open with it.
func (p *Plan) Memory() int64 {
	const (
		perTensor  = int64(unsafe.Sizeof(Tensor{})) + int64(unsafe.Sizeof(p.order[0]))
		perSegment = int64(unsafe.Sizeof(Segment{}))
		perSide    = int64(unsafe.Sizeof(Side{}))
		perRule    = int64(unsafe.Sizeof(operation.Make{}))
		perMerge   = int64(unsafe.Sizeof(operation.Merge{}))
	)
	n := p.source + 3*int64(len(p.described.Keys)) // kept, and twice more while a header is made
	for _, f := range p.Others {
		n += int64(len(f.Text))
	}
	for i := range p.Tensors {
		t := &p.Tensors[i]
		n += perTensor + int64(len(t.Segments))*perSegment
		if len(t.Segments) == 0 || t.Segments[0].Tensor != t.Name {
			n += checkpoint.NameMemory(t.Name) + 8*int64(len(t.Shape))
		}
		for j := range t.Segments {
			n += int64(len(t.Segments[j].Sides)) * perSide
			switch t.Segments[j].Operation.(type) {
			case operation.Make:
				n += perRule
			case *operation.Merge:
				n += perMerge
			}
		}
	}
	return n
}
