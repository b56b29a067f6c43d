package plan

// What an adapter changes, weight by weight.

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"dsmoe/convert/checkpoint"
	"dsmoe/convert/operation"
	"dsmoe/model/table"
	"dsmoe/model/tensor"
	"dsmoe/model/weights"
	"dsmoe/text"
	"dsmoe/text/problem"
)

// change is what an adapter does to a weight.
type change struct {
	operation.Product              // of rank 0 for none
	module            string       // that peft calls it by, of the product
	right, left       string       // tensors of the adapter that hold the factors
	whole             *tensor.Info // tensor of the adapter in place of the base's, to which the product is added; or nil
}

// adapt pairs what the adapter changes with the weights. Tensors that belong to no weight, or do not fit it, are problems.
func (c *conversion) adapt() {
	a := c.o.Adapter
	if a == nil {
		return
	}
	c.changes = map[string]*change{}
	c.problems = append(c.problems, a.Problems...)
	if len(a.Changes) == 0 && a.Problems == nil {
		c.problems = append(c.problems, problem.Problem{File: a.Files[0].Name, Cause: "holds no factor of a LoRA"})
	}
	for _, x := range a.Changes {
		cause, name := "", x.A.Name
		if x.Whole != nil {
			cause, name = c.replace(x), x.Whole.Name
		} else if w := c.set.Find(weights.TableName(c.src.Config, x.Module+".weight")); w != nil {
			cause = c.add(x, w)
		} else {
			cause = c.addToExperts(x)
		}
		if cause != "" {
			c.problems = append(c.problems, problem.Problem{File: a.Files[0].Name, Tensor: name, Cause: cause})
		}
	}
	if a.Problems == nil {
		c.checkTargets()
	}
	if a.Base != "" {
		c.note("the adapter was trained on %s, and is merged into %s", text.Quote(a.Base), text.Quote(c.src.Path))
	}
}

// change records what is done to a weight, or says why nothing can be.
func (c *conversion) change(w *weights.Weight, x change) string {
	before := c.changes[w.Name]
	switch tied := c.src.Config.TieWordEmbeddings; {
	case before != nil && (before.Rank > 0) != (x.Rank > 0): // an embedding is saved with its factors
		x.Product, x.module = cmp.Or(before.Product, x.Product), before.module+x.module
		x.right, x.left = before.right+x.right, before.left+x.left
		x.whole = cmp.Or(before.whole, x.whole)
	case before != nil:
		return "changes " + text.Quote(w.Name) + ", which another tensor changes too"
	case tied && (w.Is(table.Head, table.LMHead) || w.Is(table.Embedding, table.EmbedTokens) && c.set.Has(table.HeadName)):
		return "embedding and head are one weight (tie_word_embeddings), and the adapter changes one of two stored tensors"
	case (w.Scaled() || w.DType.Blocked()) && c.o.cast() == tensor.Invalid:
		return fmt.Sprintf("%s is quantised (%s): --type bf16 decodes the weights, and merges", text.Quote(w.Name), w.Form().Name)
	}
	c.changes[w.Name] = &x
	return ""
}

// replace takes a weight from the adapter.
func (c *conversion) replace(x *checkpoint.Change) string {
	w := c.set.Find(weights.TableName(c.src.Config, x.Module))
	switch {
	case w == nil:
		return "the base has no such tensor"
	case w.Unread():
		return ""
	case !slices.Equal(w.Shape, x.Whole.Shape):
		return fmt.Sprintf("shape %v, but the base's is %v", x.Whole.Shape, w.Shape)
	}
	return c.change(w, change{whole: x.Whole})
}

// add adds a product to a weight.
func (c *conversion) add(x *checkpoint.Change, w *weights.Weight) string {
	l, a, b := c.o.Adapter, x.A.Shape, x.B.Shape
	rank, scale := l.Of(l.PatternName(x.Module))
	shape := []int{b[0], a[1]}
	if x.Embedding {
		shape = []int{a[1], b[0]}
	}
	switch {
	case w.Unread():
		return ""
	case rank != a[0] || rank <= 0:
		return fmt.Sprintf("has rank %d, but %s gives %d", a[0], checkpoint.AdapterConfig, rank)
	case !slices.Equal(shape, w.Shape):
		return fmt.Sprintf("changes a matrix %v, but %s is %v", shape, text.Quote(w.Name), w.Shape)
	}
	r, in := int64(rank), int64(a[1])
	p := change{operation.Product{Rank: rank, Scale: scale, Left: operation.Factor{DType: x.B.DType, Line: r, Rank: 1},
		Right: operation.Factor{DType: x.A.DType, Line: 1, Rank: in}}, x.Module, x.A.Name, x.B.Name, nil}
	if x.Embedding {
		p.Left, p.Right, p.left, p.right = p.Right, p.Left, p.right, p.left
	}
	return c.change(w, p)
}

// addToExperts adds the products of fused experts: A has the rows of one expert behind those of the other, and B for
// each of the ranks a column of every expert. Which of the two fused tensors it is of, their shapes tell, and whether A
// is of the rows of an expert's matrix, as before peft 0.19.
func (c *conversion) addToExperts(x *checkpoint.Change) string {
	have, cause := c.src.Config, "the base has no such module"
	module := strings.ReplaceAll(x.Module, ".base_layer", "") // of the second parameter of a module
	for _, parameter := range []string{"gate_up_proj", "down_proj"} {
		f, layer := table.FusedAt(weights.TableName(have, module+"."+parameter))
		if f == nil {
			continue
		}
		first := c.set.Find(table.FamilyOf(have).Row(table.RoutedExperts, f.Roles[0]).NameIn(layer, 0))
		if first == nil {
			continue
		} else if first.Unread() {
			return ""
		}
		rows, cols := len(f.Roles)*first.Shape[0], first.Shape[1]
		swapped := x.A.Shape[1] == rows && x.B.Shape[0] == cols // A is of the rows
		switch straight := x.A.Shape[1] == cols && x.B.Shape[0] == rows; {
		case straight && swapped:
			if swapped = !c.o.Adapter.Since(19); c.o.Adapter.Version == "" {
				return "the matrices are square, and without peft_version which factor is of their rows is not known"
			}
		case !straight && !swapped:
			cause = fmt.Sprintf("changes matrices [%d %d], which no fused experts of the base are", x.B.Shape[0], x.A.Shape[1])
			continue
		}
		return c.addFused(x, f, layer, module+"."+parameter, swapped)
	}
	return cause
}

// addFused adds the products to the weights in a fused tensor, which peft calls parameter.
func (c *conversion) addFused(x *checkpoint.Change, f *table.Fused, layer int, parameter string, swapped bool) string {
	experts, l := c.src.Config.MoE.NRoutedExperts, c.o.Adapter
	rank, scale := l.Of(parameter)
	if x.A.Shape[0] != rank*experts || rank <= 0 {
		return fmt.Sprintf("has %d rows, but rank %d of %d experts gives %d", x.A.Shape[0], rank, experts, rank*experts)
	}
	all, width, family := int64(x.A.Shape[0]), int64(x.A.Shape[1]), table.FamilyOf(c.src.Config)
	for e := range experts {
		first := int64(0) // row of the expert's matrix
		for _, role := range f.Roles {
			w := c.set.Find(family.Row(table.RoutedExperts, role).NameIn(layer, e))
			if w == nil {
				return fmt.Sprintf("the base lacks %s of expert %d", role, e)
			}
			p := change{operation.Product{Rank: rank, Scale: scale,
				Left:  operation.Factor{DType: x.B.DType, First: first*all + int64(e), Line: all, Rank: int64(experts)},
				Right: operation.Factor{DType: x.A.DType, First: int64(e*rank) * width, Line: 1, Rank: width}},
				parameter, x.A.Name, x.B.Name, nil}
			if swapped {
				p.Left, p.Right, p.left, p.right = p.Right, p.Left, p.right, p.left
				p.Left.First, p.Right.First = p.Left.First+first, int64(e)
			}
			if cause := c.change(w, p); cause != "" {
				return cause
			}
			first += int64(w.Shape[0])
		}
	}
	return ""
}

// checkTargets names what the adapter's config selects and the adapter lacks, though it has others of the same place in the
// model, and what the adapter changes though the config does not select it: peft leaves that out.
func (c *conversion) checkTargets() {
	l, rows := c.o.Adapter, map[*table.Row]bool{}
	for name, x := range c.changes {
		rows[c.set.Find(name).Row] = x.Rank > 0
	}
	unread := l.Modules.Unread || l.Excluded.Unread
	if unread {
		c.note("target_modules is a pattern that is not understood: which modules the adapter must have is not checked")
	}
	var lacking, unselected []string
	for _, w := range c.set.All() {
		x, module := c.changes[w.Name], strings.TrimSuffix(w.Name, ".weight")
		switch {
		case unread || w.Row == nil || w.Layer >= c.src.Config.NumHiddenLayers:
		case w.Module() == table.RoutedExperts && len(l.Layers.Names) > 0: // peft may take an expert's number for its layer's
		case x == nil && rows[w.Row] && c.selects(w, module):
			lacking = append(lacking, text.Quote(module))
		case x != nil && x.Rank > 0 && l.Names() && !c.selects(w, module) && !c.selects(w, x.module):
			if name := text.Quote(x.module); !slices.Contains(unselected, name) {
				unselected = append(unselected, name)
			}
		}
	}
	for _, module := range l.Saved.Names {
		if !slices.ContainsFunc(c.o.Adapter.Changes, func(x *checkpoint.Change) bool {
			return x.Whole != nil && strings.HasSuffix(strings.TrimSuffix(strings.TrimSuffix(x.Module, ".weight"), ".bias"), module)
		}) {
			lacking = append(lacking, text.Quote(module)+" (modules_to_save)")
		}
	}
	for _, p := range []struct {
		modules []string
		cause   string
	}{
		{lacking, "lacks modules that %s selects: %s"},
		{unselected, "changes modules that %s does not select, and that peft leaves as they are: %s"},
	} {
		const most = 3
		if p.modules != nil {
			c.problems = append(c.problems, problem.Problem{File: l.Files[0].Name,
				Cause: fmt.Sprintf(p.cause, checkpoint.AdapterConfig, text.Some(p.modules, most, ", "))})
		}
	}
}

// selects reports whether the adapter's config selects a weight, whose module has that name.
func (c *conversion) selects(w *weights.Weight, module string) bool {
	l := c.o.Adapter
	if f, _ := w.Fused(); f != nil && l.Parameters.Selects(w.FusedName()) || l.Parameters.Selects(module+".weight") ||
		l.Parameters.Selects(module) {
		return true
	}
	return l.SelectsModule(module, fmt.Sprint(w.Layer))
}
