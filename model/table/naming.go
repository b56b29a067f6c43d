package table

import (
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
	if !ok {
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
