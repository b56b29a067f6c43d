package table

// Names and the places that they stand for. No other package takes names of weights apart.

import (
	"slices"
	"strconv"
	"strings"

	"dsmoe/config"
)

// What stands for numbers in the names of the table.
const (
	layerHole  = "{l}"
	expertHole = "{e}"

	layerPrefix = "model.layers." + layerHole + "."
)

// Fused is a tensor with matrices of all routed experts of a layer, as transformers 5 writes
// them: [experts, rows of all its roles, columns].
type Fused struct {
	Name  string // "{l}" stands for a decoder layer
	Roles []Role // the matrices of an expert, in the order of its rows
}

// fused are the tensors that hold the routed experts of a layer if these are not apart:
//
//	….mlp.experts.{e}.gate_proj.weight [I, H]    ….mlp.experts.gate_up_proj [E, 2I, H],
//	….mlp.experts.{e}.up_proj.weight   [I, H]    expert e is gate's rows, then up's
//	….mlp.experts.{e}.down_proj.weight [H, I]    ….mlp.experts.down_proj    [E, H, I]
//
// The weight of an expert is one run of the fused tensor's elements.
var fused = [...]Fused{
	{"model.layers.{l}.mlp.experts.gate_up_proj", []Role{GateProj, UpProj}},
	{"model.layers.{l}.mlp.experts.down_proj", []Role{DownProj}},
}

// FusedAt returns the fused tensor of that name and its layer; nil if the name is another's.
func FusedAt(name string) (f *Fused, layer int) {
	var r room
	pattern, p := r.cut(name)
	for i := range fused {
		if fused[i].Name == string(pattern) && p.Layer >= 0 {
			return &fused[i], p.Layer
		}
	}
	return nil, -1
}

// FusedOf returns the fused tensor that a routed expert's matrix goes into and its index among
// Roles; nil for other weights.
func FusedOf(p Place) (f *Fused, index int) {
	if p.Module() != RoutedExperts {
		return nil, -1
	}
	for i := range fused {
		if at := slices.Index(fused[i].Roles, p.Role()); at >= 0 {
			return &fused[i], at
		}
	}
	return nil, -1
}

// NameIn returns the name of the fused tensor of a layer.
func (f *Fused) NameIn(layer int) string { return fillHoles(f.Name, layer, -1) }

// NameIn returns the name of the row's weight in a layer, of a routed expert. Rows that are not
// PerLayer or PerExpert do not use these.
func (r *Row) NameIn(layer, expert int) string { return fillHoles(r.Name, layer, expert) }

func fillHoles(name string, layer, expert int) string {
	name = strings.Replace(name, layerHole, strconv.Itoa(layer), 1)
	return strings.Replace(name, expertHole, strconv.Itoa(expert), 1)
}

// PlaceOf is Family.Place for c's family. c may be nil: then the place has no row.
func PlaceOf(c *config.Config, name string) Place {
	if c == nil {
		_, p := new(room).cut(name)
		return p
	}
	return FamilyOf(c).Place(name)
}

// Place returns where in the model the tensor of that name belongs. One that no row has still
// has its layer and its routed expert, read from its name. The leading "model." may be absent
// before "layers.", as in a decoder saved without its head.
func (f *Family) Place(name string) Place {
	var r room
	pattern, p := r.cut(name)
	p.Row = f.find(func(r *Row) bool {
		return r.Name == string(pattern) && r.PerLayer() == (p.Layer >= 0) && r.PerExpert() == (p.Expert >= 0)
	})
	return p
}

// InModel reports whether a tensor of that name is one of a language model, as the table and the reference
// name them.
func InModel(name string) bool {
	return strings.HasPrefix(name, "model.") || strings.HasPrefix(name, "lm_head.")
}

// Outside reports whether the tensor of that name is of what c has beside the language model, such as a
// vision tower.
func Outside(c *config.Config, name string) bool {
	switch {
	case c.Within() == "" || FamilyOf(c).Unknown != nil:
		return false
	case c.Prefix() == "": // towers beside the decoder's layers
		return !slices.ContainsFunc([]string{"model.layers.", "model.embed_tokens.", "model.norm.", "lm_head."},
			func(module string) bool { return strings.HasPrefix(name, module) })
	}
	return !InModel(name) && !strings.HasPrefix(name, c.Prefix())
}

// Ignores reports whether a checkpoint of c may hold the tensor of that name beyond the table.
func (f *Family) Ignores(c *config.Config, name string) bool {
	if Outside(c, name) {
		return true
	}
	pattern, p := new(room).cut(name)
	return p.Layer < c.NumHiddenLayers+c.NumNextNPredictLayers &&
		slices.ContainsFunc(f.Ignored, func(r Row) bool { return r.Name == string(pattern) && r.Holds(c, p.Layer) })
}

// room is what the patterns of most names fit into.
type room [96]byte

// cut returns name with holes for its numbers: for the layer behind "model.layers." or "layers.",
// for the routed expert behind the last ".mlp.experts.". The place has no row. Thousands of names
// are cut at once, so patterns are made in r.
func (r *room) cut(name string) (pattern []byte, p Place) {
	const layers = "model.layers."
	pattern, p = r[:0], Place{Layer: -1, Expert: -1}
	if strings.HasPrefix(name, layers[len("model."):]) {
		pattern = append(pattern, "model."...)
	}
	if at := len(layers) - len(pattern); strings.HasPrefix(name, layers[len(pattern):]) {
		if n, digits := number(name[at:]); n >= 0 {
			p.Layer = n
			pattern = append(append(pattern, name[:at]...), layerHole...)
			name = name[at+digits:]
		}
	}
	if begin, end, n := expertAt(name); n >= 0 {
		p.Expert = n
		pattern = append(append(pattern, name[:begin]...), expertHole...)
		name = name[end:]
	}
	return append(pattern, name...), p
}

// expertAt returns where in a name the number of a routed expert is, and that; -1 without one.
func expertAt(name string) (begin, end, expert int) {
	const experts, published = ".mlp.experts.", ".ffn.experts." // of the same length
	begin = max(strings.LastIndex(name, experts), strings.LastIndex(name, published)) + len(experts)
	if begin < len(experts) {
		return 0, 0, -1
	}
	expert, digits := number(name[begin:])
	return begin, begin + digits, expert
}

// Cut returns the name of a weight with "{l}" for the number of its layer and "{e}" for that of its routed
// expert, and the numbers; -1 without one.
func Cut(name string) (pattern string, layer, expert int) {
	cut, p := new(room).cut(name)
	return string(cut), p.Layer, p.Expert
}

// CutExpert returns the name of a weight or a stage with "{e}" for the number of its routed expert,
// and that number; -1 without one. The name of a stage may be that within its layer.
func CutExpert(name string) (pattern string, expert int) {
	begin, end, expert := expertAt("." + name)
	if expert < 0 {
		return name, -1
	}
	return name[:begin-1] + expertHole + name[end-1:], expert
}

// number reads the number before the first dot, and how many digits it has; -1 if there is none,
// or one with a sign or with zeros before it.
func number(s string) (n, digits int) {
	const most = 9 // digits, which every int holds
	for digits < len(s) && s[digits] != '.' {
		c := s[digits]
		if c < '0' || c > '9' || digits == most || digits == 1 && s[0] == '0' {
			return -1, 0
		}
		n = 10*n + int(c-'0')
		digits++
	}
	if digits == 0 {
		return -1, 0
	}
	return n, digits
}
