// Package verify compares a model with the golden tensors of a reference run.
//
// Run loads the weights of a source, runs the model
// over the pack's input, compares every stage and returns a Report, which
// WriteText and json.Marshal render. The package writes nothing and opens no
// checkpoint.
package verify

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"

	"dsmoe/config"
	"dsmoe/model"
	"dsmoe/model/table"
	"dsmoe/model/tensor"
	"dsmoe/model/weights"
	"dsmoe/text"
	"dsmoe/verify/bounds"
	"dsmoe/verify/pack"
	"dsmoe/verify/report"
)

// unusedLimits refuses a limit that names no measured stage: a typo would leave the stage
// that was meant at its default.
func unusedLimits(limits map[string]float64, checks []report.Check) error {
	for _, stage := range slices.Sorted(maps.Keys(limits)) {
		if !slices.ContainsFunc(checks, func(c report.Check) bool { return c.RelRMS != nil && matches(c.Tensor, stage) }) {
			return fmt.Errorf("limit %s: no stage that was measured is named so", text.Quote(stage))
		}
	}
	return nil
}

// Run verifies the weights of src under the configuration c, with the pack's
// config_overrides in force, against pack. The error says why no comparison could
// be made: tensors that do not fit the config (*weights.MismatchError), an input
// that is not one, a broken pack.
func Run(ctx context.Context, c *config.Config, src weights.Source, golden *pack.Pack, o Options) (*report.Report,
	error) {
	stored := c
	s, err := scopeOf(c, golden, &o)
	if err != nil {
		return nil, err
	}
	c = s.config
	m, err := model.LoadPart(c, src, s.runs)
	if err != nil {
		return nil, err
	}
	if err := cmp.Or(golden.CheckShape(c), checkRecorded(c, golden, &o)); err != nil {
		return nil, err
	}
	for ; s.predictions > m.PredictionLayers(); s.predictions-- { // the checkpoint has the first ones alone
		s.units[1+c.NumHiddenLayers+s.predictions].runs = false
	}
	in, err := golden.Input()
	if err != nil {
		return nil, err
	}
	if err := cmp.Or(s.checkProbes(in), s.checkChoices(in)); err != nil {
		return nil, err
	}
	j, err := newJob(s, stored, m, src, in, &o)
	if err != nil {
		return nil, err
	}
	if err := j.checkReplay(); err != nil {
		return nil, err
	}
	if j, err = j.recogniseSample(ctx, sampleElements); err != nil {
		return nil, err
	}
	found, err := j.gather(ctx)
	if err == nil && o.Part == nil && !found.stopped { // of a part, a merge sees which limits were of use
		err = unusedLimits(o.Limits, found.checks)
	}
	if err != nil {
		return nil, err
	}
	r := conclude(found.project())
	if r.Verdict == report.Fail {
		for _, look := range []func(context.Context, *evidence, *report.Report) (*evidence, *report.Report, error){withRoundings,
			withTF32, recogniseKept, recognise, observe} {
			if err == nil {
				found, r, err = look(ctx, found, r)
			}
		}
	} else {
		found, r, err = recogniseFused(ctx, found, r)
	}
	if err == nil && r.Verdict == report.Fail {
		r, err = accept(ctx, found, r)
	}
	if err == nil && !o.Undiagnosed {
		err = findCauses(ctx, found, r)
	}
	if err == nil {
		err = advise(found, r)
	}
	if err == nil && o.Against != nil {
		if r.Against, err = found.against(ctx, r); err == nil {
			joinVerdicts(r)
		}
	}
	return r, err
}

// newJob returns the job that compares all stages of the pack that the scope selects. The error says that a stored head
// contradicts the embedding it is tied to, or that a weight cannot be read.
func newJob(s *scope, stored *config.Config, m *model.DeepseekForCausalLM, src weights.Source, in *model.Input,
	o *Options) (*job, error) {
	j := &job{pack: s.pack, in: in, rows: in, model: m, scope: s, options: o,
		weights:    &storedWeights{weights.New(m.Config, src), src, m.Config, o.Pages, o.Decoded},
		engine:     cmp.Or(s.pack.Manifest.Arithmetic, &pack.Arithmetic{}),
		recognises: s.pack.IsTrace() && s.pack.DType != tensor.F32,
		settings:   settingsOf(stored, m.Config, s.pack, in, o), kinds: map[string]bool{}}
	if s.pack.Routing { // what an engine rounds before a choice nothing tells
		j.recognises, j.engine = false, &pack.Arithmetic{Rounding: map[string]string{}}
		for _, k := range kinds {
			for _, operation := range k.operations {
				j.engine.Rounding[operation] = bounds.Unknown
			}
		}
	}
	if m.Config.Windowed() { // entries are made of padding, too, and all later tokens see them
		rows := *in
		rows.AttentionMask = nil
		j.rows = &rows
	}
	for name, e := range s.pack.Manifest.Tensors {
		stage := pack.Parse(name)
		j.kinds[stage.Kind] = true
		if !stage.IsInput() && s.compares(name) {
			j.expected++
		}
		j.attnWeights = j.attnWeights || stage.Kind == pack.AttnWeights && e.Shape[len(e.Shape)-1] == in.Seq
	}
	err := j.weights.checkTied()
	if err == nil {
		j.contradictions, err = j.weights.findContradictions()
	}
	return j, err
}

// Reads returns which weights Run reads of a checkpoint with the configuration c.
func Reads(c *config.Config, golden *pack.Pack, o Options) (func(*weights.Weight) bool, error) {
	s, err := scopeOf(c, golden, &o)
	if err != nil {
		return nil, err
	}
	tied := s.config.TieWordEmbeddings && s.units[0].runs // a head is compared with the embedding that it is tied to
	return func(w *weights.Weight) bool {
		at := w.OwnerPlace()
		return at.Row != nil && (tied && at.Is(table.Head, table.LMHead) || s.reads(table.Slot{Place: at}))
	}, nil
}

// scopeOf checks the options and the pack, and settles what is run.
func scopeOf(c *config.Config, golden *pack.Pack, o *Options) (*scope, error) {
	o.Mode = cmp.Or(o.Mode, report.Local)
	if err := cmp.Or(o.check(), golden.CheckFamily(c), golden.Spell(c)); err != nil {
		return nil, err
	}
	if c.BlockOnly() && o.Mode != report.Local {
		return nil, golden.Fault("chained mode", c.Attends().Error())
	}
	if golden.IsTrace() && o.Mode != report.Local {
		return nil, golden.Fault("chained mode", "a trace of an engine is verified in local mode, where what the engine rounds "+
			"is reproduced: leave out --mode")
	}
	c, err := golden.Config(c, o.Reference)
	if err != nil {
		return nil, err
	}
	if golden.Manifest.Block != nil && !c.BlockOnly() && golden.HasMLPsAlone() {
		if o.Mode != report.Local {
			return nil, golden.Fault("chained mode", "the pack is of MLPs alone")
		}
		c = c.Alone()
	}
	if err := cmp.Or(checkIndexed(c, golden), checkKept(c, golden), checkRounding(golden)); err != nil {
		return nil, err
	}
	return newScope(c, golden, o)
}

// checkIndexed refuses packs of models with indexers whose references do what is not computed here.
func checkIndexed(c *config.Config, golden *pack.Pack) error {
	switch attention := golden.Manifest.Reference.Attention; {
	case !c.HasIndexer():
	case c.HyperConnections.HCMult > mostStreams:
		return golden.Fault(fmt.Sprint("hc_mult ", c.HyperConnections.HCMult), fmt.Sprintf(
			"the covariance of the weights of more than %d streams is not computed", mostStreams))
	case golden.Manifest.Mode == "train":
		return golden.Fault("model_type "+c.ModelType, "packs of training are not supported: no gradient passes an indexer")
	case golden.DType == tensor.F16:
		return golden.Fault("model_type "+c.ModelType, "F16 packs are not supported: the reference keeps weights_proj in "+
			"float32 then")
	case attention == pack.Sdpa:
		return golden.Fault("model_type "+c.ModelType, "packs of sdpa attention are not supported: record it with eager "+
			"attention")
	}
	return nil
}

// checkKept refuses packs whose references kept weights in float32 that are rounded to the compute dtype here.
func checkKept(c *config.Config, golden *pack.Pack) error {
	for s := range table.FamilyOf(c).Slots(c) {
		kind := pack.Parse(s.Name).Kind
		if slices.Contains(golden.Manifest.KeptFloat32, kind) && !model.InFloat32(c, s.Place) {
			return golden.Fault("kept_float32", fmt.Sprintf("the reference kept %s in float32, which is not computed for "+
				"model_type %s", kind, c.ModelType))
		}
	}
	return nil
}

// mostStreams is how many streams a model may have: the memory for each token grows with the fourth power, to 300 KB.
const mostStreams = 8
