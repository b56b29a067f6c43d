// Command mistakes makes known mistakes in checkpoints that verify, one at a time, and prints
// what the verification says of each, as the table of MISTAKES.md; or, with -detection, writes what it and
// checks of logits see: docs/detection.md, and tables in docs/detection.
//
//	go run ./scripts/mistakes [-only SUBSTRING] [-check MISTAKES.md]
//	go run ./scripts/mistakes -detection [-check docs]
//
// With -check it compares the table with the one in the file, or the page and its tables with those in the directory,
// and exits with status 1 if they differ. For MISTAKES.md it then makes each mistake in chained mode, too. The text,
// the JSON, the JUnit document and the page of each report must agree.
package main

import (
	"cmp"
	"context"
	"flag"
	"fmt"
	"log"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"

	"golang.org/x/sync/errgroup"

	"dsmoe/convert/checkpoint"
	"dsmoe/verify"
	"dsmoe/verify/pack"
	"dsmoe/verify/report"
)

// packs are the columns of the table.
var packs = []string{
	"v1-base/golden-f32", "v1-base/golden-bf16", "v2-lite/golden-f32", "v2-lite/golden-bf16", "v2-group-yarn/golden-f32",
	"v3/golden-f32", "v3/golden-bf16", "v3-yarn/golden-f32", "v3-fp8/golden-f32",
	"v32/golden-f32", "v32/golden-bf16", "glm5/golden-f32", "v4/golden-f32", "v4/golden-bf16", "v4-fp4/golden-f32",
	"glm4-moe/golden-f32", "minimax-m2/golden-f32", "exaone-moe/golden-f32", "ernie45-moe-clamp/golden-f32",
	"blocks/afmoe/golden-f32", "blocks/kimi-linear/golden-f32", "blocks/qwen3-next/golden-f32",
	"engines/sglang-v3-trained-bf16", "engines/megatron-v3-trained-bf16",
}

func main() {
	log.SetFlags(0)
	debug.SetGCPercent(400) // thousands of runs, each on little memory
	fixtures := flag.String("fixtures", "fixtures", "where the checkpoints and packs are")
	only := flag.String("only", "", "mistakes whose name contains this, with what is said of each")
	check := flag.String("check", "", "file whose table, or directory whose files are to be the same")
	detection := flag.Bool("detection", false, "write docs/detection.md and the tables beside it instead")
	flag.Parse()
	var err error
	if *detection {
		err = detect(*fixtures, *check)
	} else {
		err = tabulate(*fixtures, *only, *check)
	}
	if err != nil {
		log.Fatal(err)
	}
}

// detect writes docs/detection.md and the tables beside it, or compares them with those in a directory, check.
func detect(fixtures, check string) error {
	files, err := detectionFiles(fixtures)
	if err != nil {
		return err
	}
	for name, made := range files {
		path := filepath.Join(cmp.Or(check, "docs"), name)
		if check == "" {
			if err := os.WriteFile(path, []byte(made), 0o666); err != nil {
				return err
			}
		} else if kept, err := os.ReadFile(path); err != nil || string(kept) != made {
			return cmp.Or(err, fmt.Errorf("%s: a run gives another file; write it without -check", path))
		}
	}
	return nil
}

// tabulate prints the table of MISTAKES.md, of the mistakes whose name contains only, or compares it with that of a file,
// check.
func tabulate(fixtures, only, check string) error {
	table, said, err := run(fixtures, only, packs, check != "")
	if err != nil {
		return err
	}
	if check != "" {
		kept, err := os.ReadFile(check)
		if err == nil && !strings.Contains(string(kept), table) {
			err = fmt.Errorf("%s holds another table than\n\n%s", check, table)
		}
		return err
	}
	if only != "" {
		fmt.Print(said)
	}
	fmt.Print(table)
	return nil
}

// run makes all mistakes whose name contains only, on each pack, and returns the table and
// what was said of each; in chained mode, too, if that is asked for.
func run(fixtures, only string, packs []string, chained bool) (table, said string, err error) {
	var chosen []mistake
	for _, m := range mistakes() {
		if strings.Contains(m.name, only) {
			chosen = append(chosen, m)
		}
	}
	cells := make([][]string, len(chosen))
	texts := make([][]string, len(chosen))
	var g errgroup.Group
	g.SetLimit(runtime.GOMAXPROCS(0))
	for i, m := range chosen {
		cells[i], texts[i] = make([]string, len(packs)), make([]string, len(packs))
		for j, pack := range packs {
			g.Go(func() (err error) {
				if cells[i][j], texts[i][j], err = try(m, fixtures, pack, chained); err != nil {
					err = fmt.Errorf("%s, %s: %w", m.name, pack, err)
				}
				return err
			})
		}
	}
	if err := g.Wait(); err != nil {
		return "", "", err
	}
	var t strings.Builder
	fmt.Fprintf(&t, "| mistake | cause | %s |\n|---%s|\n", strings.Join(headings(packs), " | "),
		strings.Repeat("|---", len(packs)+1))
	for i, m := range chosen {
		fmt.Fprintf(&t, "| %s | %s | %s |\n", m.name, m.cause, strings.Join(cells[i], " | "))
	}
	for i := range texts {
		said += strings.Join(texts[i], "")
	}
	if only == "" {
		t.WriteString("\n" + shares(cells))
	}
	return t.String(), said, nil
}

// shares counts the grades of a table.
func shares(cells [][]string) string {
	made, named, hinted, wrong := 0, 0, 0, 0
	for _, cell := range slices.Concat(cells...) {
		switch {
		case cell == "·":
			continue
		case strings.HasPrefix(cell, "named"):
			named++
		case cell == "hinted":
			hinted++
		case cell == "misnamed":
			wrong++
		}
		made++
	}
	return fmt.Sprintf("%d mistakes were made %d times: %d are named (%d %%), %d hinted, %d misnamed.\n", len(cells), made, named,
		100*named/made, hinted, wrong)
}

// headings are packs' names for the head of the table: "v1-base F32".
func headings(packs []string) (names []string) {
	for _, p := range packs {
		dir, pack := filepath.Split(p)
		of, dtype, _ := strings.Cut(pack, "-"+checkpointOf(p)+"-") // of a trace: engine-checkpoint-dtype
		if dtype == "" {
			of, dtype = filepath.Base(dir), strings.TrimPrefix(pack, "golden-")
		}
		names = append(names, of+" "+strings.ToUpper(dtype))
	}
	return names
}

// checkpointOf returns the fixture whose checkpoint a pack is of.
func checkpointOf(pack string) string {
	dir, name := filepath.Split(pack)
	if dir != "engines/" {
		return strings.TrimSuffix(dir, "/")
	}
	return name[strings.Index(name, "-")+1 : strings.LastIndex(name, "-")]
}

// try makes the mistake in the checkpoint of a pack, and grades what is said of it.
func try(m mistake, fixtures, golden string, chained bool) (grade, said string, err error) {
	c, err := checkpoint.Open(filepath.Join(fixtures, checkpointOf(golden), "checkpoint"))
	if err != nil {
		return "", "", err
	}
	defer c.Close()
	p, err := pack.Open(filepath.Join(fixtures, filepath.FromSlash(golden)))
	if err != nil {
		return "", "", err
	}
	s := newSubject(c, p)
	if c.Config.BlockOnly() && !p.Has(s.expand(m.stage)) || !s.make(m) {
		return "·", "", s.err
	}
	first, err := m.first(s)
	if err == nil && p.IsTrace() {
		err = s.declare(first)
	}
	if err != nil {
		return "", "", err
	}
	r, printed, err := s.report()
	if err != nil {
		return "", "", err
	}
	if chained && !p.IsTrace() && !c.Config.BlockOnly() {
		s.options.Mode = report.Chained
		if _, _, err := s.report(); err != nil {
			return "", "", fmt.Errorf("chained mode: %w", err)
		}
	}
	return m.grade(s, first, r, printed), fmt.Sprintf("== %s, %s\n%s\n", m.name, golden, printed), nil
}

// report verifies the subject, and returns the report and its text. The error may be that the
// forms of the report do not agree.
func (s *subject) report() (r *report.Report, printed string, err error) {
	if r, err = verify.Run(context.Background(), s.config, s, s.golden, s.options); err != nil {
		return nil, "", err
	}
	var b strings.Builder
	if err := r.WriteText(&b); err != nil {
		return nil, "", err
	}
	return r, b.String(), documents(r, b.String())
}

// grade says how much was found of the mistake, which is to be seen first at a stage: in words that MISTAKES.md explains.
func (m *mistake) grade(s *subject, first string, r *report.Report, text string) string {
	own := first == s.expand(m.stage) // where rows, neurons and experts are known
	switch {
	case first == "" && s.unseen(r):
		return "unseen"
	case r.Verdict == report.Pass:
		return "MISSED"
	case r.Verdict == report.Inconclusive:
		return "inconclusive"
	case *r.FirstDivergence != first || own && m.where != "" && !strings.Contains(text, s.expand(m.where)):
		return "fails"
	case r.Cause == nil && slices.ContainsFunc(r.Hints, func(h report.Cause) bool { return h.ID == m.cause }):
		return "hinted"
	case r.Cause == nil && (m.cause == "" || m.where != ""):
		return "located"
	case r.Cause == nil:
		return "unnamed"
	case r.Cause.ID != m.cause && (own || !s.blamed(r)):
		return "misnamed"
	case len(r.Causes) > 1:
		return fmt.Sprintf("named of %d", len(r.Causes))
	}
	return "named"
}
