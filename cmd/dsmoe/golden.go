package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"dsmoe/cmd/dsmoe/internal/cli"
	"dsmoe/scripts"
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
	python := cmd.Flags().String("python", "python3", "`path` of the Python that runs golden.py")
	recorder := recorderFlags()
	cmd.Flags().AddFlagSet(recorder)
	cli.InGroup(recorder, cli.Tokens, "random", "tokens", "text", "seed", "mask")
	cli.InGroup(recorder, cli.Selection, "layers", "stages", "no-probes", "mtp", "train")
	cli.InGroup(recorder, cli.Numbers, "dtype", "cast", "attn", "threads", "repeat", "override")
	cmd.MarkFlagsOneRequired("random", "tokens", "text")
	cmd.MarkFlagsMutuallyExclusive("random", "tokens", "text")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		return runRecorder(cmd, *python, append(flagWords(recorder), append([]string{"--"}, args...)...))
	}
	return cmd
}

// recorderFlags are the flags of golden.py, which checks their values.
func recorderFlags() *pflag.FlagSet {
	f := pflag.NewFlagSet("golden.py", pflag.ContinueOnError)
	f.String("random", "", "`BxT`: B sequences of T tokens drawn from the whole vocabulary")
	f.String("tokens", "", "JSON or safetensors `file` with input_ids, and attention_mask if any")
	f.StringArray("text", nil, "`string` for the checkpoint's tokenizer; again for more sequences")
	f.String("seed", "0", "`number` that --random and seeded inputs of layers follow from")
	f.Bool("mask", false, "with --random: all sequences but the first begin with padding")
	f.String("reference", "", "`kind`: remote or native (default native where transformers has the class)")
	f.Bool("trust-remote-code", false, "allow Python code of the checkpoint to run")
	f.String("code", "", "`directory` with the files of auto_map (default CHECKPOINT)")
	f.String("dtype", "float32", "compute `dtype`: float32, bfloat16 or float16")
	f.String("device", "cpu", "`device` of the reference: cpu or cuda")
	f.String("attn", "eager", "`kind` of attention: eager or sdpa")
	f.Bool("cast", false, "load in float32, then cast with model.to(dtype); otherwise from_pretrained(dtype) loads")
	f.String("layers", "", "record only these `layers`: 0,3-5,60")
	f.String("stages", "standard,grad", "`list` of standard, inner, grad, all, or patterns of stages")
	f.Bool("no-probes", false, "do not run the experts that no token chose")
	f.Bool("mtp", false, "record the multi-token prediction layers (native V3)")
	f.Bool("train", false, "training mode: losses and gradients (first DeepSeekMoE)")
	f.StringArray("override", nil, "`KEY=JSON`: run with another value in config.json; may be repeated")
	f.String("threads", "1", "`number` of torch's threads")
	f.Bool("repeat", false, "run each layer again in another way and note the differences")
	f.Bool("untried-versions", false, "accept versions of torch and transformers that were not tried")
	return f
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

// runRecorder runs golden.py with the words of a command line. It reads and writes where dsmoe does, and
// an interruption of dsmoe reaches it.
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
	recorder.Stdin, recorder.Stdout, recorder.Stderr = os.Stdin, cmd.OutOrStdout(), cmd.ErrOrStderr()
	recorder.Cancel = func() error { return recorder.Process.Signal(os.Interrupt) }
	if err := recorder.Start(); err != nil {
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
