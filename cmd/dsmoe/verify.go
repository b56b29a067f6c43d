package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"dsmoe/config"
	"dsmoe/convert"
	"dsmoe/convert/checkpoint"
	"dsmoe/model"
	"dsmoe/model/tensor"
	"dsmoe/model/weights"
	"dsmoe/text"
	"dsmoe/verify"
	"dsmoe/verify/pack"
	"dsmoe/verify/report"
)

func newVerify() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "verify CHECKPOINT GOLDEN",
		Short: "Compare every stage of the model with the reference's tensors",
		Long: `Runs the model on the golden pack's input, compares every stage with what the reference
Python computed, and names the first stage that differs, with the known mistakes that
explain it. --junit and --html also write the report to files: a test case for each
golden tensor, and one page with drawings that needs no network. An existing file is
replaced. --part I/N verifies a share of the layers, --merge joins the JSON reports.

dsmoe help verdicts  what PASS covers, how limits are derived, parts and gradients
dsmoe help packs     what a golden pack is, and which settings it records`,
		Example: `  dsmoe verify fixtures/v1-base/checkpoint fixtures/v1-base/golden-f32
  dsmoe verify --layers 2 --html v.html fixtures/v3/checkpoint fixtures/v3/golden-f32
  dsmoe verify --part 2/8 --json fixtures/v3/checkpoint fixtures/v3/golden-f32`,
		Args: expect("CHECKPOINT", "GOLDEN"),
		Annotations: exits("pass: the checkpoint computes what the reference computed",
			"fail: the first stage that differs is named"),
	}
	asJSON := jsonFlag(cmd)
	o := verifyOptions{mode: choice{"local", []string{"local", "chained"}},
		accumulate: choice{"f64", []string{"f64", "f32"}},
		rotary:     choice{"golden", []string{"golden", "compute", "float32"}},
		reference:  choice{"golden", []string{"golden", "remote", "native"}}, limits: limits{}}
	cmd.Flags().Var(&o.mode, "mode", "how stages are fed: local or chained")
	cmd.Flags().Var(&o.accumulate, "accumulate", "precision of the sums: f64, or f32 with wider bounds")
	cmd.Flags().Var(&o.rotary, "rotary-dtype",
		"`dtype` of the reference's RoPE angles: what the golden says, compute, or float32")
	cmd.Flags().Var(&o.reference, "reference", "`whose` rules to follow: the golden's, or those of remote or native code")
	cmd.Flags().Var(&o.limits, "limit", "`STAGE=FACTOR` on the bounds of a stage, or of those that end in .STAGE; "+
		"repeatable")
	cmd.Flags().Var(spansFlag(&o.layers, "layers"), "layers", "compare stages of these `layers` only: 0,3-5")
	cmd.Flags().StringSliceVar(&o.stages, "stages", nil,
		"compare stages that a `GLOB` matches only, such as 'mlp.*'; with commas, or repeatable")
	cmd.Flags().BoolVar(&o.failFast, "fail-fast", false, "stop at the first stage that fails")
	cmd.Flags().BoolVar(&o.hash, "hash", false, "also hash the weight files and compare with those that made the pack")
	share := addPart(cmd, "one of N parts of the layers")
	merge, files := addMerge(cmd, "junit", "html"), reportFiles{}
	cmd.Flags().StringVar(&files.junit, "junit", "", "also write the report to `FILE` as JUnit XML")
	cmd.Flags().StringVar(&files.html, "html", "", "also write the report to `FILE` as one page of HTML")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if *merge {
			return finishVerify(cmd, args, &files, *asJSON, func() (*verified, error) { return mergeVerified(args) })
		}
		if cmd.Flags().Changed("stages") && len(o.stages) == 0 {
			return misuse(cmd, "--stages: no stage is named")
		}
		p, err := share.read(cmd)
		if err != nil {
			return err
		}
		if o.part = p; p.of > 0 && (len(o.layers)+len(o.stages) > 0 || o.hash) {
			return misuse(cmd, "--part selects layers by itself, and reads no files whole: not with --layers, --stages or --hash")
		}
		return finishVerify(cmd, args, &files, *asJSON, func() (*verified, error) {
			start := time.Now()
			r, err := o.verify(cmd.Context(), args[0], args[1], cmd.ErrOrStderr())
			r.Version, r.Duration = version(), time.Since(start).Seconds()
			return r, err
		})
	}
	return cmd
}

// finishVerify writes the report of work, on which the arguments are, in all the forms that are asked for.
func finishVerify(cmd *cobra.Command, args []string, files *reportFiles, asJSON bool,
	work func() (*verified, error)) error {
	if err := files.create(inputsOf(cmd, args)); err != nil {
		return err
	}
	defer files.discard()
	r, err := work()
	if err != nil {
		if r.Report = report.Unfinished(err); errors.Is(err, context.Canceled) {
			r.Report = report.Unfinished(errInterrupted)
		}
		if lost := files.write(r); lost != nil {
			err = errors.Join(err, lost)
		}
		return err
	}
	if err := printReport(cmd, r, asJSON); err != nil {
		return err
	}
	if err := files.write(r); err != nil {
		return &unwritten{err}
	}
	return r.err()
}

// errInconclusive ends a verification that found no difference but did not check
// everything; its report has said what.
var errInconclusive = errors.New("inconclusive: not everything could be checked")

// verifyOptions are the flags of the command.
type verifyOptions struct {
	mode, accumulate, rotary, reference choice
	limits                              limits
	layers                              text.Spans
	stages                              []string
	failFast, hash                      bool
	part                                part
}

// options turns the flags into those of the library.
func (o *verifyOptions) options(compute tensor.DType, progress func(done, total int)) verify.Options {
	options := verify.Options{Mode: report.Mode(o.mode.value), Limits: o.limits, Layers: o.layers, Stages: o.stages,
		FailFast: o.failFast, Progress: progress}
	if o.part.of > 0 {
		options.Part = &report.Part{Index: o.part.index, Of: o.part.of}
	}
	if o.accumulate.value == "f32" {
		options.Accumulate = model.Float32
	}
	switch o.rotary.value {
	case "float32":
		options.RotaryDType = tensor.F32
	case "compute":
		options.RotaryDType = compute
	}
	if o.reference.value != "golden" {
		options.Reference = config.Reference(o.reference.value)
	}
	return options
}

// verify returns the report or, with the error, what was to be verified.
func (o *verifyOptions) verify(ctx context.Context, path, golden string, stderr io.Writer) (*verified, error) {
	r := &verified{Checkpoint: checkpointFiles{Path: path, Golden: golden}}
	if err := exchanged(path); err != nil {
		return r, err
	}
	p, unopened := pack.Open(golden)
	c, err := checkpoint.OpenPart(path, o.needOf(p))
	if err != nil {
		return r, err
	}
	defer c.Close()
	noteAdapter(stderr, c)
	r.Checkpoint.Path = c.Path
	if unopened != nil {
		return r, unopened
	}
	b := bar{w: stderr, things: true}
	defer b.remove()
	options := o.options(p.DType, func(done, total int) { b.set("verifying", int64(done), int64(total)) })
	options.Pages, options.Decoded = c, c
	if !c.ConfigInside() {
		if options.ConfigHash, err = hashFile(c, checkpoint.ConfigName); err != nil {
			return r, err
		}
	}
	options.Rounded = func() (map[string]tensor.Rounding, error) {
		rounded, err := convert.Rounded(ctx, c)
		return c.Named(rounded), err
	}
	options.OtherFiles = func() (others []string, same bool, err error) {
		if err = r.Checkpoint.compare(c, p, o.hash); err == nil {
			others, same = r.Checkpoint.others(c)
		}
		return others, same, err
	}
	r.Report, err = verify.Run(ctx, c.Config, c, p, options)
	var mismatch *weights.MismatchError
	if errors.As(err, &mismatch) {
		err = fmt.Errorf("%s: %w", text.Quote(path), err)
	}
	if err != nil {
		return r, err
	}
	if err := r.Checkpoint.identify(c); err != nil {
		return r, err
	}
	if c.HasViews() {
		r.Checkpoint.Mapped = r.Report.Scope.Bytes
	}
	if r.Checkpoint.Files == nil {
		err = r.Checkpoint.compare(c, p, o.hash)
	}
	return r, err
}

// needOf is the need of a verification with a pack, nil if it cannot be read.
func (o *verifyOptions) needOf(p *pack.Pack) checkpoint.Need {
	return func(c *config.Config, all weights.Headers) (map[string]bool, error) {
		if c == nil || p == nil {
			return nil, nil
		}
		reads, err := verify.Reads(c, p, o.options(p.DType, nil))
		if err != nil {
			return nil, err
		}
		return weights.Holders(c, all, reads), nil
	}
}

// exchanged says that a golden pack stands in the checkpoint's place.
func exchanged(path string) error {
	holds := func(dir, name string) bool {
		info, err := os.Stat(filepath.Join(dir, name))
		return err == nil && info.Mode().IsRegular()
	}
	if holds(path, "manifest.json") && !holds(path, checkpoint.ConfigName) {
		return fmt.Errorf("%s: %w", text.Quote(path),
			errors.New("a golden pack, where CHECKPOINT is expected: dsmoe verify CHECKPOINT GOLDEN"))
	}
	return nil
}

// verified is the report with the checkpoint it is about.
type verified struct {
	*report.Report
	Checkpoint checkpointFiles `json:"checkpoint"` // that the report is about
	Version    string          `json:"version"`    // of dsmoe
	Duration   float64         `json:"duration_s"` // that the verification took, in seconds
	merging
}

// checkpointFiles says which checkpoint was verified, and whether its files are the
// ones that the pack was made from. A converted checkpoint's are not.
type checkpointFiles struct {
	Path   string            `json:"path"`         // as it was given
	Golden string            `json:"golden"`       // path of the pack, as it was given
	Files  map[string]string `json:"files"`        // "same", "differs", "not hashed" or "not there", by name
	Hashes map[string]string `json:"hashes"`       // "sha256:…" of those files that were hashed
	Mapped int64             `json:"mapped_bytes"` // of the weights that were read
	// Identity has the hash of the header, and the size, of each weight file, "" if it was not opened, and Samples a
	// hash of 16 KiB of it if it is on the disk: reports of one checkpoint have the same
	Identity map[string]string `json:"identity"`
	Samples  map[string]string `json:"samples"` // see Identity
}

// compare hashes config.json, and the weights if asked to, for every file that the
// pack lists.
func (f *checkpointFiles) compare(c *checkpoint.Checkpoint, p *pack.Pack, hashWeights bool) error {
	f.Files, f.Hashes = map[string]string{}, map[string]string{}
	held := map[string]bool{checkpoint.ConfigName: true} // and whether it is hashed
	if c.ConfigInside() {
		delete(held, checkpoint.ConfigName)
	}
	for _, file := range c.Inventory.Files {
		held[file.Name] = hashWeights
	}
	for _, file := range c.Inventory.Unread {
		if !c.Source.OnDisk() { // it is there, and was not needed
			held[file.Name] = false
		}
	}
	for _, name := range slices.Sorted(maps.Keys(held)) {
		if !held[name] {
			continue
		}
		hash, err := hashFile(c, name)
		if err != nil {
			return err
		}
		f.Hashes[name] = hash
	}
	for name, want := range p.Manifest.Checkpoint {
		got, hashed := f.Hashes[name]
		_, there := held[name]
		switch {
		case !there:
			f.Files[name] = "not there"
		case !hashed:
			f.Files[name] = "not hashed"
		default:
			f.Files[name] = map[bool]string{true: "same", false: "differs"}[got == want]
		}
	}
	return nil
}

// others returns the weight files whose hashes differ from the pack's, with the parts of the model that they hold. same:
// all files of the pack's checkpoint are here with its hashes.
func (f *checkpointFiles) others(c *checkpoint.Checkpoint) (others []string, same bool) {
	holds := map[string][]string{}
	for t := range c.Tensors() {
		if file, _, err := c.Place(t.Name); err == nil {
			name := c.Inventory.Files[file].Name
			holds[name] = append(holds[name], t.Name)
		}
	}
	same = len(f.Files) > 0
	for _, name := range slices.Sorted(maps.Keys(f.Files)) {
		same = same && (f.Files[name] == "same" || name == checkpoint.ConfigName)
		if f.Files[name] == "differs" && name != checkpoint.ConfigName {
			others = append(others, fmt.Sprintf("%s (%s)", text.Quote(name), weights.PartsOf(holds[name])))
		}
	}
	return others, same
}

// hashFile hashes a file of a checkpoint.
func hashFile(c *checkpoint.Checkpoint, name string) (string, error) {
	f, err := c.OpenOther(name)
	if err != nil {
		return "", err
	}
	defer f.Close()
	hash, err := pack.Hash(f)
	if err != nil {
		return "", fileError(c.Source.Path(name), err)
	}
	return hash, nil
}

// String says in a few words what compare found.
func (f *checkpointFiles) String() string {
	count := map[string]int{}
	for name, state := range f.Files {
		if name != checkpoint.ConfigName {
			count[state]++
		}
	}
	var parts []string
	if state, ok := f.Files[checkpoint.ConfigName]; ok {
		parts = append(parts, checkpoint.ConfigName+" "+map[string]string{"same": "is the pack's",
			"differs": "differs from the pack's", "not there": "is absent (the weight file holds the config)"}[state])
	}
	for _, state := range slices.Sorted(maps.Keys(count)) {
		if state != "not hashed" {
			parts = append(parts, fmt.Sprintf("%s %s", text.Plural(count[state], "weight file"), map[string]string{
				"same": "as in the pack", "differs": "other than in the pack", "not there": "of the pack absent"}[state]))
		}
	}
	return strings.Join(parts, ", ")
}

// WriteText writes the report, and what it took.
func (r *verified) WriteText(w io.Writer) error {
	fmt.Fprintf(w, "%-11s%s", "checkpoint", text.Quote(r.Checkpoint.Path))
	if files := r.Checkpoint.String(); files != "" {
		fmt.Fprintf(w, ": %s", files)
	}
	fmt.Fprintln(w)
	if err := r.Report.WriteText(w); err != nil {
		return err
	}
	if r.Merged != nil {
		_, err := fmt.Fprintf(w, "%-11s%.2f s in all; %s\n", "merged", r.Duration, &r.merging)
		return err
	}
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	_, err := fmt.Fprintf(w, "%-11s%.2f s, %d MiB of memory at most, beside %d MiB of mapped weights\n", "took",
		r.Duration, m.Sys>>20, r.Checkpoint.Mapped>>20)
	return err
}

// err is the verdict as the command's outcome.
func (r *verified) err() error {
	switch r.Verdict {
	case report.Pass, report.Skipped:
		return nil
	case report.Fail:
		return errNo
	}
	return errInconclusive
}

// limits is the flag --limit.
type limits map[string]float64

// Type names the flag's type in the help.
func (l limits) Type() string { return "limit" }

// String lists the limits.
func (l limits) String() string {
	var parts []string
	for _, stage := range slices.Sorted(maps.Keys(l)) {
		parts = append(parts, fmt.Sprintf("%s=%g", stage, l[stage]))
	}
	return strings.Join(parts, ",")
}

// Set adds STAGE=FACTOR.
func (l limits) Set(setting string) error {
	stage, number, ok := strings.Cut(setting, "=")
	v, err := strconv.ParseFloat(number, 64)
	if !ok || err != nil || stage == "" || !(v > 0) || math.IsInf(v, 0) {
		return errors.New("not STAGE=FACTOR, such as mlp.output=2")
	}
	l[stage] = v
	return nil
}
