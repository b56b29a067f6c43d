package verify

import (
	"fmt"
	"iter"
	"maps"
	"path"
	"slices"
	"strconv"

	"dsmoe/config"
	"dsmoe/model"
	"dsmoe/model/table"
	"dsmoe/model/tensor"
	"dsmoe/model/weights"
	"dsmoe/text"
	"dsmoe/text/problem"
	"dsmoe/verify/bounds"
	"dsmoe/verify/pack"
	"dsmoe/verify/report"
)

// What a run looks at: the layers that the pack has stages of, or of these what the user
// selects. Other parts of the model are not run, and their weights not read.

// scope is which parts of the model are run, and which stages of the pack are compared.
type scope struct {
	pack        *pack.Pack
	config      *config.Config
	layers      text.Spans   // that the user selects; all if empty
	stages      []string     // globs of stages that the user selects; all if empty
	part        map[int]bool // layers that are the user's part, ends among them; nil if no part is selected
	present     map[int]bool // layers that the pack has stages of
	selected    map[int]bool // layers with a stage that the user selects by layers or stages
	absent      []int        // layers without a stage that the manifest does not name as absent
	units       []unit       // in the order of the forward pass
	predictions int          // number of prediction layers that are run
}

// unit is a part of the model in a run: the embedding, a layer of the decoder, the head, or a prediction layer.
type unit struct {
	runs       bool // it is computed
	routerOnly bool // if it runs: of the layer the router alone
	blockOnly  bool // of the layer the MLP alone can run: attention is not computed
	given      bool // it begins with a tensor of the pack although the unit before it runs
	wanted     bool // it has, or should have, a stage that is compared
	needed     bool // a run of everything computes it
	compares   bool // the verdict covers it: it is wanted or, if no layers or stages are selected, needed
}

// ends stands for the embedding, the head and prediction layers in a part.
const ends = -1

// newScope settles what is run. The error says what of the selection the pack has not, or
// what the pack lacks to begin a layer with.
func newScope(c *config.Config, golden *pack.Pack, o *Options) (*scope, error) {
	s := &scope{pack: golden, config: c, layers: o.Layers, stages: o.Stages, present: map[int]bool{}, selected: map[int]bool{}}
	for name := range golden.Manifest.Tensors {
		if at := pack.Parse(name); leavesOut(c, at) {
			continue
		} else if at.Layer >= 0 && !at.IsOwnInput() {
			s.present[at.Layer] = true
			s.selected[at.Layer] = s.selected[at.Layer] || s.picks() && s.selectsStage(name)
		} else if at.Layer > 0 && golden.Manifest.LayerInputs[strconv.Itoa(at.Layer)].Kind == pack.Recorded {
			s.present[at.Layer-1] = true // it is what that layer gives
		}
	}
	if err := s.checkSelection(); err != nil {
		return nil, err
	}
	for _, number := range slices.Sorted(maps.Keys(golden.Manifest.LayerInputs)) {
		if l, _ := strconv.Atoi(number); l >= c.NumHiddenLayers {
			return nil, golden.Fault("manifest.json", fmt.Sprintf("layer_inputs: layer %d: the decoder has layers 0-%d", l,
				c.NumHiddenLayers-1))
		}
	}
	all := s // a run of everything
	if o.Part != nil || s.picks() {
		all = &scope{pack: golden, config: c, present: s.present}
		err := all.settle()
		if err == nil && o.Part != nil {
			err = s.takePart(*o.Part, all)
		}
		if err != nil && o.Part != nil {
			return nil, err
		} else if err != nil { // no run of everything is possible, nor a merge that covers it
			all.units = make([]unit, c.NumHiddenLayers+2)
			for l := range c.NumHiddenLayers {
				all.units[1+l].runs = s.present[l]
			}
			all.units[0].runs, all.units[1+c.NumHiddenLayers].runs = true, true
		}
	}
	if err := s.settle(); err != nil {
		return nil, err
	}
	for i := range s.units {
		u, layer := &s.units[i], i-1
		if u.needed = i < len(all.units) && all.units[i].runs; layer >= c.NumHiddenLayers {
			layer = ends
		}
		u.compares = u.wanted && s.picks() || u.needed && !s.picks() && s.inPart(layer)
	}
	last := c.NumHiddenLayers
	if o.Mode == report.Chained && s.restricted() && s.units[1+last].runs && s.predictions == 0 && !s.followsUnit(last) {
		// nothing but the head is selected: that is a local check
		return nil, golden.Fault("chained mode", fmt.Sprintf("the layers before the head are not selected, and it would begin "+
			"with the pack's %s; select stages of layer %d too, or use --mode local", pack.InputStage(last), last-1))
	}
	return s, nil
}

// takePart makes the scope a part of a run of everything.
func (s *scope) takePart(p report.Part, all *scope) error {
	if s.pack.Manifest.Mode == "train" {
		return s.pack.Fault("", "a pack of training has no parts: losses and gradients go through all layers; leave out --part")
	}
	groups, bytes := all.groups(), all.bytesByLayer()
	size := make([]int64, len(groups))
	for i, layers := range groups {
		for _, l := range layers {
			size[i] += bytes[l]
		}
	}
	s.part = map[int]bool{}
	for i, part := range weights.Share(size, p.Of) {
		for _, l := range groups[i] {
			if part == p.Index-1 {
				s.part[l] = true
			}
		}
	}
	return nil
}

// groups returns the layers of the decoder, and the ends first, together with those that they begin with the output of:
// the pack does not hold it, or it is compared with the layer's own input.
func (s *scope) groups() [][]int {
	groups, last := [][]int{{ends}}, s.config.NumHiddenLayers
	for l := range last {
		_, own := s.pack.Manifest.LayerInputs[strconv.Itoa(l)]
		if s.units[1+l].runs && s.followsUnit(l) && (own || !s.pack.Has(pack.InputStage(l))) {
			groups[len(groups)-1] = append(groups[len(groups)-1], l)
		} else {
			groups = append(groups, []int{l})
		}
	}
	if n := len(groups) - 1; s.units[1+last].runs && !s.pack.Has(pack.InputStage(last)) && n > 0 {
		groups[0], groups = append(groups[0], groups[n]...), groups[:n]
	}
	return groups
}

// bytesByLayer returns the bytes of the weights that run, as the config implies them: a file may not be there.
func (s *scope) bytesByLayer() map[int]int64 {
	bytes, family := map[int]int64{}, table.FamilyOf(s.config)
	for _, slots := range []iter.Seq[table.Slot]{family.Slots(s.config), family.MTPSlots(s.config)} {
		for slot := range slots {
			l := slot.Layer
			if l >= s.config.NumHiddenLayers {
				l = ends
			}
			for _, x := range slot.Tensors(s.config, tensor.BF16) {
				if s.runs(slot) {
					bytes[l] += x.Bytes()
				}
			}
		}
	}
	return bytes
}

// unitOf returns the unit that a weight is in.
func (s *scope) unitOf(slot table.Slot) unit {
	i, last := 1+slot.Layer, s.config.NumHiddenLayers
	switch {
	case slot.Layer >= last:
		i++ // behind the head
	case slot.Layer < 0 && !slot.Row.LookedUp():
		i = 1 + last // the head
	}
	if i >= len(s.units) {
		return unit{} // a prediction layer that the config does not announce
	}
	return s.units[i]
}

// isRouter reports whether of a layer the router alone is run.
func (s *scope) isRouter(l int) bool {
	return l >= 0 && l < s.config.NumHiddenLayers && s.units[1+l].routerOnly
}

// followsUnit reports whether layer l, or the head for num_hidden_layers, begins with the output of the unit before it.
func (s *scope) followsUnit(l int) bool { return s.units[l].runs && !s.units[1+l].given }

// course is what a pass runs; without Start.
func (s *scope) course() model.Course[struct{}] {
	last := s.config.NumHiddenLayers
	c := model.Course[struct{}]{Embedding: s.units[0].runs, Head: s.units[1+last].runs, Predictions: s.predictions}
	for l, u := range s.units[1 : 1+last] {
		if u.runs {
			c.Layers = append(c.Layers, l)
		}
		if u.given {
			c.Given = append(c.Given, l)
		}
		if u.routerOnly {
			c.Routers = append(c.Routers, l)
		}
	}
	return c
}

// inPart reports whether a layer, or with ends or -1 what is outside the decoder's layers, is of the user's part.
func (s *scope) inPart(layer int) bool {
	if layer >= s.config.NumHiddenLayers {
		layer = ends
	}
	return s.part == nil || s.part[layer]
}

// picks reports whether the user selects layers or stages.
func (s *scope) picks() bool { return len(s.layers)+len(s.stages) > 0 }

// restricted reports whether the user selected a part of the pack.
func (s *scope) restricted() bool { return s.picks() || s.part != nil }

// selects reports whether a stage is compared, if the pack has it. RoPE's tables, which all
// layers share, always are.
func (s *scope) selects(name string) bool {
	at := pack.Parse(name)
	layer := at.Layer
	switch {
	case at.IsTable():
		return true
	case !s.inPart(layer):
		return false
	case len(s.layers) > 0 && len(s.stages) == 0 && layer < 0, len(s.layers) > 0 && layer >= 0 && !s.layers.Has(layer):
		return false
	}
	return len(s.stages) == 0 || s.names(at)
}

// names reports whether one of the user's globs matches a stage.
func (s *scope) names(at pack.Stage) bool {
	return slices.ContainsFunc(s.stages, func(glob string) bool { return matchesGlob(glob, at) })
}

// matchesGlob reports whether a glob of package path matches a stage's whole name, or its part behind
// "model.layers.N.".
func matchesGlob(glob string, at pack.Stage) bool {
	whole, _ := path.Match(glob, at.Name)
	within, _ := path.Match(glob, at.Within)
	return whole || within
}

// checkSelection returns the parts of the user's selection that the pack lacks.
func (s *scope) checkSelection() error {
	problems := problem.Of("", s.layers.Check("the pack", "layers", s.present))
	names := slices.Collect(maps.Keys(s.pack.Manifest.Tensors))
	for _, glob := range s.stages {
		if _, err := path.Match(glob, ""); err != nil {
			problems = append(problems, problem.Problem{Field: `stages "` + text.Line(glob) + `"`,
				Cause: "not a glob: * stands for anything, ? for a character, [a-z] for one of a set"})
		} else if !slices.ContainsFunc(names, func(name string) bool {
			at := pack.Parse(name)
			return at.IsStage() && matchesGlob(glob, at)
		}) {
			problems = append(problems, problem.Problem{Field: `stages "` + text.Line(glob) + `"`,
				Cause: "the pack has no such stage",
				Hint:  "its manifest.json names the stages, such as 'mlp.gate.logits'; 'self_attn.*' are all of a module"})
		}
	}
	if problems == nil && s.picks() && !slices.ContainsFunc(names,
		func(name string) bool { return s.selectsStage(name) }) {
		return s.pack.Fault("", "nothing is selected: the pack has none of these stages in these layers")
	}
	return problem.In(s.pack.Dir, problems...)
}

// selectsStage reports whether the user selects a stage that a part of the model gives: not RoPE's tables,
// unless a glob names them.
func (s *scope) selectsStage(name string) bool {
	at := pack.Parse(name)
	return at.IsStage() && (!at.IsTable() || s.names(at)) && s.selects(name)
}

// leavesOut reports whether a stage of a layer is outside the MLPs, of a family of which MLPs alone are computed.
func leavesOut(c *config.Config, s pack.Stage) bool {
	return c.BlockOnly() && s.Layer >= 0 && !(s.AroundMLP() && s.Layer < c.NumHiddenLayers && c.HasMLP(s.Layer))
}

// settle decides which units are run.
func (s *scope) settle() error {
	last := s.config.NumHiddenLayers
	s.predictions = pack.Predictions(s.config, s.pack)
	for s.predictions > 0 && (!s.inPart(ends) || s.picks() && !s.wants(last+s.predictions-1)) {
		s.predictions--
	}
	s.units = make([]unit, last+2+max(s.config.NumNextNPredictLayers, s.predictions))
	embedding, layers, head := &s.units[0], s.units[1:1+last], &s.units[1+last]
	for l := range layers {
		layers[l].wanted = s.wants(l)
		layers[l].runs, layers[l].routerOnly = layers[l].wanted, s.routesOnly(l)
		layers[l].blockOnly = s.config.BlockOnly() && !layers[l].routerOnly
		if layers[l].runs && !s.present[l] {
			s.absent = append(s.absent, l)
		}
	}
	for k := range s.units[2+last:] {
		s.units[2+last+k] = unit{runs: k < s.predictions, wanted: s.wants(last + k)}
	}
	embedding.wanted, head.wanted = s.wantsEnd(pack.Embedded), s.wantsEnd(pack.LastNorm, pack.Logits)
	embedding.runs, head.runs = embedding.wanted, head.wanted || s.predictions > 0
	if head.runs && !s.pack.Has(pack.InputStage(last)) && !layers[last-1].runs {
		if s.namesAbsent(last - 1) {
			for _, name := range []string{pack.LastNorm, pack.Logits} {
				if s.pack.Has(name) || s.predictions > 0 {
					return s.pack.Fault(name, "what it begins with is not there: "+pack.InputStage(last))
				}
			}
		}
		head.runs = !s.namesAbsent(last - 1)
		layers[last-1].runs = head.runs
	}
	for l := last - 1; l >= 0; l-- {
		if !layers[l].runs {
			layers[l].routerOnly = false
		} else if err := s.provideInput(l); err != nil {
			return err
		}
	}
	return nil
}

// routesOnly reports whether the pack is an engine's trace that has of layer l nothing but what its router takes and
// gives.
func (s *scope) routesOnly(l int) bool {
	if !s.pack.IsTrace() || !s.config.IsMoE(l) || !s.pack.Has(pack.StageOf(l, pack.AttentionNorm)) {
		return false
	}
	for name := range s.pack.Manifest.Tensors {
		at := pack.Parse(name)
		if at.Layer == l && !slices.Contains([]string{pack.AttentionNorm, pack.GateLogits, pack.TopKIdx, pack.TopKWeight},
			at.Within) {
			return false
		}
	}
	return true
}

// namesAbsent reports whether the manifest names layer l as absent.
func (s *scope) namesAbsent(l int) bool { return slices.Contains(s.pack.Manifest.Absent.Layers, l) }

// provideInput sees to it that there is something that layer l, which runs, begins with.
func (s *scope) provideInput(l int) error {
	in, own := s.pack.Manifest.LayerInputs[strconv.Itoa(l)]
	before := &s.units[l]
	switch {
	case own && (in.Kind == pack.Seeded || s.picks()):
		s.units[1+l].given = true
	case s.units[1+l].blockOnly && !s.pack.Has(pack.StageOf(l, pack.AttentionNorm)):
		return s.pack.Fault(fmt.Sprint("layer ", l), fmt.Sprintf("what its MLP takes is not there: %s; attention is not "+
			"computed for %s", pack.StageOf(l, pack.AttentionNorm), s.config.ModelType))
	case s.units[1+l].blockOnly:
		s.units[1+l].given = true
	case s.units[1+l].routerOnly:
	case s.restricted() && s.pack.Has(pack.InputStage(l)):
	case l == 0 || !own && !before.runs && !s.pack.Has(pack.InputStage(l)):
		if l > 0 && s.namesAbsent(l-1) {
			return s.pack.Fault(fmt.Sprint("layer ", l), fmt.Sprintf("what it begins with is not there: neither %s nor %s",
				pack.OwnInput(l), pack.InputStage(l)))
		}
		before.runs = true
	}
	return nil
}

// wants reports whether a layer has, or should have, a stage to compare.
func (s *scope) wants(l int) bool {
	switch {
	case s.pack.Manifest.Mode == "train":
		return true // for the loss, and gradients
	case s.picks():
		return s.selected[l]
	}
	return s.inPart(l) && !s.namesAbsent(l) && (s.present[l] || !s.pack.IsTrace() && !s.config.BlockOnly())
}

// wantsEnd reports whether one of these stages outside the layers is compared, or should be in the pack.
func (s *scope) wantsEnd(names ...string) bool {
	return slices.ContainsFunc(names, func(name string) bool {
		switch {
		case s.pack.Manifest.Mode == "train":
			return true
		case !s.inPart(ends) || s.config.BlockOnly():
			return false
		case s.pack.Has(name) || s.picks():
			return s.pack.Has(name) && s.selectsStage(name)
		}
		return !slices.Contains(s.pack.Manifest.Absent.Stages, name) && !s.pack.IsTrace()
	})
}

// runs reports whether a weight belongs to a unit that is run. The embedding serves prediction layers, and a tied head.
func (s *scope) runs(slot table.Slot) bool {
	u := s.unitOf(slot)
	if slot.Layer < 0 && slot.Row.LookedUp() {
		return u.runs || s.predictions > 0 || s.units[1+s.config.NumHiddenLayers].runs && s.config.TieWordEmbeddings
	}
	if u.runs && u.blockOnly {
		return inBlock(slot.Place)
	}
	return u.runs && (!u.routerOnly || slot.Module() == table.Router)
}

// inBlock reports whether a weight of a layer takes part in its MLP, or in the norm behind it.
func inBlock(p table.Place) bool {
	return slices.Contains([]table.Module{table.DenseMLP, table.Router, table.RoutedExperts, table.SharedExperts, table.Latent},
		p.Module()) ||
		p.Role() == table.PostMLPLayernorm
}

// startsBehindAttention reports whether layer l begins with what its MLP takes.
func (s *scope) startsBehindAttention(l int) bool {
	return l >= 0 && l < s.config.NumHiddenLayers && (s.units[1+l].routerOnly || s.units[1+l].blockOnly)
}

// reads reports whether a weight is read, if only to look for a NaN: weights of the parts that are run, and of
// prediction layers unless a part is selected or they are absent on purpose.
func (s *scope) reads(slot table.Slot) bool {
	return s.runs(slot) || slot.Layer >= s.config.NumHiddenLayers && !s.picks() && s.inPart(ends) &&
		!s.namesAbsent(slot.Layer)
}

// compares reports whether a stage of the pack is compared: the user selects it, and it is no given input.
func (s *scope) compares(name string) bool {
	if at := pack.Parse(name); s.startsBehindAttention(at.Layer) && at.Within == pack.AttentionNorm {
		return false
	} else if at.IsOwnInput() {
		in := s.pack.Manifest.LayerInputs[strconv.Itoa(at.Layer)]
		return in.Kind == pack.Recorded && s.followsUnit(at.Layer) && s.selects(name)
	}
	return s.selects(name)
}

// starts returns what layer l, or the head, begins with where no other part gives it, and
// the tensor of the pack that it is.
func (s *scope) starts(l int, in *model.Input) (*model.Activation, string, error) {
	name := pack.InputStage(l)
	if s.startsBehindAttention(l) {
		name = pack.StageOf(l, pack.AttentionNorm)
	}
	if l < s.config.NumHiddenLayers && s.pack.Has(pack.OwnInput(l)) {
		name = pack.OwnInput(l)
	}
	e, shape := s.pack.Manifest.Tensors[name], s.inputShape(name, in.Batch, in.Seq)
	if cause := pack.Misfit(e, shape, s.pack.DType); cause != "" {
		return nil, name, s.pack.Fault(text.Quote(name), cause)
	}
	values, err := s.pack.Float32s(name)
	if err != nil {
		return nil, name, err
	}
	values = pack.ClearPadding(values, s.config.HiddenSize, pack.PaddedRows(s.config, in, name, shape))
	if !bounds.AllFinite(values) {
		return nil, name, s.pack.Fault(text.Quote(name), "not finite, and a layer begins with it")
	}
	if s.startsBehindAttention(l) {
		return &model.Activation{Shape: shape, Values: values, DType: s.pack.DType}, name, nil
	}
	return s.asInput(shape, values), name, nil
}

// inputShape is the shape of a stage that a layer begins with: in a model with streams, all stages but the embedding
// have hc_mult rows for each token.
func (s *scope) inputShape(name string, batch, seq int) []int {
	if hc := s.config.HyperConnections.HCMult; hc > 0 && name != pack.Embedded &&
		pack.Parse(name).Within != pack.AttentionNorm {
		return []int{batch, seq, hc, s.config.HiddenSize}
	}
	return []int{batch, seq, s.config.HiddenSize}
}

// asInput returns values of inputShape as a layer takes them: each stream begins as the embedding.
func (s *scope) asInput(shape []int, values []float32) *model.Activation {
	if hc := s.config.HyperConnections.HCMult; hc > 0 && len(shape) == 3 {
		shape = slices.Insert(slices.Clone(shape), 2, hc)
		rows := slices.Chunk(values, s.config.HiddenSize)
		values = nil
		for row := range rows {
			values = append(values, slices.Repeat(row, hc)...)
		}
	}
	return &model.Activation{Shape: shape, Values: values, DType: s.pack.DType}
}

// sameRows reports whether all tokens of a sequence, except padding, have the same numbers.
func sameRows(x *model.Activation, in *model.Input) bool {
	var first []float32
	width := len(x.Values) / len(in.InputIDs)
	for t := range in.InputIDs {
		row := x.Values[t*width : (t+1)*width]
		if t%in.Seq == 0 {
			first = nil
		}
		switch {
		case in.IsPadding(t):
		case first == nil:
			first = row
		case !slices.Equal(first, row):
			return false
		}
	}
	return true
}

// checkChoices refuses a trace that lacks what an indexer or a gate chose, and has stages that depend on it: at a near
// tie an engine may choose otherwise than is chosen here.
func (s *scope) checkChoices(in *model.Input) error {
	if !s.pack.IsTrace() {
		return nil
	}
	c, choices, keys := s.config, in.Seq, pack.IndexerTopK
	if c.Windowed() {
		choices, keys = in.Seq/max(1, c.Windows.CompressRateCSA), pack.EntriesTopK
	}
	var problems []problem.Problem
	for _, l := range slices.Sorted(maps.Keys(s.present)) {
		has := func(kind string) bool { return s.pack.Has(pack.StageOf(l, kind)) }
		lacks := func(kind, remedy string) {
			problems = append(problems, problem.Problem{File: "manifest.json", Tensor: pack.StageOf(l, kind), Cause: "the trace lacks it, " +
				"and at a near tie the engine may have chosen otherwise: record it, or with --stages router" + remedy})
		}
		if s.isRouter(l) {
			continue
		}
		if c.HasIndexer() && choices > c.Indexer.IndexTopK && c.IndexerOf(l) == l && !has(keys) {
			lacks(keys, fmt.Sprintf(", or sequences of which an indexer chooses all %d", c.Indexer.IndexTopK))
		}
		if c.IsMoE(l) && !c.Hashes(l) && !has(pack.TopKIdx) &&
			slices.ContainsFunc([]string{pack.ExpertsOutput, "mlp.output", pack.LayerOutput}, has) {
			if s.isSkipped(l) {
				problems = append(problems, problem.Problem{File: "manifest.json", Tensor: pack.StageOf(l, pack.LayerOutput),
					Cause: "the only stage of the layer, and equal to its input: the engine skipped the layer"})
				continue
			}
			lacks(pack.TopKIdx, "")
		}
	}
	return problem.In(s.pack.Dir, problems...)
}

// isSkipped reports whether a layer's output is all that the pack has of the layer, and is its input.
func (s *scope) isSkipped(l int) bool {
	for name := range s.pack.Manifest.Tensors {
		if at := pack.Parse(name); at.Layer == l && at.Within != pack.LayerOutput && !at.IsOwnInput() {
			return false
		}
	}
	in, err := s.pack.Float32s(pack.InputStage(l))
	out, err2 := s.pack.Float32s(pack.StageOf(l, pack.LayerOutput))
	return err == nil && err2 == nil && slices.Equal(in, out)
}

// checkProbes refuses probes of experts that the model has not, and on rows of padding.
func (s *scope) checkProbes(in *model.Input) error {
	var problems []problem.Problem
	add := func(cause string, args ...any) {
		problems = append(problems, problem.Problem{File: "manifest.json", Cause: fmt.Sprintf("probes: "+cause, args...)})
	}
	probes, c := s.pack.Manifest.ProbesByLayer(), s.config
	for _, l := range slices.Sorted(maps.Keys(probes)) {
		if l >= c.NumHiddenLayers+c.NumNextNPredictLayers {
			continue // it is not run
		}
		tokens := in.Batch * (in.Seq - max(0, l-c.NumHiddenLayers+1)) // prediction layers have fewer
		switch last := probes[l].Experts[len(probes[l].Experts)-1]; {
		case l < c.NumHiddenLayers && !c.IsMoE(l):
			add("layer %d has no routed experts", l)
			continue
		case last >= c.MoE.NRoutedExperts:
			add("layer %d: expert %d is not one of %d", l, last, c.MoE.NRoutedExperts)
		}
		for _, row := range probes[l].Rows {
			switch {
			case row >= tokens:
				add("layer %d: row %d is not one of %d", l, row, max(0, tokens))
			case pack.PaddedTokens(in, tokens).Has(row):
				add("layer %d: row %d is padding", l, row)
			}
		}
	}
	return problem.In(s.pack.Dir, problems...)
}

// probes are those that are run: of the stages that wanted reports as true.
func (s *scope) probes(wanted func(name string) bool) map[int]model.Probe {
	probes := map[int]model.Probe{}
	for l, p := range s.pack.Manifest.ProbesByLayer() {
		experts := slices.DeleteFunc(slices.Clone(p.Experts), func(e int) bool { return !wanted(pack.ProbeStage(l, e)) })
		if len(experts) > 0 {
			probes[l] = model.Probe{Rows: p.Rows, Experts: experts}
		}
	}
	return probes
}

// layersRun returns the layers that are run, prediction layers included.
func (s *scope) layersRun() []int {
	layers := s.course().Layers
	for l := s.config.NumHiddenLayers; l < s.layersEnd(); l++ {
		layers = append(layers, l)
	}
	return layers
}

// layersEnd is the number behind the last layer that is run, prediction layers among them.
func (s *scope) layersEnd() int { return s.config.NumHiddenLayers + s.predictions }
