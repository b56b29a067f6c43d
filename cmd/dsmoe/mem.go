package main

import (
	"github.com/spf13/cobra"

	"dsmoe/inspect/header"
	"dsmoe/text"
)

func newInspectMem() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "mem {CONFIG|CHECKPOINT}",
		Short: "Work out the memory that a model takes, from the config alone",
		Long: `Prints the bytes of the weights, the KV cache and the activations for each --context
with each --batch, from config.json alone.

dsmoe help memory  the formulas`,
		Example: `  dsmoe inspect mem fixtures/states/deepseek-moe-16b/config.json
  dsmoe inspect mem --context 4096,32768 --plot mem.svg fixtures/v3/checkpoint`,
		Args:        expect("CONFIG or CHECKPOINT"),
		Annotations: exits("done", ""),
	}
	cmd.ValidArgsFunction = completeArguments("mem CONFIG")
	out := addOutput(cmd, text.TSV)
	contexts := cmd.Flags().IntSlice("context", nil, "`tokens` of a sequence: 4096,32768 (default max_position_embeddings)")
	batches := cmd.Flags().IntSlice("batch", []int{1}, "`sequences` at once: 1,8")
	out.plot = addPlot(cmd, "bars of what each context and batch takes")
	cmd.RunE = out.plot.around(func(cmd *cobra.Command, args []string) error {
		c, _, err := configOf(args[0])
		if err != nil {
			return err
		}
		if len(*contexts) == 0 {
			*contexts = []int{c.MaxPositionEmbeddings}
		}
		r, err := header.MemoryOf(args[0], c, *contexts, *batches)
		if err != nil {
			return misuse(cmd, err.Error())
		}
		return out.print(cmd, r)
	})
	return cmd
}
