package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"

	"github.com/spf13/cobra"

	"dsmoe/config"
	"dsmoe/convert"
	"dsmoe/convert/checkpoint"
	"dsmoe/convert/plan"
	"dsmoe/model"
	"dsmoe/model/synth"
	"dsmoe/model/tensor"
	"dsmoe/text"
)

func newSynth() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "synth CONFIG DST",
		Short: "Write a synthetic checkpoint of any size",
		Long: `Writes a checkpoint with every weight that CONFIG implies, in the layout of
Hugging Face. The values are pseudo-random and follow from the seed, the name of the
tensor and the index of the value alone: the same on every machine, whatever the size
of the shards. They are scaled so that activations stay near 1.

With --init torch, the gates' weights (mlp.gate.weight) are what the reference's
MoEGate.reset_parameters draws from torch's own generator, one MoE layer after the
other, rounded to BF16; all other tensors stay as they are:

  torch.manual_seed(seed)
  for each MoE layer:
      kaiming_uniform_(torch.empty(n_routed_experts, hidden_size), a=sqrt(5)).bfloat16()

The weights are BF16, always. config.json is copied as it is, torch_dtype included.
DST must not exist, or be an empty directory; it is complete or not there. With
--overwrite it may be an output of dsmoe, which is replaced. An
interrupted run goes on when the same command is given again. DST holds
dsmoe.manifest.json: dsmoe convert --check DST hashes everything again.`,
		Example: `  dsmoe synth fixtures/v2-lite/checkpoint/config.json lite --seed 7
  dsmoe synth fixtures/v1-base/checkpoint/config.json sharded --max-shard-size 200KB
  dsmoe synth fixtures/v1-base/checkpoint fresh --init torch --seed 1234`,
		Args:        expect("CONFIG", "DST"),
		Annotations: exits("the checkpoint is written", ""),
	}
	asJSON := jsonFlag(cmd)
	o := synthOptions{gates: syntheticGates, maxShard: plan.DefaultShardBytes}
	numberFlag(cmd.Flags(), &o.seed, "seed", "", "seed of the values, decimal or 0x…")
	cmd.Flags().Var(&o.gates, "init", "`rule` of the gates: synthetic as all other tensors, or torch")
	cmd.Flags().Var(&o.maxShard, "max-shard-size", "largest `size` of the tensors in one file: 5GB, 500MB, 2GiB, a number of bytes")
	overwriteFlag(cmd, &o.replace)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		r, err := synthesise(cmd.Context(), args[0], args[1], o, cmd.ErrOrStderr())
		if err != nil {
			return interrupted(err, "the same command")
		}
		return printReport(cmd, r, *asJSON)
	}
	return cmd
}

// synthOptions are the flags of synth.
type synthOptions struct {
	seed     uint64
	gates    gateInit
	maxShard byteSize
	replace  bool
}

func (o synthOptions) source(c *config.Config) *synth.Source {
	if o.gates == torchGates {
		return synth.Torch(c, o.seed)
	}
	return synth.New(c, o.seed)
}

// rule names what the values follow from.
func (o synthOptions) rule() string { return fmt.Sprintf("seed %d, gates %s", o.seed, o.gates) }

// synthesise writes the synthetic checkpoint.
func synthesise(ctx context.Context, configFile, dst string, o synthOptions, stderr io.Writer) (*synthesised, error) {
	c, document, err := readConfig(configPath(configFile))
	if err != nil {
		return nil, err
	}
	source := o.source(c)
	s := plan.Synthetic{Tensors: slices.Collect(source.Tensors()), Config: document, Rule: o.rule(), Fill: source.Fill}
	p, err := plan.Synthesis(s, int64(o.maxShard))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", text.Quote(configFile), err)
	}
	b := phaseBar{w: stderr}
	defer b.remove()
	settings := engineSettings(b.set)
	settings.Overwrite = o.replace
	if _, err := convert.Synthesise(ctx, dst, p, settings); err != nil {
		return nil, err
	}
	return describeSynthetic(dst, o, c, s.Tensors), nil
}

// synthesised says what was written.
type synthesised struct {
	Path       string       `json:"path"`        // the target, as it was given
	Seed       uint64       `json:"seed"`        // of the values
	Init       gateInit     `json:"init"`        // how the gates were drawn
	Tensors    int          `json:"tensors"`     // that were written
	Parameters int64        `json:"parameters"`  // elements of all tensors
	DType      tensor.DType `json:"dtype"`       // of all tensors
	Bytes      int64        `json:"bytes"`       // of their data
	TorchDType tensor.DType `json:"torch_dtype"` // that the config promises
}

func describeSynthetic(dst string, o synthOptions, c *config.Config, tensors []tensor.Info) *synthesised {
	r := &synthesised{Path: dst, Seed: o.seed, Init: o.gates, Tensors: len(tensors), DType: tensor.BF16, TorchDType: model.TorchDType(c)}
	for _, t := range tensors {
		r.Parameters += int64(t.Len())
		r.Bytes += t.Bytes()
	}
	return r
}

// WriteText writes one line, and another if the config promises another dtype.
func (r *synthesised) WriteText(w io.Writer) error {
	line := fmt.Sprintf("%s: %s, %s, %s of %s, seed %d", text.Quote(r.Path), text.Plural(r.Tensors, "tensor"), text.Plural(r.Parameters, "parameter"), text.Bytes(r.Bytes), r.DType, r.Seed)
	if r.Init == torchGates {
		line += ", gates as torch draws them"
	}
	line += "\n"
	if r.TorchDType != r.DType {
		line += fmt.Sprintf("its config.json, copied as it is, promises %s\n", r.TorchDType)
	}
	_, err := io.WriteString(w, line)
	return err
}

// readConfig reads the config at path, and returns its text too.
func readConfig(path string) (*config.Config, []byte, error) {
	c, document, err := checkpoint.ReadConfig(path)
	var fields *config.Error
	if errors.As(err, &fields) {
		err = fmt.Errorf("%s: %w", text.Quote(path), err)
	}
	return c, document, err
}
