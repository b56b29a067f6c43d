package plan

// Which tensors a conversion writes, and what each is made of.

import (
	"fmt"
	"slices"
	"strings"

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
		if place, ok := weights.ParseExpert(w.Name); ok && w.Shared {
			shared[place.Fused] = true
		}
	}
	for i, w := range c.kept {
		if c.o.DType != tensor.Invalid && w.IsScales() {
			continue // it goes into the weight
		}
		to := c.target(w)
		place, ok := weights.ParseExpert(w.Name)
		if !ok || c.o.Experts == PerExpert || c.o.Experts == KeepExperts && !shared[place.Fused] {
			c.output(tensor.Info{Name: w.Name, DType: to, Shape: w.Shape}, c.kept[i:i+1:i+1])
			continue
		}
		c.collect(place, to, w)
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
	case from == tensor.F8E4M3:
		if err := w.CheckScales(); err != nil {
			c.problem(w.Name, "%v", err)
			return from
		}
		return to
	case c.isRoutingBias(w.Name):
		return from
	case from.Casts(), from.Blocked():
		return to
	}
	c.problem(w.Name, "dtype %s cannot be cast to %s", from, to)
	return from
}

// isRoutingBias says whether a name is that of e_score_correction_bias, in a decoder layer
// or one of multi-token prediction: the vector of the table's router. It decides which
// experts are chosen, and stays in its dtype as in transformers.
func (c *conversion) isRoutingBias(name string) bool {
	return slices.ContainsFunc(table.FamilyOf(c.src.Config).Rows, func(row table.Row) bool {
		_, ofLayer, perLayer := strings.Cut(row.Name, "{l}")
		return row.Module == table.Router && len(row.Shape) == 1 && perLayer && strings.HasSuffix(name, ofLayer)
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
		c.output(tensor.Info{Name: place.Fused}, make([]*weights.Weight, experts*len(f.Parts)))
	}
	if place.Expert >= experts {
		c.problem(w.Name, "cannot be fused: config says %d experts", experts)
		return
	}
	out := &c.outputs[at]
	if out.DType != tensor.Invalid && out.DType != to {
		c.problem(w.Name, "cannot be fused: it would be %s, but others of %s %s", to, text.Quote(place.Fused), out.DType)
	}
	out.DType = to
	c.parts[at][place.Expert*len(f.Parts)+place.Part] = w
}

// fuseGroups completes the fused tensors.
func (c *conversion) fuseGroups() {
	for i := range c.outputs {
		out, parts := &c.outputs[i], c.parts[i]
		if _, ok := c.groups[out.Name]; !ok {
			continue
		}
		f, _ := weights.ParseFused(out.Name)
		if absent := slices.Index(parts, nil); absent >= 0 {
			c.problem(out.Name, "cannot be fused: %s is not among the tensors", text.Quote(f.ExpertName(absent/len(f.Parts), f.Parts[absent%len(f.Parts)])))
			continue
		}
		shape, err := fusedShape(parts, c.src.Config.NRoutedExperts)
		if err != nil {
			c.problem(out.Name, "%v", err)
			continue
		}
		out.Shape = shape
		if f.Scale {
			c.noteRagged(out.Name, parts[0])
		}
	}
	c.checkReaders()
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
