package verify

import (
	"cmp"
	"dsmoe/config"
	"dsmoe/model"
	"dsmoe/model/weights"
	"dsmoe/verify/bounds"
	"dsmoe/verify/pack"
	"dsmoe/verify/report"
	"slices"
)

// run is what a verification compares, and how. It does not change while the model runs.
type run struct {
	trial          bool // a mistake is undone: what numbers of config.json change is not asked
	pack           *pack.Pack
	in             *model.Input // of the pack
	rows           *model.Input // in, without its mask if rows of padding are compared, too
	m              *model.DeepseekForCausalLM
	src            weights.Source   // of m's weights
	set            *weights.Set     // the same under the names of the table
	how            *pack.Arithmetic // of an engine, as it is reproduced
	scope          *scope           // parts of the model that are run, and stages that are compared
	o              *Options
	rounded        bounds.Roundings // weights that the reference had before they were rounded; nil takes weights as they are
	contradictions []string         // see beside
	settings       report.Settings  // how config.json and what the reference ran with go together
	expected       int              // golden tensors beside the inputs
	kinds          map[string]bool  // stages that the pack has in some layer, with * for an expert's number

	attnWeights bool // the pack has probabilities of the whole input
}

// result is what a run has found so far. A tracer appends to it while the model runs.
type result struct {
	checks    []report.Check
	seen      map[string]bool     // golden tensors that the model showed a stage for, and inputs
	lacked    map[string]bool     // kinds of stages that the model has and the pack has not
	zeros     []string            // golden tensors that are all zero
	notFinite []string            // where weights that took part in no checked stage hold a NaN or an infinity
	exercised bounds.WeightSet    // weights behind a checked stage
	failed    bounds.WeightSet    // of these, behind one that failed
	passed    bounds.WeightSet    // of these, behind one that passed
	behind    map[string][]string // weights that took part in each checked stage that failed
	leftOut   bounds.WeightSet    // weights behind a stage that is absent on purpose, or not selected
	unpinned  bounds.WeightSet    // weights that decide choices which are the same without them, or were not compared
	told      map[tell]bool       // values of config.json that a compared stage tells from others
	stepsErr  error               // why half steps of a weight could not be read
	stopped   bool                // at the first failing stage, because the user asked for that
	routing   report.Routing
	keys      map[int]*report.KeyChoices // of indexers, by layer
	clamped   map[int]bool               // layers with a neuron beyond swiglu_limit
	starts    []start                    // tensors that parts of the model began with
	reached   map[int]map[int]bool       // layer -> experts whose output shows for some token
	probed    map[int]map[int]bool       // layer -> experts that a probe reached
}

// tracer compares the stages of one pass with the pack, and appends to the result.
type tracer struct {
	*run
	*result
	chosen    []int                    // experts, by the last gate
	rechoose  rechoose                 // of the last gate
	rotations map[string]map[tell]bool // what RoPE's tables tell, by their name
	logitsErr []float64                // of the last gate in chained mode, per token: max |logit - golden|
	keysErr   []float64                // of the last indexer likewise, per query: max |score - golden|
}

// outcome is a run with all that was found: the report follows from these two alone.
type outcome struct {
	*run
	*result
}

// start is a tensor of the pack that a layer or the head began with, because the part before
// it was not run, or ran on something else.
type start struct {
	layer   int // num_hidden_layers for the head
	name    string
	uniform bool // for all tokens
}

// copyWith returns the run with other options and other rounded weights.
func (r *run) copyWith(o *Options, rounded bounds.Roundings) *run {
	c := *r
	c.o, c.rounded = o, rounded
	return &c
}

// newTracer begins a pass that has found nothing yet.
func newTracer(r *run) *tracer {
	return &tracer{run: r, rotations: map[string]map[tell]bool{}, result: &result{seen: map[string]bool{"input_ids": true, "attention_mask": true},
		lacked:    map[string]bool{},
		exercised: bounds.WeightSet{}, failed: bounds.WeightSet{}, passed: bounds.WeightSet{}, behind: map[string][]string{}, leftOut: bounds.WeightSet{}, unpinned: bounds.WeightSet{}, told: map[tell]bool{}, reached: map[int]map[int]bool{},
		probed: map[int]map[int]bool{}, keys: map[int]*report.KeyChoices{}, clamped: map[int]bool{}}}
}

// layers returns how many layers are run, prediction layers among them.
func (t *run) layers() int { return len(t.m.Model.Layers) + t.scope.course.Predictions }

// options returns the model's options of a pass.
func (t *run) options() model.Options {
	var probes map[int]model.Probe
	if t.o.Mode == report.Local {
		probes = t.scope.probes(t.scope.compares)
	}
	return model.Options{
		DType:         t.pack.DType,
		Probes:        probes,
		RotaryDType:   cmp.Or(t.o.RotaryDType, t.pack.Manifest.RotaryDType()),
		Training:      t.pack.Manifest.Mode == "train",
		AttnWeights:   t.attnWeights,
		HeadsTogether: t.pack.IsTrace(),
		Accumulate:    t.o.Accumulate,
		Parallelism:   t.o.Parallelism,
		Pages:         t.o.Pages,
	}
}

// ran returns the layers that were run, prediction layers included.
func (t *run) ran() []int {
	layers := slices.Clone(t.scope.course.Layers)
	for k := range t.scope.course.Predictions {
		layers = append(layers, len(t.m.Model.Layers)+k)
	}
	return layers
}

// onPurpose reports whether the manifest of a partial pack names a stage as absent. An engine's trace may lack any.
func (t *run) onPurpose(name string) bool {
	if t.pack.IsTrace() {
		return true
	}
	kind := pack.Parse(name).Kind
	return t.pack.Manifest.Partial != "" && slices.Contains(t.pack.Manifest.Absent.Stages, kind)
}

// rechoose hands look the choice of the last gate under another config, or with another gate. What it hands out is
// valid during the call.
type rechoose func(c *config.Config, g *model.MoEGate, look func(*choice))

// tell is a number of config.json that a compared stage of a layer, -1 outside the layers, tells from half as much or
// from twice as much.
type tell struct {
	layer int
	key   string
	by    float64 // 0.5 or 2
}
