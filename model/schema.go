package model

import (
	"iter"
	"slices"
	"strconv"
	"strings"

	"dsmoe/config"
	"dsmoe/model/tensor"
)

// Family is the weights of one model_type: a row per weight, in the order of the
// reference's state_dict.
type Family struct {
	ModelType string  // model_type of config.json
	Params    []Param // the weights that the logits depend on
	// Ignored are tensors of any shape that a checkpoint may hold beyond the table:
	// values that the reference derives anew.
	Ignored []Param
	// MTP are the rows of a multi-token prediction layer beside those of a decoder
	// layer. A checkpoint may hold such layers behind the decoder's, each of them whole, or
	// leave them out.
	MTP []Param
}

// Param is a row of the table. It holds for every layer and expert for which When is
// true.
type Param struct {
	Name   string // "{l}" stands for a decoder layer, "{e}" for a routed expert
	GGUF   GGUF   // where llama.cpp's files have it
	Module Module // that the weight belongs to
	When   *When  // nil: every layer has the weight
	Shape  []Dim  // outermost first, as torch has it: [out_features, in_features]
	place  place  // nil: the model does not use it
}

// When is a condition of the table.
type When struct {
	Keys  []string                               // of config.json: all that Holds depends on
	Holds func(c *config.Config, layer int) bool // whether layer has the weight; it is -1 for rows without "{l}"
}

// Dim is a dimension of a weight.
type Dim struct {
	Keys []string                   // of config.json: all that Size depends on
	Size func(c *config.Config) int // number of elements
}

// place finds where a weight is bound.
type place func(m *DeepseekForCausalLM, layer, expert int) *Weight

// Module is the part of the model that a weight belongs to; parameter counts add
// up by it.
type Module string

// The modules of all families.
const (
	Embedding     Module = "embed_tokens"
	Attention     Module = "self_attn"
	Norms         Module = "norms"
	DenseMLP      Module = "mlp (dense)"
	Router        Module = "mlp.gate"
	RoutedExperts Module = "mlp.experts"
	SharedExperts Module = "mlp.shared_experts"
	Head          Module = "lm_head"
	MTP           Module = "mtp" // of prediction layers, which the logits do not depend on
)

// Slot is one weight that a config implies: an expanded row.
type Slot struct {
	Name   string // HuggingFace's, such as "model.layers.1.mlp.experts.7.up_proj.weight"
	Shape  []int  // outermost first, as torch has it: [out_features, in_features]
	Layer  int    // counted from 0; -1 outside the decoder layers
	Expert int    // counted from 0; -1 outside the routed experts
	Param  *Param // the row that it is expanded from
}

// Info returns the slot as a header entry of dtype d.
func (s Slot) Info(d tensor.DType) tensor.Info {
	return tensor.Info{Name: s.Name, DType: d, Shape: s.Shape}
}

// Slots yields every weight that c implies, in the order of the reference's
// state_dict: rows before the layers, layer by layer, rows after them.
func (f *Family) Slots(c *config.Config) iter.Seq[Slot] {
	return expand(f.Params, c, 0, c.NumHiddenLayers)
}

// MTPSlots yields the weights of the num_nextn_predict_layers prediction layers, which
// are numbered on from num_hidden_layers.
func (f *Family) MTPSlots(c *config.Config) iter.Seq[Slot] {
	return expand(f.mtpRows(), c, c.NumHiddenLayers, c.NumHiddenLayers+f.predictionLayers(c))
}

// mtpRows are all rows of a prediction layer.
func (f *Family) mtpRows() []Param {
	rows := slices.Clone(f.MTP)
	for _, p := range f.Params {
		if p.PerLayer() {
			rows = append(rows, p)
		}
	}
	return rows
}

// predictionLayers returns how many prediction layers c announces, if the family has any.
func (f *Family) predictionLayers(c *config.Config) int {
	if f.MTP == nil {
		return 0
	}
	return c.NumNextNPredictLayers
}

// FamilyOf returns the table of c's model_type. Every model_type that package
// config accepts has one.
func FamilyOf(c *config.Config) *Family {
	for _, f := range families {
		if f.ModelType == c.ModelType {
			return f
		}
	}
	panic("model: no table for model_type " + strconv.Quote(c.ModelType))
}

// StageModule returns the module of the weight that gives a stage, named as the stage
// is within its layer: "self_attn.q_proj.output" and "mlp.gate.logits" are q_proj's and
// the gate's. "" if the stage is not what a weight gives by itself.
func (f *Family) StageModule(stage string) Module {
	for _, row := range f.Params {
		module := strings.TrimSuffix(strings.TrimPrefix(row.Name, "model.layers.{l}."), ".weight")
		if stage == module+".output" || stage == module+".logits" {
			return row.Module
		}
	}
	return ""
}

// layerWeights yields the weights bound in layer l, one of the decoder or a prediction
// layer, with their rows, in the order of the table.
func (m *DeepseekForCausalLM) layerWeights(l int) iter.Seq2[*Param, *Weight] {
	rows := FamilyOf(m.Config).Params
	if l >= len(m.Model.Layers) {
		rows = FamilyOf(m.Config).mtpRows()
	}
	return func(yield func(*Param, *Weight) bool) {
		for i := range rows {
			row := &rows[i]
			if !row.PerLayer() || !row.Holds(m.Config, l) {
				continue
			}
			for e := range row.experts(m.Config) {
				if !yield(row, row.place(m, l, e)) {
					return
				}
			}
		}
	}
}

// expertRows are the rows of one routed expert.
func (f *Family) expertRows() []*Param {
	var rows []*Param
	for i := range f.Params {
		if f.Params[i].PerExpert() {
			rows = append(rows, &f.Params[i])
		}
	}
	return rows
}

// expand yields the slots of params for the decoder layers first … end-1.
func expand(params []Param, c *config.Config, first, end int) iter.Seq[Slot] {
	return func(yield func(Slot) bool) {
		for len(params) > 0 {
			n := leading(params, (*Param).PerLayer)
			if !expandLayers(params[:n], c, first, end, yield) {
				return
			}
			params = params[n:]
		}
	}
}

// leading returns how many rows, from the first on, agree with it on a property.
func leading(params []Param, property func(*Param) bool) int {
	for n := range params {
		if property(&params[n]) != property(&params[0]) {
			return n
		}
	}
	return len(params)
}

// expandLayers yields the rows layer by layer; rows that are not per layer, once.
func expandLayers(params []Param, c *config.Config, first, end int, yield func(Slot) bool) bool {
	if !params[0].PerLayer() {
		return expandRows(params, c, -1, yield)
	}
	for l := first; l < end; l++ {
		if !expandRows(params, c, l, yield) {
			return false
		}
	}
	return true
}

// expandRows yields the rows of one layer; consecutive expert rows are yielded
// expert by expert.
func expandRows(params []Param, c *config.Config, layer int, yield func(Slot) bool) bool {
	for len(params) > 0 {
		n := leading(params, (*Param).PerExpert)
		for e := range params[0].experts(c) {
			for i := range params[:n] {
				if p := &params[i]; p.Holds(c, layer) {
					if !yield(p.slot(c, layer, e)) {
						return false
					}
				}
			}
		}
		params = params[n:]
	}
	return true
}

// experts returns how many weights of a layer the row stands for.
func (p *Param) experts(c *config.Config) int {
	if p.PerExpert() {
		return c.NRoutedExperts
	}
	return 1
}

func (p *Param) slot(c *config.Config, layer, expert int) Slot {
	s := Slot{Name: p.Name, Shape: p.Sizes(c), Layer: layer, Expert: -1, Param: p}
	if p.PerLayer() {
		s.Name = strings.Replace(s.Name, "{l}", strconv.Itoa(layer), 1)
	}
	if p.PerExpert() {
		s.Name = strings.Replace(s.Name, "{e}", strconv.Itoa(expert), 1)
		s.Expert = expert
	}
	return s
}

// Sizes returns the shape of one weight.
func (p *Param) Sizes(c *config.Config) []int {
	shape := make([]int, len(p.Shape))
	for i, d := range p.Shape {
		shape[i] = d.Size(c)
	}
	return shape
}

// LookedUp says whether the weight is an embedding: only the rows of the input's tokens are
// read.
func (p *Param) LookedUp() bool { return strings.HasSuffix(p.Name, "embed_tokens.weight") }

// PerLayer says whether the row stands for a weight of each decoder layer.
func (p *Param) PerLayer() bool { return strings.Contains(p.Name, "{l}") }

// PerExpert says whether the row stands for a weight of each routed expert.
func (p *Param) PerExpert() bool { return strings.Contains(p.Name, "{e}") }

// Holds says whether layer has the row's weight; layer is -1 if not PerLayer.
func (p *Param) Holds(c *config.Config, layer int) bool {
	return p.When == nil || p.When.Holds(c, layer)
}

// Keys returns the keys of config.json that say which weights the row has in the layers
// that there are, and of what shape: those of its condition, then those of its shape in
// the order of the alphabet. Rows that differ only in the order of their dimensions
// have the same.
func (p *Param) Keys() []string {
	var keys, sizes []string
	if p.When != nil {
		keys = append(keys, p.When.Keys...)
	}
	for _, d := range p.Shape {
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
