package plan

// Which tensors a conversion keeps, and which weights the output then lacks.

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"dsmoe/config"
	"dsmoe/convert/checkpoint"
	"dsmoe/model/table"
	"dsmoe/model/tensor"
	"dsmoe/model/weights"
	"dsmoe/text"
	"dsmoe/text/problem"
)

// filter decides which tensors are kept, and remembers what each glob did.
type filter struct {
	layers           Layers
	decoder          int        // limit of kept layers: the layers from here on predict further tokens
	kept             table.Kept // routed experts; nil keeps all
	include, exclude []string
	matched          map[string]match
	config           *config.Config
}

// match is the effect of a glob so far; a higher value has more effect.
type match uint8

const (
	nothing match = iota // it matched no name
	dropped              // it matched only names that another filter drops
	decided              // it decided about a tensor
)

func newFilter(c *config.Config, o Options) *filter {
	f := &filter{layers: o.Layers, decoder: 1 << 30, kept: o.Prune.Kept(c), include: o.Include, exclude: o.Exclude,
		matched: map[string]match{}, config: c}
	if o.NoMTP {
		f.decoder = c.NumHiddenLayers
	}
	return f
}

// Needed returns the stored tensors that a conversion with these options reads, of those in all: see
// checkpoint.Need. It is nil unless the options select layers or tensors.
func (o Options) Needed(c *config.Config, all weights.Headers) (map[string]bool, error) {
	if c == nil || len(o.Layers)+len(o.Include)+len(o.Exclude) == 0 && !o.NoMTP && !o.Prune.some() {
		return nil, nil
	}
	if f, err := checkpoint.Written(o.Format); err == nil && f.Dialect != nil {
		o.NoMTP = !o.MTP && (o.NoMTP || !f.Dialect.Predicts(c))
	}
	f := newFilter(c, o)
	return weights.Holders(c, all, func(w *weights.Weight) bool { return f.keeps(w.Owner(), w.Place) }), nil
}

// hasLayer reports whether a layer is kept.
func (f *filter) hasLayer(l int) bool { return f.layers.Has(l) && l < f.decoder }

// keeps decides about a weight at a place by its per-expert name.
func (f *filter) keeps(name string, p table.Place) bool {
	in := p.Layer < 0 || f.hasLayer(p.Layer)
	if p.Layer < 0 && table.FamilyOf(f.config).Leaves(name) {
		in = f.decoder > f.config.NumHiddenLayers && len(f.layers) == 0
	}
	if _, kept := f.kept.Renumber(p.Layer, p.Expert); in && p.Expert >= 0 {
		in = kept
	}
	included := f.match(f.include, name, in) || len(f.include) == 0
	excluded := f.match(f.exclude, name, in && included)
	return in && included && !excluded
}

// match reports whether one of globs matches a name. open: no other filter drops the name.
func (f *filter) match(globs []string, name string, open bool) (matched bool) {
	did := dropped
	if open {
		did = decided
	}
	for _, glob := range globs {
		if table.FamilyOf(f.config).Matches(f.config, glob, name) {
			f.matched[glob] = max(f.matched[glob], did)
			matched = true
		}
	}
	return matched
}

// choose applies the filter and compares the kept weights with the table.
func (c *conversion) choose() selection {
	for _, n := range c.src.Inventory.Notes {
		if (c.src.FilesIn(c.format) == nil || !c.src.IsTranslation(n)) && (c.o.Adapter == nil || !checkpoint.IsAdapter(n.File)) {
			c.note("%s", n)
		}
	}
	if c.set.Naming() == nil && slices.ContainsFunc(c.set.All(), func(w *weights.Weight) bool { return w.Name == "model."+w.Stored }) {
		c.note("the source's names lack \"model.\": it is put before them")
	}
	for _, m := range c.set.Misfits {
		c.findings.problem(m.Name, "%s", m.Cause)
	}
	c.adapt()
	s := selection{filter: newFilter(c.src.Config, c.o), set: c.set}
	activations, changes := 0, c.format.Dialect != nil || c.o.DType != tensor.Invalid
	for _, w := range c.set.Ordered(c.src.Config) {
		if changes && w.ScalesActivations() {
			activations++
			s.dropped++
		} else if s.filter.keeps(w.Owner(), w.Place) {
			s.kept = append(s.kept, w)
		} else {
			s.dropped++
		}
	}
	if activations > 0 {
		c.note("%s of activations and caches: not written, as the output's weights are not used with them",
			text.Plural(activations, "scale"))
	}
	has := map[int]bool{}
	for l := range c.src.Config.NumHiddenLayers {
		has[l] = true
	}
	for _, w := range c.set.All() {
		has[w.Layer] = true
	}
	delete(has, -1) // -1: weights outside the layers
	if err := c.o.Layers.Check("the checkpoint", "layers", has); err != nil {
		c.problem("", "%v", err)
	}
	for _, glob := range slices.Concat(c.o.Include, c.o.Exclude) {
		switch s.filter.matched[glob] {
		case nothing: // most likely a typing mistake
			c.problems = append(c.problems, problem.Problem{Cause: fmt.Sprintf("the glob \"%s\" matches no tensor", text.Line(glob)),
				Hint: "globs are of per-expert names such as model.layers.1.mlp.experts.0.up_proj.weight; " +
					"scales go with their weight"})
		case dropped:
			c.note("the glob \"%s\" matches only tensors that are left out anyhow", text.Line(glob))
		}
	}
	c.checkPrune(s)
	unmerged := len(c.changes)
	for _, w := range s.kept {
		if c.changes[w.Name] != nil {
			unmerged--
		}
	}
	if unmerged > 0 {
		c.note("the adapter changes %s that are left out", text.Plural(unmerged, "weight"))
	}
	beyond := c.checkSlots(s)
	if len(s.kept) == 0 && len(c.problems) == 0 {
		c.problem("", "the filters leave no tensor")
	}
	if beyond > 0 {
		c.note("%s that config.json does not imply are converted too", text.Plural(beyond, "tensor"))
	}
	return s
}

// checkSlots demands every weight that the config implies and the filter keeps, and
// returns how many weights are kept beyond these.
func (c *conversion) checkSlots(s selection) (beyond int) {
	for _, w := range s.kept {
		if !w.IsScales() && !w.ScalesActivations() && !table.Outside(c.src.Config, w.Name) {
			beyond++
		}
	}
	disagreeing, first, missing := 0, "", -1
	for slot := range table.FamilyOf(c.src.Config).Required(c.src.Config, c.set.Has) {
		if !s.filter.keeps(slot.Name, slot.Place) {
			continue
		}
		switch w := c.set.Find(slot.Name); {
		case w == nil && c.set.InMisfit(slot.Name): // reported already
		case w == nil:
			if missing < 0 {
				missing = len(c.problems)
			}
			c.problem(slot.Name, "missing%s", slot.Expected())
		case slot.Row.Shape != nil && !slices.Equal(w.Shape, slot.Shape):
			cause := fmt.Sprintf("shape %v, config says %v", w.Shape, slot.Shape)
			if slices.Equal(w.Shape, []int{0}) {
				cause = weights.Placeholder
			}
			c.problem(slot.Name, "%s", cause)
		default:
			beyond--
			if !w.Scaled() {
				continue
			}
			if cause := w.Disagreement(c.src.Config, slot); cause != "" {
				disagreeing, first = disagreeing+1, cmp.Or(first, text.Quote(w.Name)+" "+cause)
			}
		}
	}
	if missing >= 0 {
		c.problems[missing].Hint = c.unknownNames(s)
	}
	if disagreeing > 0 {
		c.note("%s read as their tensors say, and not as config.json does: %s", text.Plural(disagreeing, "weight"), first)
	}
	return beyond
}

// wrappers are parts of names that other tools put into them.
var wrappers = []struct{ part, cause string }{
	{"lora_", "an adapter lies among the weights: save it apart, and merge it with --adapter"},
	{".base_layer.", "an adapter lies among the weights: save it apart, and merge it with --adapter"},
	{".switch_mlp.", "these are MLX's names: convert the checkpoint that it was made from"},
	{".mlp.router.", "these are Megatron's names: export the model as HuggingFace has it"},
	{"_orig_mod.", "_orig_mod. is of torch.compile: save the module of that name"},
	{"base_model.model.", "base_model.model. is of peft: save the model in it"},
	{"module.", "module. is of DistributedDataParallel: save the model in it"},
}

// unknownNames tells of tensors that the table does not know, where weights are missing; "" if there are none.
func (c *conversion) unknownNames(s selection) (hint string) {
	var unknown []string
	for _, w := range s.kept {
		if w.OwnerPlace().Row == nil && !w.ScalesActivations() && !table.FamilyOf(c.src.Config).Ignores(c.src.Config, w.Name) {
			unknown = append(unknown, w.Stored)
		}
	}
	if unknown == nil {
		return ""
	}
	hint = fmt.Sprintf("the files hold %s that model_type %s has none of, such as %s", text.Plural(len(unknown), "tensor"),
		c.src.Config.ModelType, text.Quote(unknown[0]))
	for _, w := range wrappers {
		if i := slices.IndexFunc(unknown, func(name string) bool { return strings.Contains(name, w.part) }); i >= 0 {
			return fmt.Sprintf("%s; %s (%s)", hint, w.cause, text.Quote(unknown[i]))
		}
	}
	return hint
}

// checkPrune reduces the kept experts to the layers that are converted, and checks them.
func (c *conversion) checkPrune(s selection) {
	if c.kept = s.filter.kept; c.kept == nil {
		return
	}
	absent := table.FamilyOf(c.src.Config).AbsentMTP(c.src.Config, c.set.Has)
	maps.DeleteFunc(c.kept, func(l int, _ []int) bool { return !s.filter.hasLayer(l) || slices.Contains(absent, l) })
	for _, problem := range c.o.Prune.Check(c.src.Config, slices.Sorted(maps.Keys(c.kept))) {
		c.problem("", "%s", problem)
	}
	unknown, outside := map[int]bool{}, ""
	for _, w := range s.kept {
		p := w.OwnerPlace()
		router := p.Module() == table.Router && p.Role() != table.SharedExpertGate || p.Row == nil && strings.Contains(w.Name, ".mlp.gate.")
		divides := w.Role().CountsExperts() && w.Part == "" && !w.Scaled() // it has a row for each expert
		if w.Is(table.Router, table.TID2EID) {
			divides = w.DType == tensor.I64 && len(w.Shape) == 2 && w.Shape[1] <= c.src.Config.MoE.NumExpertsPerTok
		}
		switch _, listed := c.kept[p.Layer]; {
		case p.Expert < 0 && !router:
		case !listed && p.Layer < 0:
			outside = cmp.Or(outside, w.Name)
		case !listed:
			unknown[p.Layer] = true
		case router && !divides:
			c.problem(w.Name, "cannot be divided among the experts")
		}
	}
	if outside != "" {
		c.problem(outside, "belongs to experts outside the decoder, which are not pruned; leave them out with --exclude")
	}
	if len(unknown) > 0 {
		c.problem("", "config.json does not imply that these layers have routed experts: %s; leave them out with --layers",
			text.Ranges(slices.Sorted(maps.Keys(unknown))))
	}
}

// renumbers reports whether a weight is a table of experts that get other numbers.
func (c *conversion) renumbers(w *weights.Weight) bool {
	_, pruned := c.kept[w.Layer]
	return pruned && w.Is(table.Router, table.TID2EID)
}

// noteKept says which experts are kept.
func (c *conversion) noteKept(s selection) {
	tables := 0
	for _, w := range s.kept {
		if c.renumbers(w) {
			tables++
		}
	}
	if tables > 0 {
		c.note("tid2eid of %s: an entry of a dropped expert becomes the next kept expert, cyclically, that its row lacks",
			text.Plural(tables, "layer"))
	}
	for _, experts := range c.kept {
		c.note("%s of %d are kept in %s, renumbered from 0", text.Plural(len(experts), "routed expert"),
			c.src.Config.MoE.NRoutedExperts, text.Plural(len(c.kept), "layer"))
		return
	}
}

// missing counts the weights that the output's config implies and the output does not have.
func (c *conversion) missing(written *config.Config, s selection) []Missing {
	f := table.FamilyOf(written)
	counts := map[table.Module]int{}
	has := func(name string) bool { return s.has(c.kept.Larger(name)) }
	for slot := range f.Required(written, has) {
		if !has(slot.Name) {
			module := slot.Module()
			if slot.Layer >= written.NumHiddenLayers {
				module = table.MTP
			}
			counts[module]++
		}
	}
	all := []Missing{}
	for _, module := range slices.Sorted(maps.Keys(counts)) {
		all = append(all, Missing{string(module), counts[module]})
	}
	for _, n := range f.Notes(written, has) {
		c.note("%s", n)
	}
	return all
}
