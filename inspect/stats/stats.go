package stats

// The report of statistics, and what its rows stand for.

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"

	"dsmoe/config"
	"dsmoe/inspect"
	"dsmoe/model/table"
	"dsmoe/model/tensor"
	"dsmoe/model/weights"
	"dsmoe/text"
)

// Options says what Compute computes; the zero value is everything per tensor, without quantiles.
type Options struct {
	Selection inspect.Selection
	By        inspect.Grouping // "" is ByTensor
	Quantiles []Quantile       // of each row of the report
}

// Report is what the weights of a checkpoint are, in numbers.
type Report struct {
	Path       string               `json:"path"`        // of the checkpoint, as the user gave it
	By         inspect.Grouping     `json:"by"`          // what a row is
	Tensors    []Tensor             `json:"tensors"`     // by tensor: in the order of the model
	Groups     []Group              `json:"groups"`      // otherwise: in the order of their first tensors
	NotCounted []inspect.NotCounted `json:"not_counted"` // selected tensors that have no numbers

	quantiles []Quantile
}

// Tensor is one tensor. Of fused experts each is a tensor of its own.
type Tensor struct {
	Name  string       `json:"name"`  // the table's, per expert
	DType tensor.DType `json:"dtype"` // as it is stored
	Shape []int        `json:"shape"` // outermost first
	Numbers
	Rows *rowSpread `json:"rows"` // null if there are no rows, or more than maxRows
}

// rowSpread is about the largest magnitudes of the finite elements of each row: of all that have
// the same first index. In a weight [out, in], a row is what one output is made with.
type rowSpread struct {
	Count    int       `json:"count"`         // number of rows
	Median   float64   `json:"median_absmax"` // of the rows' absmax: the lower of the two middle values
	Outliers int       `json:"outliers"`      // rows whose absmax is more than OutlierRatio times Median
	Largest  []rowPeak `json:"largest"`       // the most extreme of those, at most maxPeaks, the largest first
}

// rowPeak is a row and its largest magnitude.
type rowPeak struct {
	Row    int     `json:"row"`    // first index
	AbsMax float64 `json:"absmax"` // exact
}

// A row above OutlierRatio times the median row's absmax is an outlier: of rows of 2048 normal
// numbers, fewer than one of 10^8 is above 2 times. maxPeaks of them are listed. A tensor
// with more than maxRows rows has none: that many would take much memory.
const (
	OutlierRatio = 4
	maxPeaks     = 8
	maxRows      = 1 << 22
)

// Group is several tensors together.
type Group struct {
	Name    string `json:"name"`    // "model.layers.3.mlp.experts.17", "model.layers.3", "mlp.experts"
	Tensors int    `json:"tensors"` // number of tensors that were counted
	Numbers
}

// patternsFrom is the number of elements from which on counting by patterns is faster.
const patternsFrom = 1 << 15

// Compute reads the selected weights. The error names every weight that cannot be read.
func Compute(ctx context.Context, w inspect.Weights, o Options) (*Report, error) {
	list, err := w.Pick(o.Selection)
	if err != nil {
		return nil, err
	}
	if o.By == "" {
		o.By = inspect.ByTensor
	}
	r := &Report{Path: w.Path, By: o.By, Tensors: []Tensor{}, Groups: []Group{}, NotCounted: []inspect.NotCounted{},
		quantiles: o.Quantiles}
	s := &counting{Weights: w, Reading: w.Reading(ctx), options: o, byName: map[string]*group{},
		decoded:  map[tensor.DType]*[halves]float32{},
		scratch:  sync.Pool{New: func() any { return new(scratch) }},
		counters: sync.Pool{New: func() any { return new([halves]int64) }}}
	for _, d := range []tensor.DType{tensor.F16, tensor.BF16} {
		s.decoded[d] = tensor.PatternValues(d)
	}
	name := grouping(w.Config, o.By)
	for _, x := range list {
		if group := name(x); group == "" {
			continue
		} else if err := inspect.Countable(x); err != nil {
			r.NotCounted = append(r.NotCounted, inspect.Skip(x, err))
		} else {
			s.take(group, x)
		}
	}
	if len(s.groups)+len(r.NotCounted) == 0 && len(list) > 0 {
		return nil, fmt.Errorf("nothing to count by %s: none of the selected tensors is in one", o.By)
	}
	for _, pass := range []func(){s.countAll, s.findQuantiles} {
		pass()
		errs := []error{s.Wait()}
		for _, g := range s.groups {
			errs = append(errs, g.err())
		}
		if err := errors.Join(errs...); err != nil {
			return nil, err
		}
	}
	for _, g := range s.groups {
		if g.search != nil {
			g.numbers.Quantiles = g.search.values
		}
		if w := g.list[0]; r.By == inspect.ByTensor {
			r.Tensors = append(r.Tensors, Tensor{w.Name, w.DType, w.Shape, g.numbers, g.rows})
		} else {
			r.Groups = append(r.Groups, Group{g.name, len(g.list), g.numbers})
		}
	}
	return r, nil
}

// grouping returns the function that names the group of a weight, "" if it is in none.
func grouping(c *config.Config, by inspect.Grouping) func(x *weights.Weight) string {
	modules := map[string]table.Module{}
	if by == inspect.ByModule {
		for slot := range table.FamilyOf(c).MTPSlots(c) {
			modules[slot.Name] = table.MTP
		}
		for slot := range table.FamilyOf(c).Slots(c) {
			modules[slot.Name] = slot.Module()
		}
	}
	return func(x *weights.Weight) string {
		layer, shared := fmt.Sprintf("model.layers.%d", x.Layer), fmt.Sprintf("model.layers.%d.mlp.shared_experts", x.Layer)
		switch {
		case by == inspect.ByTensor:
			return x.Name
		case x.IsScales():
			return ""
		case by == inspect.ByModule:
			return cmp.Or(string(modules[x.Name]), otherModule)
		case by == inspect.ByExpert && x.Layer >= 0 && x.Expert >= 0:
			return fmt.Sprintf("%s.mlp.experts.%d", layer, x.Expert)
		case by == inspect.ByExpert && strings.HasPrefix(x.Name, shared+"."):
			return shared
		case by == inspect.ByExpert:
			return ""
		case x.Layer >= 0:
			return layer
		}
		return cmp.Or(x.Name[:max(strings.LastIndexByte(x.Name, '.'), 0)], x.Name) // the module outside the layers
	}
}

// otherModule is the group of tensors that the table does not have.
const otherModule = "other"

// Sheet is a row per tensor or group.
func (r *Report) Sheet() *text.Sheet {
	numbers := []string{">elements", ">min", ">max", ">mean", ">std", ">zeros", ">nan", ">infinite", ">beyond_f16"}
	for _, q := range r.quantiles {
		numbers = append(numbers, ">q"+q.String())
	}
	if r.By != inspect.ByTensor {
		s := text.NewSheet(slices.Concat([]string{string(r.By), ">tensors"}, numbers)...)
		for _, g := range r.Groups {
			name := text.Foreign(g.Name)
			if r.By == inspect.ByModule {
				name = text.Plain(g.Name)
			}
			s.Row(name, g.Tensors, r.cells(&g.Numbers))
		}
		return s
	}
	rows := []string{">absmax", ">median_row_absmax", ">outlier_rows", "largest_row"}
	s := text.NewSheet(slices.Concat([]string{"tensor", "dtype", "shape"}, numbers, rows)...)
	for _, t := range r.Tensors {
		median, outliers, largest := text.Real(nil), text.Real(nil), text.Plain("")
		if t.Rows != nil {
			median, outliers = text.Real(&t.Rows.Median), text.Whole(t.Rows.Outliers)
			if len(t.Rows.Largest) > 0 {
				largest = text.Whole(t.Rows.Largest[0].Row)
			}
		}
		s.Row(text.Foreign(t.Name), t.DType, fmt.Sprint(t.Shape), r.cells(&t.Numbers), t.AbsMax, median, outliers, largest)
	}
	return s
}

// cells are the cells of a row's numbers.
func (r *Report) cells(n *Numbers) []text.Cell {
	cells := []text.Cell{text.Whole(n.Elements), text.Real(n.Min), text.Real(n.Max), text.Real(n.Mean), text.Real(n.Std),
		text.Whole(n.Zeros), text.Whole(n.NaN), text.Whole(n.Infinite), text.Whole(n.BeyondF16)}
	for i := range r.quantiles {
		var v *float64
		if i < len(n.Quantiles) {
			v = &n.Quantiles[i].Value
		}
		cells = append(cells, text.Real(v))
	}
	return cells
}

// WriteText writes the sheet, and the tensors that are not in it.
func (r *Report) WriteText(w io.Writer) error {
	return inspect.WriteSheet(w, r.Sheet(), nil, r.NotCounted)
}
