package plan

import (
	"cmp"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"dsmoe/convert/checkpoint"
	"dsmoe/convert/format"
	"dsmoe/model/table"
	"dsmoe/model/tensor"
	"dsmoe/text"
)

// Options are the changes that a conversion makes; the zero value copies every tensor, in
// shards of 5 GB.
type Options struct {
	Format        string       // of the output: safetensors, which is the default, or gguf
	File          string       // name of the one weight file to write, with its manifest beside it: see Into
	Name          string       // of the model, in a format with the config inside; empty is the source's
	DType         tensor.DType // of float weights: F32, F16, BF16 or F8_E4M3; Invalid keeps each's
	PowersOfTwo   bool         // scales of F8_E4M3 are powers of two
	Mixture       string       // of types, in a format that has some: q8_0, q4_k_m; DType is Invalid then
	Experts       Experts      // the layout of routed experts
	Names         string       // of tensors, in a family whose files name them in several ways: see table.Naming
	AllowFP8Fused bool         // write fused experts in FP8, though transformers may misread them
	MaxShardBytes int64        // tensor bytes of one file; 0 is the format's default, negative is one file for all
	Layers        Layers       // keep only these decoder layers; empty keeps all
	Prune         Prune        // keep only these routed experts
	Include       []string     // keep only tensors with a per-expert name that one of these globs matches
	Exclude       []string     // drop tensors with a per-expert name that one of these globs matches
	NoMTP         bool         // drop the multi-token prediction layers, which follow the decoder's
	MTP           bool         // keep them in a format that is mostly written without
	Pre           string       // the name of a tokenizer's pre-tokenizer, in a format that names it
	NoVocab       bool         // leave the vocabulary out of a format that has it in its files

	Imatrix *checkpoint.Imatrix // importance of columns, for mixtures of types K; nil for none
	Adapter *checkpoint.Adapter // a LoRA that is merged into the weights; nil for none
}

// Into returns o for an output at dst: one file if the name ends as the weight files of a format
// with the config inside, which is the output's format then unless o has one; else a directory.
func (o Options) Into(dst string) Options {
	if f := checkpoint.FormatOf(filepath.Base(dst)); f != nil && f.Dialect != nil {
		o.File, o.Format = filepath.Base(dst), cmp.Or(o.Format, strings.ToLower(f.Name))
	}
	return o
}

// shardBytes returns the limit that a MaxShardBytes stands for in a format.
func shardBytes(n int64, f *format.Format) int64 {
	if n == 0 {
		n = f.ShardBytes
	}
	if n <= 0 {
		return 1 << 62
	}
	return n
}

// check refuses options that make no sense.
func (o Options) check() error {
	if o.DType != tensor.Invalid && !o.DType.Casts() && !o.encodes() {
		return fmt.Errorf("dtype %s: weights are written as F32, F16, BF16 or F8_E4M3", o.DType)
	}
	switch {
	case !o.encodes() && o.PowersOfTwo:
		return errors.New("--scales is of --type fp8")
	case o.encodes() && o.Format != "" && o.Format != "safetensors":
		return fmt.Errorf("type fp8: %s does not have it", o.Format)
	case o.encodes() && o.Experts == FusedExperts:
		return errors.New("type fp8 writes each expert apart: transformers ignores the scales of fused experts")
	}
	const longest = 150 // systems take 255 bytes for a file's name, and a type and the number of a shard follow
	if !text.Printable(o.Name) || len(o.Name) > longest {
		return fmt.Errorf("name %s has more than %d bytes, or characters that cannot be printed", text.Quote(o.Name), longest)
	}
	if o.MTP && o.NoMTP {
		return errors.New("prediction layers cannot be both kept and dropped")
	}
	if o.Pre != "" && o.NoVocab {
		return errors.New("a file without a vocabulary has no pre-tokenizer to name: --pre and --no-vocab exclude each other")
	}
	for _, glob := range slices.Concat(o.Include, o.Exclude) {
		if err := text.CheckGlob(glob); err != nil {
			return err
		}
	}
	return nil
}

// encodes reports whether the weights become codes with scales.
func (o Options) encodes() bool { return o.DType.Scaled() }

// cast returns the dtype that all float weights become; Invalid if they keep theirs, those
// beside the ones that become codes too.
func (o Options) cast() tensor.DType {
	if o.encodes() {
		return tensor.Invalid
	}
	return o.DType
}

// recordedOptions are Options as a plan and a manifest hold them.
type recordedOptions struct {
	Format        string   `json:"format,omitempty"`        // empty for safetensors
	DType         string   `json:"dtype"`                   // "keep", or a dtype
	Experts       string   `json:"experts"`                 // "keep", or a layout
	Names         string   `json:"names,omitempty"`         // "published" or "transformers"; empty for the source's
	MaxShardBytes int64    `json:"max_shard_bytes"`         // as it is used, neither 0 nor negative
	Layers        string   `json:"layers,omitempty"`        // as ParseLayers reads them; empty for all
	Include       []string `json:"include,omitempty"`       // globs
	Exclude       []string `json:"exclude,omitempty"`       // globs
	NoMTP         bool     `json:"no_mtp,omitempty"`        // without multi-token prediction layers
	Name          string   `json:"name,omitempty"`          // of the model
	Pre           string   `json:"pre,omitempty"`           // the name given to a pre-tokenizer
	NoVocab       bool     `json:"no_vocab,omitempty"`      // without a vocabulary
	PowersOfTwo   bool     `json:"powers_of_two,omitempty"` // scales of F8_E4M3 are powers of two
	Imatrix       string   `json:"imatrix,omitempty"`       // hash of the importance matrix

	// KeptExperts is the source's numbers of the routed experts that each layer keeps; nil for all
	KeptExperts map[int]string `json:"kept_experts,omitempty"`
}

func (o Options) recorded(f *format.Format, kept table.Kept) recordedOptions {
	r := recordedOptions{o.Format, o.kind(), string(cmp.Or(o.Experts, KeepExperts)), o.Names, shardBytes(o.MaxShardBytes, f),
		o.Layers.String(),
		o.Include, o.Exclude, o.NoMTP, o.Name, o.Pre, o.NoVocab, o.PowersOfTwo, "", nil}
	if o.Imatrix != nil {
		r.Imatrix = o.Imatrix.Hash
	}
	if kept != nil {
		r.KeptExperts = map[int]string{}
	}
	for l, experts := range kept {
		r.KeptExperts[l] = text.Ranges(experts)
	}
	return r
}

// kind names what weights become: a dtype, a mixture, or keep.
func (o Options) kind() string {
	switch {
	case o.DType != tensor.Invalid:
		return o.DType.String()
	case o.Mixture != "":
		return o.Mixture
	}
	return keepTypes
}

// keepTypes is the kind that leaves each weight its dtype.
const keepTypes = "keep"

// Experts is a layout of routed experts.
type Experts string

// The layouts.
const (
	KeepExperts  Experts = "keep"       // as they are, as the empty layout does
	FusedExperts Experts = "fused"      // one gate_up_proj and one down_proj per layer
	PerExpert    Experts = "per-expert" // three projections per expert
)

// Layers is a set of decoder layers; the empty set stands for all layers.
type Layers = text.Spans
