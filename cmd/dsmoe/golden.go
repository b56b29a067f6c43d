package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"dsmoe/cmd/dsmoe/internal/cli"
	"dsmoe/convert/checkpoint"
	"dsmoe/scripts"
	"dsmoe/text"
	"dsmoe/text/problem"
	"dsmoe/verify/pack"
)

func newGoldenScript() *cobra.Command {
	return &cobra.Command{
		Use:   "golden-script",
		Short: "Print golden.py, the recorder of golden packs",
		Long: `Prints golden.py, which dsmoe golden runs: a script for a machine that has
Python, torch and transformers, but no dsmoe. Its head says what it needs and
how it is run.`,
		Example:     `  dsmoe golden-script > golden.py`,
		Args:        cli.Expect(),
		Annotations: cli.Exits("done", ""),
		RunE: func(cmd *cobra.Command, _ []string) error {
			_, err := cmd.OutOrStdout().Write(scripts.Recorder)
			return err
		},
	}
}

func newGolden() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "golden CHECKPOINT PACK",
		Short: "Record a golden pack: run the reference Python on a checkpoint",
		Long: `Runs golden.py, which is part of dsmoe: the reference Python computes the tokens
of --random, --tokens or --text with CHECKPOINT, a directory of safetensors or
.bin files on this disk, and every stage's tensors go to PACK. The reference is
transformers' class or the checkpoint's own code. At most one decoder layer is
in memory. Python needs torch, transformers and safetensors; without them the
error says what to install.

dsmoe help packs  what a pack holds, and what it proves`,
		Example: `  dsmoe demo
  dsmoe golden dsmoe-demo/checkpoint pack --random 2x17 --mask
  dsmoe golden dsmoe-demo/checkpoint pack-bf16 --random 1x12 --dtype bfloat16`,
		Args:        cli.Expect("CHECKPOINT", "PACK"),
		Annotations: cli.Exits("PACK is written, complete", ""),
	}
	python := cmd.Flags().String("python", "python3", "run golden.py with the Python at this `path`")
	r := newRecorderFlags()
	cmd.Flags().AddFlagSet(r.flags)
	cli.InGroup(r.flags, cli.Tokens, "random", "tokens", "text", "seed", "mask")
	cli.InGroup(r.flags, cli.Selection, "layers", "stages", "no-probes", "block", "mtp", "train")
	cli.InGroup(r.flags, cli.Numbers, "dtype", "cast", "attn", "experts", "threads", "repeat", "override")
	cmd.RegisterFlagCompletionFunc("stages", cli.CompleteList(bareStages()...))
	cmd.MarkFlagsMutuallyExclusive("random", "tokens", "text")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if err := r.check(cmd, args[0], args[1]); err != nil {
			return err
		}
		return runRecorder(cmd, *python, append(flagWords(r.flags), append([]string{"--"}, args...)...))
	}
	return cmd
}

// recorderFlags are the flags of golden.py, whose values are checked before Python starts. golden.py checks which of
// them go together, and patterns of stages.
type recorderFlags struct {
	flags                                 *pflag.FlagSet
	random                                tokenBatch
	tokens                                *string
	texts, overrides                      *[]string
	stages                                *string
	seed                                  uint64
	threads                               int
	layers                                text.Spans
	reference, dtype, device, by, experts string
}

// bareStages are the words of --stages that are not patterns of names with dots.
func bareStages() []string { return []string{"standard", "inner", "grad", "all", "output", "loss"} }

func newRecorderFlags() *recorderFlags {
	f := pflag.NewFlagSet("golden.py", pflag.ContinueOnError)
	r := &recorderFlags{flags: f, threads: 1, dtype: "float32", device: "cpu", by: pack.Eager, experts: pack.Eager}
	f.Var(batchFlag(&r.random), "random", "`BxT`: B sequences of T tokens drawn from the whole vocabulary")
	r.tokens = f.String("tokens", "", "JSON or safetensors `file` with input_ids, and attention_mask if any")
	r.texts = f.StringArray("text", nil, "record a `string`, by the checkpoint's tokenizer; again for more sequences")
	cli.NumberFlag(f, &r.seed, "seed", "", "draw --random, and inputs of layers, from this `number`")
	f.Bool("mask", false, "with --random: all sequences but the first begin with padding")
	f.Var(cli.WordFlag(&r.reference, "remote", "native"), "reference",
		"run the checkpoint's own code, remote, or transformers' class, native "+
			"(default native where there is one)")
	f.Bool("trust-remote-code", false, "allow Python code of the checkpoint to run")
	f.String("code", "", "take the files of auto_map from a `directory` (default CHECKPOINT)")
	f.Var(cli.WordFlag(&r.dtype, "float32", "bfloat16", "float16"), "dtype",
		"compute in float32, bfloat16 or float16; bf16, fp16, half, … will do")
	f.Var(cli.WordFlag(&r.device, "cpu", "cuda"), "device", "run the reference on cpu or cuda")
	f.Var(cli.WordFlag(&r.by, pack.Eager, pack.Sdpa), "attn", "attention of the reference: eager or sdpa")
	f.Var(cli.WordFlag(&r.experts, pack.Eager, pack.GroupedMM, pack.BatchedMM), "experts",
		"routed experts of the reference: eager, grouped_mm or batched_mm")
	f.Bool("cast", false, "load in float32, then cast with model.to(dtype); otherwise from_pretrained(dtype) loads")
	f.Var(cli.SpansFlag(&r.layers, "layers"), "layers", "record only these `layers`: 0,3-5,60")
	r.stages = f.String("stages", "standard,grad", "record these: a `list` of standard, inner, grad, all, or patterns of stages")
	f.Bool("no-probes", false, "do not run the experts that no token chose")
	f.Bool("block", false, "record the MLPs alone, on seeded inputs: of models whose attention dsmoe does not compute")
	f.Bool("mtp", false, "record the multi-token prediction layers (native V3)")
	f.Bool("train", false, "training mode: losses and gradients (first DeepSeekMoE)")
	r.overrides = f.StringArray("override", nil, "run with another value in config.json, `KEY=JSON`; may be repeated")
	cli.NumberFlag(f, &r.threads, "threads", "", "threads of torch, a `number`")
	f.Bool("repeat", false, "run each layer again in another way and note the differences")
	f.Bool("untried-versions", false, "accept versions of torch and transformers that were not tried")
	return r
}

// check refuses what golden.py would refuse after Python has loaded torch: missing tokens, files that are not
// there, values that are not of their kind.
func (r *recorderFlags) check(cmd *cobra.Command, path, to string) error {
	switch _, taken := os.Lstat(to); {
	case r.random == tokenBatch{} && *r.tokens == "" && len(*r.texts) == 0:
		return cli.WithHint(errors.New("golden: no tokens: give --random 2x17, --text STRING or --tokens FILE"),
			"--random 2x17 draws 2 sequences of 17 tokens; a dozen tokens are enough")
	case r.threads < 1:
		return cli.Misuse(cmd, "--threads: at least 1")
	case checkpoint.IsRemote(path):
		return problem.New(path, "golden.py reads a directory on this disk", "hf download fetches a model of the hub")
	case checkpoint.IsRemote(to):
		return problem.New(to, "golden.py writes a directory on this disk", "")
	case taken == nil:
		return problem.New(to, "exists already", "remove it, or give PACK another name")
	}
	for _, word := range strings.Split(*r.stages, ",") {
		if !strings.ContainsAny(word, ".*?[") && !slices.Contains(bareStages(), word) {
			return cli.Misuse(cmd, fmt.Sprintf("--stages %s: not one of %s, nor a pattern such as 'self_attn.*'",
				text.Quote(word), strings.Join(bareStages(), ", ")))
		}
	}
	for _, o := range *r.overrides {
		if key, value, ok := strings.Cut(o, "="); !ok || key == "" || !json.Valid([]byte(value)) {
			return cli.Misuse(cmd, fmt.Sprintf("--override %s: not KEY=JSON, such as norm_topk_prob=false", text.Quote(o)))
		}
	}
	if *r.tokens != "" {
		if _, err := pack.ReadTokens(*r.tokens); err != nil {
			return err
		}
	}
	if config := filepath.Join(path, checkpoint.ConfigName); !isFile(config) {
		return problem.New(config, "no such file", "golden.py reads a directory with config.json and the weights")
	}
	return nil
}

// isFile reports whether there is a regular file at path.
func isFile(path string) bool {
	stat, err := os.Stat(path)
	return err == nil && stat.Mode().IsRegular()
}

// flagWords are the words of a command line that set the flags that were given.
func flagWords(flags *pflag.FlagSet) (words []string) {
	flags.VisitAll(func(f *pflag.Flag) {
		values := []string{f.Value.String()}
		if list, ok := f.Value.(pflag.SliceValue); ok {
			values = list.GetSlice()
		}
		for _, v := range values {
			switch {
			case f.Value.Type() != "bool" && f.Changed:
				words = append(words, "--"+f.Name+"="+v)
			case v == "true" && f.Changed:
				words = append(words, "--"+f.Name)
			}
		}
	})
	return words
}

// scriptStatus is the exit status of a script that has told the user what is wrong.
type scriptStatus int

// Error names the exit status.
func (s scriptStatus) Error() string { return fmt.Sprintf("golden.py: exit status %d", int(s)) }

// runRecorder runs golden.py with the words of a command line. It writes where dsmoe does, and an interruption of dsmoe
// reaches it. Its standard input ends with dsmoe: golden.py then ends, too, however dsmoe was killed.
func runRecorder(cmd *cobra.Command, python string, words []string) error {
	dir, err := os.MkdirTemp("", "dsmoe-golden-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	script := filepath.Join(dir, "golden.py")
	if err := os.WriteFile(script, scripts.Recorder, 0o600); err != nil {
		return err
	}
	recorder := exec.CommandContext(cmd.Context(), python, append([]string{script}, words...)...)
	recorder.Stdout, recorder.Stderr = cmd.OutOrStdout(), cmd.ErrOrStderr()
	recorder.Env = append(os.Environ(), "DSMOE_HOLDS_STDIN=1")
	if _, err := recorder.StdinPipe(); err != nil {
		return err
	}
	recorder.Cancel = func() error { return recorder.Process.Signal(syscall.SIGTERM) }
	if err := recorder.Start(); err != nil {
		if missing := new(exec.Error); errors.As(err, &missing) {
			err = cli.Named(missing.Name, missing.Err) // exec doubles backslashes
		}
		return cli.WithHint(fmt.Errorf("golden: --python: %w", err),
			"--python PATH names a Python that has torch and transformers")
	}
	err = recorder.Wait()
	switch code := recorder.ProcessState.ExitCode(); {
	case code == 0:
		return nil
	case code == cli.ExitUnknown, code == cli.ExitInterrupted:
		return scriptStatus(code)
	case cmd.Context().Err() != nil:
		return cmd.Context().Err()
	}
	return fmt.Errorf("golden.py: %w", err)
}
