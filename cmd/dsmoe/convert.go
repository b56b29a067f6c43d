package main

import (
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"dsmoe/cmd/dsmoe/internal/cli"
	"dsmoe/convert"
	"dsmoe/convert/checkpoint"
	"dsmoe/convert/plan"
)

// convertFlags are the flags of convert.
type convertFlags struct {
	convert.Options
	dtype     cli.WeightType
	scales    string
	imatrix   string
	adapter   string
	prune     pruneFlags
	verify    bool
	overwrite cli.Overwriting
	dryRun    bool
	check     bool
	discard   bool
	part      *cli.PartFlags
	files     cli.Files
}

// convertDocuments are the JSON documents of dsmoe convert.
var convertDocuments = cli.Documents{
	cli.DocumentOf[*convert.Report]("dsmoe.convert/1"),
	cli.DocumentOf[*convert.PartReport]("dsmoe.convert.part/1"),
	cli.DocumentOf[*plan.Plan]("dsmoe.convert.plan/1"),
	cli.DocumentOf[*convert.CheckReport]("dsmoe.convert.check/1"),
	cli.DocumentOf[*convert.DiscardReport]("dsmoe.convert.discard/1"),
}

func newConvert() *cobra.Command {
	f := convertFlags{scales: "f32"}
	f.Memory, f.Experts = convert.DefaultMemory, plan.KeepExperts
	cmd := &cobra.Command{
		Use:   "convert SRC DST",
		Short: "Write another format, dtype, shard size or expert layout",
		Long: `Writes SRC, or a part of it, to DST, which is then complete and compared with
SRC, or absent; the same command continues a run. See dsmoe help conversions and
checkpoints`,
		Example: `  dsmoe demo
  dsmoe convert dsmoe-demo/checkpoint demo-Q8_0.gguf --type q8_0 --no-vocab
  dsmoe convert dsmoe-demo/checkpoint demo-f32 --type f32 --experts fused
  dsmoe convert fixtures/v3/checkpoint tuned --adapter fixtures/lora/mla`,
		Args: f.args,
		Annotations: cli.Exits("the output is complete, or --check found it unchanged",
			"--check found it changed, or --discard found nothing"),
	}
	cmd.ValidArgsFunction = cli.CompleteArguments("convert SRC FILE") // DST may be a file
	cli.JSONFlag(cmd)
	f.register(cmd)
	cmd.RunE = f.files.Around(f.run)
	return cmd
}

func (f *convertFlags) register(cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.Var(cli.WordFlag(&f.Format, checkpoint.WrittenNames()...), "to",
		"write this `format`: safetensors or gguf (default safetensors)")
	flags.StringVar(&f.Name, "name", "", "call the model and its files by this `name`")
	flags.Var(cli.TypeFlag(&f.dtype), "type",
		"dtype of float weights: f32, f16, bf16, fp8 or keep; for gguf also a mixture such as q4_k_m")
	flags.Var(cli.WordFlag(&f.scales, "f32", "ue8m0"), "scales",
		"scales of --type fp8: f32, or ue8m0 for powers of two")
	flags.Var(cli.WordFlag(&f.Experts, plan.FusedExperts, plan.PerExpert, plan.KeepExperts), "experts",
		"write routed experts in this `layout`: fused, per-expert or keep")
	flags.Var(cli.WordFlag(&f.Names, "published", "transformers"), "names",
		"whose `names` tensors get where a family has several: published or transformers (default SRC's)")
	flags.Var(cli.ShardFlag(&f.MaxShardBytes), "max-shard-size",
		"largest `size` of one file: 5GB, 1.5GiB, or none for one file (default 5GB; none for gguf)")
	flags.Var(cli.SpansFlag(&f.Layers, "layers"), "layers", "keep only these decoder `layers`: 0-3,7")
	f.prune.add(cmd)
	flags.StringArrayVar(&f.Include, "include", nil, "keep only tensors that a `glob` matches; may be repeated")
	flags.StringArrayVar(&f.Exclude, "exclude", nil, "drop tensors that a `glob` matches; may be repeated")
	flags.BoolVar(&f.NoMTP, "no-mtp", false, "drop the multi-token prediction layers")
	flags.BoolVar(&f.MTP, "mtp", false, "keep the multi-token prediction layers, which a GGUF file mostly lacks")
	flags.StringVar(&f.Pre, "pre", "", "llama.cpp's `name` of a pre-tokenizer that is unknown here")
	flags.BoolVar(&f.NoVocab, "no-vocab", false, "leave the vocabulary out of a GGUF file")
	flags.StringVar(&f.imatrix, "imatrix", "", "importance matrix of llama.cpp, a `file`, for --type with types K")
	flags.StringVar(&f.adapter, "adapter", "", "merge the LoRA of peft in this `directory` into the weights")
	flags.Var(cli.SizeFlag(&f.Memory), "max-memory", "most memory to use, a `size`: 512MiB, 2G")
	flags.BoolVar(&f.AllowOverflow, "allow-overflow", false, "write numbers that a cast makes infinite")
	flags.BoolVar(&f.AllowFP8Fused, "allow-fp8-fused", false,
		"write fused experts in FP8, whose scales transformers may ignore")
	flags.BoolVar(&f.verify, "verify", true, "read the output again and compare it with SRC")
	flags.BoolVar(&f.StartOver, "no-resume", false, "start over, whether DST was begun or finished")
	cli.OverwriteFlag(cmd, &f.overwrite)
	f.part = cli.AddPart(cmd, "write and prove part `I/N` of DST, which --finish joins")
	flags.BoolVar(&f.Finish, "finish", false, "join the parts that --part wrote, with the same flags")
	flags.BoolVar(&f.dryRun, "dry-run", false, "print the plan, write nothing")
	flags.BoolVar(&f.check, "check", false, "compare DST, the only argument, with its manifest")
	flags.BoolVar(&f.discard, "discard", false,
		"remove what an unfinished run to DST, the only argument, left; with --dry-run list it, and others in DST")
	cli.InGroup(flags, cli.Selection, "layers", "keep-experts", "prune", "include", "exclude", "no-mtp")
	cli.InGroup(flags, cli.Numbers, "adapter", "type", "scales", "imatrix", "allow-overflow", "allow-fp8-fused", "verify")
	cli.InGroup(flags, cli.GGUF, "name", "pre", "no-vocab", "mtp")
	cli.InGroup(flags, cli.Existing, "no-resume", "overwrite", "check", "discard")
	cli.InGroup(flags, cli.Parts, "finish")
	cli.InGroup(flags, cli.Resources, "max-memory")
	f.files.Flag(cmd, attestFlag, "json",
		"with --check: write an in-toto statement of the output to `FILE`, to be signed")
	f.files.Flag(cmd, modelfileFlag, "", "also write a Modelfile, with which Ollama runs DST, to `FILE`")
	cli.InGroup(flags, cli.GGUF, modelfileFlag)
	cmd.MarkFlagsMutuallyExclusive("dry-run", modelfileFlag)
	for _, other := range []string{"finish", "no-resume", "dry-run", modelfileFlag} {
		cmd.MarkFlagsMutuallyExclusive("part", other)
		if other != "finish" && other != modelfileFlag {
			cmd.MarkFlagsMutuallyExclusive("finish", other)
		}
	}
	flags.VisitAll(func(flag *pflag.Flag) { // the others say how to convert
		if !slices.Contains([]string{"check", attestFlag, "json", "max-memory"}, flag.Name) {
			cmd.MarkFlagsMutuallyExclusive("check", flag.Name)
		}
		if !slices.Contains([]string{"discard", "dry-run", "json", "check"}, flag.Name) {
			cmd.MarkFlagsMutuallyExclusive("discard", flag.Name)
		}
	})
}

// args demands SRC and DST, DST alone for --check and --discard, and takes SRC alone for a plan.
func (f *convertFlags) args(cmd *cobra.Command, given []string) error {
	switch {
	case f.check, f.discard:
		return cli.Expect("DST")(cmd, given)
	case f.dryRun && len(given) == 1:
		return nil
	}
	return cli.Expect("SRC", "DST")(cmd, given)
}

func (f *convertFlags) run(cmd *cobra.Command, args []string) error {
	debug.SetMemoryLimit(convert.HeapLimit(f.Memory))
	b := cli.Bar{To: cmd.ErrOrStderr()}
	defer b.Remove()
	of, err := f.part.Read(cmd)
	if err != nil {
		return err
	}
	useEngine(cmd.Context(), &f.Settings, f.overwrite, b.Set)
	f.Part, f.Unverified = plan.Part{I: of.Index, N: of.Of}, !f.verify
	switch {
	case f.check:
		return f.runCheck(cmd, args[0], &b)
	case f.discard:
		r, err := convert.Discard(args[0], f.dryRun, f.Settings)
		if err != nil {
			return err
		}
		return cli.Answer(convertDocuments.Print(cmd, r), len(r.Unfinished) > 0)
	case cmd.Flags().Changed(attestFlag):
		return cli.Misuse(cmd, "--attest is of --check: convert first, then check and attest the output")
	}
	f.DType, f.Mixture, f.PowersOfTwo = f.dtype.DType, f.dtype.Mixture, f.scales == "ue8m0"
	if f.Prune, err = f.prune.read(cmd); err != nil {
		return err
	}
	if len(args) > 1 {
		f.Options.Options = f.Into(args[1])
	}
	if cmd.Flags().Changed(modelfileFlag) {
		file, err := filepath.Abs(f.files.Path(modelfileFlag))
		dst, wrong := filepath.Abs(args[1])
		switch {
		case f.Format != ggufFormat || f.NoVocab || checkpoint.IsRemote(args[1]):
			return cli.Misuse(cmd, "--modelfile is of a GGUF file on a disk, with its vocabulary")
		case err != nil || wrong != nil:
			return errors.Join(err, wrong)
		case file == dst || file == dst+plan.FileManifest || strings.HasPrefix(file, dst+string(filepath.Separator)):
			return cli.Misuse(cmd, "--modelfile names a file of DST: give another name, beside it")
		}
	}
	src, err := openerOf(cmd.Context()).OpenPart(args[0], f.Needed)
	if err != nil {
		return err
	}
	defer src.Close()
	if f.imatrix != "" {
		m, err := checkpoint.OpenImatrix(f.imatrix)
		if err != nil {
			return err
		}
		defer m.Close()
		f.Imatrix = m
	}
	if f.adapter != "" {
		a, err := checkpoint.OpenAdapter(f.adapter)
		if err != nil {
			return err
		}
		defer a.Close()
		f.Adapter = a
	}
	var r cli.Result
	var whole *convert.Report
	switch {
	case f.dryRun:
		r, err = convert.Plan(src, f.Options)
	case f.Part.N > 0:
		r, err = convert.RunPart(cmd.Context(), args[1], src, f.Options)
	default:
		whole, err = convert.Run(cmd.Context(), args[1], src, f.Options)
		r = whole
	}
	if err == nil && whole != nil {
		err = f.files.Write(modelfileFlag, func(w io.Writer) error {
			return whole.Modelfile(w, f.files.Path(modelfileFlag))
		})
	}
	if err != nil {
		return err
	}
	b.Remove()
	return convertDocuments.Print(cmd, r)
}

// useEngine fills in the settings that convert and synth share. Goroutines that wait for
// the disk get processors of the scheduler beside those that compute, unless the user has
// said by GOMAXPROCS how many there may be.
func useEngine(ctx context.Context, s *convert.Settings, o cli.Overwriting, progress func(phase string, n, of int64)) {
	s.Compute, s.IO = min(runtime.GOMAXPROCS(0), runtime.NumCPU()), convert.DefaultIO
	s.Client, s.Tool, s.Progress = clientOf(ctx), version(), progress
	s.Overwrite, s.OverwriteChanged = o.Finished, o.Changed
	if os.Getenv("GOMAXPROCS") == "" {
		runtime.GOMAXPROCS(s.Compute + s.IO)
	}
}

// Flags that name a file to be written: of a statement, of Ollama's Modelfile.
const (
	attestFlag    = "attest"
	modelfileFlag = "modelfile"
)

func (f *convertFlags) runCheck(cmd *cobra.Command, dir string, b *cli.Bar) error {
	var r *convert.CheckReport
	var s *convert.Statement
	var err error
	if cmd.Flags().Changed(attestFlag) {
		r, s, err = convert.Attest(cmd.Context(), dir, f.Settings)
	} else {
		r, err = convert.Check(cmd.Context(), dir, f.Settings)
	}
	if err == nil && s != nil {
		err = f.files.Write(attestFlag, s.WriteJSON)
	}
	if err != nil {
		return err
	}
	b.Remove()
	return cli.Answer(convertDocuments.Print(cmd, r), len(r.Problems) == 0)
}
