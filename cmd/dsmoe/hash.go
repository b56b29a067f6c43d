package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"dsmoe/cmd/dsmoe/internal/cli"
	"dsmoe/inspect"
	"dsmoe/inspect/stats"
	"dsmoe/text"
)

// hashDocuments is the JSON document of dsmoe inspect hash.
var hashDocuments = cli.Documents{cli.DocumentOf[*stats.HashReport]("dsmoe.inspect.hash/1")}

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
		Args:        cli.Expect("CHECKPOINT"),
		Annotations: cli.Exits("done", ""),
	}
	out, selection := cli.AddOutput(cmd, hashDocuments, text.TSV), addSelection(cmd)
	by := cli.ChoiceOf(string(stats.HashTensors), string(stats.HashTensors), string(stats.HashModules), string(stats.HashModel))
	cmd.Flags().Var(&by, "by", "a row for each tensor or module, or for the model alone")
	share := addShares(cmd, selection, "by")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if *share.merge {
			parts, err := mergeParts(hashDocuments, args, func(r *stats.HashReport) *inspect.Part { return r.Part },
				func(*stats.HashReport) string { return "" })
			if err != nil {
				return err
			}
			return out.Print(cmd, stats.MergeHashes(parts, stats.HashLevel(by.Value)))
		}
		if by.Value == string(stats.HashModel) && (!selection.All() || share.Given()) {
			return cli.Misuse(cmd, "--by model is about all tensors: not with --layers, --experts, --match or --part")
		}
		return share.inspect(cmd, args[0], hasWeight(selection), func(w inspect.Weights) error {
			r, err := stats.Hash(cmd.Context(), w, *selection, stats.HashLevel(by.Value))
			if err != nil {
				return fmt.Errorf("%s: %w", text.Quote(args[0]), err)
			}
			return out.Print(cmd, r)
		})
	}
	return cmd
}
