package verify

import (
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"

	"dsmoe/config"
	"dsmoe/model"
	"dsmoe/model/tensor"
	"dsmoe/text"
	"dsmoe/verify/diagnose"
	"dsmoe/verify/pack"
	"dsmoe/verify/report"
)

// Options are how to verify. The zero value is local mode with float64 sums.
type Options struct {
	Mode       report.Mode       // how stages are fed; "" is Local
	Accumulate model.Accumulator // of our own dot products
	// RotaryDType is the dtype in which the reference kept RoPE's inv_freq and angles:
	// Invalid means what the pack's manifest says (made_by), and where it says nothing the
	// compute dtype, as model.to(dtype) leaves them.
	RotaryDType tensor.DType
	// Reference overrides what the pack's manifest says of whose behaviour to follow.
	Reference config.Reference
	// Limits multiplies the standard deviations of the stages that a key names, or in
	// chained mode and of losses and gradients their limits, by a factor above 0. A key is
	// a stage's whole name, or what follows a dot in it; the longest one counts.
	Limits map[string]float64
	// Layers and Stages select what is compared: stages of these layers, prediction layers
	// among them, that one of these globs of package path matches, by their whole name or by
	// what stands behind "model.layers.N.". Empty ones select all. Of the layers, and of the
	// embedding and the head, only those with something selected are run; other stages of
	// these are taken from the pack and not compared. RoPE's tables always are.
	Layers text.Spans
	Stages []string // globs of stages, with Layers
	// Part selects the layers that are part Index of Of, balanced by the bytes of their weights; nil selects all.
	// The embedding, the head and prediction layers go together, and so do layers with a layer whose input the
	// pack lacks and that gives it. Parts need local mode, and a pack that was not recorded in training mode.
	Part *report.Part
	// Accept are ids of causes, of diagnose.Acceptable, that do not fail the run: a stage is accepted if it is within its
	// limits with such a cause undone, and no other stage of the layer is beyond its limits for that. Local mode.
	Accept       []string
	StrictConfig bool // a config.json that is not the pack's is no pass; how weights are stored does not count
	FailFast     bool // the run ends with the first stage that fails
	Undiagnosed  bool // the cause of a failure is not looked for
	// Rounded tells which stored tensors hold what a conversion rounded to their dtype, and
	// by which operation. It is asked if a stage fails in local mode: the run is then
	// repeated with the error that this rounding allows. It may be nil.
	Rounded func() (map[string]tensor.Rounding, error)
	// OtherFiles returns the weight files whose hashes are not the pack's, see report.Report, and whether all of the
	// pack's have its hashes. It is asked if a stage fails. It may be nil.
	OtherFiles  func() (others []string, same bool, err error)
	ConfigHash  string                // "sha256:…" of the checkpoint's config.json; "" if it has none
	Decoded     Decoded               // what src knows of weights that it decodes; may be nil
	Pages       model.Pages           // what src is mapped into; may be nil
	Parallelism int                   // goroutines; 0 means GOMAXPROCS
	Progress    func(done, total int) // called after each golden tensor; may be nil

	// Against is another trace of the same tokens, such as a rollout's beside a trainer's: see report.Against.
	Against *Trace
	// Replay is a trace of the same tokens whose choices of experts the golden replays, in local mode; may be nil
	Replay *pack.Pack

	block int // logits that are in memory at once; 0 for logitsAtOnce
}

// Trace is a trace that was verified against the same checkpoint.
type Trace struct {
	Pack   *pack.Pack
	Report *report.Report
}

// Decoded knows the weights that a source decodes to the dtype that they seem to have.
type Decoded interface {
	// DecodedFrom returns the dtypes that the elements of a stored tensor are decoded from, such
	// as "F16 and Q8_0", if one of them is a block type, and else "".
	DecodedFrom(name string) string
	// HalfSteps returns, for each element of such a tensor, half the distance between the
	// numbers that those dtypes have there.
	HalfSteps(name string) ([]float32, error)
}

// check says what is wrong with the options.
func (o *Options) check() error {
	if o.Mode != report.Local && o.Mode != report.Chained {
		return fmt.Errorf("mode %q: not local or chained", o.Mode)
	}
	if o.Mode != report.Local && o.Replay != nil {
		return errors.New("chained mode takes the golden's choices of experts as they are: replayed ones are compared in local mode")
	}
	for _, id := range o.Accept {
		if !slices.Contains(diagnose.Acceptable, id) {
			return fmt.Errorf("accept %s: not a cause that can be accepted, which are %s", text.Quote(id),
				strings.Join(diagnose.Acceptable, ", "))
		}
	}
	switch {
	case o.Accept != nil && o.Mode != report.Local:
		return errors.New("chained mode looks for no causes that could be accepted: use local mode")
	case o.Accept != nil && o.FailFast:
		return errors.New("a cause is accepted after all stages were looked at: leave out --fail-fast or --accept")
	}
	switch p := o.Part; {
	case p == nil:
	case p.Index < 1 || p.Index > p.Of:
		return fmt.Errorf("part %d/%d: not one of 1 to %d", p.Index, p.Of, p.Of)
	case o.Mode != report.Local:
		return errors.New("chained mode has no parts: each layer begins with what the layers before it gave; " +
			"use local mode, or leave out --part")
	case len(o.Layers)+len(o.Stages) > 0:
		return errors.New("a part is a selection by itself: leave out --part, or layers and stages")
	}
	for _, stage := range slices.Sorted(maps.Keys(o.Limits)) {
		if l := o.Limits[stage]; !(l > 0) || math.IsInf(l, 0) {
			return fmt.Errorf("limit %s=%g: not a number above 0", text.Quote(stage), l)
		}
	}
	return nil
}
