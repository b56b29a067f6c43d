package routing

// The routing of several sets of tokens, side by side.

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"

	"dsmoe/inspect"
	"dsmoe/text"
	"dsmoe/text/page"
)

// Comparison is which experts some sets of tokens are routed to, side by side.
type Comparison struct {
	Path   string       `json:"path"`   // of the checkpoint, as the user gave it
	Sets   []tokenSet   `json:"sets"`   // in the order of the user
	Layers []layerLoads `json:"layers"` // the selected ones, ascending

	by     inspect.Grouping
	tooFew string // why Chance is not known; "" if it is
}

// tokenSet is a set of tokens, and their routing by itself.
type tokenSet struct {
	Name    string  `json:"name"` // as the user gave it
	Routing *Report `json:"routing"`
}

// layerLoads is a layer's routing of all sets.
type layerLoads struct {
	Layer int `json:"layer"` // in the model
	// Chance is how far the loads of an expert of this layer may be apart by chance: of layers whose sets are alike, one
	// in 200 has an expert beyond it. It is read off other divisions of the blocks of tokens among the sets: all, if
	// there are at most 1000, else 199 random ones. A sequence is cut into blocks of 64 tokens or, in large sets, more;
	// its last block may be shorter. Chance is null if a set has fewer than 4 blocks, or there are fewer than 200
	// divisions: too few tokens to tell.
	Chance  *float64      `json:"chance"`
	Experts []expertLoads `json:"experts"` // the selected ones, ascending
}

// expertLoads is an expert's share of each set.
type expertLoads struct {
	Expert     int       `json:"expert"`     // id
	Loads      []float64 `json:"loads"`      // Expert.Load of each set
	Difference float64   `json:"difference"` // the largest of Loads less the smallest
	Beyond     *bool     `json:"beyond"`     // whether Difference is larger than layerLoads.Chance; null without Chance
}

// Compare joins reports of OfForward on the same model and layers with Options.Blocks. names are those of the sets.
func Compare(names []string, reports []*Report, o Options) *Comparison {
	c := &Comparison{Path: reports[0].Path, Layers: []layerLoads{}, by: o.By}
	for i, r := range reports {
		c.Sets = append(c.Sets, tokenSet{names[i], r})
	}
	var d *divisions // of the first layer, as of all
	for i, l := range reports[0].Layers {
		var sets []*blocks
		for _, r := range reports {
			sets = append(sets, r.Layers[i].blocks)
		}
		if d == nil {
			d = newDivisions(sets)
			c.tooFew = d.tooFew()
		}
		layer := layerLoads{Layer: l.Layer, Chance: d.chance(sets, reports[0].PerToken), Experts: []expertLoads{}}
		for e := range l.Experts {
			x := expertLoads{Expert: l.Experts[e].Expert}
			for _, r := range reports {
				x.Loads = append(x.Loads, r.Layers[i].Experts[e].Load)
			}
			x.Difference = slices.Max(x.Loads) - slices.Min(x.Loads)
			if layer.Chance != nil {
				x.Beyond = new(x.Difference > *layer.Chance)
			}
			layer.Experts = append(layer.Experts, x)
		}
		c.Layers = append(c.Layers, layer)
	}
	return c
}

// Sheet is a row per layer, or with inspect.ByExpert per expert.
func (c *Comparison) Sheet() *text.Sheet {
	var loads []string
	for _, s := range c.Sets {
		loads = append(loads, ">load_"+s.Name)
	}
	if c.by == inspect.ByExpert {
		s := text.NewSheet(append([]string{">layer", ">expert", ">difference", ">chance"}, loads...)...)
		for _, l := range c.Layers {
			for _, e := range l.Experts {
				s.Row(l.Layer, e.Expert, e.Difference, l.Chance, e.cells())
			}
		}
		return s
	}
	s := text.NewSheet(append([]string{">layer", ">beyond", ">chance", ">difference", ">expert"}, loads...)...)
	for _, l := range c.Layers {
		if len(l.Experts) > 0 {
			e := slices.MaxFunc(l.Experts, func(a, b expertLoads) int { return cmp.Compare(a.Difference, b.Difference) })
			beyond := text.Real(nil)
			if l.Chance != nil {
				beyond = text.Whole(len(l.beyond()))
			}
			s.Row(l.Layer, beyond, l.Chance, e.Difference, e.Expert, e.cells())
		}
	}
	return s
}

// cells are the loads.
func (e *expertLoads) cells() (cells []text.Cell) {
	for _, load := range e.Loads {
		cells = append(cells, text.Real(&load))
	}
	return cells
}

// beyond are the experts whose loads differ by more than chance gives.
func (l *layerLoads) beyond() (list []expertLoads) {
	for _, e := range l.Experts {
		if e.Beyond != nil && *e.Beyond {
			list = append(list, e)
		}
	}
	return list
}

// mostDifferent is how many experts WriteText names.
const mostDifferent = 10

// WriteText writes the sets, the sheet, and the experts that differ most.
func (c *Comparison) WriteText(w io.Writer) error {
	for _, s := range c.Sets {
		fmt.Fprintf(w, "%s: %s\n", text.Word(s.Name), s.Routing.Title())
	}
	type expert struct {
		layer int
		expertLoads
	}
	var all []expert // beyond chance, the farthest first
	for _, l := range c.Layers {
		for _, e := range l.beyond() {
			all = append(all, expert{l.Layer, e})
		}
	}
	slices.SortStableFunc(all, func(a, b expert) int { return cmp.Compare(b.Difference, a.Difference) })
	lines := []string{fmt.Sprintf("%s: loads differ by more than chance gives; most:", text.Plural(len(all), "expert"))}
	switch {
	case c.tooFew != "":
		lines[0] = c.tooFew
	case len(all) == 0:
		lines[0] = "no expert's loads differ by more than chance gives"
	}
	for _, e := range all[:min(len(all), mostDifferent)] {
		var loads []string
		for i, s := range c.Sets {
			loads = append(loads, fmt.Sprintf("%s %.3g", text.Word(s.Name), e.Loads[i]))
		}
		lines = append(lines, fmt.Sprintf("  model.layers.%d expert %d: %s", e.layer, e.Expert, strings.Join(loads, ", ")))
	}
	return inspect.WriteSheet(w, c.Sheet(), lines, nil)
}

// Figure draws the differences: of two sets the first's load less the second's, of more the largest less the smallest.
func (c *Comparison) Figure() page.Figure {
	cells, names := inspect.NewCells(), []string{}
	for _, s := range c.Sets {
		names = append(names, s.Name)
	}
	m := page.Heatmap{Title: "how the loads of experts differ between " + strings.Join(names, ", "),
		Name:     "largest load less the smallest",
		MarkName: "more than chance gives"}
	if len(c.Sets) == 2 {
		m.Scale, m.Name = page.Diverging, fmt.Sprintf("load by %s less load by %s", c.Sets[0].Name, c.Sets[1].Name)
	}
	for _, l := range c.Layers {
		for _, e := range l.Experts {
			v := e.Difference
			if len(c.Sets) == 2 {
				v = e.Loads[0] - e.Loads[1]
			}
			cells.SetExpert(l.Layer, e.Expert, &v, e.Beyond != nil && *e.Beyond)
		}
	}
	return cells.Experts(m, nil)
}
