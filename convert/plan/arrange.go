package plan

// Which tensors a conversion writes, and what each is made of.

import (
	"fmt"
	"slices"
	"strings"

	"dsmoe/config"
	"dsmoe/convert/operation"
	"dsmoe/model"
	"dsmoe/model/tensor"
	"dsmoe/model/weights"
	"dsmoe/text"
)

// output is a tensor to be written and the weights that it is made of.
type output struct {
	tensor.Info
	parts []*weights.Weight
}

// arrange decides the tensors to be written, in the order of the model.
func (c *conversion) arrange() {
	shared := map[string]bool{} // the fused tensors of the source, by the table's name
	for _, w := range c.kept {
		if place, ok := weights.ParseExpert(w.Name); ok && w.Shared {
			shared[place.Fused] = true
		}
	}
	for _, w := range c.kept {
		if c.o.DType != tensor.Invalid && w.IsScales() {
			continue // it goes into the weight
		}
		to := c.target(w)
		place, ok := weights.ParseExpert(w.Name)
		if !ok || c.o.Experts == PerExpert || c.o.Experts == KeepExperts && !shared[place.Fused] {
			c.outputs = append(c.outputs, output{tensor.Info{Name: w.Name, DType: to, Shape: w.Shape}, []*weights.Weight{w}})
			continue
		}
		c.collect(place, to, w)
	}
	c.fuseGroups()
}

// target is the dtype that a weight is written in.
func (c *conversion) target(w *weights.Weight) tensor.DType {
	from, to := w.DType, c.o.DType
	switch {
	case to == tensor.Invalid || from == to || from.Integer():
		return from
	case from == tensor.F8E4M3:
		if err := w.CheckScales(); err != nil {
			c.problem(w.Name, "%v", err)
			return from
		}
		return to
	case c.isRoutingBias(w.Name):
		return from
	case from.Casts():
		return to
	}
	c.problem(w.Name, "dtype %s cannot be cast to %s", from, to)
	return from
}

// isRoutingBias says whether a name is that of e_score_correction_bias, in a decoder layer
// or one of multi-token prediction: the vector of the table's router. It decides which
// experts are chosen, and stays in its dtype as in transformers.
func (c *conversion) isRoutingBias(name string) bool {
	return slices.ContainsFunc(model.FamilyOf(c.src.Config).Params, func(row model.Param) bool {
		_, ofLayer, perLayer := strings.Cut(row.Name, "{l}")
		return row.Module == model.Router && len(row.Shape) == 1 && perLayer && strings.HasSuffix(name, ofLayer)
	})
}

// collect puts a weight in its place in a fused tensor; the tensor's own place is
// that of its first part.
func (c *conversion) collect(place weights.Place, to tensor.DType, w *weights.Weight) {
	f, _ := weights.ParseFused(place.Fused)
	experts := c.src.Config.NRoutedExperts
	at, seen := c.groups[place.Fused]
	if !seen {
		at = len(c.outputs)
		c.groups[place.Fused] = at
		c.outputs = append(c.outputs, output{tensor.Info{Name: place.Fused}, make([]*weights.Weight, experts*len(f.Parts))})
	}
	if place.Expert >= experts {
		c.problem(w.Name, "cannot be fused: config says %d experts", experts)
		return
	}
	out := &c.outputs[at]
	if out.DType != tensor.Invalid && out.DType != to {
		c.problem(w.Name, "cannot be fused: it would be %s, but others of %s %s", to, place.Fused, out.DType)
	}
	out.DType = to
	out.parts[place.Expert*len(f.Parts)+place.Part] = w
}

// fuseGroups completes the fused tensors.
func (c *conversion) fuseGroups() {
	for i := range c.outputs {
		out := &c.outputs[i]
		if _, ok := c.groups[out.Name]; !ok {
			continue
		}
		f, _ := weights.ParseFused(out.Name)
		if absent := slices.Index(out.parts, nil); absent >= 0 {
			c.problem(out.Name, "cannot be fused: %s is not among the tensors", f.ExpertName(absent/len(f.Parts), f.Parts[absent%len(f.Parts)]))
			continue
		}
		shape, err := fusedShape(out.parts, c.src.Config.NRoutedExperts)
		if err != nil {
			c.problem(out.Name, "%v", err)
			continue
		}
		out.Shape = shape
		if f.Scale {
			c.noteRagged(out)
		}
	}
	c.checkReaders()
}

// checkReaders says what cannot read the fused tensors that are written: only transformers'
// own classes, from transformers 5 on, can.
func (c *conversion) checkReaders() {
	i := slices.IndexFunc(c.outputs, func(out output) bool { _, ok := c.groups[out.Name]; return ok })
	have := c.src.Config
	switch {
	case i < 0:
	case have.HasReference(config.Native):
		if have.Reference == config.Remote {
			c.note("the code that auto_map in config.json names cannot read fused experts, such as %s; transformers' own classes can, from transformers 5 on", c.outputs[i].Name)
		}
	case c.o.Experts == FusedExperts:
		c.problem(c.outputs[i].Name, "nothing can read fused experts of model_type %s: its published code fills experts that it does not find with random numbers, and transformers has no class for it; leave the experts as they are, or ask for %s",
			have.ModelType, PerExpert)
	default:
		c.note("nothing can read fused experts of model_type %s, such as %s: ask for %s experts", have.ModelType, c.outputs[i].Name, PerExpert)
	}
}

// fusedShape returns the shape of the fused tensor that the parts, in the order of
// its elements, make up, or what keeps them from it.
func fusedShape(parts []*weights.Weight, experts int) ([]int, error) {
	first := parts[0]
	for _, p := range parts {
		if len(p.Shape) != 2 || !slices.Equal(p.Shape, first.Shape) {
			return nil, fmt.Errorf("cannot be fused: %s has shape %v, but %s %v",
				text.Quote(first.Name), first.Shape, text.Quote(p.Name), p.Shape)
		}
	}
	return []int{experts, first.Shape[0] * len(parts) / experts, first.Shape[1]}, nil
}

// The operations that arrange whole weights, as a plan names them.
const (
	stackExperts   = "stack-experts"
	unstackExperts = "unstack-experts"
)

// assemble fills in where a tensor's elements come from, and what is done to them.
func (c *conversion) assemble(t *Tensor, parts []*weights.Weight) error {
	for _, w := range parts {
		s, err := c.segment(w, t.DType)
		if err != nil {
			return err
		}
		t.Segments = append(t.Segments, s)
	}
	_, fused := weights.ParseFused(t.Name)
	t.Operations = operationNames(t.Segments, fused, parts[0].Shared)
	return nil
}

// segment is a weight on its way to an output of dtype to.
func (c *conversion) segment(w *weights.Weight, to tensor.DType) (s Segment, err error) {
	file, start, err := c.src.Place(w.Stored)
	if err != nil {
		return s, err
	}
	begin := w.Offset()
	s = Segment{Tensor: w.Stored, DType: w.DType, File: file, Offset: start + begin, Begin: begin, End: begin + w.Bytes(),
		Bytes: tensor.Info{DType: to, Shape: w.Shape}.Bytes()}
	switch {
	case w.DType == to:
		s.Operation = operation.Copy{DType: to}
	case w.DType == tensor.F8E4M3:
		s.Operation, err = operation.NewDequantise(to, w.Scales.DType, w.Blocks())
		if err == nil {
			s.Sides, err = c.scales(w.Scales)
		}
	default:
		s.Operation, err = operation.NewCast(w.DType, to)
	}
	return s, err
}

// scales finds where the scales of a weight are.
func (c *conversion) scales(w *weights.Weight) ([]Side, error) {
	file, start, err := c.src.Place(w.Stored)
	if err != nil {
		return nil, err
	}
	return []Side{{w.Stored, file, start + w.Offset()}}, nil
}

// operationNames names what is done to a tensor: how its parts are arranged, then what
// is done to elements; copies count only if there is nothing else.
func operationNames(segments []Segment, fused, wasFused bool) (names []string) {
	switch {
	case fused && !wasFused:
		names = append(names, stackExperts)
	case !fused && wasFused:
		names = append(names, unstackExperts)
	}
	for i := range segments {
		if name := segments[i].Operation.Name(); !segments[i].Copies() && !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	if names == nil {
		names = []string{segments[0].Operation.Name()}
	}
	return names
}
