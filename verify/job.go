package verify

import (
	"cmp"

	"dsmoe/model"
	"dsmoe/model/table"
	"dsmoe/verify/bounds"
	"dsmoe/verify/pack"
	"dsmoe/verify/report"
)

// job is what a verification compares, and how. It does not change while the model runs.
type job struct {
	pack     *pack.Pack
	in       *model.Input // of the pack
	rows     *model.Input // in, without its mask if rows of padding are compared, too
	model    *model.DeepseekForCausalLM
	weights  *storedWeights   // that the model is made of
	scope    *scope           // parts of the model that are run, and stages that are compared
	options  *Options         // of the user
	engine   *pack.Arithmetic // of an engine, as it is reproduced
	rounded  bounds.Roundings // weights that the reference had before they were rounded; nil takes weights as they are
	operands bounds.Operands  // what a GPU did to those of float32 products
	counts   bool             // of stages that are held to the error analysis, only elements that miss are noted
	seen     *bounds.Seen     // products of trials; nil if each computes its own
	// recognises says that ways of rounding are read off the numbers; found are those that were.
	recognises bool
	found      []recognised
	tried      map[string][]int // elements of the first layers that each way of a kind misses
	trial      bool             // a mistake is undone: no numbers of config.json are tried
	// places are those of the weights of the layer in which the mistake is undone; nil otherwise
	places map[*model.Weight]table.Place

	// watch is called with each stage that is held to the error analysis; may be nil
	watch func(stage string, x *bounds.Value, rows *bounds.Rows)

	settings       report.Settings // how config.json and what the reference ran with go together
	contradictions []string        // stored tensors that contradict config.json: see findContradictions
	expected       int             // number of golden tensors that are compared
	kinds          map[string]bool // kinds of stages that the pack has in some layer
	attnWeights    bool            // the pack has probabilities of the whole input
}

// with returns the job with other options and other rounded weights.
func (j *job) with(o *Options, rounded bounds.Roundings) *job {
	other := *j
	other.options, other.rounded = o, rounded
	return &other
}

// modelOptions returns the model's options of a pass.
func (j *job) modelOptions() model.Options {
	var probes map[int]model.Probe
	if j.options.Mode == report.Local {
		probes = j.scope.probes(j.scope.compares)
	}
	return model.Options{
		DType:         j.pack.DType,
		Probes:        probes,
		RotaryDType:   cmp.Or(j.options.RotaryDType, j.pack.Manifest.RotaryDType()),
		Training:      j.pack.Manifest.Mode == "train",
		AttnWeights:   j.attnWeights,
		HeadsTogether: j.pack.IsTrace(),
		Accumulate:    j.options.Accumulate,
		Parallelism:   j.options.Parallelism,
		Pages:         j.options.Pages,
	}
}

// check returns a check of a stage without a verdict.
func (j *job) check(name string) report.Check {
	e := j.pack.Manifest.Tensors[name]
	return report.Check{Tensor: name, DType: e.DType.String(), Shape: e.Shape}
}
