package table

// Names and the places that they stand for. No other package takes names of weights apart.

import (
	"maps"
	"path"
	"slices"
	"strings"

	"dsmoe/config"
	"dsmoe/model/tensor"
)

// Fused is a tensor with matrices of all routed experts of a layer, as transformers 5 writes
// them: [experts, rows of all its roles, columns].
type Fused struct {
	Name   string // "{l}" stands for a decoder layer
	Roles  []Role // the matrices of an expert, in the order of its rows
	Module Module // RoutedExperts, or that of one MLP, whose tensor has no axis of experts
}

// fused are the tensors that hold the routed experts of a layer if these are not apart:
//
//	….mlp.experts.{e}.gate_proj.weight [I, H]    ….mlp.experts.gate_up_proj [E, 2I, H],
//	….mlp.experts.{e}.up_proj.weight   [I, H]    expert e is gate's rows, then up's
//	….mlp.experts.{e}.down_proj.weight [H, I]    ….mlp.experts.down_proj    [E, H, I]
//
// The weight of an expert is one run of the fused tensor's elements. Files of a few families have others, which only their
// Namings lead to.
var fused = [...]Fused{
	{"model.layers.{l}.mlp.experts.gate_up_proj", []Role{GateProj, UpProj}, RoutedExperts},
	{"model.layers.{l}.mlp.experts.down_proj", []Role{DownProj}, RoutedExperts},
	{stackedGates, []Role{GateProj}, RoutedExperts},
	{stackedUps, []Role{UpProj}, RoutedExperts},
	{stackedDowns, []Role{DownProj}, RoutedExperts},
	{joinedDense, []Role{GateProj, UpProj}, DenseMLP},
	{joinedShared, []Role{GateProj, UpProj}, SharedExperts},
}

// The table's names of fused tensors of a few families, which no file has.
const (
	stackedGates = layerPrefix + "mlp.experts.(gate_proj).weight"
	stackedUps   = layerPrefix + "mlp.experts.(up_proj).weight"
	stackedDowns = layerPrefix + "mlp.experts.(down_proj).weight"
	joinedDense  = layerPrefix + "mlp.(gate_up_proj).weight"
	joinedShared = layerPrefix + "mlp.shared_experts.(gate_up_proj).weight"
)

// FusedAt returns the fused tensor of that name and its layer; nil if the name is another's.
func FusedAt(name string) (f *Fused, layer int) {
	var r room
	pattern, layer, _ := r.cut(name)
	for i := range fused {
		if fused[i].Name == string(pattern) && layer >= 0 {
			return &fused[i], layer
		}
	}
	return nil, -1
}

// FusedOf returns the fused tensor that a routed expert's matrix goes into, in transformers' files, and its index among
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

// Place returns where in the model the tensor of that name belongs. One that no row has still
// has its layer and its routed expert, read from its name. The leading "model." may be absent
// before "layers.", as in a decoder saved without its head.
func (f *Family) Place(name string) Place {
	var r room
	pattern, layer, expert := r.cut(name)
	row := f.find(func(r *Row) bool {
		return r.Name == string(pattern) && r.PerLayer() == (layer >= 0) && r.PerExpert() == (expert >= 0)
	})
	return Place{row, layer, expert}
}

// Spell returns the table's name of a tensor that a file of c calls stored, and a bit for each of Namings that calls it
// so. Without Namings, and for a tensor that none of them has, the name is stored, and no bit is set.
func (f *Family) Spell(c *config.Config, stored string) (name string, namings uint) {
	if f.spelled == nil {
		return stored, 0
	}
	name = stored // the table's, if no row has another one
	for i, n := range f.Namings {
		if within, ok := strings.CutPrefix(stored, n.prefix); n.prefix != "" && ok && ofDecoder(inModel+within) {
			name, namings = inModel+within, 1<<i
		}
	}
	if fused, _ := FusedAt(tensor.OwnerOf(name)); fused != nil {
		for i, n := range f.Namings {
			if n.Fuses && (namings == 0 || name == stored) {
				namings |= 1 << i
			}
		}
		return name, namings
	}
	var r room
	pattern, layer, expert := r.cutStored(stored)
	spelled := f.spelled()
	s, rest := spelled[string(pattern)], ""
	if at := strings.LastIndexByte(stored, '.'); s.namings == 0 && at >= 0 { // a tensor beside a weight
		rest = stored[at:]
		weight := append(pattern[:len(pattern)-len(rest)], ".weight"...)
		s = spelled[string(weight)]
	}
	if s.namings == 0 {
		return name, namings
	}
	if s.predicts {
		layer = c.NumHiddenLayers + max(layer, 0)
	}
	name = fillHoles(s.row, layer, expert)
	if rest != "" {
		name = strings.TrimSuffix(name, ".weight") + rest
	}
	return name, s.namings
}

// Matches reports whether a glob of package path matches the table's name of a tensor, or one that files of c give it.
func (f *Family) Matches(c *config.Config, glob, name string) bool {
	ok, _ := path.Match(glob, name)
	for _, n := range f.Namings {
		also, _ := path.Match(glob, n.Of(c, name))
		ok = ok || also
	}
	return ok
}

// Nearest returns the name of one of the namings, given as bits, that is most like stored, which is none of their names;
// "" without namings.
func (f *Family) Nearest(stored string, namings uint) (nearest string) {
	pattern, layer, expert := new(room).cutStored(stored)
	least := len(pattern)
	if f.spelled == nil {
		return ""
	}
	spelled := f.spelled()
	for _, known := range slices.Sorted(maps.Keys(spelled)) {
		if spelled[known].namings&namings == 0 || (strings.Contains(known, layerHole)) != (layer >= 0) ||
			strings.Contains(known, expertHole) != (expert >= 0) {
			continue
		}
		if n := edits(string(pattern), known); n < least && n > 0 { // 0: a row that the config has no use for
			least, nearest = n, fillHoles(known, layer, expert)
		}
	}
	return nearest
}

// edits returns how many bytes are to be put in, taken out or replaced to make b of a.
func edits(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range a {
		diagonal := row[0]
		row[0] = i + 1
		for j := range b {
			replaced := diagonal
			if a[i] != b[j] {
				replaced++
			}
			diagonal = row[j+1]
			row[j+1] = min(replaced, row[j]+1, row[j+1]+1)
		}
	}
	return row[len(b)]
}

// NamingOf returns the naming of that name; nil if the family has none.
func (f *Family) NamingOf(name string) *Naming {
	for i := range f.Namings {
		if f.Namings[i].Name == name {
			return &f.Namings[i]
		}
	}
	return nil
}
