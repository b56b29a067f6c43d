package inspect

// What statistics are of, and the report.

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"

	"dsmoe/config"
	"dsmoe/model/table"
	"dsmoe/model/tensor"
	"dsmoe/model/weights"
	"dsmoe/text"
)

// Weights is a checkpoint whose weights are read.
type Weights struct {
	Path     string                  // of the checkpoint, as it was given
	Config   *config.Config          // its config.json
	List     []*weights.Weight       // all of them, as weights.Ordered has them
	Reader   weights.ReaderAt        // of the stored tensors
	Threads  int                     // that read at once; 0 is one per processor
	Progress func(done, total int64) // told of bytes that were read, one call at a time; nil is nobody
}

// reading returns a reading of the weights, which counts the bytes.
func (w *Weights) reading(ctx context.Context) *weights.Reading {
	return weights.NewReading(ctx, w.Threads, w.Progress)
}

// pick returns the selected weights.
func (w *Weights) pick(s Selection) ([]*weights.Weight, error) {
	return pick(s, w.List, func(x *weights.Weight) string { return x.Name })
}

// Grouping says what statistics are of.
type Grouping string

// The groupings. All but ByTensor leave the scales of FP8 weights out, which the weights are
// multiplied with.
const (
	ByTensor Grouping = "tensor" // each of the tensors
	ByExpert Grouping = "expert" // the matrices of each routed expert, and those of each layer's shared experts
	ByLayer  Grouping = "layer"  // the weights of each layer, and of each module outside the layers
	ByModule Grouping = "module" // each table.Module over all layers
)

// StatsOptions says what Stats computes; the zero value is everything per tensor, without
// quantiles.
type StatsOptions struct {
	Selection Selection
	By        Grouping   // "" is ByTensor
	Quantiles []Quantile // of each row of the report
}

// StatsReport is what the weights of a checkpoint are, in numbers.
type StatsReport struct {
	Path       string        `json:"path"`        // of the checkpoint, as it was given
	By         Grouping      `json:"by"`          // what a row is
	Tensors    []TensorStats `json:"tensors"`     // by tensor: in the order of the model
	Groups     []GroupStats  `json:"groups"`      // otherwise: in the order of their first tensors
	NotCounted []NotCounted  `json:"not_counted"` // what is selected and in no number

	quantiles []Quantile
}

// TensorStats is one tensor. Of fused experts each is a tensor of its own.
type TensorStats struct {
	Name  string       `json:"name"`  // the table's, per expert
	DType tensor.DType `json:"dtype"` // as it is stored
	Shape []int        `json:"shape"` // outermost first
	Numbers
	Rows *RowStats `json:"rows"` // null if there are no rows, or more than MaxRows
}

// RowStats is about the largest magnitudes of the finite elements of each row: of all that have
// the same first index. In a weight [out, in], a row is what one output is made with.
type RowStats struct {
	Count    int       `json:"count"`         // number of rows
	Median   float64   `json:"median_absmax"` // of the rows' absmax: the lower one of two
	Outliers int       `json:"outliers"`      // rows whose absmax is more than OutlierRatio times Median
	Largest  []RowPeak `json:"largest"`       // the most extreme of those, at most MaxPeaks, the largest first
}

// RowPeak is a row and its largest magnitude.
type RowPeak struct {
	Row    int     `json:"row"`    // first index
	AbsMax float64 `json:"absmax"` // exact
}

// A row above OutlierRatio times the median row's absmax is an outlier: of rows of 2048 normal
// numbers, fewer than one of 10^8 is above 2 times. MaxPeaks of them are listed. A tensor
// with more than MaxRows rows has none: that many would take much memory.
const (
	OutlierRatio = 4
	MaxPeaks     = 8
	MaxRows      = 1 << 22
)

// GroupStats is several tensors together.
type GroupStats struct {
	Name    string `json:"name"`    // "model.layers.3.mlp.experts.17", "model.layers.3", "mlp.experts"
	Tensors int    `json:"tensors"` // number of tensors that were counted
	Numbers
}

// NotCounted is a tensor whose numbers nobody knows.
type NotCounted struct {
	Name  string       `json:"name"`  // the table's
	DType tensor.DType `json:"dtype"` // as it is stored
	Cause string       `json:"cause"` // why
}

// patternsFrom is the number of elements from which on counting patterns pays.
const patternsFrom = 1 << 15

// Stats reads the selected weights. What cannot be read is an error that names all of it.
func Stats(ctx context.Context, w Weights, o StatsOptions) (*StatsReport, error) {
	list, err := w.pick(o.Selection)
	if err != nil {
		return nil, err
	}
	if o.By == "" {
		o.By = ByTensor
	}
	r := &StatsReport{Path: w.Path, By: o.By, Tensors: []TensorStats{}, Groups: []GroupStats{}, NotCounted: []NotCounted{}, quantiles: o.Quantiles}
	s := &counting{Weights: w, Reading: w.reading(ctx), o: o, values: map[tensor.DType]*[halves]float32{tensor.F16: tensor.PatternValues(tensor.F16), tensor.BF16: tensor.PatternValues(tensor.BF16)}}
	name := s.grouped(o.By)
	at := map[string]*heap{}
	for _, x := range list {
		group := name(x)
		if group == "" {
			continue
		}
		if err := countable(x); err != nil {
			r.NotCounted = append(r.NotCounted, NotCounted{x.Name, x.DType, err.Error()})
			continue
		}
		if at[group] == nil {
			at[group] = newHeap(group)
			s.heaps = append(s.heaps, at[group])
		}
		s.take(at[group], x)
	}
	if len(s.heaps)+len(r.NotCounted) == 0 && len(list) > 0 {
		return nil, fmt.Errorf("nothing to count by %s: none of the selected tensors is in one", o.By)
	}
	for _, pass := range []func(){s.count, s.again} {
		pass()
		if err := errors.Join(s.Wait(), s.errors()); err != nil {
			return nil, err
		}
	}
	for _, h := range s.heaps {
		r.add(h)
	}
	return r, nil
}

// countable says why a tensor's numbers cannot be counted.
func countable(w *weights.Weight) error {
	if _, ok := w.DType.Format(); !ok {
		return fmt.Errorf("dtype %s has no numbers that the model computes with", w.DType)
	}
	return w.CheckScales()
}

// grouped returns the function that names the group of a weight, "" if it is in none.
func (s *counting) grouped(by Grouping) func(w *weights.Weight) string {
	if by == ByTensor {
		return func(w *weights.Weight) string { return w.Name }
	}
	name := map[Grouping]func(string) string{ByExpert: expertGroup, ByLayer: layerGroup}[by]
	if by == ByModule {
		name = moduleGroups(s.Config)
	}
	return func(w *weights.Weight) string {
		if w.IsScales() {
			return ""
		}
		return name(w.Name)
	}
}

// expertGroup returns the routed expert, or the shared ones, that a weight is of.
func expertGroup(name string) string {
	if before, e, _, ok := weights.CutExpert(name); ok {
		return before + strconv.Itoa(e)
	}
	const shared = ".mlp.shared_experts"
	if before, _, ok := strings.Cut(name, shared+"."); ok {
		return before + shared
	}
	return ""
}

// layerGroup returns the layer of a weight, or its module.
func layerGroup(name string) string {
	if at := placeOf(name); at.layer >= 0 {
		return fmt.Sprint("model.layers.", at.layer)
	}
	if module := strings.LastIndexByte(name, '.'); module > 0 {
		return name[:module]
	}
	return name
}

// otherModule is that of tensors that the table does not have.
const otherModule = "other"

// moduleGroups returns the function from names to modules of the table.
func moduleGroups(c *config.Config) func(name string) string {
	modules := map[string]table.Module{}
	for slot := range table.FamilyOf(c).MTPSlots(c) {
		modules[slot.Name] = table.MTP
	}
	for slot := range table.FamilyOf(c).Slots(c) {
		modules[slot.Name] = slot.Module()
	}
	return func(name string) string {
		if m, ok := modules[name]; ok {
			return string(m)
		}
		return otherModule
	}
}

// add adds a heap to the report.
func (r *StatsReport) add(h *heap) {
	if h.search != nil {
		h.numbers.Quantiles = h.search.found
	}
	if r.By != ByTensor {
		r.Groups = append(r.Groups, GroupStats{h.name, len(h.list), h.numbers})
		return
	}
	w := h.list[0]
	r.Tensors = append(r.Tensors, TensorStats{w.Name, w.DType, w.Shape, h.numbers, h.rows})
}

// Sheet is a row per tensor or group.
func (r *StatsReport) Sheet() *text.Sheet {
	numbers := []string{">elements", ">min", ">max", ">mean", ">std", ">zeros", ">nan", ">infinite", ">beyond_f16"}
	for _, q := range r.quantiles {
		numbers = append(numbers, ">q"+q.String())
	}
	if r.By != ByTensor {
		s := text.NewSheet(slices.Concat([]string{string(r.By), ">tensors"}, numbers)...)
		for _, g := range r.Groups {
			name := text.Foreign(g.Name)
			if r.By == ByModule {
				name = text.Plain(g.Name)
			}
			s.Add(append([]text.Cell{name, text.Whole(g.Tensors)}, r.cells(&g.Numbers)...)...)
		}
		return s
	}
	s := text.NewSheet(slices.Concat([]string{"tensor", "dtype", "shape"}, numbers, []string{">absmax", ">median_row_absmax", ">outlier_rows", "largest_row"})...)
	for _, t := range r.Tensors {
		cells := append([]text.Cell{text.Foreign(t.Name), text.Plain(t.DType.String()), text.Plain(fmt.Sprint(t.Shape))}, r.cells(&t.Numbers)...)
		s.Add(slices.Concat(cells, []text.Cell{text.Real(t.AbsMax)}, t.Rows.cells())...)
	}
	return s
}

func (r *StatsReport) cells(n *Numbers) []text.Cell {
	cells := []text.Cell{text.Whole(n.Elements), text.Real(n.Min), text.Real(n.Max), text.Real(n.Mean), text.Real(n.Std),
		text.Whole(n.Zeros), text.Whole(n.NaN), text.Whole(n.Infinite), text.Whole(n.BeyondF16)}
	for i := range r.quantiles {
		if i < len(n.Quantiles) {
			cells = append(cells, text.Real(&n.Quantiles[i].Value))
		} else {
			cells = append(cells, text.Real(nil))
		}
	}
	return cells
}

// WriteText writes the sheet, and what is not in it.
func (r *StatsReport) WriteText(w io.Writer) error {
	var b strings.Builder
	if err := r.Sheet().WriteAs(&b, text.AsTable); err != nil {
		return err
	}
	for i, n := range r.NotCounted {
		if i == maxLines {
			fmt.Fprintf(&b, "… and %d more that are not counted; --json lists them\n", len(r.NotCounted)-maxLines)
			break
		}
		fmt.Fprintf(&b, "not counted: %s: %s\n", text.Quote(n.Name), n.Cause)
	}
	_, err := io.WriteString(w, b.String())
	return err
}
