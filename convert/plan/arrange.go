package plan

// Which tensors a conversion writes, and what each is made of.

import (
	"fmt"
	"slices"

	"dsmoe/config"
	"dsmoe/model/table"
	"dsmoe/model/tensor"
	"dsmoe/model/weights"
	"dsmoe/text"
)

// arrange decides the tensors to be written, in the order of the model.
func (c *conversion) arrange() error {
	shared := map[string]bool{} // the fused tensors of the source, by the table's name
	for _, w := range c.kept {
		if w.Shared {
			shared[w.FusedName()] = true
		}
	}
	for i, w := range c.kept {
		if c.o.DType != tensor.Invalid && w.IsScales() {
			continue // it goes into the weight
		}
		to := c.target(w)
		f, _ := w.Fused()
		if f == nil || c.o.Experts == PerExpert || c.o.Experts == KeepExperts && !shared[w.FusedName()] {
			c.output(tensor.Info{Name: w.Name, DType: to, Shape: w.Shape}, c.kept[i:i+1:i+1])
			continue
		}
		c.collect(to, w)
	}
	c.fuseGroups()
	return nil
}

// output adds a tensor to be written, and the weights that it is made of.
func (c *conversion) output(info tensor.Info, parts []*weights.Weight) {
	c.outputs = append(c.outputs, info)
	c.parts = append(c.parts, parts)
}

// target is the dtype that a weight is written in.
func (c *conversion) target(w *weights.Weight) tensor.DType {
	from, to := w.DType, c.o.DType
	switch was := c.src.Was(w.Stored); {
	case to == tensor.Invalid && was != tensor.Invalid:
		return was
	case to == tensor.Invalid && from.Blocked():
		c.problem(w.Name, "dtype %s: %s cannot hold it; ask for bf16, f16 or f32", from, c.plan.Format.Name)
		return from
	case to == tensor.Invalid || from == to || from.Integer():
		return from
	case from.Scaled():
		if err := w.CheckScales(); err != nil {
			c.problem(w.Name, "%v", err)
			return from
		}
		return to
	case w.Role() == table.EScoreCorrectionBias: // it decides the choice of experts; as in transformers
		return from
	case from.Casts(), from.Blocked():
		return to
	}
	c.problem(w.Name, "dtype %s cannot be cast to %s", from, to)
	return from
}

// fusedGroup is a fused tensor that is made of weights.
type fusedGroup struct {
	output int             // its place in outputs
	first  *weights.Weight // the first of its parts that the source has
}

// collect puts a weight in its place in a fused tensor; the tensor's own place is
// that of its first part.
func (c *conversion) collect(to tensor.DType, w *weights.Weight) {
	f, index := w.Fused()
	name, experts := w.FusedName(), c.src.Config.NRoutedExperts
	g, seen := c.groups[name]
	if !seen {
		g = fusedGroup{len(c.outputs), w}
		c.groups[name] = g
		c.output(tensor.Info{Name: name}, make([]*weights.Weight, experts*len(f.Roles)))
	}
	if w.Expert >= experts {
		c.problem(w.Name, "cannot be fused: config says %d experts", experts)
		return
	}
	out := &c.outputs[g.output]
	if out.DType != tensor.Invalid && out.DType != to {
		c.problem(w.Name, "cannot be fused: it would be %s, but others of %s %s", to, text.Quote(name), out.DType)
	}
	out.DType = to
	c.parts[g.output][w.Expert*len(f.Roles)+index] = w
}

// fuseGroups completes the fused tensors.
func (c *conversion) fuseGroups() {
	for i := range c.outputs {
		out, parts := &c.outputs[i], c.parts[i]
		g, ok := c.groups[out.Name]
		if !ok {
			continue
		}
		if absent := slices.Index(parts, nil); absent >= 0 {
			c.problem(out.Name, "cannot be fused: %s is not among the tensors", text.Quote(c.partName(g.first, absent)))
			continue
		}
		shape, err := fusedShape(parts, c.src.Config.NRoutedExperts)
		if err != nil {
			c.problem(out.Name, "%v", err)
			continue
		}
		out.Shape = shape
		c.noteRagged(out.Name, parts[0])
	}
	c.checkReaders()
}

// partName returns the name of part i of the fused tensor that w goes into.
func (c *conversion) partName(w *weights.Weight, i int) string {
	f, _ := w.Fused()
	n := len(f.Roles)
	return table.FamilyOf(c.src.Config).Row(table.RoutedExperts, f.Roles[i%n]).NameIn(w.Layer, i/n) + w.Part
}

// checkReaders says what cannot read the fused tensors that are written: only transformers'
// own classes, from transformers 5 on, can.
func (c *conversion) checkReaders() {
	i := slices.IndexFunc(c.outputs, func(out tensor.Info) bool { _, ok := c.groups[out.Name]; return ok })
	have := c.src.Config
	switch {
	case i < 0:
	case have.HasReference(config.Native):
		if have.Reference == config.Remote {
			c.note("the code that auto_map in config.json names cannot read fused experts, such as %s; transformers' own classes can, from transformers 5 on", text.Quote(c.outputs[i].Name))
		}
	case c.o.Experts == FusedExperts:
		c.problem(c.outputs[i].Name, "nothing can read fused experts of model_type %s: its published code fills experts that it does not find with random numbers, and transformers has no class for it; leave the experts as they are, or ask for %s",
			have.ModelType, PerExpert)
	default:
		c.note("nothing can read fused experts of model_type %s, such as %s: ask for %s experts", have.ModelType, text.Quote(c.outputs[i].Name), PerExpert)
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
