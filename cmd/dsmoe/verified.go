package main

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"maps"
	"path/filepath"
	"runtime"
	"slices"
	"strings"

	"dsmoe/cmd/dsmoe/internal/cli"
	"dsmoe/text"
	"dsmoe/text/page"
	"dsmoe/verify/report"
)

// verifyDocuments is the JSON document of dsmoe verify.
var verifyDocuments = cli.Documents{cli.DocumentOf[*verified]("dsmoe.verify/1")}

// verified is the report with the checkpoint it is about.
type verified struct {
	*report.Report
	Checkpoint checkpointFiles `json:"checkpoint"` // that the report is about
	Version    string          `json:"version"`    // of dsmoe
	Duration   float64         `json:"duration_s"` // that the verification took, in seconds
	merging
}

// WriteText writes the report, and what it took.
func (r *verified) WriteText(w io.Writer) error {
	if err := r.Report.WriteText(w); err != nil {
		return err
	}
	fmt.Fprintf(w, "%-11s%s", "checkpoint", text.Quote(r.Checkpoint.Path))
	if files := r.Checkpoint.String(); files != "" {
		fmt.Fprintf(w, ": %s", files)
	}
	fmt.Fprintln(w)
	if r.Merged != nil {
		_, err := fmt.Fprintf(w, "%-11s%.2f s in all; %s\n", "merged", r.Duration, &r.merging)
		return err
	}
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	line := fmt.Sprintf("%-11s%.2f s, at most %d MiB of memory", "took", r.Duration, m.Sys>>20)
	if r.Checkpoint.Mapped > 0 {
		line += " and " + text.Bytes(r.Checkpoint.Mapped) + " of mapped weights"
	}
	_, err := fmt.Fprintln(w, line)
	return err
}

// brief is a report that is printed in short.
type brief struct{ *verified }

// WriteText writes the verdict and, of a failure, the first divergence, its cause and what to do.
func (b brief) WriteText(w io.Writer) error { return b.WriteQuiet(w) }

// errInconclusive ends a verification that is no pass and found no difference in the numbers; its report has said why.
var errInconclusive = errors.New("inconclusive: the report says why")

// err is the verdict as the command's outcome.
func (r *verified) err() error {
	switch r.Verdict {
	case report.Pass, report.Skipped:
		return nil
	case report.Fail:
		return cli.ErrNo
	}
	return errInconclusive
}

// mergedReport is a report that was joined.
type mergedReport struct {
	Path     string         `json:"path"`       // as it was given
	Part     *report.Part   `json:"part"`       // that it is about; null without one
	Verdict  report.Verdict `json:"verdict"`    // of it
	Duration float64        `json:"duration_s"` // of its run, in seconds
}

// merging is what a merge joined.
type merging struct {
	Merged   []mergedReport `json:"merged,omitempty"`   // reports that were joined; none of a run
	Disputed []string       `json:"disputed,omitempty"` // stages about which these differ: each check is there

	paths []string // of the checkpoint, quoted
}

// String says which reports were joined, and which stages they disagree about.
func (m *merging) String() string {
	count, parts, of := map[report.Verdict]int{}, []int{}, 0
	for _, one := range m.Merged {
		count[one.Verdict]++
		if one.Part != nil {
			parts, of = append(parts, one.Part.Index), one.Part.Of
		}
	}
	line := text.Plural(len(m.Merged), "report") + ":"
	for _, v := range slices.Sorted(maps.Keys(count)) {
		line += fmt.Sprintf(" %d %s,", count[v], v)
	}
	line = strings.TrimSuffix(line, ",")
	if slices.Sort(parts); of > 0 {
		line += fmt.Sprintf("; part %s of %d", text.Ranges(slices.Compact(parts)), of)
	}
	if len(m.paths) > 1 {
		line += "; of the checkpoint at " + strings.Join(m.paths, " and ")
	}
	if n := len(m.Disputed); n > 0 {
		line += fmt.Sprintf("; about %s, the first is %s, reports differ: all are shown, the worst decides",
			text.Plural(n, "stage"), m.Disputed[0])
	}
	return line
}

// about is what the files say beside the report.
func (r *verified) about() report.About {
	c := &r.Checkpoint
	about := report.About{Name: fmt.Sprintf("%s against %s", text.Quote(baseName(c.Path)), text.Quote(baseName(c.Golden))),
		Duration: r.Duration, Facts: []page.Fact{
			{Name: "dsmoe", Value: r.Version},
			{Name: "checkpoint", Value: text.Quote(c.Path)},
			{Name: "pack", Value: text.Quote(c.Golden)},
			{Name: "took", Value: fmt.Sprintf("%.2f s", r.Duration)},
		}}
	if c.Path == "" {
		about.Name = "dsmoe verify --merge"
	}
	if r.Mode != "" && r.Scope.Chosen == 0 { // choices alone have no stage that is fed
		about.Name += ", " + string(r.Mode)
	}
	if r.Merged != nil {
		about.Facts = append(about.Facts, page.Fact{Name: "merged", Value: r.merging.String()})
	}
	if files := c.String(); files != "" {
		about.Facts[1].Value += ": " + files
	}
	if len(c.Files)+len(c.Hashes) > 0 {
		about.Files = text.NewSheet("file", "is_the_pack's", "hash", "of_the_pack")
		names := slices.AppendSeq(slices.Collect(maps.Keys(c.Files)), maps.Keys(c.Hashes))
		slices.Sort(names)
		for _, name := range slices.Compact(names) {
			about.Files.Add(text.Foreign(name), text.Plain(cmp.Or(c.Files[name], "-")), text.Plain(cmp.Or(c.Hashes[name], "-")),
				text.Plain(cmp.Or(r.Golden.Checkpoint[name], "-")))
		}
	}
	return about
}

// baseName is the last part of a path, so that a CI, which keeps histories by name, finds a run on
// another machine again.
func baseName(path string) string {
	if whole, err := filepath.Abs(path); err == nil {
		path = whole // "." has a name, too
	}
	return filepath.Base(path)
}
