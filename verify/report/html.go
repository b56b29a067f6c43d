package report

import (
	"cmp"
	"fmt"
	"io"
	"math"
	"slices"
	"strings"

	"dsmoe/text"
	"dsmoe/text/page"
	"dsmoe/verify/bounds"
)

// WriteHTML writes the report as a self-contained page: the verdict and its cause first, then
// how much of its bound each stage used, the choices of experts, and what the run was. It says
// what WriteText says, in the same words, and draws what that has no room for.
func (r *Report) WriteHTML(w io.Writer, about About) error {
	p := page.New(about.Name)
	tone := map[Verdict]page.Tone{Pass: page.Good, Fail: page.Bad, Inconclusive: page.Unclear}[r.Verdict]
	sentence := r.summary()
	if r.Verdict == Fail && !r.Against.decides(r.Verdict) {
		sentence = r.headline() // the numbers, hints and what to do stand below
	}
	p.Verdict(tone, r.verdict(), sentence)
	if r.Verdict != Inconclusive || len(r.Reasons) > 1 {
		for _, reason := range r.Reasons {
			p.Facts(page.Fact{Name: "reason", Value: reason})
		}
	}
	var accepted facts
	r.writeAccepted(&accepted)
	p.Facts(accepted...)
	if r.Against != nil {
		p.Facts(page.Fact{Name: "against", Value: r.Against.verdict()})
	}
	if !r.unfinished {
		p.Facts(r.ofArithmetic()...)
		r.pageDivergence(p)
		if r.Scope.Chosen == 0 { // choices have no distance
			r.pageBounds(p)
		}
		r.pageRouting(p)
	}
	p.Section("The run")
	p.Facts(about.Facts...)
	if !r.unfinished {
		p.Facts(r.head().onPage()...)
		hashed := "manifest.json"
		if r.Scope.Chosen > 0 {
			hashed = "choices"
		}
		p.Facts(page.Fact{Name: hashed, Value: r.Golden.Manifest})
	}
	if about.Files != nil {
		p.Fold("Files of the checkpoint", about.Files)
	}
	return p.WriteHTML(w)
}

// headline names the first stage that differs and its cause, and how far it is off if no cause is known.
func (r *Report) headline() string {
	parts := []string{r.cause()}
	if r.Cause == nil {
		lines := r.first().failureLines()
		parts = append(lines[:min(len(lines), 1)], parts...)
	}
	return text.Line(strings.Join(append(r.origin(), *r.FirstDivergence+": "+strings.Join(parts, "; ")), "; "))
}

// onPage are the facts with names as a page has them.
func (f facts) onPage() []page.Fact {
	list := slices.Clone(f)
	for i := range list {
		list[i].Name = strings.ToLower(list[i].Name)
	}
	return list
}

// pageDivergence shows the first check that failed, and where in its tensor.
func (r *Report) pageDivergence(p *page.Page) {
	if r.FirstDivergence == nil {
		return
	}
	var facts []page.Fact
	name, also := "", text.NewSheet("stages")
	for _, f := range r.divergence().onPage() {
		if name = cmp.Or(f.Name, name); name == "also" {
			also.Add(text.Plain(f.Value))
		} else {
			facts = append(facts, f)
		}
	}
	p.Facts(facts...)
	if len(also.Rows()) > 0 {
		p.Fold("Other stages that fail", also)
	}
	if i := slices.IndexFunc(r.Checks, func(c Check) bool { return c.Pattern != nil }); i >= 0 {
		c := &r.Checks[i]
		p.Section("Where it differs")
		cell := "each element"
		if p := c.Pattern; p.RowStep > 1 || p.ColumnStep > 1 {
			cell = fmt.Sprintf("each %d × %d elements", p.RowStep, p.ColumnStep)
		}
		caption := fmt.Sprintf("%s: the largest residual of %s.", c.Tensor, cell)
		if c.Pattern.Unit == Sigmas {
			caption += fmt.Sprintf(" Beyond %d σ rounding does not explain it.", bounds.Lambda)
		}
		p.Figure(c.heatmap(), caption)
	}
}

// heatmap draws the pattern of a check.
func (c *Check) heatmap() page.Heatmap {
	p := c.Pattern
	m := page.Heatmap{Title: "residual of " + c.Tensor, Name: "residual, " + p.Unit, RowName: "token", ColName: "channel",
		Scale: page.Log}
	if c.Stage().IsGradient() {
		m.RowName, m.ColName = "row", "column"
	}
	if p.Seq > 0 {
		m.RowName = "sequence, token"
	}
	m.Marked = func(i, j int) bool { return [2]int{i, j} == p.Worst }
	m.MarkName, m.NoValue = "the largest", "padding, not compared"
	for i, row := range p.Cells {
		label := fmt.Sprint(i * p.RowStep)
		if p.Seq > 0 {
			label = fmt.Sprintf("%d, %d", i*p.RowStep/p.Seq, i*p.RowStep%p.Seq)
		}
		m.Rows = append(m.Rows, label)
		values := make([]float64, len(row))
		for j, v := range row {
			switch {
			case slices.Contains(p.Padding, i):
				values[j] = math.NaN()
			case v == nil:
				values[j] = math.Inf(1)
			default:
				values[j] = *v
			}
		}
		m.Values = append(m.Values, values)
	}
	for at := p.Seq; at > 0 && at >= p.RowStep && at < len(p.Cells)*p.RowStep; at += p.Seq { // none within a cell
		m.Dividers = append(m.Dividers, float64(at)/float64(p.RowStep))
	}
	for j := range p.Cells[0] {
		m.Columns = append(m.Columns, fmt.Sprint(j*p.ColumnStep))
	}
	if p.Unit == Sigmas {
		m.Min, m.Max = 1, math.Max(100, ceiling(m.Values))
		m.Limit, m.LimitName = bounds.Lambda, fmt.Sprintf("%d σ", bounds.Lambda)
	}
	return m
}

// ceiling is the power of ten above all finite values, 1e9 at most.
func ceiling(values [][]float64) float64 {
	most := 1.0
	for _, row := range values {
		for _, v := range row {
			for v > most && most < 1e9 && !math.IsInf(v, 0) {
				most *= 10
			}
		}
	}
	return most
}

// pageBounds shows how much of its bound each stage used.
func (r *Report) pageBounds(p *page.Page) {
	judged := slices.ContainsFunc(r.Checks, func(c Check) bool { return c.Margin != nil })
	if judged {
		p.Section("How much of the bounds was used")
		p.Figure(r.bars(judged), "The stage of each layer that is nearest to its limit. The limit is at 1.")
	} else {
		p.Section("How far the stages are from the reference")
		p.Figure(r.bars(judged), "The stage of each layer that is furthest. There is no limit for it.")
	}
	if m := r.stages(false, judged); len(m.Rows) > 0 {
		p.Figure(m, "Each stage of each layer.")
	}
	if m := r.stages(true, judged); len(m.Rows) > 0 {
		p.Figure(m, "Gradients of each layer's weights; of routed experts the worst one's.")
	}
	s := text.NewSheet("tensor", "verdict", ">of_limit", ">z", ">rms_of_z", ">sees", ">rel_rms", ">max_abs", "dtype",
		"shape", "why")
	for _, c := range r.Checks {
		z := text.Real(c.Z)
		if c.inSigmas() {
			z = text.Plain(orInfinite(c.Z))
		}
		shape := strings.ReplaceAll(strings.Trim(fmt.Sprint(c.Shape), "[]"), " ", " × ")
		s.Add(text.Foreign(c.Tensor), text.Plain(string(c.Verdict)), text.Plain(percent(c.Margin)), z, text.Real(c.RMSZ),
			text.Real(c.Sees), text.Real(c.RelRMS), text.Real(c.MaxAbs),
			text.Plain(c.DType), text.Plain(shape), text.Plain(strings.Join(append(c.acceptance(), c.failureLines()...), "; ")))
	}
	p.Fold(fmt.Sprintf("All %s", text.Plural(len(r.Checks), "check")), s)
}

// boundShare is what a drawing shows of a check: the share of its bound, or its relative RMS if none
// has a bound; NaN if there is none.
func (c *Check) boundShare(judged bool) float64 {
	v := c.Margin
	if !judged {
		v = c.RelRMS
	}
	switch {
	case c.Verdict == Accepted: // it was measured without the cause undone
		return math.NaN()
	case v != nil:
		return *v
	case judged && c.Verdict == Fail:
		return math.Inf(1)
	}
	return math.NaN()
}

// shareName is what used is.
func shareName(judged bool) string {
	if judged {
		return "share of the bound"
	}
	return "relative RMS of the difference"
}

// bars is a bar for each place.
func (r *Report) bars(judged bool) page.Bars {
	b := page.Bars{Title: "the stage of each layer that is nearest to its limit", Name: shareName(judged), Scale: page.Log}
	if judged {
		b.Limit = 1
	}
	for checks := range r.places() {
		worst, failed, checked := worstOf(checks)
		bar := page.Bar{Label: placeOf(worst), Value: worst.boundShare(judged), Bad: failed > 0}
		bar.Shown = strings.TrimSuffix(worst.kindOf()+" "+worst.shareText(judged), " -")
		switch {
		case failed > 0:
			bar.Shown += fmt.Sprintf(", %d failed", failed)
		case math.IsNaN(bar.Value) && checked > 0:
			bar.Shown = "no bound"
		case math.IsNaN(bar.Value):
			bar.Shown = "not checked"
		}
		b.Rows = append(b.Rows, bar)
	}
	b.Min, b.Max = 1e-3, 10
	for _, row := range b.Rows {
		b.Max = math.Max(b.Max, ceiling([][]float64{{row.Value}}))
	}
	if !judged {
		b.Min, b.Max = 0, 0
	}
	return b
}

// shareText writes used for a reader.
func (c *Check) shareText(judged bool) string {
	switch v := c.boundShare(judged); {
	case math.IsNaN(v) || math.IsInf(v, 0):
		return "-"
	case judged:
		return percent(c.Margin)
	}
	return short(c.RelRMS, "%.2g")
}

// stages is a heatmap of the layers' stages, or of their gradients: one row for each layer, a
// column for each kind.
func (r *Report) stages(gradients, judged bool) page.Heatmap {
	m := page.Heatmap{Title: "stages of the layers", Name: shareName(judged), RowName: "layer", Scale: page.Log,
		MarkName: "failed", NoValue: "not there, or not measured"}
	worst := map[[2]int]Check{} // by row and column
	for _, c := range r.Checks {
		if c.Layer() < 0 || c.Stage().IsGradient() != gradients {
			continue
		}
		at := [2]int{indexIn(&m.Rows, fmt.Sprint(c.Layer())),
			indexIn(&m.Columns, strings.TrimSuffix(text.Line(c.Stage().Kind), ".output"))}
		if before, ok := worst[at]; !ok || worse(c, before) {
			worst[at] = c
		}
	}
	for i := range m.Rows {
		m.Values = append(m.Values, nil)
		for j := range m.Columns {
			v := math.NaN()
			if c, ok := worst[[2]int{i, j}]; ok {
				v = c.boundShare(judged)
			}
			m.Values[i] = append(m.Values[i], v)
		}
	}
	if judged {
		m.NoValue = "not there, not checked, or without a bound"
		m.Min, m.Max = 1e-3, ceiling(m.Values)
		m.Limit, m.LimitName = 1, "limit"
	}
	m.Marked = func(i, j int) bool { c := worst[[2]int{i, j}]; return c.Verdict == Fail }
	m.Tip = func(i, j int) string {
		c, ok := worst[[2]int{i, j}]
		if !ok {
			return m.NoValue
		}
		return fmt.Sprintf("%s: %s %s", c.Tensor, c.Verdict, c.shareText(judged))
	}
	return m
}

// indexIn returns where s is in a list, behind the last if it is new.
func indexIn(list *[]string, s string) int {
	i := slices.Index(*list, s)
	if i < 0 {
		i, *list = len(*list), append(*list, s)
	}
	return i
}

// manyLayers is how many rows a table has at most that is not folded.
const manyLayers = 12

// pageRouting shows what took part, and the choices of experts.
func (r *Report) pageRouting(p *page.Page) {
	p.Section("Coverage and routing")
	f := r.coverage()
	if r.Against != nil {
		r.Against.writeArithmetics(&f)
		r.Against.write(&f)
	}
	p.Facts(f.onPage()...)
	if len(r.Routing.Layers) == 0 {
		return
	}
	s := text.NewSheet("layer", ">choices", ">the_same", ">exact_ties", ">within_the_noise", ">differ", ">pinned",
		">not_pinned", ">experts", ">never_chosen", ">busiest")
	m := page.Heatmap{Title: "load of the routed experts", Name: "choices", RowName: "layer", ColName: "routed expert",
		MarkName: "never chosen"}
	for _, l := range r.Routing.Layers {
		idle := len(l.Load) - len(slices.DeleteFunc(slices.Clone(l.Load), func(n int) bool { return n == 0 }))
		s.Add(text.Plain(l.Layer), text.Whole(l.Choices), text.Whole(l.Same), text.Whole(l.ExactTies), text.Whole(l.NearTies),
			text.Whole(l.Mismatches), text.Whole(l.Pinned), text.Whole(l.Choices-l.Pinned), text.Whole(len(l.Load)),
			text.Whole(idle), text.Whole(slices.Max(l.Load)))
		m.Rows = append(m.Rows, strings.TrimPrefix(l.Layer, "model.layers."))
		row := make([]float64, len(l.Load))
		for e, n := range l.Load {
			row[e] = float64(n)
			m.Max = math.Max(m.Max, row[e])
		}
		m.Values = append(m.Values, row)
	}
	for e := range r.Routing.Layers[0].Load {
		m.Columns = append(m.Columns, fmt.Sprint(e))
	}
	m.Marked = func(i, j int) bool { return m.Values[i][j] == 0 }
	m.Tip = func(i, j int) string {
		return fmt.Sprintf("layer %s, expert %d: %s", m.Rows[i], j, text.Plural(r.Routing.Layers[i].Load[j], "choice"))
	}
	if len(m.Rows) > manyLayers {
		p.Fold(fmt.Sprintf("Choices of the %d layers", len(m.Rows)), s)
	} else {
		p.Table(s)
	}
	p.Figure(m, "How often the golden chose each routed expert; padding is left out.")
}
