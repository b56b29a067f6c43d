package verify

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"

	"dsmoe/model"
	"dsmoe/model/tensor"
	"dsmoe/text"
	"dsmoe/verify/bounds"
	"dsmoe/verify/pack"
	"dsmoe/verify/report"
)

// against compares the job's trace, of which r is the report, with the other trace of the same tokens: in how the two
// engines compute, and in their choices of experts. The error says why the traces cannot be compared.
func (e *evidence) against(ctx context.Context, r *report.Report) (*report.Against, error) {
	j, other := e.job, e.job.options.Against
	if err := sameTokens(j.in, other.Pack); err != nil {
		return nil, err
	}
	a := report.NewAgainst(other.Pack.Dir, other.Report)
	a.Arithmetics = j.differences(r, other)
	var err error
	if a.Moved, err = j.moved(ctx, a.Arithmetics); err != nil {
		return nil, err
	}
	for _, layer := range r.Routing.Layers {
		i := slices.IndexFunc(other.Report.Routing.Layers, func(l report.LayerRouting) bool { return l.Layer == layer.Layer })
		if i < 0 {
			continue
		}
		l, err := j.compareChoices(a, layer, other.Report.Routing.Layers[i], r, other)
		if err != nil {
			return nil, err
		}
		a.Add(l)
	}
	a.Logits, err = j.compareLogits(r, other)
	return a, err
}

// compareChoices compares the experts that the two traces chose in a layer. Of each token's experts that differ it says
// why: an engine chose what rounding does not explain; the routers would choose the same in float32; else their inputs
// differ. It notes the first of all layers in a.
func (j *job) compareChoices(a *report.Against, here, there report.LayerRouting, r *report.Report, other *Trace) (
	report.AgainstChoices, error) {
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
		if l.Differ += len(differ); len(differ) == 0 {
			continue
		}
		first := &report.OtherExperts{Layer: here.Layer, Sequence: t / (rows / j.in.Batch), Position: t % (rows / j.in.Batch),
			Here: differ, There: without(of(theirs), of(ours), make([]float32, experts))}
		switch {
		case here.Wrong[t]:
			first.Why, l.WrongHere = report.WrongHere, l.WrongHere+len(differ)
		case there.Wrong[t]:
			first.Why, l.WrongThere = report.WrongThere, l.WrongThere+len(differ)
		case !told:
			first.Why, l.Untold = report.Untold, l.Untold+len(differ)
		case slices.Equal(ofLogits(ourLogits), ofLogits(theirLogits)):
			first.Why, l.Tied = report.Tied, l.Tied+len(differ)
		default:
			first.Why = report.Precision
			for _, e := range differ {
				if slices.Contains(inFloat32(here, ours), e) != slices.Contains(inFloat32(there, theirs), e) {
					first.Why = report.Inputs
					l.Inputs++
				} else {
					l.Precision++
				}
			}
		}
		a.First = cmp.Or(a.First, first)
		if here.Wrong[t] || there.Wrong[t] {
			a.FirstBeyond = cmp.Or(a.FirstBeyond, first)
		}
	}
	return l, nil
}

// compareLogits compares what the logits of two traces say of each next token, some rows at a time. A token is left out
// if a logit of it is not finite.
func (j *job) compareLogits(r *report.Report, other *Trace) (*report.AgainstLogits, error) {
	l, shape := &report.AgainstLogits{}, []int{j.in.Batch, j.in.Seq, j.model.Config.VocabSize}
	for _, trace := range []*Trace{{j.pack, r}, other} {
		switch e := trace.Pack.Manifest.Tensors[pack.Logits]; {
		case !trace.Pack.Has(pack.Logits):
			l.Missing = text.Quote(trace.Pack.Dir) + " has no " + pack.Logits
		case !j.scope.selects(pack.Logits):
			l.Missing = pack.Logits + " is not selected"
		case !slices.Equal(e.Shape, shape) || !e.DType.Casts():
			l.Missing = fmt.Sprintf("%s has %s %v, not floats %v", text.Quote(trace.Pack.Dir), e.DType, e.Shape, shape)
		}
	}
	if l.Missing != "" {
		return l, nil
	}
	var kl, logProb []float64 // of tokens, in order; the largest is that of the figure so far
	width, rows, padded := shape[2], len(j.in.InputIDs), pack.PaddedTokens(j.in, len(j.in.InputIDs))
	size := max(1, cmp.Or(j.options.block, logitsAtOnce)/(4*width)) // four arrays of a row, two of them in float64
	for first := 0; first < rows; first += size {
		n := min(size, rows-first)
		ours, err := j.pack.Elements(pack.Logits, first*width, n*width)
		if err != nil {
			return nil, err
		}
		theirs, err := other.Pack.Elements(pack.Logits, first*width, n*width)
		if err != nil {
			return nil, err
		}
		for t := first; t < first+n; t++ {
			a, b := ours[(t-first)*width:(t-first+1)*width], theirs[(t-first)*width:(t-first+1)*width]
			switch {
			case padded.Has(t):
				continue
			case !bounds.AllFinite(a) || !bounds.AllFinite(b):
				l.NotFinite++
				continue
			}
			l.Tokens++
			p, logA := model.Probabilities(a)
			_, logB := model.Probabilities(b)
			sum := logB - logA
			for i, share := range p {
				sum += float64(share * (float64(a[i]) - float64(b[i])))
			}
			kl = append(kl, max(0, sum))
			if at := j.tokenFigure(t); l.KL == nil || kl[len(kl)-1] > l.KL.Max {
				at.Max, l.KL = kl[len(kl)-1], at
			}
			if t%j.in.Seq == j.in.Seq-1 || padded.Has(t+1) {
				continue
			}
			at := j.tokenFigure(t + 1)
			here, there := float64(a[at.Token])-logA, float64(b[at.Token])-logB
			logProb = append(logProb, math.Abs(here-there))
			if at.Max, at.Here, at.There = logProb[len(logProb)-1], &here, &there; l.LogProb == nil || at.Max > l.LogProb.Max {
				l.LogProb = at
			}
		}
	}
	for _, of := range []struct {
		figure *report.TokenFigure
		values []float64
	}{{l.KL, kl}, {l.LogProb, logProb}} {
		if of.figure != nil {
			slices.Sort(of.values)
			of.figure.Median = of.values[(len(of.values)-1)/2]
		}
	}
	return l, nil
}

// tokenFigure is a figure of token t.
func (j *job) tokenFigure(t int) *report.TokenFigure {
	return &report.TokenFigure{Sequence: t / j.in.Seq, Position: t % j.in.Seq, Token: j.in.InputIDs[t]}
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
		for operation, way := range k.Decode {
			if way != k.Ways[operation] {
				found[operation] += ", in decode steps " + way
			}
		}
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
