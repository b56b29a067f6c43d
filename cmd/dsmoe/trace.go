package main

import (
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"dsmoe/cmd/dsmoe/internal/cli"
	"dsmoe/scripts"
)

func newTraceScript() *cobra.Command {
	return &cobra.Command{
		Use:   "trace-script " + strings.Join(scripts.Engines, "|"),
		Short: "Print a recorder of what an engine computes",
		Long: `Prints trace.py, a script that runs in an engine's own Python and writes what
the engine computes for some tokens as a pack, which dsmoe verify judges:

  llama  llama.cpp on a GGUF file, by llama-cpp-python
  mlx    mlx-lm on a directory of safetensors
  torch  a module to import beside a torch model, which transformers, vLLM,
         SGLang or Megatron-LM runs

Its head says what it needs and how it is run.`,
		Example: `  dsmoe trace-script llama > trace.py
  python trace.py model.gguf pack --random 1x48
  dsmoe verify model.gguf pack`,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) != 1 || !slices.Contains(scripts.Engines, args[0]) {
				return cli.Misuse(cmd, "want one of "+strings.Join(scripts.Engines, ", "))
			}
			return nil
		},
		ValidArgsFunction: cobra.FixedCompletions(scripts.Engines, cobra.ShellCompDirectiveNoFileComp),
		Annotations:       cli.Exits("done", ""),
		RunE: func(cmd *cobra.Command, args []string) error {
			recorder, err := scripts.TraceRecorder(args[0])
			if err != nil {
				return err
			}
			_, err = cmd.OutOrStdout().Write(recorder)
			return err
		},
	}
}
