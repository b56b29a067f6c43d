package report

// The report as a page: what was found first, then the pictures that show it.

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"dsmoe/inspect"
	"dsmoe/inspect/header"
	"dsmoe/inspect/stats"
	"dsmoe/text"
	"dsmoe/text/page"
)

// Page draws the report, which was made at that time.
func (r *Report) Page(made time.Time) *page.Page {
	title := text.Word(r.Path)
	if r.Arch != nil && r.Arch.LeftOut != "" {
		title += ": " + r.Arch.ModelType
	} else if r.Arch != nil {
		title += fmt.Sprintf(": %s, %s parameters", r.Arch.ModelType, text.Grouped(r.Arch.Total.Parameters))
	}
	if r.Summary != nil {
		for _, d := range r.Summary.DTypes {
			title += ", " + d.DType.String()
		}
	}
	p := page.New(title)
	facts := []page.Fact{{Name: "made", Value: made.Format(time.DateOnly)}}
	if r.Hash != nil {
		facts = append(facts, page.Fact{Name: "hash", Value: *r.Hash})
	}
	p.Facts(facts...)
	for _, section := range []func(p *page.Page){r.pageFindings, r.pageAgainst, r.pageScope, r.pageParameters,
		r.pageExperts, r.pagePairs, r.pageBetween, r.pageRouters, r.pageRouting, r.pageTensors, r.pageFiles} {
		section(p)
	}
	return p
}

// figure adds a drawing, if there is one.
func figure(p *page.Page, f page.Figure, caption string) {
	if f != nil {
		p.Figure(f, caption)
	}
}

// pageFindings says what was found.
func (r *Report) pageFindings(p *page.Page) {
	outlined := ""
	if slices.ContainsFunc(r.Findings, func(f finding) bool { return len(f.Experts) > 0 }) {
		outlined = "Experts and rows that experts and router name are outlined below."
	}
	found := strings.ToUpper(r.verdict())
	if differs := r.differs(); differs != "" {
		found = strings.ToUpper(differs) + ", " + found
	}
	switch {
	case r.checkpoint == nil:
		p.Verdict(page.Unclear, "CONFIG ALONE", "There are no weights to look at.")
	case r.Clean() && r.differs() != "":
		p.Verdict(page.Unclear, strings.ToUpper(r.differs()), "Nothing else was found.")
	case r.Clean():
		p.Verdict(page.Good, "NOTHING FOUND", "That holds for what was checked: see below.")
	case slices.ContainsFunc(r.Findings, func(f finding) bool { return f.Level == inspect.Error }):
		p.Verdict(page.Bad, found, outlined)
	default:
		p.Verdict(page.Unclear, found, outlined)
	}
	lines := inspect.Lines(r.lines)
	var facts []page.Fact
	for _, l := range lines[:min(len(lines), inspect.MaxLines)] {
		level, rest, _ := strings.Cut(l.Text, ": ")
		id, rest, _ := strings.Cut(rest, ": ")
		if l.Hint != "" {
			rest += " (" + l.Hint + ")"
		}
		facts = append(facts, page.Fact{Name: level + " " + id, Value: rest})
	}
	p.Facts(facts...)
	if more := len(lines) - inspect.MaxLines; more > 0 {
		p.Text("… and %d more; --json lists every finding.", more)
	}
}

// pageScope lists what was checked, and what was not.
func (r *Report) pageScope(p *page.Page) {
	p.Section("Checked")
	var facts []page.Fact
	for _, s := range r.Checked {
		facts = append(facts, page.Fact{Name: "checked", Value: s})
	}
	for _, s := range r.NotChecked {
		facts = append(facts, page.Fact{Name: "not checked", Value: s})
	}
	if r.Audit != nil {
		for _, f := range r.Audit.Findings {
			if f.Kind == inspect.Note {
				facts = append(facts, page.Fact{Name: "note", Value: strings.Join(slices.DeleteFunc([]string{f.File, f.Tensor,
					f.Cause}, func(s string) bool { return s == "" }), ": ")})
			}
		}
	}
	p.Facts(facts[:min(len(facts), 2*inspect.MaxLines)]...)
}

func (r *Report) pageParameters(p *page.Page) {
	if r.Arch == nil {
		return
	}
	p.Section("Parameters")
	p.Facts(page.Fact{Name: "family", Value: r.Arch.ModelType}, page.Fact{Name: "layers", Value: r.Arch.Layers.String()},
		page.Fact{Name: "experts", Value: r.Arch.Experts.String()},
		page.Fact{Name: "parameters", Value: (&header.Parameters{Total: r.Arch.Total.Parameters,
			Activated: r.Arch.Total.Activated}).String()})
	if r.Arch.LeftOut != "" {
		p.Facts(page.Fact{Name: "left out", Value: r.Arch.LeftOut})
	}
	p.Figure(r.Arch.Figure(),
		"What the config implies, by module over all layers; with experts, also what one token uses.")
}

// pageAgainst shows what changed against the base.
func (r *Report) pageAgainst(p *page.Page) {
	if r.Against == nil {
		return
	}
	p.Section("Against " + text.Word(r.Against.Base))
	for _, line := range r.Against.Lines() {
		p.Text("%s", line)
	}
	figure(p, r.Against.Modules(), "How far each module of each layer is from the base's: √(ΣD²/Σb²) of its weights, D the "+
		"difference from the base's b.")
	figure(p, r.Against.Figure(), "How far each routed expert is from the base's: √(ΣD²/Σb²) of its three matrices, "+
		"D the difference from the base's b.")
	p.Fold("Each module in numbers", r.Against.Sheet())
	p.Fold("Each expert in numbers", r.Against.Experts())
	if len(r.Against.NotCompared) > 0 {
		s := text.NewSheet("tensor", "why")
		for _, n := range r.Against.NotCompared {
			s.Row(text.Foreign(n.Name), text.Foreign(n.Cause))
		}
		p.Fold(fmt.Sprintf("%s not compared", text.Plural(len(r.Against.NotCompared), "tensor")), s)
	}
}

func (r *Report) pageExperts(p *page.Page) {
	if r.Experts == nil {
		return
	}
	p.Section("Experts")
	if odd := r.Experts.Oddest(mostOdd); len(odd.Rows()) > 0 {
		p.Text("%s", "The experts that are furthest from the others of their layers, by robust z-scores: "+
			"an order to look at them in, no finding.")
		p.Table(odd)
	}
	figure(p, r.Experts.Figure(), "How like each routed expert is to another one of its layer: "+
		"the largest magnitude of the cosines of gate_proj, up_proj and down_proj, "+
		"and of what the experts compute, which the order of neurons does not change.")
	figure(p, r.Experts.NormZ(), "How many robust standard deviations the norm of a matrix is from its layer's median: "+
		"that of gate_proj, up_proj or down_proj that is furthest off.")
	figure(p, r.Experts.Norms(), "The norm of all weights of each routed expert.")
	figure(p, r.Experts.Ranks(),
		"‖W‖²/σ₁² of each matrix over that of a random matrix of its shape; the lowest of the three.")
	p.Fold("Each layer in numbers", r.Experts.LayerSheet())
}

// mostPairs is how many pairs of layers are listed.
const mostPairs = 100

// mostOdd is how many experts the experts' section begins with.
const mostOdd = 20

// pagePairs shows the pairs of the layers in which two experts are most alike.
func (r *Report) pagePairs(p *page.Page) {
	if r.pairs != nil {
		p.Section("Pairs of experts")
		p.Text("%s", r.pairsText)
		p.Gallery(r.pairs...)
	}
}

// pageBetween shows the experts of different layers that are most alike, and the routed ones most like shared ones.
func (r *Report) pageBetween(p *page.Page) {
	if r.Between == nil || len(r.Between.Pairs)+len(r.Between.Shared) == 0 {
		return
	}
	p.Section("Between layers")
	figure(p, r.Between.Figure(), fmt.Sprintf("The two routed experts of each two layers that are most alike: above the "+
		"diagonal the cosine of what they compute of the same inputs, below it that of their weights, neurons matched. "+
		"Among unlike experts the largest cosine of functions is about %.2g.", r.Between.Chance))
	p.Fold("The most alike in numbers", r.Between.Sheet(mostPairs))
	p.Fold("Routed experts most like the shared ones of their layer", r.Between.SharedSheet())
}

func (r *Report) pageRouters(p *page.Page) {
	if r.Routers == nil {
		return
	}
	p.Section("Routers")
	figure(p, r.Routers.Figure(), "The norm of each expert's row of mlp.gate.weight.")
	figure(p, r.Routers.Likeness(), "The largest magnitude of the cosines of a row with the others of its router: "+
		"experts with like rows get like tokens.")
	figure(p, r.Routers.Biases(), "How far the bias that an expert is chosen by is from its layer's median.")
	spectra, caption := r.Routers.Spectra()
	figure(p, spectra, caption)
	p.Fold("Each router in numbers", r.Routers.LayerSheet())
}

func (r *Report) pageRouting(p *page.Page) {
	if r.Routing == nil {
		return
	}
	p.Section("Routing")
	p.Text("%s. An expert without a token is unreached by these tokens, not dead: other tokens may need it.",
		r.Routing.Title())
	figure(p, r.Routing.Figure(), "Tokens of each expert, over what it would get if all got the same.")
	figure(p, r.Routing.MarginFigure(), "How near the choices were: "+
		"of a token the lowest selection score of its experts less the highest of the others. "+
		"What is 0 or below stands at the bottom.")
	p.Fold("Each layer in numbers", r.Routing.Sheet())
}

// maxListed is how many tensors with outliers, and how many files, are listed.
const maxListed = 100

func (r *Report) pageTensors(p *page.Page) {
	if r.Tensors == nil {
		return
	}
	p.Section("Other tensors")
	figure(p, r.Tensors.TensorFigure(), "The largest magnitude in each tensor that is of no expert.")
	all := []stats.Tensor{}
	for _, t := range r.Tensors.Tensors {
		if t.Rows != nil && t.Rows.Outliers > 0 {
			all = append(all, t)
		}
	}
	if len(all) == 0 {
		return
	}
	peak := func(t stats.Tensor) float64 { return t.Rows.Largest[0].AbsMax / t.Rows.Median }
	slices.SortStableFunc(all, func(a, b stats.Tensor) int { return cmp.Compare(peak(b), peak(a)) })
	shown := stats.Report{By: inspect.ByTensor, Tensors: all[:min(len(all), maxListed)]}
	p.Fold(fmt.Sprintf("%s with rows whose largest magnitude is more than %d times that of the median row%s",
		text.Plural(len(all), "tensor"), stats.OutlierRatio, firstOf(len(shown.Tensors), len(all))), shown.Sheet())
}

func (r *Report) pageFiles(p *page.Page) {
	if r.checkpoint == nil {
		return
	}
	p.Section("Dtypes and files")
	figure(p, header.DTypeMap(r.checkpoint), "How much of each layer is of which dtype.")
	figure(p, header.FileMap(r.checkpoint), "Which file holds how much of each layer.")
	s := text.NewSheet("file", ">tensors", ">size")
	for _, f := range r.Summary.Files[:min(len(r.Summary.Files), maxListed)] {
		s.Row(text.Foreign(f.Name), f.Tensors, text.Size(f.Size))
	}
	p.Fold(text.Plural(len(r.Summary.Files), "file")+firstOf(len(s.Rows()), len(r.Summary.Files)), s)
}

// firstOf says that some of a list are not there.
func firstOf(shown, all int) string {
	if shown == all {
		return ""
	}
	return fmt.Sprintf(": the first %d", shown)
}
