package main

import (
	"cmp"
	"context"
	_ "embed"
	"fmt"
	"path/filepath"
	"runtime"
	"slices"
	"strings"

	"golang.org/x/sync/errgroup"

	"dsmoe/convert/checkpoint"
	"dsmoe/model"
	"dsmoe/model/tensor"
	"dsmoe/verify"
	"dsmoe/verify/pack"
	"dsmoe/verify/report"
)

// detectionPacks are the packs of docs/detection.md.
var detectionPacks = []string{
	"v1-base/golden-f32", "v1-base/golden-bf16", "v2-lite/golden-f32", "v2-lite/golden-bf16", "v3/golden-f32",
	"v3/golden-bf16", "v3-yarn/golden-f32", "v3-fp8/golden-f32",
	"v1-trained/golden-f32", "v1-trained/golden-bf16", "v3-trained/golden-f32", "v3-trained/golden-bf16",
}

// detectionText is docs/detection.md with names in braces in place of its tables.
//
//go:embed detection.tmpl
var detectionText string

// attempt is what all checks find with one mistake made in one pack's checkpoint.
type attempt struct {
	verdict report.Verdict // "" where dsmoe is not asked
	values  []float64      // by logitChecks
}

// seen reports, for dsmoe and each of logitChecks, whether the check sees a mistake. An
// inconclusive verdict does not see it.
func (a *attempt) seen() []bool {
	seen := []bool{a.verdict == report.Fail}
	for i, check := range logitChecks() {
		seen = append(seen, !check.passes(a.values[i]))
	}
	return seen
}

// study is the table of attempts: by mistake, then by pack; nil where the mistake cannot be made.
type study struct {
	packs    []string
	mistakes []mistake
	attempts [][]*attempt
}

const (
	rightModels = 2 // rows of a study before the first mistake
	inFloat32   = 1 // the row of the right model that computes in float32
)

// newStudy makes all mistakes whose name contains only, on each pack.
func newStudy(fixtures, only string, packs []string) (*study, error) {
	none := func(*subject) bool { return true }
	t := &study{packs: packs, mistakes: []mistake{{name: "none", make: none}, {name: "none, all in float32", make: none}}}
	for _, m := range slices.Concat(mistakes(), outOfReach()) {
		if strings.Contains(m.name, only) {
			t.mistakes = append(t.mistakes, m)
		}
	}
	t.attempts = make([][]*attempt, len(t.mistakes))
	for i := range t.attempts {
		t.attempts[i] = make([]*attempt, len(packs))
	}
	var g errgroup.Group
	g.SetLimit(runtime.GOMAXPROCS(0))
	for j := range packs {
		g.Go(func() error { return t.tryAll(fixtures, j) })
	}
	return t, g.Wait()
}

// tryAll fills the column of a pack.
func (t *study) tryAll(fixtures string, j int) error {
	c, err := checkpoint.Open(filepath.Join(fixtures, checkpointOf(t.packs[j]), "checkpoint"))
	if err != nil {
		return err
	}
	defer c.Close()
	p, err := pack.Open(filepath.Join(fixtures, filepath.FromSlash(t.packs[j])))
	if err != nil {
		return err
	}
	for i, m := range t.mistakes {
		p.Replaced = nil
		s := newSubject(c, p)
		if !s.make(m) {
			if s.err != nil {
				return s.err
			}
			continue
		}
		if t.attempts[i][j], err = s.attempt(i == inFloat32); err != nil {
			return fmt.Errorf("%s, %s: %w", m.name, t.packs[j], err)
		}
	}
	return nil
}

// attempt has all checks look at the subject, or only those of logits that are computed in
// float32 throughout, whatever the pack's dtype.
func (s *subject) attempt(float32s bool) (*attempt, error) {
	a := &attempt{}
	o := s.modelOptions()
	if float32s {
		o.DType, o.RotaryDType, o.Accumulate = tensor.F32, tensor.F32, model.Float32
	} else {
		s.options.FailFast, s.options.Undiagnosed = true, true
		r, err := verify.Run(context.Background(), s.config, s, s.golden, s.options)
		if err != nil {
			return nil, err
		}
		a.verdict = r.Verdict
	}
	l, err := s.logits(o)
	if err != nil {
		return nil, err
	}
	for _, check := range logitChecks() {
		a.values = append(a.values, check.value(l))
	}
	return a, nil
}

// detectionPage returns docs/detection.md.
func detectionPage(fixtures string) (string, error) {
	t, err := newStudy(fixtures, "", detectionPacks)
	if err != nil {
		return "", err
	}
	return t.page(), nil
}

// page fills in the tables of detectionText.
func (t *study) page() string {
	known := rightModels + len(mistakes())
	var details strings.Builder
	for j, heading := range headings(t.packs) {
		fmt.Fprintf(&details, "\n### %s\n\n```text\n%s```\n", heading, t.detail(j))
	}
	return strings.NewReplacer("{packs}\n", t.byPack(known), "{known}\n", t.byMistake(rightModels, known),
		"{out of reach}\n", t.byMistake(known, len(t.mistakes)), "{details}\n", details.String()).Replace(detectionText)
}

// checkNames are the heads of columns.
func checkNames() []string {
	names := []string{"dsmoe"}
	for _, check := range logitChecks() {
		names = append(names, check.name)
	}
	return names
}

// tally counts attempts, and those of them in which each check sees the mistake.
type tally struct {
	made   int
	counts []int
}

// add counts one attempt, which may be nil, leaving out the checks that raise a false alarm.
func (n *tally) add(a *attempt, alarms []bool) {
	if n.counts == nil {
		n.counts = make([]int, 1+len(logitChecks()))
	}
	if a == nil {
		return
	}
	n.made++
	for k, seen := range a.seen() {
		n.counts[k] += count(seen && !alarms[k])
	}
}

// heading starts a table of tallies.
func heading(rows, made string) string {
	return fmt.Sprintf("| %s | %s | %s |\n|---|---%s|\n", rows, made, strings.Join(checkNames(), " | "),
		strings.Repeat("|---", len(checkNames())))
}

// byPack counts, for each pack, the known mistakes that each check sees, and marks false alarms.
func (t *study) byPack(known int) string {
	var b strings.Builder
	b.WriteString(heading("pack", "mistakes"))
	for j, name := range headings(t.packs) {
		var n tally
		for i := rightModels; i < known; i++ {
			n.add(t.attempts[i][j], make([]bool, len(checkNames())))
		}
		fmt.Fprintf(&b, "| %s | %d", name, n.made)
		alarms, float32s := t.attempts[0][j].seen(), t.attempts[inFloat32][j].seen()
		for k, n := range n.counts {
			fmt.Fprintf(&b, " | %d%s%s", n, strings.Repeat(" !", count(alarms[k])), strings.Repeat(" ~", count(float32s[k])))
		}
		b.WriteString(" |\n")
	}
	return b.String()
}

// byMistake counts, for each mistake of a range, the packs on which each check sees it and
// passes the right model.
func (t *study) byMistake(from, to int) string {
	var b strings.Builder
	b.WriteString(heading("mistake", "packs"))
	for i := from; i < to; i++ {
		var n tally
		for j, a := range t.attempts[i] {
			n.add(a, t.attempts[0][j].seen())
		}
		if n.made == 0 {
			continue // no pack here is of a model that could have it
		}
		fmt.Fprintf(&b, "| %s | %d", t.mistakes[i].name, n.made)
		for _, n := range n.counts {
			fmt.Fprintf(&b, " | %d", n)
		}
		b.WriteString(" |\n")
	}
	return b.String()
}

// count is 1 for true.
func count(is bool) int {
	if is {
		return 1
	}
	return 0
}

// detail lists the attempts on a pack, with the measured values and a star where a check sees
// the mistake.
func (t *study) detail(j int) string {
	var b strings.Builder
	line := func(name string, cells []string) {
		fmt.Fprintf(&b, "%-52s  %-12s %6s %8s %9s %9s %9s %11s\n", name, cells[0], cells[1], cells[2], cells[3], cells[4],
			cells[5], cells[6])
	}
	line("mistake", checkNames())
	for i, m := range t.mistakes {
		a := t.attempts[i][j]
		if a == nil {
			continue
		}
		cells := []string{cmp.Or(string(a.verdict), "-")}
		for k, check := range logitChecks() {
			cells = append(cells, check.show(a.values[k])+strings.Repeat("*", count(a.seen()[k+1])))
		}
		line(m.name, cells)
	}
	return b.String()
}
