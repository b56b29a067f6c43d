package verify

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"math"
	"reflect"
	"slices"
	"strings"

	"github.com/go-json-experiment/json"

	"dsmoe/verify/pack"
	"dsmoe/verify/report"
)

// Unmergeable returns why a report cannot be joined with others: how it was made, or that it was changed since. nil if
// it can.
func Unmergeable(r *report.Report) error {
	verdicts := []report.Verdict{report.Pass, report.Fail, report.Skipped, report.Accepted}
	unknown := slices.ContainsFunc(r.Checks, func(c report.Check) bool {
		return !slices.Contains(verdicts, c.Verdict) || (c.Verdict == report.Accepted) != (c.Accepted != nil) ||
			c.Accepted != nil && !slices.Contains(r.Options.Accept, c.Accepted.ID)
	}) ||
		slices.ContainsFunc(r.Doubts, func(d report.Doubt) bool { return !slices.Contains(doubtKinds(), d.Kind) })
	switch {
	case r.Mode != report.Local:
		return errors.New("made in chained mode, in which each layer begins with what the layers before it gave; " +
			"verify in local mode")
	case len(r.Scope.Stages) > 0:
		return errors.New("made with --stages; verify all stages of the layers")
	case r.Golden.Mode == "train":
		return errors.New("made with a pack of training, whose losses and gradients go through all layers; one run " +
			"verifies it")
	case r.Against != nil:
		return errors.New("made with --against, which compares whole traces; one run compares them")
	case !r.Fits():
		return errors.New("its shapes, patterns or loads of experts do not fit each other: it was changed")
	case unknown:
		return errors.New("a verdict, or a kind of doubt, is unknown: it was changed, or made by another dsmoe")
	case !reflect.DeepEqual(conclude(*r), r):
		return errors.New("its verdict and counts do not follow from its checks: it was changed, or made by another dsmoe")
	}
	return nil
}

// doubtKinds are all kinds of doubts of a run, in the order of reasons.
func doubtKinds() []string {
	return []string{ofPack, unnamedLayer, ofChoice, ofInput, allZero, ofConfig, blind, seldomReached, notFinite}
}

// Differences returns how the checkpoint, pack or options of b differ from those of a, in words; none if the two can be
// joined.
func Differences(a, b *report.Report) (list []string) {
	differ := func(what string, x, y any) {
		if !reflect.DeepEqual(x, y) {
			list = append(list, fmt.Sprintf("%s is %s, not %s", what, inWords(y), inWords(x)))
		}
	}
	if differ("the pack's manifest", a.Golden.Manifest, b.Golden.Manifest); list != nil {
		return list
	}
	replayed := func(r *report.Report) string {
		if r.Replay == nil {
			return "nothing"
		}
		return r.Replay.Manifest
	}
	differ("the trace to replay", replayed(a), replayed(b))
	differ("the rules", a.Rules, b.Rules)
	differ("the config", a.Config, b.Config)
	differ("the number of layers", a.Scope.Of, b.Scope.Of)
	differ("--accumulate", a.Accumulate, b.Accumulate)
	differ("--limit, --accept and --rotary-dtype", a.Options, b.Options)
	return list
}

// inWords returns a value as a message shows it.
func inWords(v any) string {
	if s, ok := v.(string); ok {
		return s
	}
	document, _ := json.Marshal(v, json.Deterministic(true))
	return string(document)
}

// Merge joins reports without differences, each of some layers, into the report of one run of all of them. Of a part of
// the model that several reports have, the report counts in which most weights were checked. disputed are stages about
// which reports differ: the checks of each are in the report, and the worse decides. The error names limits that no
// report applied.
func Merge(reports []*report.Report) (merged *report.Report, disputed []string, err error) {
	evidence, disputed := union(reports)
	r := conclude(evidence)
	first := slices.IndexFunc(reports, func(one *report.Report) bool {
		return r.FirstDivergence != nil && one.FirstDivergence != nil && *one.FirstDivergence == *r.FirstDivergence
	})
	if first >= 0 {
		r.Cause, r.Causes, r.Hints = reports[first].Cause, reports[first].Causes, reports[first].Hints
	}
	r.OtherWeights = otherWeights(r, slices.ContainsFunc(reports, func(one *report.Report) bool {
		return one.OtherWeights == otherRun
	}))
	if first >= 0 {
		adviseMerged(r, reports[first])
	}
	if !r.Fits() {
		return r, disputed, errors.New("the loads of experts in these reports do not fit each other: one was changed")
	}
	if r.Replay != nil && !slices.ContainsFunc(r.Routing.Layers, func(l report.LayerRouting) bool { return l.Replayed }) {
		return r, disputed, errors.New("no report compares choices of experts: there is nothing to replay")
	}
	return r, disputed, cmp.Or(unusedLimits(r.Options.Limits, r.Checks), UnusedAcceptances(r))
}

// union joins what the reports show, without what follows from it, and returns the tensors that have several checks.
func union(reports []*report.Report) (r report.Report, disputed []string) {
	r = *reports[0]
	r.Cause, r.Causes, r.Hints, r.Next = nil, []report.Cause{}, []report.Cause{}, nil
	r.Checks, disputed = joinChecks(reports)
	r.Places, r.Doubts = joinPlaces(reports), joinDoubts(reports)
	r.Routing, r.Rounding = joinRouting(reports), joinRounding(reports, r.Checks)
	for _, one := range reports {
		r.Stopped = r.Stopped || one.Stopped
		r.Coverage.OutsideForward = min(r.Coverage.OutsideForward, one.Coverage.OutsideForward)
		r.Coverage.EmbeddingRows = max(r.Coverage.EmbeddingRows, one.Coverage.EmbeddingRows)
	}
	products := joinStrings(reports, func(r *report.Report) []string { return []string{r.Golden.Products} })
	r.Golden.Products = strings.TrimPrefix(strings.Join(products, "; "), "; ")
	r.Golden.Recognised = nil
	for _, one := range reports {
		for _, k := range one.Golden.Recognised {
			if !slices.ContainsFunc(r.Golden.Recognised, func(other report.Recognised) bool {
				return other.Kind == k.Kind && maps.Equal(other.Ways, k.Ways)
			}) {
				r.Golden.Recognised = append(r.Golden.Recognised, k)
			}
		}
	}
	r.Beside = append([]string{}, joinStrings(reports, func(r *report.Report) []string { return r.Beside })...)
	r.Free = append([]string{}, joinStrings(reports, func(r *report.Report) []string { return r.Free })...)
	r.OtherFiles = joinStrings(reports, func(r *report.Report) []string { return r.OtherFiles })
	joinScope(&r, reports)
	return r, disputed
}

// joinStrings returns the strings of all reports, sorted, each once.
func joinStrings(reports []*report.Report, of func(*report.Report) []string) (list []string) {
	for _, r := range reports {
		list = append(list, of(r)...)
	}
	slices.Sort(list)
	return slices.Compact(list)
}

// compareOrder compares the places of two tensors in a model of so many layers; all behind these are prediction layers.
func compareOrder(a, b string, layers int) int {
	return cmp.Compare(modelOrder(a, layers, math.MaxInt), modelOrder(b, layers, math.MaxInt))
}

// inModelOrder returns each of the names once.
func inModelOrder(names []string, layers int) (list []string) {
	for _, name := range names {
		if !slices.Contains(list, name) {
			list = append(list, name)
		}
	}
	slices.SortStableFunc(list, func(a, b string) int { return compareOrder(a, b, layers) })
	return list
}

// joinChecks returns the different checks of all reports in model order, and the tensors that have several. What a
// report says of its first divergence alone is kept of the first of all.
func joinChecks(reports []*report.Report) (checks []report.Check, disputed []string) {
	layers, seen := reports[0].Scope.Of, map[string][]int{}
	checks = []report.Check{}
	for _, r := range reports {
		for _, c := range r.Checks {
			known := seen[c.Tensor]
			if slices.ContainsFunc(known, func(i int) bool { return reflect.DeepEqual(checks[i], c) }) {
				continue
			}
			if len(known) == 1 {
				disputed = append(disputed, c.Tensor)
			}
			seen[c.Tensor] = append(known, len(checks))
			checks = append(checks, c)
		}
	}
	slices.SortStableFunc(checks, func(a, b report.Check) int {
		return compareOrder(a.Tensor, b.Tensor, layers)
	})
	first := slices.IndexFunc(checks, func(c report.Check) bool { return c.Verdict == report.Fail })
	drawn := slices.IndexFunc(checks, func(c report.Check) bool { return c.Pattern != nil })
	for i := range checks {
		c := &checks[i]
		if i != drawn {
			c.Pattern = nil
		}
		if i != first {
			c.Experts, c.ExpertOneOf, c.WeightRows, c.Weights = nil, nil, nil, nil
		}
	}
	return checks, inModelOrder(disputed, layers)
}

// joinPlaces returns each part of the model as the report has it that checked most of it.
func joinPlaces(reports []*report.Report) []report.Place {
	places, at := []report.Place{}, map[string]int{}
	for _, r := range reports {
		for _, p := range r.Places {
			i, known := at[p.Name]
			if !known {
				i, at[p.Name] = len(places), len(places)
				places = append(places, p)
			}
			was := &places[i]
			needed, selected := was.Needed || p.Needed, was.Selected || p.Selected
			if p.Ran && (!was.Ran || p.Checked > was.Checked) {
				*was = p
			}
			if !was.Ran {
				was.ByName = min(was.ByName, p.ByName)
			}
			was.Needed, was.Selected = needed, selected
		}
	}
	of := reports[0].Scope.Of
	place := func(p report.Place) int {
		switch l := p.Layer(); {
		case l >= of:
			return l + 1
		case l >= 0:
			return l
		case p.Name == report.EmbeddingPlace:
			return -1
		}
		return of
	}
	slices.SortStableFunc(places, func(a, b report.Place) int { return cmp.Compare(place(a), place(b)) })
	return places
}

// joinDoubts returns what is open in any report, and the places that none covers.
func joinDoubts(reports []*report.Report) []report.Doubt {
	doubts := []report.Doubt{}
	var layers []int
	var missing []string
	for _, p := range joinPlaces(reports) {
		switch {
		case !p.Needed || p.Selected:
		case p.Layer() >= 0:
			layers = append(layers, p.Layer())
		default:
			missing = append(missing, "the "+p.Name)
		}
	}
	if len(layers) > 0 {
		missing = append(missing, report.LayersText(layers))
	}
	if len(missing) > 0 {
		doubts = append(doubts, report.Doubt{Kind: uncovered, Of: missing})
	}
	for _, kind := range doubtKinds() {
		var of []string
		for _, r := range reports {
			for _, d := range r.Doubts {
				if d.Kind == kind {
					of = append(of, d.Of...)
				}
			}
		}
		if of = inModelOrder(of, reports[0].Scope.Of); len(of) > 0 {
			doubts = append(doubts, report.Doubt{Kind: kind, Of: of})
		}
	}
	return doubts
}

// joinRouting adds up the choices of experts, those of each layer once.
func joinRouting(reports []*report.Report) report.Routing {
	r, of := report.Routing{Biases: []report.BiasPins{}, Layers: []report.LayerRouting{}}, reports[0].Scope.Of
	for _, one := range reports {
		for _, l := range one.Routing.Layers {
			if slices.ContainsFunc(r.Layers, func(known report.LayerRouting) bool { return known.Layer == l.Layer }) {
				continue
			}
			addLayer(&r, l)
			for _, b := range one.Routing.Biases {
				if b.Layer == l.Layer {
					r.Biases = append(r.Biases, b)
				}
			}
		}
	}
	slices.SortStableFunc(r.Layers, func(a, b report.LayerRouting) int {
		return compareOrder(a.Layer, b.Layer, of)
	})
	slices.SortStableFunc(r.Biases, func(a, b report.BiasPins) int {
		return compareOrder(a.Layer, b.Layer, of)
	})
	return r
}

// joinRounding joins what the rounding of weights explains, over checks.
func joinRounding(reports []*report.Report, checks []report.Check) *report.Rounding {
	var x *report.Rounding
	for _, r := range reports {
		if r.Rounding == nil {
			continue
		}
		if x == nil {
			x = &report.Rounding{Operations: []string{}, Stages: []string{}, Layers: ranked(checks, false),
				Experts: ranked(checks, true)}
		}
		x.Weights = max(x.Weights, r.Rounding.Weights)
		x.Stages = append(x.Stages, r.Rounding.Stages...)
		x.Error, x.Allowed = larger(x.Error, r.Rounding.Error), larger(x.Allowed, r.Rounding.Allowed)
	}
	if x != nil {
		x.Operations = append(x.Operations, joinStrings(reports, func(r *report.Report) []string {
			if r.Rounding == nil {
				return nil
			}
			return r.Rounding.Operations
		})...)
		x.Stages = append([]string{}, inModelOrder(x.Stages, reports[0].Scope.Of)...)
	}
	return x
}

// joinScope describes what all reports together cover: an input that the pack gave to a layer is none of the merge if
// the part before it ran.
func joinScope(r *report.Report, reports []*report.Report) {
	s := &r.Scope
	s.Part, s.Inputs, s.Embedding, s.Head = nil, []report.ScopeInput{}, false, false
	s.Selected = slices.ContainsFunc(r.Doubts, func(d report.Doubt) bool { return d.Kind == uncovered })
	before := func(l int) bool {
		return slices.ContainsFunc(r.Places, func(p report.Place) bool {
			return p.Selected && (p.Layer() == l-1 && l > 0 || l == 0 && p.Name == report.EmbeddingPlace)
		})
	}
	for _, one := range reports {
		s.Embedding, s.Head = s.Embedding || one.Scope.Embedding, s.Head || one.Scope.Head
		for _, in := range one.Scope.Inputs {
			if (in.Text != asThePack(pack.InputStage(in.Layer)) || !before(in.Layer)) && !slices.Contains(s.Inputs, in) {
				s.Inputs = append(s.Inputs, in)
			}
		}
	}
	slices.SortStableFunc(s.Inputs, func(a, b report.ScopeInput) int { return cmp.Compare(a.Layer, b.Layer) })
	stages := r.Coverage.GoldenTensors // of the pack, since all other checks are of inputs of layers
	for name := range checked(reports[0].Checks) {
		if !pack.Parse(name).IsStage() {
			stages--
		}
	}
	r.Coverage.GoldenTensors, s.NotLooked = stages, stages
	for name, looked := range checked(r.Checks) {
		if !pack.Parse(name).IsStage() {
			r.Coverage.GoldenTensors++
		} else if looked {
			s.NotLooked--
		}
	}
}

// checked returns the tensors of the pack that have a check, and whether they were looked at.
func checked(checks []report.Check) map[string]bool {
	tensors := map[string]bool{}
	for _, c := range checks {
		if c.Status != report.NotInPack {
			tensors[c.Tensor] = tensors[c.Tensor] || c.Status != report.NotLookedAt
		}
	}
	return tensors
}
