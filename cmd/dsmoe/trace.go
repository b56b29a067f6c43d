package main

import (
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"dsmoe/cmd/dsmoe/internal/cli"
	"dsmoe/scripts"
	"dsmoe/text"
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

Its head says what it needs and how it is run, such as

  python trace.py model.gguf pack --random 1x48
  dsmoe verify model.gguf pack

dsmoe help traces  what a trace is, and what verify says of it`,
		Example: `  dsmoe trace-script llama > trace.py`,
		Args: func(cmd *cobra.Command, args []string) error {
			cause := "want one of " + strings.Join(scripts.Engines, ", ")
			switch {
			case len(args) != 1:
				return cli.Misuse(cmd, cause)
			case slices.Contains(scripts.Engines, args[0]):
				return nil
			}
			for _, of := range [][2]string{{"llama", "llama.cpp"}, {"mlx", "mlx-lm"},
				{"torch", "transformers vllm sglang megatron-lm pytorch"}} {
				if len(args[0]) > 2 && strings.Contains(of[1], strings.ToLower(args[0])) {
					cause += fmt.Sprintf(": %s is the one for %s", of[0], text.Quote(args[0]))
				}
			}
			return cli.Misuse(cmd, cause)
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
