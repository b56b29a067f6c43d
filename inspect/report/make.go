// Package report looks into everything at once: what is wrong or odd in a checkpoint, and the numbers that show it, as
// text, JSON and a page.
package report

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"slices"

	"dsmoe/inspect"
	"dsmoe/inspect/diff"
	"dsmoe/inspect/experts"
	"dsmoe/inspect/header"
	"dsmoe/inspect/router"
	"dsmoe/inspect/routing"
	"dsmoe/inspect/stats"
	"dsmoe/inspect/tensors"
	"dsmoe/model/table"
	"dsmoe/model/weights"
	"dsmoe/text"
	"dsmoe/text/page"
	"dsmoe/text/problem"
)

// Report is what was found in a checkpoint, and the reports of its parts. A part that could not be checked is null.
type Report struct {
	Path       string              `json:"path"`        // of the checkpoint, or of the config, as the user gave it
	Findings   []finding           `json:"findings"`    // of all parts, by level and size: see inspect.Cluster
	Checked    []string            `json:"checked"`     // a sentence for each part, with how often weights were read
	NotChecked []string            `json:"not_checked"` // a sentence for each part, with the reason
	Arch       *header.Arch        `json:"arch"`        // what the config implies
	Hash       *string             `json:"hash"`        // as inspect hash names the model; null unless all is selected
	Summary    *header.Summary     `json:"summary"`     // the files; null for a config alone
	Audit      *header.AuditReport `json:"audit"`       // of headers and values; its notes are no findings
	Tensors    *stats.Report       `json:"stats"`       // of all weights but those of experts
	Experts    *experts.Report     `json:"experts"`
	Between    *experts.Between    `json:"between_layers"` // experts of different layers
	Routers    *router.Report      `json:"router"`
	Routing    *routing.Report     `json:"routing"` // null unless there are tokens
	Against    *diff.Changes       `json:"against"` // null unless there is a base

	lines      []inspect.Finding   // Findings, as text and page have them
	checkpoint *inspect.Checkpoint // nil for a config alone
	pairs      []page.Captioned
	pairsText  string
}

// finding is an inspect.Observation, or an inspect.Finding of the audit, as JSON has it.
type finding struct {
	Level    inspect.Level    `json:"level"`    // of the audit inspect.Error
	ID       string           `json:"id"`       // of an observation its ID, of the audit its Kind
	Layer    *int             `json:"layer"`    // null if it is in none
	Experts  []int            `json:"experts"`  // the routed experts that it is about
	Tensor   string           `json:"tensor"`   // the tensor, or the module of an expert; empty if it is about none
	Text     string           `json:"text"`     // a sentence without a full stop
	Value    *float64         `json:"value"`    // the measured number; null if there is none
	Expected *float64         `json:"expected"` // a median, a null value or a bound to compare Value with; or null
	Members  []inspect.Member `json:"members"`  // everything with the same cause; of the audit empty
}

// Input is what a Report is made of.
type Input struct {
	Checkpoint *inspect.Checkpoint
	Values     stats.Values     // without its Selection and Progress
	Weights    *inspect.Weights // without its Progress; nil if config and files do not fit
	Unusable   error            // why Weights is nil
	Base       *inspect.Weights // of the model that this one was made from; nil if there is none
	Stored     header.Weights   // as the files hold them; the zero value if Weights is nil
	Selection  inspect.Selection
	// Route returns the routing that becomes part of the report; it may be nil.
	Route    func(o routing.Options) (*routing.Report, error)
	Progress func(part string, done, total int64) // may be nil
}

// OfConfig returns a Report on a config alone.
func OfConfig(a *header.Arch) *Report {
	return &Report{Path: a.Path, Findings: []finding{}, Arch: a, Checked: []string{"the config: it can be used"},
		NotChecked: []string{"any weight: the path is that of a config alone"}}
}

// Make reads a checkpoint: all selected weights once, those of no expert twice more, those of experts twice more,
// and gate_proj another time, for the routers. A part that fails is an error, or NotChecked if the audit has findings.
func Make(ctx context.Context, in Input) (*Report, error) {
	r := &Report{Path: in.Checkpoint.Path, Findings: []finding{}, checkpoint: in.Checkpoint}
	m := &maker{Input: in, Report: r}
	if in.Weights != nil {
		if _, err := in.Weights.Pick(in.Selection); err != nil {
			return nil, err
		}
	}
	if c := in.Checkpoint.Config; c != nil {
		r.Arch = header.Describe(in.Checkpoint.Path, c, in.Stored, 0)
	}
	v := in.Values
	v.Selection, v.Progress = in.Selection, m.progressOf("values")
	var err error
	if r.Audit, err = stats.AuditValues(ctx, in.Checkpoint, v); err != nil {
		return nil, err
	}
	r.Summary = header.Summarize(in.Checkpoint)
	r.Checked, r.NotChecked = slices.Clone(r.Audit.Checked), slices.Clone(r.Audit.NotChecked)
	parts := []part{{"the numbers of tensors other than experts", m.tensors}, {"experts", m.experts},
		{"experts of different layers", m.between}, {"routers", m.routers}}
	if m.Selection.All() {
		parts = append(parts, part{"the model's hash", m.hash})
	}
	if m.Base != nil {
		parts = append(parts, part{"what changed against the base", m.against})
	}
	if m.Route != nil {
		parts = append(parts, part{"routing", m.routing})
	} else if m.Weights != nil {
		m.addNotChecked("how tokens are routed: none were given")
	}
	if m.Weights == nil {
		parts = []part{{"the numbers of tensors, experts and routers", func(context.Context) error { return m.Unusable }}}
	}
	for _, part := range parts {
		if err := part.run(ctx); ctx.Err() != nil {
			return nil, ctx.Err()
		} else if err != nil && r.Audit.Clean {
			return nil, err
		} else if err != nil {
			m.addNotChecked("%s: %v", part.name, err)
		}
	}
	m.collect()
	return r, nil
}

// maker is the state of one Make run.
type maker struct {
	Input
	*Report
	odd []inspect.Observation // about tensors other than experts
}

// progressOf is the progress of a part.
func (m *maker) progressOf(part string) func(done, total int64) {
	if m.Progress == nil {
		return nil
	}
	return func(done, total int64) { m.Progress(part, done, total) }
}

// part is a part of a report behind the audit.
type part struct {
	name string
	run  func(ctx context.Context) error
}

// split divides the selected weights into matrices of experts, with their scales, and others.
func (m *maker) split() (ofExperts, others []*weights.Weight) {
	for _, x := range m.Weights.List {
		switch {
		case !m.Selection.Has(x.Name):
		case experts.IsMatrix(table.PlaceOf(m.Weights.Config, x.Owner())):
			ofExperts = append(ofExperts, x)
		default:
			others = append(others, x)
		}
	}
	return ofExperts, others
}

// weights returns the weights as a part reads them.
func (m *maker) weights(part string) inspect.Weights {
	w := *m.Weights
	w.Progress = m.progressOf(part)
	return w
}

// tensors looks at all but experts.
func (m *maker) tensors(ctx context.Context) (err error) {
	w := m.weights("tensors")
	if _, w.List = m.split(); len(w.List) == 0 {
		return nil
	}
	if m.Tensors, err = stats.Compute(ctx, w, stats.Options{}); err != nil {
		return err
	}
	if m.odd, err = tensors.Find(ctx, w); err != nil {
		return err
	}
	m.addChecked("%s other than those of experts, read twice more: ranges and rows, equal ones, initial values, trends",
		text.Plural(len(m.Tensors.Tensors), "tensor"))
	m.skip(m.Tensors.NotCounted)
	return nil
}

// addChecked adds a sentence to Checked, addNotChecked to NotChecked.
func (m *maker) addChecked(sentence string, args ...any) {
	m.Checked = append(m.Checked, fmt.Sprintf(sentence, args...))
}

func (m *maker) addNotChecked(sentence string, args ...any) {
	m.NotChecked = append(m.NotChecked, fmt.Sprintf(sentence, args...))
}

// skip says which selected tensors have no numbers.
func (m *maker) skip(not []inspect.NotCounted) {
	if len(not) > 0 {
		m.addNotChecked("the numbers of %s, %s first: %s", text.Plural(len(not), "tensor"), text.Quote(not[0].Name),
			not[0].Cause)
	}
}

// experts looks at the experts.
func (m *maker) experts(ctx context.Context) (err error) {
	if list, _ := m.split(); len(list) == 0 {
		m.addNotChecked("experts: %s", m.absence("expert"))
		return nil
	}
	if m.Experts, err = experts.Examine(ctx, m.weights("experts"), experts.Options{Selection: m.Selection,
		Similarities: true}); err != nil {
		return err
	}
	m.takePairs()
	routed, few := 0, 0
	for _, l := range m.Experts.Layers {
		if routed += len(l.Experts); len(l.Experts) < inspect.LeastPeers {
			few++
		}
	}
	m.addChecked("%s in %s, read twice, and again those that are compared whole: "+
		"norms, ranks, likeness, duplicates, zero neurons, channels",
		text.Plural(routed, "routed expert"), text.Plural(len(m.Experts.Layers), "layer"))
	if few > 0 {
		m.addNotChecked("which experts are the odd ones in %s: fewer than %d are there or selected",
			text.Plural(few, "layer"), inspect.LeastPeers)
	}
	m.skip(m.Experts.NotCounted)
	return nil
}

// maxPairDrawings is how many layers have a drawing of their pairs.
const maxPairDrawings = 8

// takePairs draws them, and lets the cosines go, which are many.
func (r *Report) takePairs() {
	var layers []*experts.Layer
	coarse := false
	for i := range r.Experts.Layers {
		if l := &r.Experts.Layers[i]; len(l.Experts) > 1 {
			layers = append(layers, l)
			coarse = coarse || len(l.Experts) > experts.MaxSide
		}
	}
	all := len(layers)
	slices.SortStableFunc(layers, func(a, b *experts.Layer) int { return cmp.Compare(b.MostAlike(), a.MostAlike()) })
	layers = layers[:min(all, maxPairDrawings)]
	slices.SortFunc(layers, func(a, b *experts.Layer) int { return a.Layer - b.Layer })
	r.pairsText = "Above the diagonal the largest magnitude of the cosines of two experts' matrices, " +
		"below it the magnitude of the cosine of what they compute."
	if all > len(layers) {
		r.pairsText += fmt.Sprintf(" These are the %d of %d layers in which two experts are most alike.", len(layers), all)
	}
	if coarse {
		r.pairsText += fmt.Sprintf(" Of more than %d experts several share a cell, "+
			"which shows the largest cosine of their pairs.", experts.MaxSide)
	}
	for _, l := range layers {
		r.pairs = append(r.pairs, page.Captioned{Figure: l.Pairs(r.Experts.Findings)})
	}
	for i := range r.Experts.Layers {
		r.Experts.Layers[i].Similarity = nil
	}
}

// hash names the values of all weights.
func (m *maker) hash(ctx context.Context) error {
	r, err := stats.Hash(ctx, m.weights("hash"), m.Selection, inspect.ByModel)
	if err == nil {
		m.Hash = r.Model
	}
	return err
}

// against compares with the base.
func (m *maker) against(ctx context.Context) (err error) {
	if m.Against, err = diff.Against(ctx, m.weights("against the base"), *m.Base, m.Selection); err != nil {
		return err
	}
	m.addChecked("%s against %s: relative changes and their ranks", text.Plural(len(m.Against.Weights), "weight"),
		text.Word(m.Base.Path))
	if not := m.Against.NotCompared; len(not) > 0 {
		m.addNotChecked("%s against the base, %s first: %s", text.Plural(len(not), "weight"), text.Quote(not[0].Name),
			not[0].Cause)
	}
	return nil
}

// between compares the experts of different layers, and shared ones with routed ones.
func (m *maker) between(ctx context.Context) (err error) {
	if list, _ := m.split(); len(list) == 0 {
		return nil
	}
	if m.Between, err = experts.CompareLayers(ctx, m.weights("between layers"), m.Selection); err != nil {
		return err
	}
	m.addChecked("the most alike experts of %s", text.Plural(len(m.Between.Pairs), "pair")+" of layers")
	return nil
}

// absence says why a part has nothing to check.
func (m *maker) absence(what string) string {
	if m.Selection.All() {
		return "there are none"
	}
	return "no " + what + " is selected"
}

// routers looks at the routers of the selected layers, always with all their rows.
func (m *maker) routers(ctx context.Context) (err error) {
	s := inspect.Selection{Layers: m.Selection.Layers}
	if !slices.ContainsFunc(m.Weights.List, func(w *weights.Weight) bool {
		return s.Has(w.Name) && w.Is(table.Router, table.Gate)
	}) {
		m.addNotChecked("routers: %s", m.absence("router"))
		return nil
	}
	if m.Routers, err = router.Examine(ctx, m.weights("routers"), router.Options{Selection: s, Coupling: true,
		By: inspect.ByLayer}); err != nil {
		return err
	}
	m.addChecked("routers of %s: rows, likeness, singular values, bounds", text.Plural(len(m.Routers.Layers), "layer"))
	layers := map[string]int{} // by verdict
	for _, l := range m.Routers.Layers {
		layers[l.Coupling.Verdict]++
	}
	if n := layers[router.CoupledOwn] + layers[router.CoupledPermuted]; n > 0 {
		m.addChecked("gate_proj of the experts of %s, read once more: whether they fit the rows of their routers",
			text.Plural(n, "layer"))
	}
	const whether = "whether the experts of %s fit the rows of their routers: "
	if n := layers[router.NotMeasurable]; n > 0 {
		m.addNotChecked(whether+"too few fit any row to tell", text.Plural(n, "layer"))
	}
	if n := layers[router.NotChecked]; n > 0 {
		m.addNotChecked(whether+"there are fewer than %d, or one has no gate_proj", text.Plural(n, "layer"),
			router.LeastCoupled)
	}
	m.skip(m.Routers.NotCounted)
	return nil
}

// routing routes the tokens, in the selected layers that route.
func (m *maker) routing(context.Context) error {
	o := routing.Options{Layers: m.Selection.Layers, Experts: m.Selection.Experts}
	if len(o.Layers) > 0 {
		o.Layers = nil
		for _, l := range m.Checkpoint.Config.MoELayers() {
			if m.Selection.Layers.Has(l) {
				o.Layers = append(o.Layers, text.Span{l, l})
			}
		}
		if o.Layers == nil {
			m.addNotChecked("routing: no decoder layer with a router is selected")
			return nil
		}
	}
	r, err := m.Route(o)
	if err != nil {
		return err
	}
	m.Report.Routing = r
	m.Checked, m.NotChecked = append(m.Checked, r.Title()), append(m.NotChecked, r.Missing...)
	return nil
}

// collect puts the findings of all parts together: errors of the audit, then observations by causes.
func (m *maker) collect() {
	observed := slices.Clone(m.odd)
	if m.Experts != nil {
		observed = append(observed, m.Experts.Observed...)
	}
	if m.Routers != nil {
		observed = append(observed, m.Routers.Observed...)
	}
	repeated := map[string]bool{} // tensors with an observation that says what the audit says
	for _, o := range observed {
		repeated[o.Tensor] = repeated[o.Tensor] || slices.Contains([]string{"nan", "infinite", "zeroed"}, o.ID)
	}
	for _, f := range m.Report.Audit.Findings {
		if f.Kind == inspect.Note || f.Kind == inspect.Value && repeated[f.Tensor] {
			continue
		}
		f.Level = inspect.Error
		x := finding{Level: f.Level, ID: string(f.Kind), Experts: []int{}, Tensor: f.Tensor, Text: f.Cause,
			Members: []inspect.Member{}}
		if f.File != "" && f.Tensor == "" {
			x.Text = text.Quote(f.File) + ": " + f.Cause
		}
		at := table.PlaceOf(nil, f.Tensor) // may be the module of an expert
		if at.Layer >= 0 {
			x.Layer = &at.Layer
		}
		if at.Expert >= 0 {
			x.Experts = append(x.Experts, at.Expert)
		}
		m.Findings, m.lines = append(m.Findings, x), append(m.lines, f)
	}
	for _, o := range inspect.Cluster(observed) {
		f := finding{Level: o.Level, ID: o.ID, Experts: o.Experts, Tensor: o.Tensor, Text: o.Text, Value: o.Value,
			Expected: o.Expected, Members: o.Members}
		if o.Layer >= 0 {
			f.Layer = &o.Layer
		}
		m.Findings = append(m.Findings, f)
		m.lines = append(m.lines, inspect.Finding{Kind: inspect.Kind(o.ID), Level: o.Level,
			Problem: problem.Problem{Tensor: o.Tensor, Cause: o.Text}})
	}
}

// verdict says how much was found.
func (r *Report) verdict() string {
	switch {
	case r.checkpoint == nil:
		return "a config alone, without weights to look at"
	case r.Clean() && r.differs() == "":
		return "nothing was found"
	case r.Clean():
		return "nothing else was found"
	}
	var levels []inspect.Level
	for _, f := range r.Findings {
		levels = append(levels, f.Level)
	}
	return inspect.CountLevels(levels)
}

// Passes reports whether no finding is as grave as a level.
func (r *Report) Passes(least inspect.Level) bool {
	return !slices.ContainsFunc(r.Findings, func(f finding) bool { return f.Level.AtLeast(least) })
}

// Clean reports whether nothing was found.
func (r *Report) Clean() bool { return len(r.Findings) == 0 }

// differs says how the checkpoint is not its base; "" if there is no base, or all is equal.
func (r *Report) differs() string {
	if r.Against == nil {
		return ""
	}
	if changed := r.Against.Changed(); changed != "" || len(r.Against.NotCompared) == 0 {
		return changed
	}
	return fmt.Sprintf("%s not compared with the base", text.Plural(len(r.Against.NotCompared), "weight"))
}

// WriteText writes what changed against the base, the findings, and what was checked.
func (r *Report) WriteText(w io.Writer) error {
	if r.Against != nil {
		for _, line := range r.Against.Lines() {
			fmt.Fprintln(w, line)
		}
	}
	err := inspect.WriteAudit(w, r.Path, r.verdict(), r.lines, r.Checked, r.NotChecked)
	if r.Routing != nil {
		fmt.Fprintln(w)
		err = r.Routing.WriteNumbers(w)
	}
	if r.Against == nil {
		return err
	}
	return inspect.WriteSheet(w, r.Against.Sheet(), nil, r.Against.NotCompared)
}
