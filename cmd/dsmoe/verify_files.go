package main

import (
	"errors"
	"io"
	"path/filepath"

	"dsmoe/cmd/dsmoe/internal/cli"
	"dsmoe/verify/report"
)

// reportFiles are those that --junit and --html name; "" is none.
type reportFiles struct {
	junit, html string
	out         []*cli.OutFile
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
		out, err := cli.CreateFile(one.path, inputs...)
		if err != nil {
			f.discard()
			return err
		}
		f.out, f.fill = append(f.out, out), append(f.fill, one.fill)
	}
	if len(f.out) == 2 && sameFile(f.out[0].Name, f.out[1].Name) {
		f.discard()
		return cli.Named(f.html, errors.New("--junit and --html name one file"))
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
		out.Discard()
	}
}

// write writes the files.
func (f *reportFiles) write(r *verified) (err error) {
	for i, out := range f.out {
		err = errors.Join(err, out.Commit(func(w io.Writer) error { return f.fill[i](r.Report, w, r.about()) }))
	}
	return err
}

// unwritten is why a file is not there, though stdout has the report.
type unwritten struct{ error }

// Unwrap returns the error itself.
func (u *unwritten) Unwrap() error { return u.error }
