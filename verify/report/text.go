package report

import (
	"bufio"
	"cmp"
	"fmt"
	"io"
	"iter"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"

	"dsmoe/config"
	"dsmoe/text"
	"dsmoe/text/page"
	"dsmoe/verify/bounds"
	"dsmoe/verify/pack"
)

// WriteText writes the report for people: the verdict, the first divergence in full, a line per layer with its worst
// stage, coverage, and what was compared, how.
func (r *Report) WriteText(w io.Writer) error {
	b := bufio.NewWriter(w)
	fmt.Fprintln(b, r.answer())
	if r.FirstDivergence != nil {
		fmt.Fprintln(b, r.divergence())
	}
	screen, _ := w.(text.Screen)
	r.writeLayers(text.Screen{Writer: b, Columns: screen.Columns})
	f := r.coverage()
	if r.Against != nil {
		r.Against.writeArithmetics(&f)
	}
	fmt.Fprintf(b, "%s\n%s", f, r.head())
	return b.Flush()
}

// WriteQuiet writes the verdict and its reasons and, of a failure, the first divergence, its cause and what to do.
func (r *Report) WriteQuiet(w io.Writer) error {
	f := r.answer()
	if first := r.first(); first != nil {
		f.add("DIVERGES", "%s  %s %v", text.Line(first.Tensor), first.DType, first.Shape)
		if lines := first.failureLines(); len(lines) > 0 {
			f.add("", "%s", lines[0])
		}
		if first.Rows != "" {
			f.add("", "%s", first.Rows)
		}
		r.writeOrigin(&f)
		r.writeCauses(&f)
	}
	_, err := io.WriteString(w, f.String())
	return err
}

// answer is the verdict and its reasons, before those of another trace.
func (r *Report) answer() (f facts) {
	f.add("verdict", "%s", r.verdict())
	if r.Against.decides(r.Verdict) {
		f.add("this trace", "%s", r.verdictOf(r.Against.This))
	}
	for _, reason := range r.Reasons {
		f.add("", "%s", reason)
	}
	r.writeAccepted(&f)
	if r.Against != nil {
		r.Against.write(&f)
	}
	return f
}

// acceptedIDs are the ids of accepted causes, each once.
func acceptedIDs(accepted []AcceptedCause) (ids []string) {
	for _, a := range accepted {
		if !slices.Contains(ids, a.ID) {
			ids = append(ids, a.ID)
		}
	}
	return ids
}

// UnusedAcceptances are the ids that the user accepts and that explain nothing, in another trace either.
func (r *Report) UnusedAcceptances() []string {
	used := acceptedIDs(r.Accepted)
	if r.Against != nil {
		used = append(used, acceptedIDs(r.Against.Accepted)...)
	}
	return slices.DeleteFunc(slices.Clone(r.Options.Accept), func(id string) bool { return slices.Contains(used, id) })
}

// writeAccepted writes what the user accepts, and which stages that explains.
func (r *Report) writeAccepted(f *facts) {
	for _, a := range r.Accepted {
		f.add("accepted", "%s: %s", a.ID, a.Text)
		f.add("", "explains %s", text.Some(r.grouped(func(c *Check) bool { return slices.Contains(a.Stages, c.Tensor) }), 4, ", "))
	}
	if unused := r.UnusedAcceptances(); len(unused) > 0 && r.Verdict == Fail {
		f.add("accepted", "%s explains no stage completely", strings.Join(unused, ", "))
	}
}

// facts are lines: what each is about, "" for what the line before is about, and what it says.
type facts []page.Fact

// add adds a line.
func (f *facts) add(name, format string, args ...any) {
	*f = append(*f, page.Fact{Name: name, Value: fmt.Sprintf(format, args...)})
}

// String is the lines as text.
func (f facts) String() string {
	var b strings.Builder
	for _, line := range f {
		fmt.Fprintf(&b, "%-11s%s\n", line.Name, line.Value)
	}
	return b.String()
}

// verdict is the verdict with its limitations and, for a pass, the weights exercised.
func (r *Report) verdict() string {
	if r.Against.decides(r.Verdict) {
		return strings.ToUpper(string(r.Verdict)) + ": the verdict of the other trace"
	}
	return r.verdictOf(r.Verdict)
}

// verdictOf is verdict for a verdict that follows from this trace alone.
func (r *Report) verdictOf(v Verdict) string {
	verdict := strings.ToUpper(string(v))
	if r.UserLimits {
		verdict += " (user-supplied limits)"
	}
	switch v {
	case Pass:
	case Skipped:
		return verdict + ": " + r.summary()
	default:
		return verdict
	}
	if r.Rounding != nil {
		verdict += " within the rounding of the weights"
	}
	if r.Replay != nil {
		verdict += " with replayed choices of experts"
	}
	if ids := acceptedIDs(r.Accepted); ids != nil {
		verdict += " but for " + strings.Join(ids, ", ") + ", accepted"
	}
	if !r.Scope.Whole {
		verdict += ": " + r.Scope.Text
	}
	if r.Scope.Chosen > 0 {
		return fmt.Sprintf("%s (of %s rounding could not change %s)", verdict, text.Plural(r.Routing.Choices, "choice"),
			text.Grouped(r.Routing.Pinned))
	}
	c, experts := r.Coverage, ""
	if c.Experts > 0 {
		experts = fmt.Sprintf("%s of %s", text.Grouped(c.ExpertsReached+c.ExpertsProbed),
			text.Plural(c.Experts, "expert"))
		if c.ExpertsProbed > 0 {
			experts += fmt.Sprintf(", %s of them by probes", text.Grouped(c.ExpertsProbed))
		}
		experts += ", "
	}
	unpinned := ""
	if n := len(c.WeightsUnpinned); n > 0 {
		unpinned = fmt.Sprintf(", %s not pinned", text.Grouped(n))
	}
	verdict = fmt.Sprintf("%s (%s%s of %s exercised%s)", verdict, experts, text.Grouped(c.WeightsChecked),
		text.Plural(c.Weights, "weight"), unpinned)
	if r.Golden.Steps != nil {
		verdict += "; " + r.Golden.Steps.String()
	}
	if keys := r.Config.Changed(); keys != nil {
		verdict += "; config.json differs from the pack's in " + strings.Join(keys, ", ")
	}
	return verdict
}

// Changed are the keys of config.json whose values are not those of the pack's, but for those that say how weights are
// stored.
func (s *Settings) Changed() (keys []string) {
	for _, d := range s.Differ {
		if !slices.Contains([]string{"torch_dtype", "dtype", "quantization_config", "expert_dtype"}, d.Key) {
			keys = append(keys, d.Key)
		}
	}
	return keys
}

// head says what was compared, and how.
func (r *Report) head() (f facts) {
	ref := r.Golden.Reference
	if ref.Kind == pack.Engine {
		f.add("engine", "%s", text.Line(ref.String()))
		if r.Scope.Chosen > 0 {
			f.add("arithmetic", "not known: each rounding to %s that engines do may have happened or not", r.Golden.ComputeDType)
		} else {
			r.Golden.writeArithmetic(&f, "arithmetic")
		}
		if r.Scope.Chosen > 0 {
			f.add("", "not seen: what gates take and give, but for their choices")
		} else if r.Golden.Steps.Decodes() {
			f.add("", "not seen in this trace: batches of other sizes, parallel ranks, other kernels")
		} else {
			f.add("", "not seen in a trace of prompts: decoding, batches of other sizes, parallel ranks, other kernels")
		}
	} else {
		f.add("reference", "%s", text.Line(ref.String()))
	}
	if on := ref.DeviceText(); on != "" {
		f.add("", "%s", text.Line(on))
	}
	if r.Golden.Products != "" {
		f.add("", "float32 products: %s", r.Golden.Products)
	}
	if ref.Attention != "" && ref.Attention != pack.Eager {
		f.add("", "attention %s", text.Line(ref.Attention))
	}
	if ref.Experts != "" && ref.Experts != pack.Eager {
		f.add("", "experts %s", text.Line(ref.Experts))
	}
	if ref.Compiled {
		f.add("", "compiled by torch.compile")
	}
	for _, class := range slices.Sorted(maps.Keys(ref.Replaced)) {
		f.add("", "%s", text.Line(fmt.Sprintf("%s of %s", class, ref.Replaced[class])))
	}
	if ref.Kind != pack.Engine {
		r.Golden.writeRecognised(&f)
	}
	hashed := ", files match their hashes"
	if r.Scope.Chosen > 0 {
		hashed = " of one file"
	} else if r.Golden.Unread != nil {
		hashed = " of files without recorded hashes"
	}
	f.add("golden", "%d × %d tokens in %s, %s%s", r.Golden.Batch, r.Golden.Seq, r.Golden.ComputeDType,
		text.Plural(r.Coverage.GoldenTensors, "tensor"), hashed)
	unread := map[string][]string{}
	for _, u := range r.Golden.Unread {
		unread[u.Why] = append(unread[u.Why], fmt.Sprintf("%s (%d)", u.Kind, u.Count))
	}
	for _, why := range slices.Sorted(maps.Keys(unread)) {
		f.add("not read", "%s", text.Line(why+": "+strings.Join(unread[why], ", ")))
	}
	if r.Golden.Steps != nil {
		f.add("", "%s, computed in %s", r.Golden.Steps, text.Plural(r.Golden.Steps.Steps, "step"))
	}
	if r.Golden.Partial != "" {
		f.add("", "partial: %s", text.Line(r.Golden.Partial))
	}
	if r.Golden.Mode == "train" {
		f.add("", "forward in training mode, loss and gradients")
	}
	var ran []string // beside config.json
	for _, key := range slices.Sorted(maps.Keys(r.Golden.ConfigOverrides)) {
		ran = append(ran, fmt.Sprintf("%s %s", key, r.Golden.ConfigOverrides[key]))
	}
	if ran != nil {
		f.add("", "the reference ran with %s", text.Line(strings.Join(ran, ", ")))
	}
	how := string(r.Mode) + ": every stage is fed the golden's own input"
	switch {
	case r.Scope.Chosen > 0:
		how = "end to end, with the engine's choices of experts"
	case r.Mode == Chained:
		how = "chained: end to end, with the golden's choice of experts"
	case len(r.Free) > 0:
		how = string(r.Mode) + ": stages are fed the golden's own input; over what it lacks, errors are carried on: " +
			strings.Join(r.Free, ", ")
	}
	f.add("mode", "%s; %s sums", how, r.Accumulate)
	for _, in := range r.Scope.Inputs {
		what := fmt.Sprintf("layer %d", in.Layer)
		if in.Layer == r.Scope.Of {
			what = "the head"
		}
		f.add("input", "%s begins with %s", what, in.Text)
	}
	r.Config.write(&f)
	r.Coverage.writeUntold(&f)
	for _, line := range r.Beside {
		f.add("stored", "%s", text.Line(line))
	}
	if r.Rules.Reference == config.Native || r.Rules.TopKScale != 1 {
		f.add("rules", "%s", r.Rules)
	}
	if r.Rules.Official != "" {
		f.add("rules", "%s", r.Rules.Official)
	}
	for _, from := range r.Limits {
		f.add("limits", "%s", from)
	}
	if r.Rounding != nil {
		r.Rounding.write(&f)
	}
	return f
}

// writeArithmetic writes how an engine computes under a name: what it declares, what its numbers show beside that, and
// where it rounds.
func (g *Golden) writeArithmetic(f *facts, name string) {
	f.add(name, "declared, and reproduced: %s", text.Line(cmp.Or(g.Arithmetic.String(), "nothing")))
	if seen := g.Observed.String(); seen != "" {
		f.add("", "not declared, but seen, and reproduced: %s", text.Line(seen))
	}
	g.writeRecognised(f)
}

// writeRecognised writes how an engine, or fused code of a reference, rounds.
func (g *Golden) writeRecognised(f *facts) {
	for _, line := range g.recognised() {
		if line.Name != "" {
			line.Value = line.Name + ": " + line.Value
		}
		f.add("", "%s", line.Value)
	}
}

// recognised returns the lines of writeRecognised: the ways that were read off the numbers.
func (g *Golden) recognised() (f facts) {
	var known, unknown, same, recorded []string
	least := math.MaxInt
	for _, k := range g.Recognised {
		if slices.Contains(slices.Collect(maps.Values(k.Ways)), bounds.Unknown) {
			unknown = append(unknown, k.Kind)
			continue
		}
		says := k.Kind + ": " + waysInWords(k.Ways)
		for _, layer := range slices.Sorted(maps.Keys(k.Layers)) {
			says += fmt.Sprintf(", but in layer %s %s", layer, waysInWords(k.Layers[layer]))
		}
		if k.Decode != nil {
			says += ", but in decode steps " + waysInWords(k.Decode)
		}
		known = append(known, says)
		if k.WithRecorded {
			recorded = append(recorded, k.Kind)
		}
		if k.Rival == nil {
			same = append(same, k.Kind)
		} else {
			least = min(least, k.Alone)
		}
	}
	if known != nil {
		others := "HuggingFace's eager classes do"
		if g.Reference.Kind != pack.Engine {
			others = "transformers' own code does"
		}
		f.add("recognised", "%s; what is not named rounds as %s", text.Line(strings.Join(known, "; ")), others)
	}
	if least < math.MaxInt {
		f.add("", "each explains at least %s that the nearest other way does not", text.Plural(least, "element"))
	}
	if recorded != nil {
		f.add("", "with the config that the trace holds, not with the checkpoint's: %s", strings.Join(recorded, ", "))
	}
	if same != nil {
		f.add("", "other ways give the same numbers: %s", strings.Join(same, ", "))
	}
	if unknown != nil {
		f.add("not recognised", "%s", strings.Join(unknown, ", "))
	}
	return f
}

// ofArithmetic says how an engine rounds, by itself: each line has a name, and what is not recognised the stages that
// were held to wider limits for it.
func (r *Report) ofArithmetic() (f facts) {
	for _, line := range r.Golden.recognised() {
		if line.Name == "" && len(f) > 0 {
			f[len(f)-1].Value += "; " + line.Value
		} else {
			f.add("arithmetic "+line.Name, "%s", line.Value)
		}
	}
	if stages := r.grouped(func(c *Check) bool { return c.RoundingRMS != nil && c.Verdict == Pass }); stages != nil {
		f.add("stages not recognised", "held to wider limits, which allow for any rounding: %s", strings.Join(stages, ", "))
	}
	return f
}

// waysInWords names the ways of operations: of several with the operation's name.
func waysInWords(ways map[string]string) string {
	var words []string
	for _, operation := range slices.Sorted(maps.Keys(ways)) {
		if len(ways) == 1 {
			return ways[operation]
		}
		words = append(words, operation+" "+ways[operation])
	}
	return strings.Join(words, ", ")
}

// write writes a line per key that the verdict does not speak of.
func (s *Settings) write(f *facts) {
	for _, o := range s.Overridden {
		f.add("config", "%s", text.Line(fmt.Sprintf("%s %s, the reference ran with %s", o.Key, o.Checkpoint,
			o.Reference)))
	}
	for _, d := range s.Differ {
		as := ""
		if d.Meaning {
			as = " as computed here"
		}
		f.add("config", "%s", text.Line(fmt.Sprintf("%s %s%s, the pack's config has %s", d.Key, d.Checkpoint, as,
			d.Pack)))
	}
	if s.Unknown {
		f.add("config", "config.json is not the one that the pack was recorded from; which keys differ is not known, "+
			"for the pack does not hold that one")
	}
	for _, u := range s.Unexercised {
		f.add("config", "%s not exercised: %s", u.Key, u.Why)
	}
}

// writeUntold writes a line for each reason why keys are not exercised.
func (c *Coverage) writeUntold(f *facts) {
	keys, reasons := map[string][]string{}, []string{}
	for _, u := range c.Untold {
		if keys[u.Why] == nil {
			reasons = append(reasons, u.Why)
		}
		keys[u.Why] = append(keys[u.Why], u.Key)
	}
	for _, why := range reasons {
		f.add("config", "%s not exercised: %s", strings.Join(keys[why], ", "), why)
	}
}

// String names the reference whose rules are in force, and the rules.
func (r Rules) String() string {
	rules := fmt.Sprintf("%s reference: top-k weights ", r.Reference)
	if !r.NormaliseTopK {
		rules += "not "
	}
	rules += fmt.Sprintf("normalised, times %s", text.Figure("%g", r.TopKScale))
	if r.IgnoresMoELayerFreq {
		rules += "; moe_layer_freq ignored"
	}
	return rules
}

// writeLayers writes a line per layer: its stages and the one nearest to its limit, what matters most first.
func (r *Report) writeLayers(w io.Writer) {
	failed := slices.ContainsFunc(r.Checks, func(c Check) bool { return c.Verdict == Fail || c.Verdict == Accepted })
	columns := []string{"", "checked", "failed", "nearest to its limit", "of limit", "z", "RMS", "sees", "open"}
	if r.Mode != Local {
		columns = append(columns[:5], "rel RMS", "max/RMS", "equal")
	}
	shown := func(row []string) []string {
		if !failed {
			return slices.Delete(row, 2, 3)
		}
		return row
	}
	columns = shown(columns)
	t := &text.Table{Align: strings.Repeat("l", len(columns))}
	t.Add(columns...)
	for checks := range r.places() {
		worst, failed, checked := worstOf(checks)
		mark := ""
		if failed > 0 {
			mark = fmt.Sprintf("%d FAIL", failed)
		} else if n := acceptedOf(checks); n > 0 {
			mark = fmt.Sprintf("%d accepted", n)
		}
		row := []string{placeOf(worst), fmt.Sprintf("%d/%d", checked, len(checks)), mark, worst.kindOf(),
			percent(worst.Margin)}
		if r.Mode == Local {
			row = append(row, short(worst.Z, "%.2g"), short(worst.RMSZ, "%.2g"), short(worst.Sees, "%.1e"),
				percent(worst.Ambiguous))
		} else {
			row = append(row, short(worst.RelRMS, "%.1e"), short(worst.MaxRMS, "%.1e"), percent(worst.BitEqual))
		}
		t.Add(shown(row)...)
	}
	t.WriteFitting(w, columns)
	fmt.Fprintln(w)
}

// places yields the checks of each place, one after the other.
func (r *Report) places() iter.Seq[[]Check] {
	return func(yield func([]Check) bool) {
		for checks := r.Checks; len(checks) > 0; {
			n := 1
			for n < len(checks) && placeOf(checks[n]) == placeOf(checks[0]) {
				n++
			}
			if !yield(checks[:n]) {
				return
			}
			checks = checks[n:]
		}
	}
}

// placeOf is the part of the model that a check belongs to: "layer 3", "head", "gradients", …
func placeOf(c Check) string {
	switch {
	case c.Stage().IsGradient():
		return "gradients"
	case c.Layer() >= 0:
		return fmt.Sprintf("layer %d", c.Layer())
	case c.Tensor == pack.Embedded:
		return "embedding"
	case c.Stage().IsTable():
		return "rotary"
	}
	return "head"
}

// worstOf returns the worst of some checks, and how many failed and were checked.
func worstOf(checks []Check) (worst Check, failed, checked int) {
	worst = checks[0]
	for _, c := range checks {
		if c.Verdict != Skipped {
			checked++
		}
		if c.Verdict == Fail {
			failed++
		}
		if worse(c, worst) {
			worst = c
		}
	}
	return worst, failed, checked
}

// acceptedOf counts the accepted ones of some checks.
func acceptedOf(checks []Check) (n int) {
	for _, c := range checks {
		if c.Verdict == Accepted {
			n++
		}
	}
	return n
}

// kindOf is what a check is of, within its place.
func (c *Check) kindOf() string {
	kind := c.Stage().Within
	if strings.HasSuffix(kind, pack.Grad) {
		kind = c.Tensor
	}
	return strings.TrimSuffix(strings.TrimPrefix(text.Line(kind), "model."), ".output")
}

// worse orders failed checks without a margin before all, then by margin.
func worse(a, b Check) bool {
	rank := func(c Check) float64 {
		switch {
		case c.Verdict == Accepted: // its measures are those without the cause undone
			return -1
		case c.Margin != nil:
			return *c.Margin
		case c.Verdict == Fail:
			return 1e300
		case c.RelRMS != nil:
			return *c.RelRMS * 1e-9 // skipped, but measured
		}
		return -1
	}
	return rank(a) > rank(b)
}

// first is the first failed check; nil without one.
func (r *Report) first() *Check {
	if r.FirstDivergence == nil {
		return nil
	}
	return &r.Checks[slices.IndexFunc(r.Checks, func(c Check) bool { return c.Tensor == *r.FirstDivergence })]
}

// divergence is the first failed check in full; nil without one.
func (r *Report) divergence() (f facts) {
	if r.FirstDivergence == nil {
		return nil
	}
	r.writeOrigin(&f)
	r.first().write(&f)
	others := r.grouped(func(c *Check) bool { return c.Verdict == Fail && c.Tensor != *r.FirstDivergence })
	for i, stages := range others {
		f.add([]string{"also", ""}[min(i, 1)], "%s", stages)
	}
	r.writeCauses(&f)
	return f
}

// writeOrigin writes what shows that the pack was recorded from another checkpoint.
func (r *Report) writeOrigin(f *facts) {
	for _, line := range r.origin() {
		f.add("pack", "%s", text.Line(line))
	}
}

// writeCauses writes the causes of the first divergence, and what to do about it.
func (r *Report) writeCauses(f *facts) {
	f.add("cause", "%s", r.cause())
	for _, c := range r.Causes[min(1, len(r.Causes)):] {
		f.add("or", "%s", &c)
	}
	for _, h := range r.Hints {
		f.add("hint", "%s", &h)
	}
	for i, line := range r.next() {
		f.add([]string{"next", ""}[min(i, 1)], "%s", line)
	}
}

// origin returns what shows that the pack was recorded from another checkpoint.
func (r *Report) origin() (lines []string) {
	files := ""
	if len(r.OtherFiles) > 0 {
		files = "by their hashes these files are not the pack's: " + text.Some(r.OtherFiles, bounds.Few, ", ")
	}
	return slices.DeleteFunc([]string{r.OtherWeights, files, r.Config.Origin}, func(line string) bool { return line == "" })
}

// next returns what to do about the first divergence.
func (r *Report) next() []string {
	switch n := r.Next; {
	case n == nil:
		return nil
	case n.Command == "":
		return []string{text.Line(n.Text)}
	default:
		return []string{text.Line(n.Text) + ":", text.Line(n.Command)}
	}
}

// cause is the likeliest cause of the first divergence, or what to do without one.
func (r *Report) cause() string {
	switch {
	case r.Cause != nil:
		return r.Cause.String()
	case r.Mode == Local && len(r.Hints) > 0:
		return "none of the known mistakes explains all of it; a hint says what is known"
	case r.Mode == Local:
		return "none of the known mistakes explains it"
	}
	return "run with --mode local to find the stage at fault"
}

// grouped names the stages of some checks, those of a kind together.
func (r *Report) grouped(are func(c *Check) bool) (names []string) {
	layers, kinds := map[string][]int{}, []string{}
	for i := range r.Checks {
		if !are(&r.Checks[i]) {
			continue
		}
		s := r.Checks[i].Stage()
		if layers[s.Within] == nil {
			kinds = append(kinds, s.Within)
		}
		layers[s.Within] = append(layers[s.Within], s.Layer)
	}
	for _, kind := range kinds {
		name, at := text.Line(kind), layers[kind]
		if at[0] >= 0 {
			name = fmt.Sprintf("model.layers.%s.%s", text.Set(at, math.MaxInt), name)
		}
		names = append(names, name)
	}
	return names
}

func (c *Check) write(f *facts) {
	f.add("DIVERGES", "%s  %s %v", text.Line(c.Tensor), c.DType, c.Shape)
	c.explain(func(format string, args ...any) { f.add("", format, args...) })
}

// explain writes how a check failed, a line at a time: in words first, then the measures.
func (c *Check) explain(line func(format string, args ...any)) {
	for _, why := range c.failureLines() {
		line("%s", why)
	}
	if n := len(c.ProbeRows); n > 0 {
		line("expert %d was run on %s %s of %s, whatever the gate chose", c.Stage().Expert, text.Noun(n, "row"),
			text.Ranges(c.ProbeRows), pack.AttentionNorm)
	}
	if !c.inSigmas() && c.Got != "" {
		line("at %v: golden %s, recomputed %s", c.Index, c.Want, c.Got)
	}
	if g := c.Gap; g != nil {
		line("the score of %s %d is %s below that of %s %d, in whose place it is: %s σ, limit %d", g.Of, g.Golden,
			text.Figure("%.3g", g.Score), g.Of, g.Ours, orInfinite(g.Z), bounds.Lambda)
	}
	if c.inSigmas() {
		c.writeDistances(line)
	}
}

// writeDistances writes how far the golden is from what was computed.
func (c *Check) writeDistances(line func(format string, args ...any)) {
	at := fmt.Sprintf("at %v: golden %s, recomputed %s", c.Index, c.Want, c.Got)
	if c.Sigma != nil && *c.Sigma > 0 {
		at += fmt.Sprintf(" ± %s (8 σ)", text.Figure("%.2g", bounds.Lambda**c.Sigma))
	} else {
		at += ", exactly"
	}
	if c.Rounds != nil {
		at += ", which rounds to " + strings.Join(c.Rounds, " or ")
	}
	line("%s", at)
	elements := 1
	for _, dim := range c.Shape {
		elements *= dim
	}
	elements -= c.Padding * c.Shape[len(c.Shape)-1]
	beyond := fmt.Sprintf("%d of %d elements are beyond %d σ", c.Beyond, elements, bounds.Lambda)
	if c.Where != "" {
		beyond += ", " + c.Where
	}
	line("%s", beyond)
	if len(c.WeightRows) > 0 {
		line("that is row %s of %s", text.Ranges(c.WeightRows), strings.Join(c.Weights, " or "))
	}
	if len(c.Experts) > 0 {
		line("all in tokens of expert %s", text.Ranges(c.Experts))
	}
	if len(c.ExpertOneOf) > 0 {
		line("all in tokens of expert %s", strings.ReplaceAll(strings.Trim(fmt.Sprint(c.ExpertOneOf), "[]"), " ", " or "))
	}
	// The neuron that the residual lies on or, where no other measure is beyond its limit, one whose z is.
	n, alone := c.Neuron, len(c.Failed) == 1
	if n == nil || !(n.Z > c.Limits.NeuronZ) || n.Share < bounds.Certain && !alone {
		return
	}
	at = fmt.Sprintf("neuron %d: z %s, limit %d", n.Index, text.Figure("%.3g", n.Z), bounds.NeuronLimit)
	if n.Expert >= 0 {
		at = fmt.Sprintf("expert %d, %s", n.Expert, at)
	}
	if n.Share >= bounds.Certain {
		line("%s; %s %% of the residual of token %d lies on it", at, text.Figure("%.0f", 100*n.Share), n.Token)
		return
	}
	line("%s; that is in token %d, and other neurons may explain its residual as well", at, n.Token)
}

// write says what the verdict does not speak of: what the pack leaves out on purpose, what
// was not selected or not looked at, and the weights that were not read.
func (s *Scope) write(f *facts, absent pack.Absent) {
	if len(absent.Layers) > 0 {
		f.add("", "the pack leaves %s out on purpose", LayersText(absent.Layers))
	}
	if stages := slices.DeleteFunc(slices.Clone(absent.Stages),
		func(kind string) bool { return pack.Inner[kind] }); len(stages) > 0 {
		f.add("", "the pack leaves these stages out on purpose: %s", text.Line(strings.Join(stages, ", ")))
	}
	if s.NotLooked > 0 {
		f.add("", "%s not looked at", CountWere(s.NotLooked, "golden tensor"))
	}
	if s.LeftOut > 0 {
		why := "stages are absent on purpose"
		if s.Selected {
			why = "stages are not selected, or absent on purpose"
		}
		f.add("", "%s run, but not checked: %s", CountWere(s.LeftOut, "weight"), why)
	}
	if s.Weights > 0 {
		f.add("", "%s not read, and not verified: those of %s", CountWere(s.Weights, "weight"),
			strings.Join(s.UnreadParts, ", "))
	}
	if s.ByName > 0 {
		f.add("", "%d of these are in files whose headers were not read: their shapes were not checked",
			s.ByName)
	}
	if s.Unlisted != nil {
		f.add("", "tensors of parts that are not computed (%s) were not read, and not verified",
			strings.Join(s.Unlisted, ", "))
	}
}

// coverage says what took part in checked stages, and how experts and keys were chosen.
func (r *Report) coverage() (f facts) {
	c, experts := r.Coverage, ""
	if c.Experts > 0 {
		experts = ", " + c.byExperts()
	}
	f.add("coverage", "%d of %d golden tensors, %d of %d weights%s", c.GoldenChecked, c.GoldenTensors, c.WeightsChecked,
		c.Weights, experts)
	r.Scope.write(&f, r.Golden.Absent)
	if c.Padding > 0 {
		f.add("", "%s of padding not compared", text.Plural(c.Padding, "row"))
	}
	if c.EmbeddingRows > 0 {
		copies := ""
		if c.EmbeddingCopies > 0 {
			copies = ", and of prediction layers' copies of it no others"
		}
		f.add("", "%d of %d rows of the embedding%s", c.EmbeddingRows, c.VocabSize, copies)
	}
	r.writeTables(&f)
	r.writeUnclamped(&f)
	if c.OutsideForward > 0 {
		f.add("", "%d weights of multi-token prediction layers are not part of the forward pass, and not verified",
			c.OutsideForward)
	}
	if c.Beside != "" {
		f.add("", "%s are not run, and not verified", c.Beside)
	}
	nothing := "no token"
	if c.ExpertsProbed > 0 {
		nothing = "neither a token nor a probe"
	}
	r.writeDead(&f)
	for _, l := range c.Unreached {
		f.add("", "%s: %s reached experts %s", l.Layer, nothing, text.Ranges(l.Experts))
	}
	replayed := r.writeReplay(&f)
	if x := r.Routing; x.Choices > replayed.Choices {
		f.add("routing", "%d %s of experts: %d differ%s; %d could not be changed by rounding", x.Choices-replayed.Choices,
			text.Noun(x.Choices-replayed.Choices, "choice"), x.Mismatches-replayed.Mismatches, excused(x.ExactTies, x.NearTies),
			x.Pinned-replayed.Pinned)
		if x.Rounded != nil {
			f.add("", "the router's logits are rounded to %s: %d of %d choices are not those of a router in float32",
				r.Golden.ComputeDType, *x.Rounded, x.Choices)
		}
		r.writeUnpinned(&f)
		r.writePins(&f)
	}
	if x := r.Routing.Keys; x != nil {
		f.add("indexer", "%d queries see more than index_topk keys; keys that differ: %d%s; %d choices fall among equal scores, "+
			"%d of them among zeros", x.Queries, x.Mismatches, excused(x.ExactTies, x.NearTies), x.TiedCuts, x.ZeroCuts)
	}
	return f
}

// writeReplay writes how choices compare with those that are replayed, and with the router's own, and returns their counts.
func (r *Report) writeReplay(f *facts) (all LayerRouting) {
	for _, l := range r.Routing.Layers {
		if l.Replayed {
			all.Choices, all.Same, all.Pinned = all.Choices+l.Choices, all.Same+l.Same, all.Pinned+l.Pinned
			all.Mismatches += l.Mismatches
		}
	}
	if r.Replay != nil {
		f.add("replay", "%s of experts: %d differ from those of %s; %d are not the router's own", text.Plural(all.Choices, "choice"),
			all.Mismatches, text.Quote(r.Replay.Golden), all.Choices-all.Same)
		f.add("", "what decides the router's own choices, such as e_score_correction_bias, was not exercised")
	}
	return all
}

// writeDead writes the experts whose outputs are too small to matter.
func (r *Report) writeDead(f *facts) {
	experts, layers := map[int][]int{}, []int(nil)
	for _, c := range r.Checks {
		if s := c.Stage(); c.Dead {
			if experts[s.Layer] == nil {
				layers = append(layers, s.Layer)
			}
			experts[s.Layer] = append(experts[s.Layer], s.Expert)
		}
	}
	for _, l := range layers {
		f.add("", "model.layers.%d: experts %s are dead: no output of their probes reaches %.1e, and rounding hides their weights", l,
			text.Ranges(experts[l]), DeadOutput)
	}
}

// writePins writes how far the choices pin the biases, over all layers.
func (r *Report) writePins(f *facts) {
	var widest BiasPins
	var loose []int // layers with biases that no choice pins
	median, free := 0.0, 0
	for _, p := range r.Routing.Biases {
		if p.Widest >= widest.Widest {
			widest = p
		}
		if median = max(median, p.Median); len(p.Free) > 0 {
			loose, free = append(loose, layerNumber(p.Layer)), free+len(p.Free)
		}
	}
	unpinned := ""
	if free > 0 {
		unpinned = fmt.Sprintf("those of %s in %s not at all", text.Plural(free, "expert"), LayersText(loose))
	}
	switch {
	case len(r.Routing.Biases) == 0:
	case widest.Widest == 0 && free > 0:
		f.add("", "the choices pin e_score_correction_bias: %s", unpinned)
	default:
		if free > 0 {
			unpinned = "; " + unpinned
		}
		f.add("", "the choices pin each e_score_correction_bias relative to its layer's others only: medians up to %s, the "+
			"widest %s (layer %d, expert %d)%s", text.Figure("%.2g", median), text.Figure("%.2g", widest.Widest),
			layerNumber(widest.Layer), widest.Expert, unpinned)
	}
}

// layerNumber is the number of a layer, such as model.layers.3.
func layerNumber(layer string) int {
	n, _ := strconv.Atoi(strings.TrimPrefix(layer, "model.layers."))
	return n
}

// excused counts other choices that ties excuse.
func excused(exact, near int) string {
	if exact+near == 0 {
		return ""
	}
	return fmt.Sprintf("; excused: %d exact %s, %d within the noise", exact, text.Noun(exact, "tie"), near)
}

// writeUnpinned writes the layers whose choices of experts do not tell the biases from others.
func (r *Report) writeUnpinned(f *facts) {
	words := map[string]string{"": "", WithoutBias: "without e_score_correction_bias",
		TwiceTheBias: "with e_score_correction_bias doubled", WithoutBias + TwiceTheBias: "without e_score_correction_bias, and with it doubled"}
	layers, others := map[string][]int{}, []string{}
	for _, p := range r.Routing.Biases {
		how := words[strings.Join(p.Same, "")]
		if how == "" {
			continue
		}
		if layers[how] == nil {
			others = append(others, how)
		}
		layers[how] = append(layers[how], layerNumber(p.Layer))
	}
	for _, how := range others {
		f.add("", "%s: all choices are the same %s: not counted as exercised", LayersText(layers[how]), how)
	}
}

// writeUnclamped writes the layers that ran without a neuron beyond swiglu_limit.
func (r *Report) writeUnclamped(f *facts) {
	var layers []int
	for _, p := range r.Places {
		if p.Clamped != nil && !*p.Clamped {
			layers = append(layers, p.Layer())
		}
	}
	if layers != nil {
		f.add("", "no neuron of %s is beyond swiglu_limit: it was not exercised there", LayersText(layers))
	}
}

// writeTables writes how many rows of the tables that list each token's experts were compared.
func (r *Report) writeTables(f *facts) {
	var layers []int
	rows := 0
	for _, l := range r.Routing.Layers {
		if l.TableRows > 0 {
			layers, rows = append(layers, layerNumber(l.Layer)), l.TableRows
		}
	}
	if layers != nil {
		f.add("", "%d of %d rows of tid2eid in %s", rows, r.Coverage.VocabSize, LayersText(layers))
	}
}

// byExperts counts the routed experts that took part in a checked stage, those by probes apart.
func (c *Coverage) byExperts() string {
	if c.ExpertsProbed == 0 {
		return fmt.Sprintf("%d of %d routed experts", c.ExpertsReached, c.Experts)
	}
	return fmt.Sprintf("%d of %d routed experts (%d by probes)", c.ExpertsReached+c.ExpertsProbed, c.Experts,
		c.ExpertsProbed)
}

// ScoresInFloat32 ends the words of a limit that was computed for attention whose scores are in float32.
const ScoresInFloat32 = "; of scores in float32"

// LimitsOf lists the distinct reasons of the limits that were applied, and what they are. It leaves out a line that
// another one begins with, such as that of float32 stages in a 16-bit run, unless the other holds for ScoresInFloat32 alone.
func LimitsOf(checks []Check) []string {
	from, seen := []string{}, map[string]bool{}
	for _, c := range checks {
		if c.Limits == nil || seen[c.Limits.From] {
			continue
		}
		l := c.Limits
		seen[l.From] = true
		if l.Z != 0 || l.RowRMS == 0 {
			from = append(from, l.From)
			continue
		}
		from = append(from, fmt.Sprintf("%s: rel RMS ≤ %s, a row's ≤ %s, max/RMS ≤ %s", l.From, text.Figure("%.2g", l.RelRMS),
			text.Figure("%.2g", l.RowRMS), text.Figure("%.2g", l.MaxRMS)))
	}
	return slices.DeleteFunc(slices.Clone(from), func(line string) bool {
		return slices.ContainsFunc(from, func(other string) bool {
			rest, begins := strings.CutPrefix(other, line)
			return begins && rest != "" && !strings.HasPrefix(rest, ScoresInFloat32)
		})
	})
}

// summary is the verdict in a sentence.
func (r *Report) summary() string {
	c := r.Coverage
	if r.Against.decides(r.Verdict) {
		return r.Against.verdict()
	}
	switch r.Verdict {
	case Fail:
		found := []string{*r.FirstDivergence + ": " + r.first().failureText(), r.cause()}
		if r.Cause != nil { // before the numbers
			found = []string{*r.FirstDivergence + ": " + r.cause(), r.first().failureText()}
		}
		parts := append(r.origin(), found...)
		for _, h := range r.Hints {
			parts = append(parts, h.String())
		}
		if next := r.next(); next != nil {
			parts = append(parts, strings.Join(next, " "))
		}
		return text.Line(strings.Join(parts, "; "))
	case Inconclusive:
		return text.Line("not a pass: " + strings.Join(r.Reasons, "; "))
	case Skipped:
		return fmt.Sprintf("part %d of %d has no layer to verify", r.Scope.Part.Index, r.Scope.Part.Of)
	}
	none := "none is beyond"
	if n := acceptedOf(r.Checks); n > 0 {
		none = text.Plural(n, "accepted one") + " beyond"
	}
	if r.Scope.Chosen > 0 {
		return fmt.Sprintf("%s of experts were compared, and none differs by more than rounding explains", text.Plural(r.Routing.Choices, "choice"))
	}
	s := fmt.Sprintf("%d of %d golden tensors were held to their limits and %s; %d of %d weights took part",
		c.GoldenChecked, c.GoldenTensors, none, c.WeightsChecked, c.Weights)
	if c.Experts > 0 {
		s += fmt.Sprintf("; %s were reached", c.byExperts())
	}
	return s
}
