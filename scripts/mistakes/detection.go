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
	"dsmoe/text"
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

// detectionText is docs/detection.md with names in braces in place of its two tables.
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

// detectionFiles returns docs/detection.md and the tables beside it, by their paths below docs.
func detectionFiles(fixtures string) (map[string]string, error) {
	t, err := newStudy(fixtures, "", detectionPacks)
	if err != nil {
		return nil, err
	}
	known := rightModels + len(mistakes())
	page := strings.NewReplacer("{packs}\n", written(t.byPack(known), text.Markdown),
		"{out of reach}\n", written(t.byMistake(known, len(t.mistakes)), text.Markdown)).Replace(detectionText)
	return map[string]string{
		"detection.md":           page,
		"detection/mistakes.tsv": written(t.byMistake(rightModels, known), text.TSV),
		"detection/values.tsv":   written(t.values(), text.TSV),
	}, nil
}

// written returns a sheet in a form.
func written(s *text.Sheet, f text.Form) string {
	var b strings.Builder
	s.WriteAs(&b, f) // a Builder does not fail
	return b.String()
}

// sheet returns a sheet with these columns before dsmoe and the checks of logits.
func sheet(columns ...string) *text.Sheet {
	columns = append(columns, "dsmoe")
	for _, check := range logitChecks() {
		columns = append(columns, check.name)
	}
	return text.NewSheet(columns...)
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

// byPack counts, for each pack, the known mistakes that each check sees, and marks false alarms.
func (t *study) byPack(known int) *text.Sheet {
	s := sheet("pack", "mistakes")
	for j, name := range headings(t.packs) {
		var n tally
		for i := rightModels; i < known; i++ {
			n.add(t.attempts[i][j], make([]bool, 1+len(logitChecks())))
		}
		alarms, float32s := t.attempts[0][j].seen(), t.attempts[inFloat32][j].seen()
		var cells []text.Cell
		for k, n := range n.counts {
			cells = append(cells, text.Plain(fmt.Sprint(n)+strings.Repeat(" !", count(alarms[k]))+strings.Repeat(" ~", count(float32s[k]))))
		}
		s.Row(name, n.made, cells)
	}
	return s
}

// byMistake counts, for each mistake of a range, the packs on which each check sees it and
// passes the right model.
func (t *study) byMistake(from, to int) *text.Sheet {
	s := sheet("mistake", "packs")
	for i := from; i < to; i++ {
		var n tally
		for j, a := range t.attempts[i] {
			n.add(a, t.attempts[0][j].seen())
		}
		if n.made == 0 {
			continue // no pack here is of a model that could have it
		}
		var cells []text.Cell
		for _, n := range n.counts {
			cells = append(cells, text.Whole(n))
		}
		s.Row(t.mistakes[i].name, n.made, cells)
	}
	return s
}

// count is 1 for true.
func count(is bool) int {
	if is {
		return 1
	}
	return 0
}

// values lists the attempts pack by pack, with the measured values and a star where a check of logits sees the mistake.
func (t *study) values() *text.Sheet {
	s := sheet("pack", "mistake")
	for j, pack := range headings(t.packs) {
		for i, m := range t.mistakes {
			a := t.attempts[i][j]
			if a == nil {
				continue
			}
			var cells []text.Cell
			for k, check := range logitChecks() {
				cells = append(cells, text.Plain(check.show(a.values[k])+strings.Repeat("*", count(a.seen()[k+1]))))
			}
			s.Row(pack, m.name, cmp.Or(string(a.verdict), "-"), cells)
		}
	}
	return s
}
