package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"dsmoe/inspect"
	"dsmoe/inspect/stats"
	"dsmoe/text"
)

func newInspectHash() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "hash CHECKPOINT",
		Short: "Name the values of the weights by hashes",
		Long: `Prints a BLAKE3 hash of each tensor's values, and of all together; with --by module of
each module; with --by model of the model alone. --json has all of them. Sharding, file
format, fused experts, and a dtype that holds the same numbers do not change a hash.

dsmoe help hashes  what is hashed, byte by byte`,
		Example: `  dsmoe inspect hash --by model fixtures/v3/checkpoint-fused
  dsmoe inspect hash --by module --layers 1 fixtures/v3-fp8/checkpoint`,
		Args:        expect("CHECKPOINT"),
		Annotations: exits("done", ""),
	}
	out, selection := addOutput(cmd, text.TSV), addSelection(cmd)
	by := choice{value: string(stats.HashTensors),
		words: []string{string(stats.HashTensors), string(stats.HashModules), string(stats.HashModel)}}
	cmd.Flags().Var(&by, "by", "a row for each tensor or module, or for the model alone")
	share := addShares(cmd, selection, "by")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if *share.merge {
			parts, err := mergeParts(args, func(r *stats.HashReport) *inspect.Part { return r.Part },
				func(*stats.HashReport) string { return "" })
			if err != nil {
				return err
			}
			return out.print(cmd, stats.MergeHashes(parts, stats.HashLevel(by.value)))
		}
		if by.value == string(stats.HashModel) && (!selection.All() || share.given()) {
			return misuse(cmd, "--by model is about all tensors: not with --layers, --experts, --match or --part")
		}
		return share.inspect(cmd, args[0], hasWeight(selection), func(w inspect.Weights) error {
			r, err := stats.Hash(cmd.Context(), w, *selection, stats.HashLevel(by.value))
			if err != nil {
				return fmt.Errorf("%s: %w", text.Quote(args[0]), err)
			}
			return out.print(cmd, r)
		})
	}
	return cmd
}
