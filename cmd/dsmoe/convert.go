package main

import (
	"context"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"dsmoe/convert"
	"dsmoe/convert/checkpoint"
	"dsmoe/convert/plan"
)

// convertFlags are the flags of convert.
type convertFlags struct {
	to            formatFlag
	dtype         weightType
	experts       expertsFlag
	shard         shardSize
	layers        plan.Layers
	include       []string
	exclude       []string
	noMTP         bool
	mtp           bool
	memory        byteSize
	allowOverflow bool
	verify        bool
	noResume      bool
	overwrite     bool
	dryRun        bool
	check         bool
	json          *bool
}

func newConvert() *cobra.Command {
	f := convertFlags{memory: convert.DefaultMemory}
	cmd := &cobra.Command{
		Use:   "convert SRC DST",
		Short: "Write a checkpoint in another format, dtype, shard size or expert layout",
		Long: `Writes the checkpoint SRC anew: in other shards, another dtype or another layout of
the routed experts, or a part of it, in any combination, as safetensors or as GGUF. SRC
is a directory, an index, the hub's cache of a model, or a .safetensors, .gguf or .bin
file; nothing in a .bin file is ever executed. The other files of SRC's directory, such
as the tokenizer, go along, but not with a single weight file.

Everything is planned from the headers first: --dry-run prints the plan. The output
is assembled in a hidden directory beside DST, read again, compared with the source,
and renamed: DST is complete or not there. If DST is an empty directory, the hidden one
is in it, and its files move into DST when all are complete. An interrupted run, however
it ended, goes on when the same command is given again, and gives the same bytes. Given
again after that, the command checks DST, and compares it with SRC unless the weights'
files are those that it was verified with. DST holds
dsmoe.manifest.json, which binds its tensors to the source's by their BLAKE3 hashes;
--check DST hashes everything again and names what changed. --overwrite replaces a DST
that has such a manifest and holds nothing that it does not list: when the new output
is complete, it takes the name and the old one is removed.

--type casts F32, F16 and BF16 weights and dequantises FP8 ones; config.json follows.
Integers stay, and so does e_score_correction_bias, which decides the routing. A cast
that makes a number infinite is refused, unless --allow-overflow is given. Numbers that
are rounded, to denormal numbers or to zero apart, and those that are infinite or NaN in
SRC, are counted in the report and the manifest.

--to gguf writes DST/model.gguf, or shards, for llama.cpp: architecture deepseek for the
first DeepSeekMoE, deepseek2 for V2 and V3 in the layout with attn_k_b and attn_v_b. The
tokenizer and the config go into it, nothing else goes along. --type may then also be a
mixture of llama.cpp's quantiser: q8_0, q4_0, q4_k_m, q5_k_m, q6_k. Norms, routers and
biases are F32 there; keep leaves the others in their dtypes, but FP8 becomes BF16.
Prediction layers are left out unless --mtp is given. What llama.cpp would compute
otherwise is refused, but V2's group_limited_greedy: that is warned of. A GGUF file made
with keep gives the same bits back.

--include and --exclude take globs (*, ?, [a-z]) of Hugging Face's per-expert names.
--layers 0-3 makes a smaller model; layers keep their numbers. --no-mtp drops the
multi-token prediction layers of DeepSeek-V3. config.json's numbers of layers follow.
What remains may be a part of a model, which does not load: the report says so, and
what is not there.`,
		Example: `  dsmoe convert fixtures/v3/checkpoint shards --max-shard-size 300KB
  dsmoe convert fixtures/v3/checkpoint one-file --max-shard-size none
  dsmoe convert fixtures/v3-fp8/checkpoint v3-bf16 --type bf16
  dsmoe convert fixtures/v3/checkpoint fused --experts fused
  dsmoe convert fixtures/v3/checkpoint v3-gguf --to gguf
  dsmoe convert fixtures/v3-fp8/checkpoint v3-q8 --to gguf --type q8_0
  dsmoe convert v3-gguf back
  dsmoe convert fixtures/v3/checkpoint --exclude '*.mlp.experts.*' --dry-run
  dsmoe convert --check fused`,
		Args:        f.args,
		Annotations: exits("the output is complete, or --check found it unchanged", "--check found it changed"),
	}
	f.json = jsonFlag(cmd)
	f.register(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error { return f.run(cmd, args) }
	return cmd
}

func (f *convertFlags) register(cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.Var(&f.to, "to", "`format` of the output: safetensors or gguf")
	flags.Var(&f.dtype, "type", "dtype of float weights: f32, f16, bf16 or keep; float32, fp16, half, … will do; a mixture for gguf")
	flags.Var(&f.experts, "experts", "`layout` of routed experts: fused, per-expert or keep")
	flags.Var(&f.shard, "max-shard-size", "largest `size` of the tensors in one file: 5GB, 1.5GiB, or none for one file (default 5GB; none for gguf)")
	flags.Var(spansFlag{&f.layers, "layers"}, "layers", "keep only these decoder `layers`: 0-3,7")
	flags.StringArrayVar(&f.include, "include", nil, "keep only tensors that a `glob` matches; may be repeated")
	flags.StringArrayVar(&f.exclude, "exclude", nil, "drop tensors that a `glob` matches; may be repeated")
	flags.BoolVar(&f.noMTP, "no-mtp", false, "drop the multi-token prediction layers")
	flags.BoolVar(&f.mtp, "mtp", false, "keep them in a GGUF file, which has none otherwise")
	flags.Var(&f.memory, "max-memory", "`size` of the memory to stay below: 512MiB, 2G")
	flags.BoolVar(&f.allowOverflow, "allow-overflow", false, "write numbers that a cast makes infinite")
	flags.BoolVar(&f.verify, "verify", true, "read the output again and compare it with SRC")
	flags.BoolVar(&f.noResume, "no-resume", false, "start over, whether DST was begun or finished")
	overwriteFlag(cmd, &f.overwrite)
	flags.BoolVar(&f.dryRun, "dry-run", false, "print the plan, write nothing")
	flags.BoolVar(&f.check, "check", false, "compare DST, the only argument, with its manifest")
	flags.VisitAll(func(flag *pflag.Flag) {
		if !slices.Contains([]string{"check", "json", "max-memory"}, flag.Name) { // the others say how to convert
			cmd.MarkFlagsMutuallyExclusive("check", flag.Name)
		}
	})
}

// args demands SRC and DST, DST alone for --check, and takes SRC alone for a plan.
func (f *convertFlags) args(cmd *cobra.Command, given []string) error {
	switch {
	case f.check:
		return expect("DST")(cmd, given)
	case f.dryRun && len(given) == 1:
		return nil
	}
	if err := expect("SRC", "DST")(cmd, given); err != nil {
		return err
	}
	if strings.EqualFold(filepath.Ext(given[1]), ".gguf") {
		return misuse(cmd, "DST is a directory, and cannot have the extension of a file: --to gguf writes DST/model.gguf")
	}
	return nil
}

func (f *convertFlags) run(cmd *cobra.Command, args []string) error {
	debug.SetMemoryLimit(convert.HeapLimit(int64(f.memory)))
	b := phaseBar{w: cmd.ErrOrStderr()}
	defer b.remove()
	settings := engineSettings(b.set)
	settings.Memory, settings.Unverified = int64(f.memory), !f.verify
	settings.StartOver, settings.AllowOverflow = f.noResume, f.allowOverflow
	settings.Overwrite = f.overwrite
	if f.check {
		return f.runCheck(cmd, args[0], settings, &b)
	}
	src, err := checkpoint.Open(args[0])
	if err != nil {
		return err
	}
	defer src.Close()
	r, err := f.convert(cmd.Context(), src, args, settings)
	if err != nil {
		return f.interrupted(err)
	}
	b.remove()
	return printReport(cmd, r, *f.json)
}

// engineSettings are the settings that convert and synth share. Goroutines that wait for
// the disk get processors of the scheduler beside those that compute, unless the user has
// said by GOMAXPROCS how many there may be.
func engineSettings(progress func(phase string, n, of int64)) convert.Settings {
	s := convert.Settings{Compute: min(runtime.GOMAXPROCS(0), runtime.NumCPU()), IO: convert.DefaultIO, Tool: version(), Progress: progress}
	if os.Getenv("GOMAXPROCS") == "" {
		runtime.GOMAXPROCS(s.Compute + s.IO)
	}
	return s
}

// convert plans or converts.
func (f *convertFlags) convert(ctx context.Context, src *checkpoint.Checkpoint, args []string, s convert.Settings) (result, error) {
	o := convert.Options{Settings: s, Options: plan.Options{DType: f.dtype.dtype, Mixture: f.dtype.mixture, Experts: plan.Experts(f.experts), MaxShardBytes: int64(f.shard),
		Layers: f.layers, Include: f.include, Exclude: f.exclude, NoMTP: f.noMTP, MTP: f.mtp, Format: string(f.to)}}
	if f.dryRun {
		return convert.Plan(src, o)
	}
	return convert.Run(ctx, args[1], src, o)
}

// interrupted says how an interrupted conversion goes on.
func (f *convertFlags) interrupted(err error) error {
	switch {
	case f.dryRun:
		return err
	case f.noResume:
		return interrupted(err, "the same command without --no-resume")
	}
	return interrupted(err, "the same command")
}

func (f *convertFlags) runCheck(cmd *cobra.Command, dir string, s convert.Settings, b *phaseBar) error {
	r, err := convert.Check(cmd.Context(), dir, s)
	if err != nil {
		return err
	}
	b.remove()
	if err := printReport(cmd, r, *f.json); err != nil {
		return err
	}
	if len(r.Problems) > 0 {
		return errNo
	}
	return nil
}

// phaseBar is progress in phases, each with a bar of its own.
type phaseBar struct {
	bar
	w     io.Writer
	phase string
	done  int64
}

func (p *phaseBar) set(phase string, n, of int64) {
	if phase != p.phase {
		p.remove()
		p.bar, p.phase, p.done = newBar(p.w, phase, of, true), phase, 0
	}
	p.add(n - p.done)
	p.done = n
}
