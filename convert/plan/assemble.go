package plan

// The segments of each tensor of a conversion. Properties shared by many tensors are stored
// once, and properties of single tensors side by side: plans of 100,000 tensors must be small.

import (
	"errors"
	"reflect"
	"slices"

	"dsmoe/convert/checkpoint"
	"dsmoe/convert/format"
	"dsmoe/convert/operation"
	"dsmoe/model/table"
	"dsmoe/model/tensor"
	"dsmoe/model/weights"
	"dsmoe/text"
)

// The operations that arrange weights and their elements, as a plan names them.
const (
	reorder        = "reorder"
	stackExperts   = "stack-experts"
	unstackExperts = "unstack-experts"
)

// assembler fills in the segments of a conversion's tensors.
type assembler struct {
	src      *checkpoint.Checkpoint
	adapter  *checkpoint.Adapter // nil for none
	changes  map[string]*change  // the conversion's
	kept     table.Kept          // the conversion's
	segments []Segment           // segments of all tensors, in order
	// powersOfTwo is the conversion's.
	powersOfTwo bool
	sides       []Side // room for the sides of further segments
	operations  map[elementwise]operation.Operation
	names       [][]string          // the different Operations of tensors
	placements  []*tensor.Placement // the different ones of weights
}

// elementwise is all that an operation depends on.
type elementwise struct {
	from, to   tensor.DType
	scaling    tensor.Scaling // of codes; for numbers that become codes, the blocks alone
	exactly    bool           // nothing may be lost
	ofScales   bool           // it makes scales, whose codes have dtype to
	importance *operation.Importance
	renumber   *operation.Renumber
	adapter    bool // it reads a tensor of the adapter
	product    operation.Product
	shape      [2]int // of the matrix that product is added to
}

// assemble fills in a tensor's segments and operations.
func (a *assembler) assemble(t *Tensor, out *output) error {
	first, fused := len(a.segments), len(out.parts) > 1
	if out.stored != nil {
		fused = out.parts[0].Shared // as it is stored
		part := format.Part{Tensor: out.stored.Name, N: int64(out.stored.Len())}
		key := elementwise{from: out.stored.DType, to: t.DType, importance: out.importance}
		if err := a.part(part, key, 0, nil); err != nil {
			return err
		}
	} else if out.scales {
		if err := a.scalesSegment(out.parts[0], t.DType); err != nil {
			return err
		}
	} else {
		for _, w := range out.parts {
			if err := a.segment(w, t.DType, out); err != nil {
				return err
			}
		}
	}
	t.Segments = a.segments[first:len(a.segments):len(a.segments)]
	var names []string // how the parts are arranged, then how elements change, then copies if nothing else is done
	switch wasFused := out.parts[0].Shared; {
	case fused && !wasFused:
		names = append(names, stackExperts)
	case !fused && wasFused:
		names = append(names, unstackExperts)
	}
	if slices.ContainsFunc(t.Segments, func(s Segment) bool { return s.View != nil }) {
		names = append(names, reorder)
	}
	for i := range t.Segments {
		if name := t.Segments[i].Operation.Name(); !t.Segments[i].Copies() && !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	if names == nil {
		names = []string{t.Segments[0].Operation.Name()}
	}
	i := slices.IndexFunc(a.names, func(known []string) bool { return slices.Equal(known, names) })
	if i < 0 {
		i = len(a.names)
		a.names = append(a.names, names)
	}
	t.Operations = a.names[i]
	return nil
}

// segment adds the segments of a weight on its way to an output of dtype to: one, but of a
// weight that is stored in parts one for each.
func (a *assembler) segment(w *weights.Weight, to tensor.DType, out *output) error {
	order, x := out.order, a.changes[w.Name]
	parts, err := a.src.Parts(w.Stored)
	if err != nil {
		return err
	}
	whole := x != nil && x.whole != nil
	if whole {
		parts, w = []format.Part{{Tensor: x.whole.Name, N: int64(w.Len())}}, &weights.Weight{Info: *x.whole, Place: w.Place}
	} else if w.Places != nil && (len(parts) != 1 || parts[0].View != nil) {
		return errors.New("its codes are stored in two orders: convert the files to safetensors first")
	}
	if len(parts) == 1 && !whole {
		parts = []format.Part{run(parts[0], w.First, int64(w.Len()))}
	}
	begins := []int64(nil) // of the parts in the matrix, where these are not all of it
	if experts, pruned := a.kept[w.Layer]; pruned && w.Role().CountsExperts() {
		if len(parts) != 1 || parts[0].View != nil {
			return errors.New("is stored in an order of its own, and its rows cannot be taken apart: " +
				"convert to safetensors first")
		}
		whole, width := parts[0], int64(w.Len()/w.Shape[0])
		parts = nil
		for first, last := range text.Runs(experts) {
			begins = append(begins, int64(first)*width)
			parts = append(parts, run(whole, int64(first)*width, int64(last-first+1)*width))
		}
	}
	first, from := int64(0), w.DType
	if order != nil {
		if len(parts) != 1 || parts[0].View != nil {
			return errors.New("is stored in an order of its own, and cannot be put into another: convert to safetensors first")
		}
		first = order.First
		parts[0] = run(parts[0], first, parts[0].N-first)
		parts[0].View = order.View
		if from.Blocked() { // blocks would be cut apart
			parts[0].Decode, from = from, tensor.F32
		}
	}
	key, sides := elementwise{from: from, to: to, exactly: a.src.Was(w.Stored) == to && x == nil,
		importance: out.importance, adapter: whole}, []Side(nil)
	if w.Scaled() && to != w.DType {
		key.scaling = w.Scaling()
		key.scaling.Placement = a.placement(w, parts[0].View)
		if sides, err = a.scales(w.Sides()); err != nil {
			return err
		}
	}
	if to.Scaled() && to != w.DType {
		key.scaling.Blocks = fp8Blocks(w)
	}
	if kept, pruned := a.kept[w.Layer]; pruned && w.Is(table.Router, table.TID2EID) {
		key.renumber = &operation.Renumber{Experts: a.src.Config.MoE.NRoutedExperts, Kept: kept, Row: w.Shape[1], To: to}
	}
	if x != nil && x.Rank > 0 {
		key.product, key.shape = x.Product, [2]int(w.Shape)
		for _, name := range []string{x.right, x.left} {
			file, offset, _ := a.place(name, true)
			sides = append(slices.Clip(sides), Side{name, file, offset})
		}
	}
	for i, part := range parts {
		if key.product.Rank > 0 && begins != nil {
			first = begins[i]
		}
		if err := a.part(part, key, first, sides); err != nil {
			return err
		}
		if key.product.Rank > 0 {
			first += a.segments[len(a.segments)-1].Bytes / key.to.Bytes(1)
		}
	}
	return nil
}

// place returns the file that holds a stored tensor, of the checkpoint or of the adapter, and where it begins there.
func (a *assembler) place(stored string, ofAdapter bool) (file int, offset int64, err error) {
	if ofAdapter {
		return len(a.src.Inventory.Files), a.adapter.Place(stored), nil
	}
	return a.src.Place(stored)
}

// placement returns where the elements of a weight and its sides lie, the same for weights that are alike; nil if
// they lie in order. Codes that a view takes out of bytes are picked one by one.
func (a *assembler) placement(w *weights.Weight, view *tensor.View) *tensor.Placement {
	p := tensor.Placement{Codes: w.Places}
	per, _ := w.DType.Block()
	if w.Places == nil && per > 1 && view != nil && view.Stride[len(view.Stride)-1] != 1 {
		p.Codes = &tensor.Places{Elements: w.DType, View: tensor.View{Shape: []int64{int64(w.Len())}, Stride: []int64{1}}}
	}
	if p.Codes == nil {
		return nil
	}
	for i, side := range w.Sides() {
		p.Sides[i] = side.Places
	}
	i := slices.IndexFunc(a.placements, func(known *tensor.Placement) bool { return reflect.DeepEqual(known, &p) })
	if i < 0 {
		i = len(a.placements)
		a.placements = append(a.placements, &p)
	}
	return a.placements[i]
}

// part adds the segment of a part, put through an operation.
func (a *assembler) part(part format.Part, key elementwise, first int64, sides []Side) error {
	file, start, err := a.place(part.Tensor, key.adapter)
	if err != nil {
		return err
	}
	stored := part.Stored(key.from)
	begin, n := stored.Bytes(part.First), part.N
	if part.View != nil {
		n = part.View.Len()
	}
	op, err := a.operation(key)
	if err != nil {
		return err
	}
	if key.importance != nil && n%int64(key.importance.Row) != 0 {
		return errors.New("is stored in parts of rows, which importance is not for")
	}
	a.segments = append(a.segments, Segment{Tensor: part.Tensor, DType: key.from, Decode: part.Decode, File: file,
		Offset: start + begin, Begin: begin, End: begin + stored.Bytes(part.N), First: first, View: part.View, Sides: sides,
		Operation: op, Bytes: key.to.Bytes(n)})
	return nil
}

// fp8Block is the rows and columns that share a scale.
const fp8Block = 128

// fp8Blocks returns how a matrix that becomes FP8 is divided in blocks.
func fp8Blocks(w *weights.Weight) tensor.Blocks {
	return tensor.Blocks{Rows: w.Shape[0], Cols: w.Shape[1], BlockRows: fp8Block, BlockCols: fp8Block}
}

// scalesSegment adds the segment of the scales of a weight that becomes codes. The weight's stored
// tensors lie beside it.
func (a *assembler) scalesSegment(w *weights.Weight, to tensor.DType) error {
	parts, err := a.src.Parts(w.Stored)
	if err != nil {
		return err
	}
	key := elementwise{from: w.DType, to: tensor.FP8.Codes, scaling: tensor.Scaling{Blocks: fp8Blocks(w)}, ofScales: true}
	s := Segment{DType: w.DType}
	if s.Operation, err = a.operation(key); err != nil {
		return err
	}
	for _, part := range parts {
		file, start, err := a.src.Place(part.Tensor)
		if err != nil {
			return err
		}
		if side := (Side{part.Tensor, file, start}); !slices.Contains(s.Sides, side) {
			s.Sides = append(s.Sides, side)
		}
	}
	rows, cols := key.scaling.Blocks.Grid()
	s.Bytes = to.Bytes(int64(rows * cols))
	a.segments = append(a.segments, s)
	return nil
}

// run is n elements of a part from the first on. A part with a view is used whole.
func run(part format.Part, first, n int64) format.Part {
	part.First, part.N = part.First+first, n
	return part
}

// operation returns the one operation of its kind.
func (a *assembler) operation(key elementwise) (op operation.Operation, err error) {
	if known := a.operations[key]; known != nil {
		return known, nil
	}
	switch {
	case key.renumber != nil:
		op = key.renumber
	case key.product.Rank > 0:
		op, err = operation.NewMerge(key.from, key.to, key.scaling, key.shape, key.product)
	case key.from == key.to:
		op = operation.Copy{DType: key.to}
	case key.from == tensor.I64 && key.to == tensor.I32:
		op = operation.Shorten{}
	case key.ofScales:
		op, err = operation.NewScales(key.from, key.to, key.scaling.Blocks, a.powersOfTwo)
	case key.to.Scaled():
		op, err = operation.NewEncode(key.from, key.to, key.scaling.Blocks, a.powersOfTwo)
	case key.exactly:
		op, err = operation.NewNarrow(key.to)
	case key.to.Blocked() && operation.RepackTo(key.from, key.scaling) == key.to:
		op = &operation.Repack{From: key.from, To: key.to, Scaling: key.scaling}
	case key.to.Blocked():
		var q *operation.Quantise
		if q, err = operation.NewQuantise(key.from, key.to, key.scaling); err == nil {
			q.Importance, op = key.importance, q
		}
	case key.from.Blocked():
		op, err = operation.NewDequantiseBlocks(key.from, key.to)
	case key.from.Scaled():
		op, err = operation.NewDequantise(key.from, key.to, key.scaling)
	default:
		op, err = operation.NewCast(key.from, key.to)
	}
	a.operations[key] = op
	return op, err
}

// scales finds where the tensors beside a weight are.
func (a *assembler) scales(sides []*weights.Weight) ([]Side, error) {
	const room = 1024
	if cap(a.sides)-len(a.sides) < len(sides) {
		a.sides = make([]Side, 0, room)
	}
	n := len(a.sides)
	for _, w := range sides {
		file, start, err := a.src.Place(w.Stored)
		if err != nil {
			return nil, err
		}
		a.sides = append(a.sides, Side{w.Stored, file, start + w.Offset()})
	}
	return a.sides[n:len(a.sides):len(a.sides)], nil
}
