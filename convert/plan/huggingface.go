package plan

// Outputs as HuggingFace has them.

import (
	"cmp"
	"slices"
	"strings"

	"dsmoe/config"
	"dsmoe/convert/format"
	"dsmoe/model/table"
	"dsmoe/model/tensor"
	"dsmoe/model/weights"
	"dsmoe/text"
	"dsmoe/text/problem"
)

// huggingFace writes weights under their names in the table, experts apart or fused.
type huggingFace struct{}

// describe returns the format's defaults: config.json describes the model.
func (huggingFace) describe(*conversion, selection, *config.Config, []output) (d format.Described, err error) {
	return d, nil
}

// arrange decides the tensors to be written, in the order of the model.
func (huggingFace) arrange(c *conversion, chosen selection, written *config.Config) (outputs []output, derived int) {
	shared := map[string]bool{} // the fused tensors of the source, by the table's name
	for _, w := range chosen.kept {
		if w.Shared {
			shared[w.FusedName()] = true
		}
	}
	if c.refusesForms(chosen) {
		return nil, 0
	}
	naming := c.naming()
	if len(c.problems) > 0 {
		return nil, 0
	}
	e := encoder{conversion: c, written: written}
	a := arrangement{conversion: c, naming: naming, groups: map[string]fusedGroup{}}
	for i, w := range chosen.kept {
		if c.o.cast() != tensor.Invalid && w.IsScales() {
			continue // it goes into the weight
		}
		if e.covers(w) {
			a.outputs = append(a.outputs, e.encoded(chosen.kept[i:i+1:i+1])...)
			continue
		}
		parts := chosen.kept[i : i+1 : i+1]
		if w.Header != nil && (c.o.cast() == tensor.Invalid || !w.Scaled()) {
			w = w.AsStored()
			parts = []*weights.Weight{w}
		}
		to := c.target(w)
		f, _ := a.fused(w)
		if f == nil || !c.fuses(naming, w, shared[f.NameIn(w.Layer)+w.Part]) {
			a.outputs = append(a.outputs, output{Info: tensor.Info{Name: w.Name, DType: to, Shape: w.Shape}, parts: parts})
			continue
		}
		if c.o.cast() == tensor.Invalid && w.Part == "" && parts[0] != chosen.kept[i] {
			c.problem(w.Name, "packed codes are not fused: --type bf16 decodes them")
			return nil, 0
		}
		a.collect(to, w)
	}
	e.finish()
	a.fuseGroups()
	if beside := weights.Beside(c.src.Config, chosen.kept); beside != "" {
		c.note("%s are converted too", beside)
	}
	for i := range a.outputs {
		out := &a.outputs[i]
		out.renamed(c.kept)
		if naming != nil {
			out.Name = naming.Of(c.src.Config, out.Name)
		} else if table.InModel(out.Name) {
			out.Name = written.Prefix() + out.Name
		}
	}
	return a.outputs, 0
}

// naming returns how the output names its tensors: as the options say, else as the source does, and if its format has
// names of its own, as published files. It is nil for a family whose files have the table's names.
func (c *conversion) naming() *table.Naming {
	f := table.FamilyOf(c.src.Config)
	n := f.NamingOf(c.o.Names)
	switch {
	case n == nil && c.o.Names != "":
		c.problem("", "names %s: files of model_type %s name their tensors in one way", c.o.Names, c.src.Config.ModelType)
		return nil
	case f.Namings == nil:
		return nil
	}
	if c.o.Names == "" {
		if n = c.set.Naming(); c.src.ConfigInside() {
			n = &f.Namings[0]
		}
	}
	if c.o.Experts == FusedExperts && !n.Fuses {
		hint := ""
		if f.NamingOf("transformers") != nil {
			hint = "--names transformers writes fused experts"
		}
		c.problems = append(c.problems, problem.Problem{Cause: "files with these names hold each expert apart", Hint: hint})
	}
	switch apart := c.o.Experts != FusedExperts && c.o.Names == "" && c.set.Unfound(c.src.Config) != nil; {
	case c.o.Experts == PerExpert && n.Fuses && f.Joined:
		hint := "leave the experts as they are"
		if len(f.Namings) > 1 {
			hint = "--names published writes each expert apart"
		}
		c.problems = append(c.problems, problem.Problem{Cause: "transformers " + table.Unfound, Hint: hint})
	case apart && n.Fuses:
		c.notes = append(c.notes, "transformers "+table.Unfound+": --experts fused writes them together")
	}
	if n.Fuses && c.o.cast() == tensor.Invalid && (c.o.encodes() || slices.ContainsFunc(c.set.All(), (*weights.Weight).Scaled)) {
		cause := "transformers 5.23 takes attn_hc.scale for scales of quantised weights where names are its own"
		if c.src.Config.HyperConnections.HCMult == 0 {
			cause = fusedScales
		}
		c.problems = append(c.problems, problem.Problem{Cause: cause, Hint: "--type bf16 writes weights that load right, --names published keeps quantised ones"})
	}
	return n
}

// fuses reports whether a routed expert is written into a fused tensor. shared: the source has it in one. What
// transformers reads under its own names is fused; prediction layers have none of these.
func (c *conversion) fuses(n *table.Naming, w *weights.Weight, shared bool) bool {
	if n != nil {
		return n.Fuses && c.o.Experts != PerExpert && (w.Shared || w.Layer < c.src.Config.NumHiddenLayers) &&
			(shared || c.o.Names != "" || c.o.Experts == FusedExperts)
	}
	return c.o.Experts != PerExpert && !c.o.encodes() && (c.o.Experts == FusedExperts || shared)
}

// refusesForms makes FP8 one problem where the source's weights are quantised or no reader has FP8 for the model, and
// weights in blocks that would keep their dtype. It reports whether there are such blocks.
func (c *conversion) refusesForms(chosen selection) bool {
	if have := c.src.Config; c.o.encodes() && !have.HasReference(config.Native) {
		c.problem("", "nothing can read FP8 of model_type %s: no transformers with FP8 runs its published code "+
			"or has a class for it", have.ModelType)
	} else if c.o.encodes() && have.BlockOnly() {
		c.problem("", "which matrices of attention files of model_type %s have in FP8 is not known", have.ModelType)
	} else if f := tensor.FormOf(have.Quantization.Method); c.o.encodes() && f != tensor.Plain && f != tensor.FP8 {
		c.problem("", "its weights are quantised already (%s); --type bf16 decodes them", f.Name)
	}
	var types []string
	for _, w := range chosen.kept {
		if d := w.DType.String(); c.o.cast() == tensor.Invalid && w.DType.Blocked() && !slices.Contains(types, d) {
			types = append(types, d)
		}
	}
	if types != nil {
		slices.Sort(types)
		c.problem("", "its weights are quantised (%s), and %s has no such types; --type bf16 decodes them",
			strings.Join(types, ", "), c.format.Name)
	}
	return types != nil
}

// arrangement is the tensors to be written while experts are collected into fused tensors.
type arrangement struct {
	*conversion
	naming  *table.Naming
	outputs []output
	groups  map[string]fusedGroup // by the name of the fused tensor
}

// fused returns the fused tensor that a weight goes into under the output's names, and its index among the roles; nil for others.
func (a *arrangement) fused(w *weights.Weight) (f *table.Fused, index int) {
	if f, index = a.naming.FusedOf(w.OwnerPlace()); f != nil {
		return f, index
	}
	return w.Fused()
}

// target is the dtype that a weight is written in.
func (c *conversion) target(w *weights.Weight) tensor.DType {
	from, to := w.DType, c.o.cast()
	switch was := c.src.Was(w.Stored); {
	case to == tensor.Invalid && was != tensor.Invalid:
		return was
	case to == tensor.Invalid || from == to || from.Integer():
		return from
	case from.Scaled():
		if err := w.CheckScales(); err != nil {
			c.problem(w.Name, "%v", err)
			return from
		}
		return to
	case w.Row != nil && (w.Row.Float32(c.src.Config) || w.Row.Integer()): // as in transformers
		return from
	case from == tensor.F32 && c.src.Config.BlockOnly() && table.FamilyOf(c.src.Config).HasUnknown(w.Stored) && !w.IsScales() &&
		(slices.Max(append([]int{1}, w.Shape...)) == w.Len() || table.TorchDType(c.src.Config) != tensor.F32):
		return from // linear attention has vectors that transformers keeps in float32
	case from.Casts(), from.Blocked():
		return to
	}
	c.problem(w.Name, "dtype %s cannot be cast to %s", from, to)
	return from
}

// fusedGroup is a fused tensor under construction.
type fusedGroup struct {
	output int             // its place in outputs
	first  *weights.Weight // the first of its parts that the source has
}

// collect adds a weight to its fused tensor, which is written at the position of its first
// part.
func (a *arrangement) collect(to tensor.DType, w *weights.Weight) {
	f, index := a.fused(w)
	name, experts := f.NameIn(w.Layer)+w.Part, a.fusedExperts(f, w.Layer)
	g, seen := a.groups[name]
	if !seen {
		g = fusedGroup{len(a.outputs), w}
		a.groups[name] = g
		a.outputs = append(a.outputs, output{Info: tensor.Info{Name: name},
			parts: make([]*weights.Weight, experts*len(f.Roles))})
	}
	expert := max(0, w.Expert) // of an MLP there is one
	if expert, _ = a.kept.Renumber(w.Layer, expert); expert >= experts {
		a.problem(w.Name, "cannot be fused: config says %d experts", experts)
		return
	}
	out := &a.outputs[g.output]
	if out.DType != tensor.Invalid && out.DType != to {
		a.problem(w.Name, "cannot be fused: it would be %s, but others of %s %s", to, text.Quote(name), out.DType)
	}
	out.DType = to
	out.parts[expert*len(f.Roles)+index] = w
}

// fusedExperts returns the number of experts in a layer's fused tensor of the output; 1 if it is of one MLP.
func (c *conversion) fusedExperts(f *table.Fused, layer int) int {
	if f.Module != table.RoutedExperts {
		return 1
	}
	return c.experts(layer)
}

// experts returns the number of routed experts that a layer of the output has.
func (c *conversion) experts(layer int) int {
	if kept, pruned := c.kept[layer]; pruned {
		return len(kept)
	}
	return c.src.Config.MoE.NRoutedExperts
}

// fuseGroups completes the fused tensors.
func (a *arrangement) fuseGroups() {
	first, scales := "", ""
	for i := range a.outputs {
		out := &a.outputs[i]
		g, ok := a.groups[out.Name]
		if !ok {
			continue
		}
		first = cmp.Or(first, out.Name)
		f, _ := a.fused(g.first)
		if absent := slices.Index(out.parts, nil); absent >= 0 {
			n := len(f.Roles)
			row := table.FamilyOf(a.src.Config).Row(f.Module, f.Roles[absent%n])
			a.problem(out.Name, "cannot be fused: %s is not among the tensors",
				text.Quote(a.kept.Larger(row.NameIn(g.first.Layer, absent/n)+g.first.Part)))
			continue
		}
		part, experts := out.parts[0], a.fusedExperts(f, g.first.Layer)
		if i := slices.IndexFunc(out.parts, func(p *weights.Weight) bool {
			return len(p.Shape) != 2 || !slices.Equal(p.Shape, part.Shape)
		}); i >= 0 {
			a.problem(out.Name, "cannot be fused: %s has shape %v, but %s %v", text.Quote(part.Name), part.Shape,
				text.Quote(out.parts[i].Name), out.parts[i].Shape)
			continue
		}
		out.Shape = []int{experts, part.Shape[0] * len(out.parts) / experts, part.Shape[1]}
		if f.Module != table.RoutedExperts {
			out.Shape = out.Shape[1:]
		}
		w := a.set.Find(part.Owner())
		if part.Part != "" && len(f.Roles) > 1 && w != nil && len(w.Shape) == 2 && w.Shape[0]%w.Block[0] != 0 {
			a.note("%s: %d rows per projection are not whole blocks of %d: "+
				"the scales of gate and up stay apart, and a reader that takes both for one matrix misreads them",
				text.Quote(out.Name), w.Shape[0], w.Block[0])
		}
		if part.IsScales() {
			scales = cmp.Or(scales, out.Name)
		}
	}
	if first != "" {
		a.checkReaders(first)
	}
	switch {
	case scales == "" || !a.src.Config.HasReference(config.Native):
	case a.o.Experts != FusedExperts || a.o.AllowFP8Fused: // they are fused already, or the user insists
		a.note("%s: %s; --type bf16 writes experts that load right", text.Quote(scales), fusedScales)
	default:
		a.problems = append(a.problems, problem.Problem{Tensor: scales, Cause: fusedScales,
			Hint: "--type bf16 writes experts that load right; --allow-fp8-fused writes these"})
	}
}

// checkReaders warns of readers that cannot read fused tensors such as first: only
// transformers' own classes, from transformers 5 on, can.
func (c *conversion) checkReaders(first string) {
	have := c.src.Config
	switch {
	case have.HasReference(config.Native):
		if have.Reference == config.Remote {
			c.note("the code that auto_map in config.json names cannot read fused experts, such as %s; "+
				"transformers' own classes can, from transformers 5 on", text.Quote(first))
		}
	case c.o.Experts == FusedExperts:
		c.problem(first, "nothing can read fused experts of model_type %s: "+
			"its published code fills experts that it does not find with random numbers, "+
			"and transformers has no class for it; leave the experts as they are, or ask for %s",
			have.ModelType, PerExpert)
	default:
		c.note("nothing can read fused experts of model_type %s, such as %s: ask for %s experts", have.ModelType,
			text.Quote(first), PerExpert)
	}
}

// fusedScales is why fused experts have no scales.
const fusedScales = "transformers 5.23 ignores the scales of fused experts wherever it dequantises, as on a CPU, " +
	"and computes with wrong weights"
