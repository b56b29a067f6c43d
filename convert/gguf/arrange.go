package gguf

// How the weights of a model become tensors of llama.cpp's files, and which models these
// files cannot hold.

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"dsmoe/config"
	"dsmoe/convert/format"
	"dsmoe/model/table"
	"dsmoe/model/tensor"
	"dsmoe/text"
	"dsmoe/text/problem"
)

// arranger makes the tensors of a file of weights.
type arranger struct {
	config    *config.Config
	unwritten map[string]bool // weights that no tensor holds yet
	made      []format.Arranged
	places    []table.Place  // of the first weight of each of made
	stacks    map[string]int // of experts, by name, in made
	wrong     []problem.Problem
}

// arrange is Dialect.Arrange.
func arrange(c *config.Config, weights []tensor.Info, kind string) ([]format.Arranged, []problem.Problem) {
	a := arranger{config: c, unwritten: make(map[string]bool, len(weights)), stacks: map[string]int{}}
	for _, reason := range unsayable(c) {
		a.fail("", "%s", reason)
	}
	arch, mix, dtypes := modelOf(c).arch, newMixer(kind, c), map[string]tensor.DType{}
	if arch == "" {
		return nil, a.wrong
	}
	if arch == deepseek4 && mix != nil && mix.most != tensor.Q8_0 {
		a.fail("", "--type %s: this writes DeepSeek-V4 as llama.cpp's converter does, q8_0, or in bf16, f16 or f32", kind)
	}
	for _, w := range weights {
		a.unwritten[w.Name], dtypes[w.Name] = true, w.DType
	}
	f := table.FamilyOf(c)
	all := maps.Clone(a.unwritten)
	for s := range f.Required(c, func(name string) bool { return all[name] }) {
		a.slot(s)
	}
	for _, i := range a.stacks {
		if x := &a.made[i]; len(x.Weights) != x.Shape[0] {
			a.fail(x.Weights[0], "is one of %s to be written, but a file has all %d experts of a layer in one tensor",
				text.Plural(len(x.Weights), "expert"), x.Shape[0])
		}
	}
	for _, w := range weights {
		if a.unwritten[w.Name] && !f.Ignores(c, w.Name) {
			a.fail(w.Name, "is not in the table of %s: no tensor of a GGUF file holds it", c.ModelType)
		}
	}
	for i := range a.made {
		x := &a.made[i]
		switch {
		case a.places[i].Row.Integer():
			x.DType = tensor.I32
		case storedF32(arch, x.Name, len(x.Shape), mix):
			x.DType = tensor.F32
		case arch == deepseek4:
			x.DType = asPublished(a.places[i], dtypes[x.Weights[0]], x.Shape[len(x.Shape)-1], mix)
		case mix != nil:
			x.DType = mix.dtype(a.places[i], x.Shape[len(x.Shape)-1])
		}
	}
	slices.SortStableFunc(a.wrong, func(x, y problem.Problem) int { return strings.Compare(x.String(), y.String()) })
	return a.made, a.wrong
}

func (a *arranger) fail(name, cause string, args ...any) {
	a.wrong = append(a.wrong, problem.Problem{Tensor: name, Cause: fmt.Sprintf(cause, args...)})
}

// slot adds the tensors of one weight, if it is to be written.
func (a *arranger) slot(s table.Slot) {
	if !a.unwritten[s.Name] {
		return
	}
	delete(a.unwritten, s.Name)
	g := s.Row.GGUF
	for i := range g.Pieces {
		o := g.Pieces[i].Order(a.config, s.Shape)
		a.add(s, format.Arranged{Name: s.InLayer(g.Pieces[i].Name), Shape: o.Shape, Weights: []string{s.Name},
			First: o.First, View: o.View})
	}
	if len(g.Pieces) > 0 {
		return
	}
	name := s.InLayer(g.Name)
	switch at, seen := a.stacks[name]; {
	case s.Expert < 0:
		a.add(s, format.Arranged{Name: name, Shape: s.Shape, Weights: []string{s.Name}})
	case seen:
		a.made[at].Weights = append(a.made[at].Weights, s.Name)
	default:
		a.stacks[name] = len(a.made)
		weights := append(make([]string, 0, a.config.MoE.NRoutedExperts), s.Name)
		a.add(s, format.Arranged{Name: name, Shape: append([]int{a.config.MoE.NRoutedExperts}, s.Shape...), Weights: weights})
	}
}

func (a *arranger) add(s table.Slot, x format.Arranged) {
	a.made, a.places = append(a.made, x), append(a.places, s.Place)
}

// storedF32 reports whether llama.cpp stores a tensor in F32: in files of every type vectors, norms, the gate, and
// tensors that are not weights (ModelBase.prepare_tensors of conversion/base.py); in files without a mixture the weights
// of an indexer's heads, too. DeepSeek-V4's gate stays as it is stored; its matrices that are published in F32 stay that.
func storedF32(arch, name string, rank int, mix *mixer) bool {
	ends := func(suffix string) bool { return strings.HasSuffix(name, suffix) }
	switch {
	case rank <= 1, !ends(".weight"):
		return true
	case arch == deepseek4:
		return ends("_fn.weight") || ends("_ape.weight")
	}
	return ends("_norm.weight") || ends(".ffn_gate_inp.weight") || mix == nil && ends(".indexer.proj.weight")
}
