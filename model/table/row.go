// Package table is the table of weights: a row for each weight of a model family, with its
// HuggingFace name, its module and role, the condition under which a layer has it, its shape
// in terms of the config, and its tensors in llama.cpp's files. Family.Slots expands a table
// to every weight that a config implies, and Family.Place finds the row of a name. The package
// knows neither tensors nor the network.
package table

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"dsmoe/config"
	"dsmoe/model/tensor"
)

// Family is the weights of a network: a row per weight, in the order of the reference's
// state_dict.
type Family struct {
	ModelTypes []string // model_type of config.json
	Rows       []Row    // the weights that the logits depend on
	// Ignored are tensors of any shape that a checkpoint may hold beyond the table:
	// values that the reference derives anew.
	Ignored []Row
	// Namings are the ways in which files name the weights; nil: as the table does. The first is the one that
	// checkpoints are published with.
	Namings []Naming
	// Joined says that transformers, under its own names, finds routed experts that are fused, and makes up random ones
	// where they are apart: tried with 5.23 and 5.24.
	Joined  bool
	spelled func() map[string]spelling // by the patterns of Namings; nil without Namings
	// MTP are the rows of a multi-token prediction layer beside those of a decoder
	// layer. A checkpoint may hold such layers behind the decoder's, each of them whole, or
	// leave them out.
	MTP []Row
	// Unknown are beginnings of stored names, and parts of them that begin with a dot, that the family has without it
	// being known which: a checkpoint may hold such tensors.
	Unknown []string
	// Opaque are such parts of names of attention's tensors, in families whose attention is not computed: a checkpoint
	// may hold such tensors of any shape, and they are copied as they are.
	Opaque []string
	// Left are beginnings of the names of prediction layers that the reference leaves out, whose weights are not known.
	// A checkpoint may hold such tensors.
	Left []string
	// LeavesLayers says so of the layers behind the decoder's.
	LeavesLayers bool
	// CarriesMTP says that prediction layers are no part of the model: the reference leaves them out.
	CarriesMTP bool
}

// Row is a row of the table. It holds for every layer and expert for which When is true.
type Row struct {
	Name   string // "{l}" stands for a decoder layer, "{e}" for a routed expert
	Module Module // that the weight belongs to
	Role   Role   // of the weight in its module
	When   *when  // nil: every layer has the weight
	Shape  []dim  // outermost first, as torch has it: [out_features, in_features]; nil if it is not known
	GGUF   gguf   // its tensors in llama.cpp's files
}

// when is a condition of the table.
type when struct {
	Keys  []string                               // of config.json: all that Holds depends on
	Holds func(c *config.Config, layer int) bool // whether layer has the weight; it is -1 for rows without "{l}"
}

// dim is a dimension of a weight.
type dim struct {
	Keys []string                              // of config.json: all that Size depends on
	Size func(c *config.Config, layer int) int // number of elements; layer is -1 for rows without "{l}"
}

// Module is the part of the model that a weight belongs to; parameter counts add
// up by it.
type Module string

// The modules of all families.
const (
	Embedding     Module = "embed_tokens"
	Attention     Module = "self_attn"
	Indexer       Module = "self_attn.indexer"
	Compressor    Module = "self_attn.compressor"
	AttnHC        Module = "attn_hc"
	FFNHC         Module = "ffn_hc"
	HCHead        Module = "hc_head"
	Norms         Module = "norms"
	DenseMLP      Module = "mlp (dense)"
	Router        Module = "mlp.gate"
	RoutedExperts Module = "mlp.experts"
	SharedExperts Module = "mlp.shared_experts"
	Latent        Module = "mlp.latent" // around the routed experts
	Head          Module = "lm_head"
	MTP           Module = "mtp" // of prediction layers, which the logits do not depend on
)

// Place is where in the model a weight belongs.
type Place struct {
	Row    *Row // nil: the table has no such weight
	Layer  int  // counted from 0; -1 outside the decoder layers
	Expert int  // counted from 0; -1 outside the routed experts
}

// Module returns the module of the place's row; "" without a row.
func (p Place) Module() Module {
	if p.Row == nil {
		return ""
	}
	return p.Row.Module
}

// Role returns the role of the place's row; "" without a row.
func (p Place) Role() Role {
	if p.Row == nil {
		return ""
	}
	return p.Row.Role
}

// Is reports whether the place is one of role r in module m.
func (p Place) Is(m Module, r Role) bool { return p.Module() == m && p.Role() == r }

// MLP returns the module of the MLP that the weight is a matrix of, such as
// "model.layers.3.mlp.experts.17"; "" for other weights.
func (p Place) MLP() string {
	switch p.Module() {
	case DenseMLP, RoutedExperts, SharedExperts:
		return strings.TrimSuffix(p.Row.NameIn(p.Layer, p.Expert), "."+string(p.Role())+".weight")
	}
	return ""
}

// Slot is one weight that a config implies: an expanded row.
type Slot struct {
	Name  string // HuggingFace's, such as "model.layers.1.mlp.experts.7.up_proj.weight"
	Shape []int  // outermost first, as torch has it: [out_features, in_features]
	Place        // its row, layer and expert
}

// Info returns the slot as a header entry of dtype d.
func (s Slot) Info(d tensor.DType) tensor.Info {
	return tensor.Info{Name: s.Name, DType: d, Shape: s.Shape}
}

// Expected returns ", shape [2 3] is expected"; "" if the shape is not known.
func (s Slot) Expected() string {
	if s.Shape == nil {
		return ""
	}
	return fmt.Sprintf(", shape %v is expected", s.Shape)
}

// Row returns the row of the role in the module; nil if the family has none.
func (f *Family) Row(m Module, r Role) *Row {
	return f.find(func(row *Row) bool { return row.Module == m && row.Role == r })
}

// find returns the first row that is wanted; nil if there is none.
func (f *Family) find(wanted func(*Row) bool) *Row {
	for _, rows := range [...][]Row{f.Rows, f.MTP} {
		for i := range rows {
			if wanted(&rows[i]) {
				return &rows[i]
			}
		}
	}
	return nil
}

// StageModule returns the module of the weight that gives a stage, named as the stage
// is within its layer: "self_attn.q_proj.output" and "mlp.gate.logits" are q_proj's and
// the gate's. "" if the stage is not what a weight gives by itself.
func (f *Family) StageModule(stage string) Module {
	for _, row := range f.Rows {
		if stage == strings.TrimPrefix(row.stage(), layerPrefix) {
			return row.Module
		}
	}
	return ""
}

// stage returns the name of the stage that the row's weight gives, with its holes; "" for a bias.
func (r *Row) stage() string {
	module, ok := strings.CutSuffix(r.Name, ".weight")
	switch {
	case !ok:
		return ""
	case r.Role == Gate:
		return module + ".logits"
	}
	return module + ".output"
}

// Stage returns the name of the stage that the weight of the place, which has a row, gives: the
// output of its module, or the gate's logits. "" for a bias.
func (p Place) Stage() string { return fillHoles(p.Row.stage(), p.Layer, p.Expert) }

// shaped returns the row with another shape.
func (r Row) shaped(shape ...dim) Row {
	r.Shape = shape
	return r
}

// Sizes returns the shape of a layer's weight.
func (r *Row) Sizes(c *config.Config, layer int) []int {
	shape := make([]int, len(r.Shape))
	for i, d := range r.Shape {
		shape[i] = d.Size(c, layer)
	}
	return shape
}

// InLayer returns the row's name as it is within its layer: "mlp.gate.weight".
func (r *Row) InLayer() string { return strings.TrimPrefix(r.Name, layerPrefix) }

// LookedUp reports whether the weight is an embedding: only the rows of the input's tokens
// are read.
func (r *Row) LookedUp() bool { return r.Role == EmbedTokens }

// Integer reports whether the weight is integers, which nothing casts.
func (r *Row) Integer() bool { return r.Role == TID2EID }

// Parameter reports whether the weight stays in F32 whatever dtype the model has, as transformers keeps it: what
// hyper-connections, sinks and biases are made of.
func (r *Row) Parameter() bool {
	switch r.Role {
	case HCFn, HCBase, HCScale, Sinks, PositionBias, EScoreCorrectionBias:
		return true
	}
	return false
}

// Float32 reports whether the weight is published in F32 beside weights of other dtypes: Parameter, and some gates.
func (r *Row) Float32(c *config.Config) bool {
	return r.Parameter() || r.Role == Gate && c.Rules().Router.KeepsGate
}

// PerLayer reports whether the row stands for a weight of each decoder layer.
func (r *Row) PerLayer() bool { return strings.Contains(r.Name, layerHole) }

// PerExpert reports whether the row stands for a weight of each routed expert.
func (r *Row) PerExpert() bool { return strings.Contains(r.Name, expertHole) }

// Holds reports whether layer has the row's weight; layer is -1 if not PerLayer.
func (r *Row) Holds(c *config.Config, layer int) bool {
	return r.When == nil || r.When.Holds(c, layer)
}

// Keys returns the keys of config.json that decide which weights the row has in a given number
// of layers, and of what shape: those of its condition, then those of its shape in
// the order of the alphabet. Rows that differ only in the order of their dimensions
// have the same.
func (r *Row) Keys() []string {
	var keys, sizes []string
	if r.When != nil {
		keys = append(keys, r.When.Keys...)
	}
	for _, d := range r.Shape {
		sizes = append(sizes, d.Keys...)
	}
	slices.Sort(sizes)
	for _, key := range sizes {
		if !slices.Contains(keys, key) {
			keys = append(keys, key)
		}
	}
	return keys
}

// NameIn returns the name of the row's weight in a layer, of a routed expert. Rows that are not
// PerLayer or PerExpert do not use these.
func (r *Row) NameIn(layer, expert int) string { return fillHoles(r.Name, layer, expert) }

// InLayer puts the layer into the name of a GGUF tensor.
func (p Place) InLayer(name string) string {
	return strings.Replace(name, "{l}", strconv.Itoa(p.Layer), 1)
}
