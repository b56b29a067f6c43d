package verify

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"strings"

	"dsmoe/model/tensor"
	"dsmoe/verify/bounds"
	"dsmoe/verify/pack"
	"dsmoe/verify/report"
)

// against compares the job's trace, of which r is the report, with the other trace of the same tokens: in how the two
// engines compute, and in their choices of experts. The error says why the traces cannot be compared.
func (e *evidence) against(ctx context.Context, r *report.Report) (*report.Against, error) {
	j, other := e.job, e.job.options.Against
	its, err := other.Pack.Input()
	if err != nil {
		return nil, err
	}
	if j.in.Batch != its.Batch || !slices.Equal(j.in.InputIDs, its.InputIDs) ||
		!slices.Equal(j.in.AttentionMask, its.AttentionMask) {
		return nil, other.Pack.Fault("", "its tokens are not those of the trace that it is to be held against")
	}
	a := &report.Against{Golden: other.Pack.Dir, Verdict: other.Report.Verdict, Cause: other.Report.Cause,
		FirstDivergence: other.Report.FirstDivergence, Reasons: other.Report.Reasons, Other: other.Report.Golden,
		Arithmetics: j.differences(r, other), Layers: []report.AgainstChoices{}}
	if a.Moved, err = j.moved(ctx, a.Arithmetics); err != nil {
		return nil, err
	}
	for _, layer := range r.Routing.Layers {
		i := slices.IndexFunc(other.Report.Routing.Layers, func(l report.LayerRouting) bool { return l.Layer == layer.Layer })
		if i < 0 {
			continue
		}
		l, err := j.compareChoices(layer, other.Report.Routing.Layers[i], r, other)
		if err != nil {
			return nil, err
		}
		a.Add(l)
	}
	return a, nil
}

// compareChoices compares the experts that the two traces chose in a layer. Of each token's experts that differ it says
// why: an engine chose what rounding does not explain; the routers would choose the same in float32; else their inputs
// differ.
func (j *job) compareChoices(here, there report.LayerRouting, r *report.Report, other *Trace) (report.AgainstChoices,
	error) {
	l := report.AgainstChoices{Layer: here.Layer, Choices: here.Choices}
	name, logits := here.Layer+"."+pack.TopKIdx, here.Layer+"."+pack.GateLogits
	ours, err := j.pack.Ints(name)
	if err != nil {
		return l, err
	}
	theirs, err := other.Pack.Ints(name)
	if err != nil {
		return l, err
	}
	shape := j.pack.Manifest.Tensors[name].Shape // both were verified, and so have the model's number of choices
	k, experts := shape[len(shape)-1], len(here.Load)
	rows := len(ours) / k // prediction layers have fewer than tokens
	var ourLogits, theirLogits []float32
	if compares(r, logits) && compares(other.Report, logits) {
		if ourLogits, err = j.pack.Float32s(logits); err == nil {
			theirLogits, err = other.Pack.Float32s(logits)
		}
		if err != nil {
			return l, err
		}
	}
	told := len(ourLogits) == rows*experts && len(theirLogits) == rows*experts
	padded := pack.PaddedTokens(j.in, rows)
	for t := range rows {
		if padded.Has(t) {
			continue
		}
		of := func(all []int) []int { return all[t*k : (t+1)*k] }
		ofLogits := func(all []float32) []float32 { return all[t*experts : (t+1)*experts] }
		inFloat32 := func(choice report.LayerRouting, recorded []int) []int {
			if choice.InFloat32 != nil {
				return of(choice.InFloat32)
			}
			return of(recorded)
		}
		differ := without(of(ours), of(theirs), make([]float32, experts))
		l.Differ += len(differ)
		switch {
		case here.Wrong[t]:
			l.WrongHere += len(differ)
		case there.Wrong[t]:
			l.WrongThere += len(differ)
		case !told:
			l.Untold += len(differ)
		case slices.Equal(ofLogits(ourLogits), ofLogits(theirLogits)):
			l.Tied += len(differ)
		default:
			for _, e := range differ {
				if slices.Contains(inFloat32(here, ours), e) != slices.Contains(inFloat32(there, theirs), e) {
					l.Inputs++
				} else {
					l.Precision++
				}
			}
		}
	}
	return l, nil
}

// compares reports whether a stage was compared.
func compares(r *report.Report, stage string) bool {
	return slices.ContainsFunc(r.Checks, func(c report.Check) bool {
		return c.Tensor == stage && c.Verdict != report.Skipped
	})
}

// differences lists in what the two engines compute differently, as far as they declare it or their numbers show it.
func (j *job) differences(r *report.Report, other *Trace) []report.TwoWays {
	theirs := *j
	theirs.pack = other.Pack
	here, there := j.waysShown(r), theirs.waysShown(other.Report)
	list := []report.TwoWays{}
	for _, of := range slices.Sorted(maps.Keys(here)) {
		if way, ok := there[of]; ok && way != here[of] {
			list = append(list, report.TwoWays{Of: of, Here: here[of], There: way})
		}
	}
	return list
}

// waysShown returns how an engine computes: the dtype, what it declares or was observed beside that, and of a trace in
// 16 bits how the operations round that a compared stage shows.
func (j *job) waysShown(r *report.Report) map[string]string {
	ways := map[string]string{"dtype": r.Golden.ComputeDType}
	for _, how := range []*pack.Arithmetic{r.Golden.Arithmetic, r.Golden.Observed} {
		if how == nil {
			continue
		}
		for form, to := range how.Activations {
			ways["inputs of "+form+" products"] = to
		}
		for of, way := range map[string]string{"cache": how.Cache, "attention": strings.Join(how.Attention, ", "),
			"sums": how.Sums} {
			if way != "" {
				ways[of] = way
			}
		}
	}
	if !j.pack.IsTrace() || j.pack.DType == tensor.F32 {
		return ways
	}
	for _, c := range r.Checks {
		of := j.kindsOf(c.Tensor)
		for _, k := range kinds {
			if c.Verdict == report.Skipped || !slices.Contains(of, k.name) {
				continue
			}
			for _, operation := range k.operations {
				ways[operation] = bounds.WaysOf(operation)[0]
			}
		}
	}
	found := map[string]string{}
	if r.Golden.Arithmetic != nil {
		maps.Copy(found, r.Golden.Arithmetic.Rounding)
	}
	for _, k := range r.Golden.Recognised {
		maps.Copy(found, k.Ways)
		for _, layer := range slices.Sorted(maps.Keys(k.Layers)) {
			for operation, way := range k.Layers[layer] {
				if way != k.Ways[operation] {
					found[operation] += ", in layer " + layer + " " + way
				}
			}
		}
	}
	if r.Routing.Rounded != nil {
		found[bounds.Router] = bounds.InT
	}
	for operation, way := range found {
		if ways[operation] != "" {
			ways[operation] = way
		}
	}
	return ways
}

// moved measures what the roundings that differ do by themselves. It computes the stages that show them in both ways,
// from the inputs in the job's pack. As in recognition, the first layers with a stage are enough.
func (j *job) moved(ctx context.Context, differ []report.TwoWays) ([]report.Moved, error) {
	theirs := map[string]string{}
	for _, d := range differ { // in both known, and one way in all layers
		if ways := bounds.WaysOf(d.Of); slices.Contains(ways, d.Here) && slices.Contains(ways, d.There) {
			theirs[d.Of] = d.There
		}
	}
	o := *j.options
	o.Progress, o.FailFast, o.Part, o.Layers, o.Stages = nil, false, nil, nil, nil
	layers, order := map[string]int{}, func(stage string) int {
		return modelOrder(stage, len(j.model.Model.Layers), len(j.model.Model.MTP))
	}
	for _, stage := range slices.SortedFunc(maps.Keys(j.pack.Manifest.Tensors), func(a, b string) int {
		return cmp.Or(cmp.Compare(order(a), order(b)), cmp.Compare(a, b))
	}) {
		of, within := j.kindsOf(stage), pack.Parse(stage).Within
		if layers[within] < recognisedLayers && j.scope.compares(stage) && slices.ContainsFunc(kinds, func(k kind) bool {
			return slices.Contains(of, k.name) &&
				slices.ContainsFunc(k.operations, func(operation string) bool { return theirs[operation] != "" })
		}) {
			o.Stages = append(o.Stages, stage)
			layers[within]++
		}
	}
	list := []report.Moved{}
	if o.Stages == nil {
		return list, nil
	}
	s, err := newScope(j.model.Config, j.pack, &o)
	if err != nil {
		return nil, err
	}
	part := *j
	part.options, part.scope, part.trial = &o, s, true
	var values [2]map[string][]float32
	for i, as := range []*job{&part, part.rounding(func(ways map[string]string) { maps.Copy(ways, theirs) })} {
		values[i] = map[string][]float32{}
		as.watch = func(stage string, x *bounds.Value, rows *bounds.Rows) {
			of := slices.Clone(rows.Gather(x.Values, x.Width()))
			for n, v := range of {
				of[n] = tensor.Rounded(v, x.DType)
			}
			values[i][stage] = of
		}
		if _, err := as.gather(ctx); err != nil {
			return nil, err
		}
	}
	for _, stage := range o.Stages {
		ours, theirs, within := values[0][stage], values[1][stage], pack.Parse(stage).Within
		size := bounds.RMS(ours)
		if !(size > 0) || theirs == nil { // nothing, not reached, or of another dtype than the pack's
			continue
		}
		i := slices.IndexFunc(list, func(m report.Moved) bool { return m.Stage == within })
		if i < 0 {
			i, list = len(list), append(list, report.Moved{Stage: within})
		}
		differ := make([]float32, len(ours))
		for n, v := range theirs {
			if differ[n] = v - ours[n]; differ[n] != 0 {
				list[i].Elements++
			}
		}
		list[i].Of += len(ours)
		list[i].RelRMS = max(list[i].RelRMS, bounds.RMS(differ)/size)
	}
	return list, nil
}
