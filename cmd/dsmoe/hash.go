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
		Long: `Prints a BLAKE3 hash of each tensor's values, and of those of all together; with --by
module of each module; with --by model of the model alone. --json has all of them.

The hashes are the same for any sharding, file format and order; for experts that are
fused or apart; for names with or without the leading "model."; and for any dtype that
holds the same numbers: BF16 or F16 as F32, FP8 with its scales as F32.

  tensor  BLAKE3 of the line "F32 1408 2048\n" (its shape; "F32\n" of a scalar), then its
          elements as little-endian float32, row by row: F16 and BF16 as they are, FP8
          times its scale rounded to F32; each NaN as 0x7fc00000; -0 is not 0. Scales
          have no hash. Other dtypes: "I64 17\n" and the bytes as they are stored
  module  BLAKE3 of a line for each of its tensors, "name blake3:...\n", in the order of
          the bytes of the names, which are those within the module: "up_proj.weight"
  model   the same of all tensors, with their whole names, per expert and with "model."

Every part of a name up to a dot is a module if it has more than one tensor, and so is
model.layers.3.mlp.experts.17: experts with equal hashes have equal weights. The hash of
the model is given only if all tensors are selected, that of a module if all of its own
are. Whether there are all tensors that the config asks for, inspect audit says.`,
		Example: `  dsmoe inspect hash fixtures/v1-base/checkpoint
  dsmoe inspect hash --by model fixtures/v3/checkpoint-fused
  dsmoe inspect hash --by module --layers 1 fixtures/v3-fp8/checkpoint
  dsmoe inspect hash --json fixtures/torch-bin/checkpoint`,
		Args:        expect("CHECKPOINT"),
		Annotations: exits("done", ""),
	}
	out, selection := addOutput(cmd, text.TSV), addSelection(cmd)
	by := choice{value: string(stats.HashTensors), words: []string{string(stats.HashTensors), string(stats.HashModules), string(stats.HashModel)}}
	cmd.Flags().Var(&by, "by", "a row for each tensor or module, or for the model alone")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if by.value == string(stats.HashModel) && !selection.All() {
			return misuse(cmd, "--by model is about all tensors: not with --layers, --experts or --match")
		}
		return readWeights(cmd, args[0], func(w inspect.Weights) error {
			r, err := stats.Hash(cmd.Context(), w, *selection, stats.HashLevel(by.value))
			if err != nil {
				return fmt.Errorf("%s: %w", text.Quote(args[0]), err)
			}
			return out.print(cmd, r)
		})
	}
	return cmd
}
