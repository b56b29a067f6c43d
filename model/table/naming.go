package table

import (
	"maps"
	"slices"
	"strings"
	"sync"

	"dsmoe/config"
)

// Naming is a way in which files name the weights of a family.
type Naming struct {
	Name  string // "published" or "transformers"; "" for those that nothing is written with
	Fuses bool   // routed experts may be fused
	Whose string // "a published name"

	names     map[string]string // what stands for a row's name: "layers.{l}.attn.wq_a.weight"
	predicted map[string]string // the same in a prediction layer: "mtp.{l}.attn.wq_a.weight", counted from 0
	published bool              // scales are called "scale"
	prefix    string            // of the decoder's names, in place of "model."; "" if that is it
}

// Unfound says what transformers does with routed experts of a family whose are Joined.
const Unfound = "does not find experts that are apart under its own names, and makes up random ones"

// spelling is what a pattern of a stored name stands for.
type spelling struct {
	row      string // the name of a row
	predicts bool   // "{l}" is a prediction layer
	namings  uint   // a bit for each naming that has it
}

// spellings returns a function that lists the patterns of all namings, which it makes once: most runs need none.
func spellings(namings []Naming) func() map[string]spelling {
	return sync.OnceValue(func() map[string]spelling {
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
	})
}

// publishedFused returns f, whose published files have routed experts fused.
func (f Family) publishedFused() Family {
	f.Namings[0].Fuses = true
	return f
}

// under returns f, whose published files have another prefix in place of "model.".
func (f Family) under(prefix string) Family {
	published := &f.Namings[0]
	published.prefix = prefix
	for row, name := range published.names {
		if within, ok := strings.CutPrefix(name, inModel); ok {
			published.names[row] = prefix + within
		}
	}
	return f
}

// orPlain returns f, whose files may also have the names without the prefix.
func (f Family) orPlain() Family {
	plain := Naming{Whose: "a name of a language model alone", names: maps.Clone(f.Namings[0].names)}
	for row, name := range plain.names {
		plain.names[row] = strings.Replace(name, f.Namings[0].prefix, inModel, 1)
	}
	f.Namings = append(f.Namings, plain)
	f.spelled = spellings(f.Namings)
	return f
}

// ofDecoder reports whether a name of the table is one of the decoder, and not of a tower beside its layers.
func ofDecoder(name string) bool {
	return slices.ContainsFunc([]string{"model.layers.", "model.embed_tokens.", "model.norm."},
		func(module string) bool { return strings.HasPrefix(name, module) })
}

// inModel begins the decoder's names.
const inModel = "model."

// FusedOf returns the fused tensor that files with these names have a matrix in where transformers' have another or none, and its
// index among the roles; nil for other weights, and without a naming.
func (n *Naming) FusedOf(p Place) (f *Fused, index int) {
	for i := range fused {
		if at := slices.Index(fused[i].Roles, p.Role()); n != nil && at >= 0 && p.Module() == fused[i].Module &&
			n.names[fused[i].Name] != "" {
			return &fused[i], at
		}
	}
	return nil, -1
}

// Of returns what files of c call the tensor of the table's name. A name that no row has stays.
func (n *Naming) Of(c *config.Config, name string) string {
	var r room
	cut, layer, expert := r.cut(name)
	names := n.names
	if layer >= c.NumHiddenLayers && n.predicted != nil {
		names, layer = n.predicted, layer-c.NumHiddenLayers
	}
	if of, ok := names[string(cut)]; ok {
		return fillHoles(of, layer, expert)
	}
	pattern := string(cut)
	at := strings.LastIndexByte(pattern, '.')
	of, ok := names[pattern[:max(at, 0)]+".weight"]
	switch {
	case !ok && n.prefix != "" && ofDecoder(name):
		return n.prefix + strings.TrimPrefix(name, inModel)
	case !ok:
		return name
	}
	rest := pattern[at:]
	if n.published && rest == ".weight_scale_inv" {
		rest = ".scale"
	} else if !n.published && rest == ".scale" {
		rest = ".weight_scale_inv"
	}
	return fillHoles(strings.TrimSuffix(of, ".weight")+rest, layer, expert)
}
