package main

import (
	"context"
	"errors"
	"io"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"

	"dsmoe/cmd/dsmoe/internal/cli"
	"dsmoe/config"
	"dsmoe/convert"
	"dsmoe/convert/checkpoint"
	"dsmoe/convert/torchbin"
	"dsmoe/model"
	"dsmoe/model/tensor"
	"dsmoe/model/weights"
	"dsmoe/text"
	"dsmoe/text/problem"
	"dsmoe/verify"
	"dsmoe/verify/pack"
	"dsmoe/verify/report"
)

func newVerify() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "verify CHECKPOINT GOLDEN",
		Short: "Compare every stage of the model with the reference's tensors",
		Long: `Runs the model on the golden pack's input, compares every stage with what the
reference Python computed, and names the first stage that differs, with the
known mistakes that explain it. --junit and --html also write the report to
files: a test case for each golden tensor, and one page with drawings that needs
no network. An existing file is replaced. --part I/N verifies a share of the
layers, --merge joins the JSON reports.

dsmoe help verdicts  what PASS covers, how limits are derived, parts and
                     gradients
dsmoe help packs     what a golden pack is, and which settings it records
dsmoe help traces    what an engine computed, as a pack; two traces of the same
                     tokens; replayed choices; deviations that are accepted`,
		Example: `  dsmoe demo
  dsmoe verify dsmoe-demo/checkpoint dsmoe-demo/golden --html page.html
  dsmoe verify dsmoe-demo/checkpoint dsmoe-demo/golden --layers 2 --quiet`,
		Args: cli.Expect("CHECKPOINT", "GOLDEN"),
		Annotations: cli.Exits("pass: the checkpoint computes what the reference computed",
			"fail: the first stage that differs is named"),
	}
	cli.JSONFlag(cmd)
	o := verifyOptions{dtype: "bfloat16", mode: report.Local, accumulate: "f64", rotary: "golden", reference: "golden", limits: cli.Limits{}}
	cmd.Flags().Var(cli.WordFlag(&o.mode, report.Local, report.Chained), "mode",
		"how stages are fed: local or chained")
	cmd.Flags().Var(cli.WordFlag(&o.accumulate, "f64", "f32"), "accumulate",
		"precision of the sums: f64, or f32 with wider bounds")
	cmd.Flags().Var(cli.WordFlag(&o.rotary, "golden", "compute", "float32"), "rotary-dtype",
		"compute RoPE's angles in the `dtype` that the golden names, the compute dtype, or float32")
	cmd.Flags().Var(cli.WordFlag(&o.reference, "golden", config.Remote, config.Native), "reference",
		"follow the `rules` of what the golden names, or of remote or native code")
	cmd.Flags().Var(&o.limits, "limit", "widen the bounds of a stage, or of those that end in .STAGE; repeatable")
	cmd.Flags().Var(cli.SpansFlag(&o.layers, "layers"), "layers", "compare stages of these `layers` only: 0,3-5")
	cmd.Flags().StringSliceVar(&o.stages, "stages", nil,
		"compare stages that a `GLOB` matches only, such as 'mlp.*'; with commas, or repeatable")
	cmd.Flags().BoolVar(&o.failFast, "fail-fast", false, "stop at the first stage that fails")
	cmd.Flags().BoolVar(&o.hash, "hash", false, "also hash the weight files and compare with those that made the pack")
	cmd.Flags().BoolVar(&o.strictConfig, "strict-config", false,
		"no pass where config.json differs from the pack's, other than in how weights are stored")
	cmd.Flags().StringVar(&o.against, "against", "", "verify another `TRACE` of the same tokens, too, such as a rollout's beside a "+
		"trainer's, and compare the choices of experts")
	cmd.Flags().StringVar(&o.replay, "replay", "", "judge a trainer that replays the choices of experts of a `TRACE` of the same "+
		"tokens, such as a rollout's, or of its array routed_experts, .npy or .json")
	cmd.Flags().StringSliceVar(&o.accept, "accept", nil, "do not fail for stages that a known deviation, the id of a `CAUSE`, "+
		"explains; with commas, or repeatable")
	cmd.Flags().StringVar(&o.tokens, "tokens", "", "the tokens of GOLDEN if that is an array routed_experts, .npy or .json: a `FILE` "+
		"as dsmoe golden takes it")
	cmd.Flags().Var(cli.WordFlag(&o.dtype, "bfloat16", "float16", "float32"), "dtype",
		"the dtype that the engine of such an array computes in")
	share := cli.AddPart(cmd, "one of N parts of the layers")
	cli.InGroup(cmd.Flags(), cli.Selection, "layers", "stages", "fail-fast")
	cli.InGroup(cmd.Flags(), cli.Numbers, "mode", "accumulate", "rotary-dtype", "reference", "limit")
	cli.AddWide(cmd)
	cmd.Flags().BoolP(quietFlag, "q", false, "print the verdict and, of a failure, the first divergence, its cause and what to do")
	cli.InGroup(cmd.Flags(), cli.Reporting, quietFlag)
	cmd.MarkFlagsMutuallyExclusive(quietFlag, "json")
	merge, files := addMerge(cmd, junitFlag, htmlFlag, quietFlag), cli.Files{}
	files.Flag(cmd, junitFlag, "xml", "also write the report to `FILE` as JUnit XML")
	files.Flag(cmd, htmlFlag, "html", "also write the report to `FILE` as one page of HTML")
	cmd.RunE = files.Around(func(cmd *cobra.Command, args []string) error {
		if *merge {
			return finishVerify(cmd, &files, func() (*verified, error) { return mergeVerified(args) })
		}
		if cmd.Flags().Changed("stages") && len(o.stages) == 0 {
			return cli.Misuse(cmd, "--stages: no stage is named")
		}
		if cmd.Flags().Changed("accept") && (len(o.accept) == 0 || o.failFast || o.mode != report.Local) {
			return cli.Misuse(cmd, "--accept: names causes, and looks at all stages in local mode: not with --fail-fast or --mode")
		}
		p, err := share.Read(cmd)
		if err != nil {
			return err
		}
		if o.part = p; p.Of > 0 && (len(o.layers)+len(o.stages) > 0 || o.hash) {
			return cli.Misuse(cmd, "--part selects layers by itself, and reads no files whole: not with --layers, --stages or --hash")
		}
		if o.against != "" && (p.Of > 0 || o.mode != report.Local) {
			return cli.Misuse(cmd, "--against compares whole traces, in local mode: not with --part or --mode")
		}
		if o.replay != "" && o.mode != report.Local {
			return cli.Misuse(cmd, "--replay compares choices in local mode: not with --mode")
		}
		return finishVerify(cmd, &files, func() (*verified, error) {
			start := time.Now()
			r, err := o.verifyBoth(cmd.Context(), args[0], args[1], cmd.ErrOrStderr())
			if err == nil && o.part.Of == 0 { // of a part, a merge sees what was accepted
				err = verify.UnusedAcceptances(r.Report)
			}
			r.Version, r.Duration = version(), time.Since(start).Seconds()
			return r, err
		})
	})
	return cmd
}

// The flags that name files for the report, and the one that prints it in short.
const (
	junitFlag = "junit"
	htmlFlag  = "html"
	quietFlag = "quiet"
)

// finishVerify writes the report of work in all the forms that are asked for.
func finishVerify(cmd *cobra.Command, files *cli.Files, work func() (*verified, error)) error {
	r, err := work()
	if err != nil {
		if r.Report = report.Unfinished(err); errors.Is(err, context.Canceled) {
			r.Report = report.Unfinished(cli.ErrInterrupted)
		}
		if lost := r.writeFiles(files); lost != nil {
			err = errors.Join(err, lost)
		}
		return err
	}
	var printed cli.Result = r
	if cmd.Flags().Changed(quietFlag) {
		printed = brief{r}
	}
	if err := verifyDocuments.Print(cmd, printed); err != nil {
		return err
	}
	if err := r.writeFiles(files); err != nil {
		return &unwritten{err}
	}
	return r.err()
}

// unwritten is why a file is not there, though stdout has the report.
type unwritten struct{ error }

// Unwrap returns the error itself.
func (u *unwritten) Unwrap() error { return u.error }

// writeFiles writes the report to the files that are asked for.
func (r *verified) writeFiles(files *cli.Files) error {
	return errors.Join(
		files.Write(junitFlag, func(w io.Writer) error { return r.WriteJUnit(w, r.about()) }),
		files.Write(htmlFlag, func(w io.Writer) error { return r.WriteHTML(w, r.about()) }))
}

// verifyOptions are the flags of the command.
type verifyOptions struct {
	mode               report.Mode
	accumulate, rotary string
	reference          config.Reference
	limits             cli.Limits
	layers             text.Spans
	stages             []string
	failFast, hash     bool
	strictConfig       bool
	against            string // another trace
	replay             string // a trace whose choices are replayed
	accept             []string
	tokens, dtype      string // of an array of choices
	part               cli.Part
}

// options turns the flags into those of the library.
func (o *verifyOptions) options(compute tensor.DType, progress func(done, total int)) verify.Options {
	options := verify.Options{Mode: o.mode, Limits: o.limits, Layers: o.layers, Stages: o.stages,
		FailFast: o.failFast, Accept: o.accept, StrictConfig: o.strictConfig, Progress: progress}
	if o.part.Of > 0 {
		options.Part = &report.Part{Index: o.part.Index, Of: o.part.Of}
	}
	if o.accumulate == "f32" {
		options.Accumulate = model.Float32
	}
	switch o.rotary {
	case "float32":
		options.RotaryDType = tensor.F32
	case "compute":
		options.RotaryDType = compute
	}
	if o.reference != "golden" {
		options.Reference = o.reference
	}
	return options
}

// openGolden opens GOLDEN: a trace, or an array of choices of experts.
func (o *verifyOptions) openGolden(path string) (*pack.Pack, error) {
	switch {
	case !pack.IsChoices(path) && o.tokens != "":
		return nil, errors.New("--tokens is for a GOLDEN that is an array of choices of experts, .npy or .json; a pack has its tokens")
	case !pack.IsChoices(path):
		return openTrace(path)
	case o.tokens == "":
		return nil, problem.New(path, "choices of experts without their tokens", "name them with --tokens FILE")
	}
	in, err := pack.ReadTokens(o.tokens)
	if err != nil {
		return nil, err
	}
	return pack.Choices(path, in, map[string]tensor.DType{"bfloat16": tensor.BF16, "float16": tensor.F16, "float32": tensor.F32}[o.dtype])
}

// openTrace opens a golden pack, or files that SGLang dumped as one.
func openTrace(path string) (*pack.Pack, error) {
	if pack.IsDump(path) {
		return pack.OpenDump(path, torchbin.Leaves)
	}
	return pack.Open(path)
}

// verifyBoth is verify, with the other trace if there is one.
func (o *verifyOptions) verifyBoth(ctx context.Context, path, golden string, stderr io.Writer) (*verified, error) {
	p, unopened := o.openGolden(golden)
	var other, replayed *pack.Pack
	for _, trace := range []struct {
		path string
		to   **pack.Pack
	}{{o.against, &other}, {o.replay, &replayed}} {
		if trace.path != "" && unopened == nil {
			if trace.to != &replayed || !pack.IsChoices(trace.path) {
				*trace.to, unopened = openTrace(trace.path)
			} else if in, err := p.Input(); err != nil {
				unopened = err
			} else {
				*trace.to, unopened = pack.Choices(trace.path, in, p.DType)
			}
		}
	}
	if unopened != nil || o.against == "" {
		return o.verify(ctx, path, golden, p, unopened, nil, replayed, stderr)
	}
	if replayed != nil && replayed.Hash != other.Hash {
		return &verified{Checkpoint: checkpointFiles{Path: path, Golden: golden}}, errors.New("--replay and --against: two " +
			"traces; the choices of a trace that replays are compared with those that it replays")
	}
	its, err := o.verify(ctx, path, o.against, other, nil, nil, nil, stderr)
	if err != nil {
		its.Checkpoint.Golden = golden
		return its, err
	}
	return o.verify(ctx, path, golden, p, nil, &verify.Trace{Pack: other, Report: its.Report}, replayed, stderr)
}

// verify returns the report or, with the error, what was to be verified. The pack may be nil: unopened says why. The other
// trace and the one that is replayed may be nil.
func (o *verifyOptions) verify(ctx context.Context, path, golden string, p *pack.Pack, unopened error,
	other *verify.Trace, replayed *pack.Pack, stderr io.Writer) (*verified, error) {
	r := &verified{Checkpoint: checkpointFiles{Path: path, Golden: golden}}
	if isFile(filepath.Join(path, "manifest.json")) && !isFile(filepath.Join(path, checkpoint.ConfigName)) {
		return r, problem.New(path, "a golden pack, where CHECKPOINT is expected: dsmoe verify CHECKPOINT GOLDEN", "")
	}
	c, err := openerOf(ctx).OpenPart(path, o.needOf(p))
	if err != nil {
		return r, err
	}
	defer c.Close()
	noteAdapter(stderr, c)
	r.Checkpoint.Path = c.Path
	if unopened != nil {
		return r, unopened
	}
	b := cli.Bar{To: stderr, Counts: true}
	defer b.Remove()
	options := o.options(p.DType, func(done, total int) { b.Set("verifying", int64(done), int64(total)) })
	options.Pages, options.Decoded, options.Against, options.Replay = c, c, other, replayed
	if !c.ConfigInside() {
		if options.ConfigHash, err = hashFile(c, c.ConfigFile()); err != nil {
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
		err = cli.Named(path, err)
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
