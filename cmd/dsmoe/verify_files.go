package main

import (
	"errors"
	"fmt"
	"io"
	"maps"
	"path/filepath"
	"slices"

	"dsmoe/text"
	"dsmoe/text/page"
	"dsmoe/verify/report"
)

// reportFiles are those that --junit and --html name; "" is none.
type reportFiles struct {
	junit, html string
	out         []*outFile
	fill        []func(r *report.Report, w io.Writer, about report.About) error // of out
}

// create makes sure that the files can be written, and are no inputs.
func (f *reportFiles) create(inputs []string) error {
	for _, one := range []struct {
		path string
		fill func(r *report.Report, w io.Writer, about report.About) error
	}{{f.junit, (*report.Report).WriteJUnit}, {f.html, (*report.Report).WriteHTML}} {
		if one.path == "" {
			continue
		}
		out, err := createFile(one.path, inputs...)
		if err != nil {
			f.discard()
			return err
		}
		f.out, f.fill = append(f.out, out), append(f.fill, one.fill)
	}
	if len(f.out) == 2 && sameFile(f.out[0].name, f.out[1].name) {
		f.discard()
		return fmt.Errorf("%s: %w", text.Quote(f.html), errors.New("--junit and --html name one file"))
	}
	return nil
}

// sameFile says whether two paths lead to one place.
func sameFile(a, b string) bool {
	a, errA := filepath.Abs(a)
	b, errB := filepath.Abs(b)
	return errA == nil && errB == nil && a == b
}

// discard removes what is not complete.
func (f *reportFiles) discard() {
	for _, out := range f.out {
		out.discard()
	}
}

// write writes the files.
func (f *reportFiles) write(r *verified) (err error) {
	for i, out := range f.out {
		err = errors.Join(err, out.commit(func(w io.Writer) error { return f.fill[i](r.Report, w, r.about()) }))
	}
	return err
}

// unwritten is why a file is not there, though stdout has the report.
type unwritten struct{ error }

// Unwrap returns the error itself.
func (u *unwritten) Unwrap() error { return u.error }

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
	if r.Mode != "" {
		about.Name += ", " + string(r.Mode)
	}
	if r.Merged != nil {
		about.Facts = append(about.Facts, page.Fact{Name: "merged", Value: r.merging.String()})
	}
	if files := c.String(); files != "" {
		about.Facts[1].Value += ": " + files
	}
	if len(c.Files)+len(c.Hashes) > 0 {
		about.Files = c.sheet(r.Golden.Checkpoint)
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

// sheet lists the checkpoint's files with what is known of their hashes, and the pack's.
func (f *checkpointFiles) sheet(pack map[string]string) *text.Sheet {
	s := text.NewSheet("file", "is_the_pack's", "hash", "of_the_pack")
	names := slices.AppendSeq(slices.Collect(maps.Keys(f.Files)), maps.Keys(f.Hashes))
	slices.Sort(names)
	for _, name := range slices.Compact(names) {
		s.Add(text.Foreign(name), text.Plain(orDash(f.Files[name])), text.Plain(orDash(f.Hashes[name])),
			text.Plain(orDash(pack[name])))
	}
	return s
}

func orDash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}
