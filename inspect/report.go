package inspect

// Everything at once: what is wrong or odd in a checkpoint, and the numbers that show it. The
// report is made here, report_page.go draws it.

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strings"

	"dsmoe/model/weights"
	"dsmoe/text"
	"dsmoe/text/page"
)

// Report is what was found in a checkpoint, and the reports that it was found in. Those of what
// could not be looked at are null.
type Report struct {
	Path       string          `json:"path"`        // of the checkpoint, or of the config, as it was given
	Findings   []ReportFinding `json:"findings"`    // of all parts: what is about the whole checkpoint, then by layer
	Checked    []string        `json:"checked"`     // a sentence for each part, with how often weights were read
	NotChecked []string        `json:"not_checked"` // a sentence for each part, with the reason
	Arch       *Arch           `json:"arch"`        // what the config implies
	Summary    *Summary        `json:"summary"`     // the files; null for a config alone
	Audit      *AuditReport    `json:"audit"`       // of headers and values; its notes are no findings
	Tensors    *StatsReport    `json:"stats"`       // of all weights but those of experts
	Experts    *ExpertsReport  `json:"experts"`
	Routers    *RouterReport   `json:"router"`
	Routing    *Routing        `json:"routing"` // null unless there are tokens

	checkpoint *Checkpoint // nil for a config alone
	pairs      []page.Captioned
	pairsText  string
}

// ReportFinding is an Observation, or a Finding of the audit.
type ReportFinding struct {
	ID       string   `json:"id"`       // of an Observation its ID, of a Finding its Kind
	Layer    *int     `json:"layer"`    // null if it is in none
	Experts  []int    `json:"experts"`  // the routed experts that it is about
	Tensor   string   `json:"tensor"`   // the tensor, or the module of an expert; empty if it is about none
	Text     string   `json:"text"`     // a sentence without a full stop
	Value    *float64 `json:"value"`    // what was measured; null if it is no number
	Expected *float64 `json:"expected"` // what it was held against; null if that is no number

	line Finding // as it is written
}

// ReportInput is what a Report is made of.
type ReportInput struct {
	Checkpoint *Checkpoint
	Values     Values   // without its Selection and Progress
	Weights    *Weights // without its Progress; nil if they cannot be told apart
	Unusable   error    // why Weights is nil
	Selection  Selection
	// Route returns the routing that is to be part of the report, of these layers; nil is none.
	Route    func(o RoutingOptions) (*Routing, error)
	Progress func(part string, done, total int64) // nil is nobody
}

// ReportConfig is a Report on a config alone.
func ReportConfig(a *Arch) *Report {
	r := &Report{Path: a.Path, Findings: []ReportFinding{}, Arch: a}
	r.Checked = []string{"the config: it can be used"}
	r.NotChecked = []string{"any weight: the path is that of a config alone"}
	return r
}

// MakeReport reads a checkpoint: all selected weights once, those of no expert a second time,
// those of experts twice more, and gate_proj another time, for the routers. Where the audit has findings, what
// cannot be done because of them is named; else it is an error.
func MakeReport(ctx context.Context, in ReportInput) (*Report, error) {
	r := &Report{Path: in.Checkpoint.Path, Findings: []ReportFinding{}, checkpoint: in.Checkpoint}
	m := &reportMaker{ReportInput: in, Report: r}
	if in.Weights != nil {
		if _, err := in.Weights.pick(in.Selection); err != nil {
			return nil, err
		}
	}
	if c := in.Checkpoint.Config; c != nil {
		r.Arch = Describe(in.Checkpoint.Path, c, 0)
	}
	if err := m.audit(ctx); err != nil {
		return nil, err
	}
	for _, part := range m.parts() {
		if err := part.run(ctx); ctx.Err() != nil {
			return nil, ctx.Err()
		} else if err != nil && r.Audit.Clean {
			return nil, err
		} else if err != nil {
			r.NotChecked = append(r.NotChecked, fmt.Sprintf("%s: %v", part.name, err))
		}
	}
	m.collect()
	return r, nil
}

// reportMaker is a report that is being made.
type reportMaker struct {
	ReportInput
	*Report
}

// progressOf is the progress of a part.
func (m *reportMaker) progressOf(part string) func(done, total int64) {
	if m.Progress == nil {
		return nil
	}
	return func(done, total int64) { m.Progress(part, done, total) }
}

// audit looks at the headers and at every selected value.
func (m *reportMaker) audit(ctx context.Context) (err error) {
	v := m.Values
	v.Selection, v.Progress = m.Selection, m.progressOf("values")
	if m.Report.Audit, err = AuditValues(ctx, m.Checkpoint, v); err != nil {
		return err
	}
	m.Summary = Summarize(m.Checkpoint)
	m.Checked, m.NotChecked = slices.Clone(m.Report.Audit.Checked), slices.Clone(m.Report.Audit.NotChecked)
	return nil
}

// part is a part of a report behind the audit.
type part struct {
	name string
	run  func(ctx context.Context) error
}

// parts returns those for which there is something.
func (m *reportMaker) parts() []part {
	if m.Weights == nil {
		return []part{{"the numbers of tensors, experts and routers", func(context.Context) error { return m.Unusable }}}
	}
	all := []part{{"the numbers of tensors other than experts", m.tensors}, {"experts", m.experts}, {"routers", m.routers}}
	if m.Route != nil {
		all = append(all, part{"routing", m.routing})
	} else {
		m.NotChecked = append(m.NotChecked, "how tokens are routed: none were given")
	}
	return all
}

// selected returns the selected weights that are said to be.
func (m *reportMaker) selected(is func(name string) bool) (w Weights, n int) {
	w = *m.Weights
	w.List = nil
	for _, x := range m.Weights.List {
		if m.Selection.Has(x.Name) && is(x.Name) {
			w.List = append(w.List, x)
		}
	}
	return w, len(w.List)
}

// isExpert says whether a tensor is a matrix of an expert, or the scales of one.
func isExpert(name string) bool {
	_, _, _, ok := mlpOf(weights.OwnerOf(name))
	return ok
}

// tensors looks at all but experts.
func (m *reportMaker) tensors(ctx context.Context) error {
	w, n := m.selected(func(name string) bool { return !isExpert(name) })
	if n == 0 {
		return nil
	}
	w.Progress = m.progressOf("tensors")
	r, err := Stats(ctx, w, StatsOptions{})
	if err != nil {
		return err
	}
	m.Tensors = r
	m.did("%s other than those of experts, read once more: ranges and rows", text.Plural(len(m.Tensors.Tensors), "tensor"))
	m.left(m.Tensors.NotCounted)
	return nil
}

func (m *reportMaker) did(sentence string, args ...any) {
	m.Checked = append(m.Checked, fmt.Sprintf(sentence, args...))
}

// left says what was selected and has no numbers.
func (m *reportMaker) left(not []NotCounted) {
	if len(not) > 0 {
		m.NotChecked = append(m.NotChecked, fmt.Sprintf("the numbers of %s, %s first: %s", text.Plural(len(not), "tensor"), text.Quote(not[0].Name), not[0].Cause))
	}
}

// experts looks at the experts.
func (m *reportMaker) experts(ctx context.Context) error {
	if _, n := m.selected(isExpert); n == 0 {
		m.NotChecked = append(m.NotChecked, "experts: "+m.none("expert"))
		return nil
	}
	w := *m.Weights
	w.Progress = m.progressOf("experts")
	r, err := ExamineExperts(ctx, w, ExpertsOptions{Selection: m.Selection, Similarities: true})
	if err != nil {
		return err
	}
	m.Experts = r
	m.takePairs()
	routed, few := 0, 0
	for i := range m.Experts.Layers {
		n := len(m.Experts.Layers[i].Experts)
		if routed += n; n < leastPeers {
			few++
		}
	}
	m.did("%s in %s, read twice, and again those that are compared whole: norms, ranks, likeness, duplicates, zero neurons, channels", text.Plural(routed, "routed expert"), text.Plural(len(m.Experts.Layers), "layer"))
	if few > 0 {
		m.NotChecked = append(m.NotChecked, fmt.Sprintf("which experts are the odd ones in %s: fewer than %d are there or selected", text.Plural(few, "layer"), leastPeers))
	}
	m.left(m.Experts.NotCounted)
	return nil
}

// none says why there are none.
func (m *reportMaker) none(what string) string {
	if m.Selection.All() {
		return "there are none"
	}
	return "no " + what + " is selected"
}

// routers looks at the routers of the selected layers, always with all their rows.
func (m *reportMaker) routers(ctx context.Context) error {
	s := Selection{Layers: m.Selection.Layers}
	if !slices.ContainsFunc(m.Weights.List, func(w *weights.Weight) bool { return strings.HasSuffix(w.Name, routerName) && s.Has(w.Name) }) {
		m.NotChecked = append(m.NotChecked, "routers: "+m.none("router"))
		return nil
	}
	w := *m.Weights
	w.Progress = m.progressOf("routers")
	r, err := ExamineRouters(ctx, w, RouterOptions{Selection: s, Coupling: true, By: ByLayer})
	if err != nil {
		return err
	}
	m.Routers = r
	m.did("routers of %s: rows, likeness, singular values, bounds", text.Plural(len(m.Routers.Layers), "layer"))
	m.coupled()
	m.left(m.Routers.NotCounted)
	return nil
}

// coupled says in how many layers it could be told whether experts fit the rows of their router.
func (m *reportMaker) coupled() {
	layers := map[string]int{}
	for _, l := range m.Routers.Layers {
		layers[l.Coupling.Verdict]++
	}
	if n := layers[coupledOwn] + layers[coupledPermuted]; n > 0 {
		m.did("gate_proj of the experts of %s, read once more: whether they fit the rows of their routers", text.Plural(n, "layer"))
	}
	const whether = "whether the experts of %s fit the rows of their routers: "
	if n := layers[notMeasurable]; n > 0 {
		m.NotChecked = append(m.NotChecked, fmt.Sprintf(whether+"they fit none, as random weights do", text.Plural(n, "layer")))
	}
	if n := layers[notLookedAt]; n > 0 {
		m.NotChecked = append(m.NotChecked, fmt.Sprintf(whether+"there are fewer than %d, or one has no gate_proj", text.Plural(n, "layer"), leastCoupled))
	}
}

// routing routes the tokens, in the selected layers that route.
func (m *reportMaker) routing(context.Context) error {
	o := RoutingOptions{Layers: m.Selection.Layers, Experts: m.Selection.Experts}
	if len(o.Layers) > 0 {
		routed := moeLayers(m.Checkpoint.Config)
		o.Layers = nil
		for _, l := range routed {
			if m.Selection.Layers.Has(l) {
				o.Layers = append(o.Layers, text.Span{l, l})
			}
		}
		if o.Layers == nil {
			m.NotChecked = append(m.NotChecked, "routing: no decoder layer with a router is selected")
			return nil
		}
	}
	r, err := m.Route(o)
	if err != nil {
		return err
	}
	m.Report.Routing = r
	m.Checked, m.NotChecked = append(m.Checked, r.title()), append(m.NotChecked, r.Missing...)
	return nil
}

// collect puts the findings of all parts together.
func (m *reportMaker) collect() {
	var observed []Observation
	if m.Experts != nil {
		observed = append(observed, m.Experts.Findings...)
	}
	if m.Routers != nil {
		observed = append(observed, m.Routers.Findings...)
	}
	told := map[string]bool{} // tensors of which an observation says what the audit says
	for _, o := range observed {
		told[o.Tensor] = told[o.Tensor] || slices.Contains([]string{"nan", "infinite", "zeroed"}, o.ID)
	}
	for _, f := range m.Report.Audit.Findings {
		if f.Kind != Note && !(f.Kind == Value && told[f.Tensor]) {
			m.Findings = append(m.Findings, ofAudit(f))
		}
	}
	for _, o := range observed {
		line := Finding{Kind: Kind(o.ID), Tensor: o.Tensor, Cause: o.Text}
		m.Findings = append(m.Findings, ReportFinding{o.ID, &o.Layer, o.Experts, o.Tensor, o.Text, o.Value, o.Expected, line})
	}
	layer := func(f ReportFinding) int {
		if f.Layer == nil {
			return -1
		}
		return *f.Layer
	}
	slices.SortStableFunc(m.Findings, func(a, b ReportFinding) int { return layer(a) - layer(b) })
}

// ofAudit is a finding of the audit.
func ofAudit(f Finding) ReportFinding {
	r := ReportFinding{ID: string(f.Kind), Experts: []int{}, Tensor: f.Tensor, Text: f.Cause, line: f}
	if f.File != "" && f.Tensor == "" {
		r.Text = text.Quote(f.File) + ": " + f.Cause
	}
	at := placeOf(f.Tensor + ".") // an expert is named by its module
	if at.layer >= 0 {
		r.Layer = &at.layer
	}
	if at.expert >= 0 {
		r.Experts = append(r.Experts, at.expert)
	}
	return r
}

// lines are the findings as the audit writes them.
func (r *Report) lines() (all []Finding) {
	for _, f := range r.Findings {
		all = append(all, f.line)
	}
	return all
}

// verdict says how much was found.
func (r *Report) verdict() string {
	switch {
	case r.checkpoint == nil:
		return "a config alone, without weights to look at"
	case r.Clean():
		return "nothing was found"
	}
	return text.Plural(len(r.Findings), "finding")
}

// Clean says whether nothing was found.
func (r *Report) Clean() bool { return len(r.Findings) == 0 }

// WriteText writes the findings and what was looked at.
func (r *Report) WriteText(w io.Writer) error {
	if _, err := fmt.Fprintf(w, "%s: %s\n", text.Word(r.Path), r.verdict()); err != nil {
		return err
	}
	if err := writeFindings(w, r.lines(), maxLines); err != nil {
		return err
	}
	return writeChecked(w, r.Checked, r.NotChecked)
}
