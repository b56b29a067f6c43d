package main

// --merge: reports of parts, which earlier runs printed as JSON, read and joined into one.

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"reflect"
	"slices"
	"strings"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	jsonv1 "github.com/go-json-experiment/json/v1"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"dsmoe/config"
	"dsmoe/convert/checkpoint"
	"dsmoe/inspect"
	"dsmoe/model/weights"
	"dsmoe/text"
	"dsmoe/verify"
	"dsmoe/verify/report"
)

// addMerge adds --merge to a command. Then its arguments are REPORTs, and all other flags that are not among these,
// which say how to print, are refused.
func addMerge(cmd *cobra.Command, printing ...string) *bool {
	merge := cmd.Flags().Bool("merge", false, "join the JSON of earlier runs: dsmoe ... --merge REPORT...")
	expected := cmd.Args
	cmd.Args = func(cmd *cobra.Command, args []string) error {
		if !*merge {
			return expected(cmd, args)
		}
		var err error
		cmd.Flags().Visit(func(f *pflag.Flag) {
			if !slices.Contains(append(printing, "merge", "json", colourFlag, outputFlag, wideFlag), f.Name) {
				err = misuse(cmd, fmt.Sprintf("--%s does not go with --merge, which joins reports as they are", f.Name))
			}
		})
		if err == nil && len(args) == 0 {
			err = misuse(cmd, "want at least one REPORT, but 0 given")
		}
		return err
	}
	return merge
}

// shares are the flags of an inspection that works in parts: --part, --parts and --merge.
type shares struct {
	*partFlags
	selection *inspect.Selection
	merge     *bool
}

// addShares adds the flags to a command with a selection. --merge goes with the flags that say how to print.
func addShares(cmd *cobra.Command, selection *inspect.Selection, printing ...string) *shares {
	return &shares{addPart(cmd, "one of N parts of the weights"), selection, addMerge(cmd, printing...)}
}

// inspect calls f with the weights of the checkpoint at path that the flags leave of those that are read.
func (s *shares) inspect(cmd *cobra.Command, path string, reads func(*config.Config, *weights.Weight) bool,
	f func(w inspect.Weights) error) error {
	p, err := s.read(cmd)
	if err == nil && p.of > 0 && !s.selection.All() {
		err = misuse(cmd, "--part selects weights by itself: not with --layers, --experts or --match")
	}
	if err != nil {
		return err
	}
	return readPart(cmd, path, needOf(*s.selection, reads), p, func(w inspect.Weights, x *weights.Weight) bool {
		return reads(w.Config, x)
	}, f)
}

// given reports whether --part is given.
func (p *partFlags) given() bool { return p.part.of != 0 }

// readReports reads JSON documents of the type T, as this dsmoe writes them. The error names every file that is
// not such a document, or that check refuses.
func readReports[T any](paths []string, check func(*T) error) ([]*T, error) {
	var all []*T
	var errs []error
	for _, path := range paths {
		r := new(T)
		err := readReport(path, r)
		if err == nil {
			err = check(r)
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", text.Quote(path), err))
		}
		all = append(all, r)
	}
	return all, errors.Join(errs...)
}

// readReport reads a JSON document into r. It must be what is written of r again, beside white space and order.
func readReport(path string, r any) error {
	data, err := os.ReadFile(path)
	if err != nil {
		return errors.Unwrap(err)
	}
	var head struct {
		Schema string `json:"schema"`
		Error  fault  `json:"error"`
	}
	if err := json.Unmarshal(data, new(jsontext.Value)); err != nil {
		return fmt.Errorf("no whole JSON document: %w", err)
	}
	_ = json.Unmarshal(data, &head) // without a schema it is no report
	kinds := documentKinds()
	kind := kinds[slices.IndexFunc(kinds, func(d documentKind) bool { return d.of == reflect.TypeOf(r) })]
	switch head.Schema {
	case kind.schema:
	case "dsmoe.error/1":
		return fmt.Errorf("of a run that ended with an error: %s", joinParts(head.Error.Thing, head.Error.Coordinate,
			head.Error.Cause))
	default:
		return fmt.Errorf("schema %q, where %s is expected: the --json of a run", head.Schema, kind.schema)
	}
	var again bytes.Buffer
	if err := json.Unmarshal(data, r, jsonv1.DefaultOptionsV1()); err != nil {
		return fmt.Errorf("not of schema %s: %w", kind.schema, err)
	}
	if err := writeDocument(&again, r); err != nil {
		return err
	}
	a, b := jsontext.Value(data), jsontext.Value(again.Bytes())
	if err := errors.Join(a.Canonicalize(), b.Canonicalize()); err != nil {
		return err
	}
	if !isPrintable(a) {
		return errors.New("a string has a control character, which no report prints")
	}
	if !bytes.Equal(a, b) {
		return errors.New("members are missing or unknown: it was changed, or made by another dsmoe")
	}
	return nil
}

// isPrintable reports whether no string of a JSON document has a control character, such as one that begins a line.
func isPrintable(document []byte) bool {
	d := jsontext.NewDecoder(bytes.NewReader(document))
	for {
		token, err := d.ReadToken()
		if err != nil {
			return err == io.EOF
		}
		if token.Kind() == '"' && !text.Printable(token.String()) {
			return false
		}
	}
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

// mergeVerified joins the reports of verify in these files.
func mergeVerified(paths []string) (*verified, error) {
	all, err := readReports(paths, func(v *verified) error {
		if c := &v.Checkpoint; v.Report == nil || c.Files == nil || c.Hashes == nil || c.Identity == nil || c.Samples == nil {
			return errors.New("members are null: it was changed")
		} else if v.Merged != nil {
			return errors.New("made by --merge; join the reports that it joined")
		}
		return verify.Unmergeable(v.Report)
	})
	if err != nil {
		return &verified{Version: version()}, err
	}
	var errs []error
	var reports []*report.Report
	m := *all[0]
	m.Duration = 0
	for i, v := range all {
		different := append(verify.Differences(all[0].Report, v.Report), m.Checkpoint.join(&v.Checkpoint)...)
		if v.Version != m.Version {
			different = append(different, fmt.Sprintf("dsmoe is %s, not %s", v.Version, m.Version))
		}
		for _, d := range different {
			errs = append(errs, fmt.Errorf("%s: not of one verification with %s: %s", text.Quote(paths[i]),
				text.Quote(paths[0]), d))
		}
		reports = append(reports, v.Report)
		m.Duration += v.Duration
		if at := text.Quote(v.Checkpoint.Path); !slices.Contains(m.paths, at) {
			m.paths = append(m.paths, at)
		}
		m.Merged = append(m.Merged, mergedReport{paths[i], v.Scope.Part, v.Verdict, v.Duration})
	}
	if errs != nil {
		return &m, errors.Join(errs...)
	}
	if m.Report, m.Disputed, err = verify.Merge(reports); m.Checkpoint.Mapped > 0 {
		m.Checkpoint.Mapped = m.Scope.Bytes
	}
	return &m, errors.Join(err, m.showable())
}

// showable returns an error if the report cannot be written in a form: a report that was changed may have shapes and
// indices that do not fit each other.
func (r *verified) showable() (err error) {
	defer func() {
		if recover() != nil {
			err = errors.New("shapes and indices in these reports do not fit each other: one was changed")
		}
	}()
	return errors.Join(r.Report.WriteText(io.Discard), r.WriteJUnit(io.Discard, r.about()),
		r.WriteHTML(io.Discard, r.about()))
}

// join adds what g knows of the same checkpoint's files, and returns how it differs.
func (f *checkpointFiles) join(g *checkpointFiles) (different []string) {
	if a, b := slices.Sorted(maps.Keys(f.Identity)), slices.Sorted(maps.Keys(g.Identity)); !slices.Equal(a, b) {
		different = append(different, fmt.Sprintf("the checkpoint has the files %s, not %s", text.Some(b, 3, ", "),
			text.Some(a, 3, ", ")))
	}
	for _, known := range []struct {
		what      string
		ours, its map[string]string
	}{{"hash", f.Hashes, g.Hashes}, {"identity", f.Identity, g.Identity}, {"samples", f.Samples, g.Samples}} {
		for _, name := range slices.Sorted(maps.Keys(known.its)) {
			was, is := known.ours[name], known.its[name]
			if was != "" && is != "" && was != is {
				different = append(different, fmt.Sprintf("the checkpoint's %s has the %s %s, not %s", text.Quote(name),
					known.what, is, was))
			}
			known.ours[name] = cmp.Or(is, was)
		}
	}
	for name, state := range g.Files {
		if f.Files[name] == "not hashed" || f.Files[name] == "not there" {
			f.Files[name] = state
		}
	}
	f.Mapped = max(f.Mapped, g.Mapped)
	return different
}

// identify names the weight files that were opened by their headers and sizes, and those on the disk by samples of
// their bytes, 4 KiB at each quarter, so that a fine-tuned checkpoint is not taken for its base.
func (f *checkpointFiles) identify(c *checkpoint.Checkpoint) error {
	f.Identity, f.Samples = map[string]string{}, map[string]string{}
	for _, file := range c.Inventory.Unread {
		f.Identity[file.Name] = ""
	}
	for i, file := range c.Inventory.Files {
		header, err := c.Identity(i)
		if err != nil {
			return err
		}
		f.Identity[file.Name] = fmt.Sprintf("%s, %d bytes", header, file.Size)
		h, sample := sha256.New(), make([]byte, min(4096, file.Size))
		for quarter := int64(1); quarter <= 4 && c.Source.OnDisk(); quarter++ {
			if err := c.ReadFile(i, sample, (file.Size-int64(len(sample)))/4*quarter); err != nil {
				return err
			}
			h.Write(sample)
			f.Samples[file.Name] = fmt.Sprintf("sha256:%x", h.Sum(nil))
		}
	}
	return nil
}

// mergeParts reads the reports of all parts of a checkpoint, and returns them in the order of the parts. by is what
// their rows are, the same in all. The error names parts that are missing or given twice, and reports of other
// checkpoints.
func mergeParts[T any](paths []string, partOf func(*T) *inspect.Part, by func(*T) string) ([]*T, error) {
	all, err := readReports(paths, func(r *T) error {
		switch p := partOf(r); {
		case p == nil:
			return errors.New("not of a part: --part was not given")
		case p.Index < 1 || p.Index > p.Of || p.Identity == nil || p.Samples == nil:
			return errors.New("its part is incomplete or impossible: the report was changed")
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	var errs []error
	first, parts, missing := partOf(all[0]), map[int]*T{}, []int{}
	files := checkpointFiles{Identity: first.Identity, Samples: first.Samples}
	for i, r := range all {
		p := partOf(r)
		different := files.join(&checkpointFiles{Identity: p.Identity, Samples: p.Samples})
		if p.Of != first.Of {
			different = append(different, fmt.Sprintf("it is one of %d parts, not of %d", p.Of, first.Of))
		} else if parts[p.Index] != nil {
			different = append(different, fmt.Sprintf("part %d is there twice", p.Index))
		}
		if a, b := by(all[0]), by(r); a != b {
			different = append(different, fmt.Sprintf("its rows are by %s, not by %s", b, a))
		}
		for _, d := range different {
			errs = append(errs, fmt.Errorf("%s: does not go with %s: %s", text.Quote(paths[i]), text.Quote(paths[0]), d))
		}
		parts[p.Index] = r
	}
	var inOrder []*T
	const named = 1000 // missing parts
	for i := 1; i <= first.Of && len(missing) < named; i++ {
		if parts[i] == nil {
			missing = append(missing, i)
		}
		inOrder = append(inOrder, parts[i])
	}
	if n := first.Of - len(parts); n > 0 {
		errs = append(errs, fmt.Errorf("%s of %d missing: run %s too", text.Plural(n, "part"), first.Of,
			text.Ranges(missing)))
	}
	return inOrder, errors.Join(errs...)
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
