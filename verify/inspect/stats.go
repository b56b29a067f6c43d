package inspect

// Statistics of the weights. Every byte is read once, and those of F32 and FP8 weights a second
// time if quantiles are asked for. F16 and BF16 are counted by their bit patterns; other
// weights, and those too small for that to pay, number by number.

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"sync"

	"dsmoe/config"
	"dsmoe/model"
	"dsmoe/model/tensor"
	"dsmoe/model/weights"
	"dsmoe/text"
)

// Weights is a checkpoint whose weights are read.
type Weights struct {
	Path     string                  // of the checkpoint, as it was given
	Config   *config.Config          // its config.json
	List     []*weights.Weight       // all of them, as model.Ordered has them
	Reader   weights.ReaderAt        // of the stored tensors
	Threads  int                     // that read at once; 0 is one per processor
	Progress func(done, total int64) // told of bytes that were read, one call at a time; nil is nobody
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
	ByModule Grouping = "module" // each model.Module over all layers
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
	s := &counting{Weights: w, o: o, values: map[tensor.DType]*[halves]float32{tensor.F16: tensor.PatternValues(tensor.F16), tensor.BF16: tensor.PatternValues(tensor.BF16)}}
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
	for _, pass := range []func(context.Context) error{s.count, s.again} {
		if err := errors.Join(pass(ctx), s.errors()); err != nil {
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
	modules := map[string]model.Module{}
	for slot := range model.FamilyOf(c).MTPSlots(c) {
		modules[slot.Name] = model.MTP
	}
	for slot := range model.FamilyOf(c).Slots(c) {
		modules[slot.Name] = slot.Param.Module
	}
	return func(name string) string {
		if m, ok := modules[name]; ok {
			return string(m)
		}
		return otherModule
	}
}

// counting is the weights of a checkpoint while they are counted.
type counting struct {
	Weights
	o      StatsOptions
	heaps  []*heap
	values map[tensor.DType]*[halves]float32 // what patterns stand for
	tables spare[scratch]
	counts spare[[halves]int64] // zeros

	mu          sync.Mutex // guards what follows
	done, total int64
}

// heap is weights that are counted together. Only while some of them are read it takes
// memory.
type heap struct {
	name   string
	list   []*load
	values int64 // number of elements that are not counted by patterns

	mu       sync.Mutex // guards what follows
	left     int        // jobs that are not done
	patterns map[tensor.DType]*[halves]int64
	upper    *[halves]int64 // of the keys of numbers that are not counted by patterns; for quantiles
	few      []counted      // those numbers instead, of a small heap
	parts    []sums         // of those numbers, job by job
	numbers  Numbers
	rows     *RowStats
	search   *search
}

func newHeap(name string) *heap {
	return &heap{name: name, patterns: map[tensor.DType]*[halves]int64{}}
}

// isSmall says whether quantiles are looked for among all numbers at once.
func (h *heap) isSmall() bool { return h.values <= halves }

// load is a weight that is counted.
type load struct {
	*weights.Weight
	patterns bool      // it is counted by them
	part     int       // index in heap.parts of its first job
	rows     []float32 // the largest magnitude of each row; nil if rows are not looked at
	err      error     // of reading it
}

// take adds a weight to a heap.
func (s *counting) take(h *heap, w *weights.Weight) {
	l := &load{Weight: w, part: len(h.parts), patterns: (w.DType == tensor.F16 || w.DType == tensor.BF16) && w.Len() >= patternsFrom}
	h.list = append(h.list, l)
	jobs := l.jobs()
	h.left += jobs
	if !l.patterns {
		h.parts = append(h.parts, make([]sums, jobs)...)
		h.values += int64(w.Len())
	}
	s.total += w.Bytes()
	if !l.patterns && len(s.o.Quantiles) > 0 { // they may be read again
		s.total += w.Bytes()
	}
}

// jobs is how many jobs a weight is: at least one.
func (l *load) jobs() int { return int(max((l.Bytes()+jobBytes-1)/jobBytes, 1)) }

// elements returns where job i begins, and how many elements it has.
func (l *load) elements(i int) (at, n int64) {
	size := int64(l.DType.Bits() / 8)
	at = int64(i) * jobBytes / size
	return at, min(jobBytes/size, int64(l.Len())-at)
}

// scratch is the memory of a goroutine, beside its tile.
type scratch struct {
	patterns tensor.Patterns
	upper    [halves]int64
	known    []counted // of sumUp
}

// spare is memory that is used again.
type spare[T any] struct {
	mu   sync.Mutex
	free []*T
}

// get returns memory that was put back, or new one.
func (s *spare[T]) get() *T {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := len(s.free)
	if n == 0 {
		return new(T)
	}
	x := s.free[n-1]
	s.free = s.free[:n-1]
	return x
}

// put gives it back.
func (s *spare[T]) put(x *T) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.free = append(s.free, x)
}

// count reads everything once.
func (s *counting) count(ctx context.Context) error {
	t := newTeam(ctx, s.Threads)
	for _, h := range s.heaps {
		for _, l := range h.list {
			for i := range l.jobs() {
				t.do(func(buffer []byte) {
					table := s.tables.get()
					defer s.tables.put(table)
					s.job(t.ctx, h, l, i, buffer, table)
				})
			}
		}
	}
	return t.wait()
}

// job counts a part of a weight. The last of a heap sums up.
func (s *counting) job(ctx context.Context, h *heap, l *load, i int, buffer []byte, table *scratch) {
	at, n := l.elements(i)
	rows := newRowPeaks(l, at, n, s.o.By == ByTensor)
	var part sums
	var few []counted
	var err error
	if l.patterns {
		err = s.byPattern(ctx, l, at, n, buffer, table, rows)
	} else {
		part, few, err = s.byNumber(ctx, h, l, at, n, table, rows)
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	rows.merge(l)
	if l.err == nil {
		l.err = err
	}
	if l.patterns {
		table.patterns.Take(s.zeros(&h.patterns, l.DType))
	} else {
		h.parts[l.part+i] = part
		switch {
		case h.isSmall():
			h.few = append(h.few, few...)
		case len(s.o.Quantiles) > 0:
			h.addUpper(s, table)
		}
	}
	if h.left--; h.left == 0 {
		s.sumUp(h, table)
	}
	s.progress(l.DType.Bytes(n))
}

// zeros returns the counts of a dtype, zeros at first.
func (s *counting) zeros(counts *map[tensor.DType]*[halves]int64, d tensor.DType) *[halves]int64 {
	if (*counts)[d] == nil {
		(*counts)[d] = s.counts.get()
	}
	return (*counts)[d]
}

// addUpper moves what a job counted for quantiles into the heap.
func (h *heap) addUpper(s *counting, table *scratch) {
	if h.upper == nil {
		h.upper = s.counts.get()
	}
	for i, n := range table.upper {
		h.upper[i] += n
	}
	clear(table.upper[:])
}

// progress tells of n bytes more.
func (s *counting) progress(n int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.done += n; s.Progress != nil {
		s.Progress(s.done, s.total)
	}
}

// byPattern counts n elements of a weight from at on.
func (s *counting) byPattern(ctx context.Context, l *load, at, n int64, buffer []byte, table *scratch, rows *rowPeaks) error {
	size := int64(l.DType.Bits() / 8)
	for n > 0 && ctx.Err() == nil {
		tile := buffer[:size*min(tileBytes/size, n)]
		if err := l.ReadAt(s.Reader, tile, size*at); err != nil {
			return err
		}
		for len(tile) > 0 {
			row := min(int64(len(tile)), size*rows.rest(at)) // stays in the nearest cache for the second look
			table.patterns.Add(tile[:row])
			if rows != nil {
				rows.see(at, tensor.LargestFinite(tile[:row], l.DType))
			}
			tile, at, n = tile[row:], at+row/size, n-row/size
		}
	}
	return nil
}

// byNumber is byPattern for the dtypes that are decoded.
// Numbers of a small heap are kept for quantiles.
func (s *counting) byNumber(ctx context.Context, h *heap, l *load, at, n int64, table *scratch, rows *rowPeaks) (part sums, few []counted, err error) {
	part = newSums()
	err = s.each(ctx, l.Weight, at, n, func(at int64, values []float32) {
		part.addValues(values)
		rows.seeAll(at, values)
		if len(s.o.Quantiles) == 0 {
			return
		}
		for _, v := range values {
			switch {
			case v-v != 0:
			case h.isSmall():
				few = append(few, counted{v, 1})
			default:
				table.upper[keyOf(v)>>16]++
			}
		}
	})
	return part, few, err
}

// each calls f for tiles of a weight's numbers.
func (w *Weights) each(ctx context.Context, x *weights.Weight, at, n int64, f func(at int64, values []float32)) error {
	stream := weights.NewStream(w.Reader, x)
	for end := at + n; at < end && ctx.Err() == nil; at += tileElements {
		values, err := loaded(stream, at, min(tileElements, end-at))
		if err != nil {
			return err
		}
		f(at, values)
	}
	return nil
}

// sumUp turns the counts of a heap into its numbers, and gives their memory back.
func (s *counting) sumUp(h *heap, table *scratch) {
	all, known := newSums(), table.known[:0]
	for _, d := range []tensor.DType{tensor.BF16, tensor.F16} {
		if counts := h.patterns[d]; counts != nil {
			known = all.addCounts(counts, s.values[d], known)
			s.giveBack(counts)
		}
	}
	table.known = known
	for i := range h.parts {
		all.merge(&h.parts[i])
	}
	h.numbers = all.numbers()
	if len(s.o.Quantiles) > 0 {
		h.search = newSearch(s.o.Quantiles, append(known, h.few...), h.upper)
		if h.upper != nil {
			s.giveBack(h.upper)
		}
	}
	if len(h.list) == 1 && s.o.By == ByTensor {
		h.rows = rowStats(h.list[0].rows)
		h.list[0].rows = nil
	}
	h.patterns, h.parts, h.upper, h.few = nil, nil, nil, nil
}

// giveBack keeps counts for the next heap.
func (s *counting) giveBack(counts *[halves]int64) {
	clear(counts[:])
	s.counts.put(counts)
}

// again reads the numbers among which quantiles are.
func (s *counting) again(ctx context.Context) error {
	t := newTeam(ctx, s.Threads)
	for _, h := range s.heaps {
		if h.search == nil || len(h.search.open) == 0 {
			continue
		}
		loads := slices.DeleteFunc(slices.Clone(h.list), func(l *load) bool { return l.patterns })
		for _, l := range loads {
			h.left += l.jobs()
		}
		for _, l := range loads {
			for i := range l.jobs() {
				t.do(func([]byte) { s.narrow(t.ctx, h, l, i) })
			}
		}
	}
	return t.wait()
}

// narrow is job for what is read again.
func (s *counting) narrow(ctx context.Context, h *heap, l *load, i int) {
	h.search.begin()
	at, n := l.elements(i)
	err := s.each(ctx, l.Weight, at, n, func(_ int64, values []float32) {
		for _, v := range values {
			if v-v == 0 {
				h.search.add(v, 1)
			}
		}
	})
	h.mu.Lock()
	defer h.mu.Unlock()
	if l.err == nil {
		l.err = err
	}
	if h.left--; h.left == 0 && ctx.Err() == nil && h.err() == nil {
		h.search.finish()
	}
	s.progress(l.DType.Bytes(n))
}

// err says which of the heap's weights cannot be read.
func (h *heap) err() error {
	var errs []error
	for _, l := range h.list {
		if l.err != nil {
			errs = append(errs, fmt.Errorf("tensor %s: %w", text.Quote(l.Name), l.err))
		}
	}
	return errors.Join(errs...)
}

// errors says which weights cannot be read.
func (s *counting) errors() error {
	var errs []error
	for _, h := range s.heaps {
		errs = append(errs, h.err())
	}
	return errors.Join(errs...)
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
