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
	Params    []Param // a row per weight
	// Ignored are names a checkpoint may hold beyond the table: values that the
	// reference derives anew. "{l}" stands for a layer.
	Ignored []Param
	// MTP are the rows of a multi-token prediction layer beside those of a decoder
	// layer. A checkpoint may hold such layers behind the decoder's, or leave them out.
	MTP []Param
}

// Param is a row of the table. In Name, "{l}" stands for a decoder layer and "{e}"
// for a routed expert; the row holds for every layer and expert for which When is
// true (nil: for all).
type Param struct {
	Name   string // as HuggingFace spells it
	Module Module // that it is a part of
	When   When   // which layers have it
	Shape  []Dim  // its dimensions
	place  place  // where a model holds it
}

// When says whether layer has the weight (layer is -1 for rows without "{l}").
type When func(c *config.Config, layer int) bool

// Dim is a dimension of a weight.
type Dim func(c *config.Config) int

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
	MTP           Module = "mtp" // not part of the forward pass
)

// Slot is one weight that a config implies: an expanded row.
type Slot struct {
	Name   string // without placeholders
	Shape  []int  // in numbers of elements
	Layer  int    // -1 outside the decoder layers
	Expert int    // -1 outside the routed experts
	Param  *Param // the row
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
	rows := slices.Clone(f.MTP)
	for _, p := range f.Params {
		if strings.Contains(p.Name, "{l}") {
			rows = append(rows, p)
		}
	}
	layers := c.NumNextNPredictLayers
	if f.MTP == nil {
		layers = 0
	}
	return expand(rows, c, c.NumHiddenLayers, c.NumHiddenLayers+layers)
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

// layerWeights yields the weights bound in decoder layer l, with their rows, in the
// order of the table.
func (m *DeepseekForCausalLM) layerWeights(l int) iter.Seq2[*Param, *Weight] {
	f := FamilyOf(m.Config)
	return func(yield func(*Param, *Weight) bool) {
		for i := range f.Params {
			row := &f.Params[i]
			if !strings.Contains(row.Name, "{l}") || row.When != nil && !row.When(m.Config, l) {
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
		if strings.Contains(f.Params[i].Name, "{e}") {
			rows = append(rows, &f.Params[i])
		}
	}
	return rows
}

// expand yields the slots of params for the decoder layers first … end-1.
func expand(params []Param, c *config.Config, first, end int) iter.Seq[Slot] {
	return func(yield func(Slot) bool) {
		for len(params) > 0 {
			n := run(params, "{l}")
			if !expandRun(params[:n], c, first, end, yield) {
				return
			}
			params = params[n:]
		}
	}
}

// run returns how many leading rows agree with the first on holding mark.
func run(params []Param, mark string) int {
	has := strings.Contains(params[0].Name, mark)
	for n, p := range params {
		if strings.Contains(p.Name, mark) != has {
			return n
		}
	}
	return len(params)
}

func expandRun(params []Param, c *config.Config, first, end int, yield func(Slot) bool) bool {
	if !strings.Contains(params[0].Name, "{l}") {
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
		n := run(params, "{e}")
		for e := range params[0].experts(c) {
			for i := range params[:n] {
				if p := &params[i]; p.When == nil || p.When(c, layer) {
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
	if strings.Contains(p.Name, "{e}") {
		return c.NRoutedExperts
	}
	return 1
}

func (p *Param) slot(c *config.Config, layer, expert int) Slot {
	s := Slot{Layer: layer, Expert: -1, Param: p, Shape: make([]int, len(p.Shape))}
	if strings.Contains(p.Name, "{e}") {
		s.Expert = expert
	}
	s.Name = strings.NewReplacer("{l}", strconv.Itoa(layer), "{e}", strconv.Itoa(expert)).Replace(p.Name)
	for i, d := range p.Shape {
		s.Shape[i] = d(c)
	}
	return s
}
