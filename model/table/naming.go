package table

import (
	"maps"
	"slices"
	"strings"

	"dsmoe/config"
	"dsmoe/model/tensor"
)

// Naming is a way in which files name the weights of a family.
type Naming struct {
	Name  string // "published" or "transformers"; "" for those that nothing is written with
	Fuses bool   // routed experts may be fused
	Whose string // "a published name"

	names     map[string]string // what stands for a row's name: "layers.{l}.attn.wq_a.weight"
	predicted map[string]string // the same in a prediction layer: "mtp.{l}.attn.wq_a.weight", counted from 0
	published bool              // scales are called "scale"
}

// predictions stands before the number of a prediction layer, from 0, in the names of files.
const predictions = "mtp."

// spelling is what a pattern of a stored name stands for.
type spelling struct {
	row      string // the name of a row
	predicts bool   // "{l}" is a prediction layer
	namings  uint   // a bit for each naming that has it
}

// spellings lists the patterns of all namings.
func spellings(namings []Naming) map[string]spelling {
	all := map[string]spelling{}
	for i, n := range namings {
		for _, of := range [...]map[string]string{n.names, n.predicted} {
			for row, pattern := range of {
				s := all[pattern]
				all[pattern] = spelling{row, strings.Contains(pattern, predictions), s.namings | 1<<i}
			}
		}
	}
	return all
}

// Spell returns the table's name of a tensor that a file of c calls stored, and a bit for each of Namings that calls it
// so. Without Namings, and for a tensor that none of them has, the name is stored, and no bit is set.
func (f *Family) Spell(c *config.Config, stored string) (name string, namings uint) {
	if f.spelled == nil {
		return stored, 0
	}
	if fused, _ := FusedAt(tensor.OwnerOf(stored)); fused != nil {
		for i, n := range f.Namings {
			if n.Fuses {
				namings |= 1 << i
			}
		}
		return stored, namings
	}
	var r room
	pattern, layer, expert := r.cutStored(stored)
	s, rest := f.spelled[string(pattern)], ""
	if at := strings.LastIndexByte(stored, '.'); s.namings == 0 && at >= 0 { // a tensor beside a weight
		rest = stored[at:]
		weight := append(pattern[:len(pattern)-len(rest)], ".weight"...)
		s = f.spelled[string(weight)]
	}
	if s.namings == 0 {
		return stored, 0
	}
	if s.predicts {
		layer += c.NumHiddenLayers
	}
	name = fillHoles(s.row, layer, expert)
	if rest != "" {
		name = strings.TrimSuffix(name, ".weight") + rest
	}
	return name, s.namings
}

// cutStored returns a stored name with holes for the numbers of its layer, of the decoder or a prediction layer, and of
// its expert; they are -1 without one.
func (r *room) cutStored(name string) (pattern []byte, layer, expert int) {
	pattern, layer = r[:0], -1
	for _, before := range [...]string{"layers.", "model.layers.", predictions, "model." + predictions} {
		if !strings.HasPrefix(name, before) {
			continue
		}
		if n, digits := number(name[len(before):]); n >= 0 {
			layer = n
			pattern = append(append(pattern, before...), layerHole...)
			name = name[len(before)+digits:]
		}
	}
	begin, end, expert := expertAt(name)
	if expert >= 0 {
		pattern = append(append(pattern, name[:begin]...), expertHole...)
		name = name[end:]
	}
	return append(pattern, name...), layer, expert
}

// Of returns what files of c call the tensor of the table's name. A name that no row has stays.
func (n *Naming) Of(c *config.Config, name string) string {
	var r room
	cut, p := r.cut(name)
	names, layer := n.names, p.Layer
	if layer >= c.NumHiddenLayers {
		names, layer = n.predicted, layer-c.NumHiddenLayers
	}
	if of, ok := names[string(cut)]; ok {
		return fillHoles(of, layer, p.Expert)
	}
	pattern := string(cut)
	at := strings.LastIndexByte(pattern, '.')
	of, ok := names[pattern[:max(at, 0)]+".weight"]
	if !ok {
		return name
	}
	rest := pattern[at:]
	if n.published && rest == ".weight_scale_inv" {
		rest = ".scale"
	} else if !n.published && rest == ".scale" {
		rest = ".weight_scale_inv"
	}
	return fillHoles(strings.TrimSuffix(of, ".weight")+rest, layer, p.Expert)
}

// Nearest returns the name of one of the namings, given as bits, that is most like stored, which is none of their names;
// "" without namings.
func (f *Family) Nearest(stored string, namings uint) (nearest string) {
	pattern, layer, expert := new(room).cutStored(stored)
	least := len(pattern)
	for _, known := range slices.Sorted(maps.Keys(f.spelled)) {
		if f.spelled[known].namings&namings == 0 || (strings.Contains(known, layerHole)) != (layer >= 0) ||
			strings.Contains(known, expertHole) != (expert >= 0) {
			continue
		}
		if n := edits(string(pattern), known); n < least {
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
