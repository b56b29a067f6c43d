package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"dsmoe/config"
	"dsmoe/convert"
	"dsmoe/convert/checkpoint"
	"dsmoe/convert/plan"
	"dsmoe/model"
	"dsmoe/model/synth"
	"dsmoe/model/tensor"
	"dsmoe/model/weights"
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

The weights are BF16, whatever torch_dtype says. With quantization_config fp8, as
DeepSeek-V3 has it, the matrices of attention, MLPs and experts are F8_E4M3, each with
F32 scales per weight_block_size (weight_scale_inv); modules_to_not_convert is heeded,
and embedding, head, gates and norms stay BF16. config.json is copied as it is.
DST must not exist, or be an empty directory; it is complete or not there. An
interrupted run goes on when the same command is given again. DST holds
dsmoe.manifest.json: dsmoe convert --check DST hashes everything again.`,
		Example: `  dsmoe synth fixtures/v1-16b-slice/checkpoint/config.json /tmp/slice --seed 7
  dsmoe synth config.json /tmp/sharded --max-shard-size 500MB
  dsmoe synth config.json /tmp/fresh --init torch --seed 1234`,
		Args:        expect("CONFIG", "DST"),
		Annotations: exits("the checkpoint is written", ""),
	}
	asJSON := jsonFlag(cmd)
	o := synthOptions{gates: syntheticGates, maxShard: plan.DefaultShardBytes}
	cmd.Flags().Uint64Var(&o.seed, "seed", 0, "seed of the values")
	cmd.Flags().Var(&o.gates, "init", "`rule` of the gates: synthetic as all other tensors, or torch")
	cmd.Flags().Var(&o.maxShard, "max-shard-size", "largest `size` of the tensors in one file: 5GB, 500MB, 2GiB, a number of bytes")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		r, err := synthesise(cmd.Context(), args[0], args[1], o, cmd.ErrOrStderr())
		if err != nil {
			return err
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
}

func (o synthOptions) source(c *config.Config) *synth.Source {
	if o.gates == torchGates {
		return synth.Torch(c, o.seed)
	}
	return synth.New(c, o.seed)
}

// rule names what the values follow from.
func (o synthOptions) rule() string { return fmt.Sprintf("seed %d, gates %s", o.seed, o.gates) }

// gateInit is a flag: how the gates' weights are drawn.
type gateInit string

const (
	syntheticGates gateInit = "synthetic"
	torchGates     gateInit = "torch"
)

// String returns the flag's text.
func (i *gateInit) String() string { return string(*i) }

// Set reads the flag.
func (i *gateInit) Set(word string) error {
	rule := gateInit(word)
	if rule != syntheticGates && rule != torchGates {
		return fmt.Errorf("neither %s nor %s", syntheticGates, torchGates)
	}
	*i = rule
	return nil
}

// Type names the flag's type in the help.
func (i *gateInit) Type() string { return "rule" }

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
	done, err := convert.Synthesise(ctx, dst, p, engineSettings(b.set))
	if err != nil {
		return nil, err
	}
	r := describeSynthetic(dst, o, c, s.Tensors)
	r.Already = done.Already
	return r, nil
}

// synthesised says what was written.
type synthesised struct {
	Path       string         `json:"path"`             // the target, as it was given
	Already    bool           `json:"already_complete"` // the target was this checkpoint, and still is: nothing was written
	Seed       uint64         `json:"seed"`             // of the values
	Init       gateInit       `json:"init"`             // how the gates were drawn
	Tensors    int            `json:"tensors"`          // that the checkpoint holds, scales among them
	Parameters int64          `json:"parameters"`       // elements of all weights, scales left out
	DTypes     []tensor.DType `json:"dtypes"`           // of the tensors, that of most bytes first
	Bytes      int64          `json:"bytes"`            // of their data
	TorchDType tensor.DType   `json:"torch_dtype"`      // that the config promises
}

func describeSynthetic(dst string, o synthOptions, c *config.Config, tensors []tensor.Info) *synthesised {
	r := &synthesised{Path: dst, Seed: o.seed, Init: o.gates, Tensors: len(tensors), TorchDType: model.TorchDType(c)}
	bytes := map[tensor.DType]int64{}
	for _, t := range tensors {
		bytes[t.DType] += t.Bytes()
		r.Bytes += t.Bytes()
		if !strings.HasSuffix(t.Name, weights.ScaleSuffix) {
			r.Parameters += int64(t.Len())
		}
	}
	r.DTypes = slices.SortedFunc(maps.Keys(bytes), func(a, b tensor.DType) int {
		return cmp.Or(cmp.Compare(bytes[b], bytes[a]), cmp.Compare(a, b))
	})
	return r
}

// WriteText writes one line, and another if the config promises another dtype.
func (r *synthesised) WriteText(w io.Writer) error {
	dtypes := make([]string, len(r.DTypes))
	for i, d := range r.DTypes {
		dtypes[i] = d.String()
	}
	line := fmt.Sprintf("%s: %d tensors, %d parameters, %d bytes of %s, seed %d", r.Path, r.Tensors, r.Parameters, r.Bytes, strings.Join(dtypes, ", "), r.Seed)
	if r.Init == torchGates {
		line += ", gates as torch draws them"
	}
	if r.Already {
		line += "; was complete already, matches its manifest: nothing was written"
	}
	line += "\n"
	if !slices.Contains(r.DTypes, r.TorchDType) {
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

// byteSize is a flag: a number of bytes with a unit, decimal as Hugging Face counts
// (1GB is 10^9), or binary (1GiB is 2^30).
type byteSize int64

// units are the units of a byteSize; none is a suffix of one before it.
var units = []struct {
	name  string
	bytes int64
}{
	{"TiB", 1 << 40}, {"GiB", 1 << 30}, {"MiB", 1 << 20}, {"KiB", 1 << 10},
	{"TB", 1e12}, {"GB", 1e9}, {"MB", 1e6}, {"KB", 1e3},
	{"B", 1}, {"", 1},
}

// String returns the size in the first unit that it is a multiple of.
func (s *byteSize) String() string {
	for _, u := range units {
		if *s > 0 && int64(*s)%u.bytes == 0 {
			return strconv.FormatInt(int64(*s)/u.bytes, 10) + u.name
		}
	}
	return strconv.FormatInt(int64(*s), 10)
}

// Set reads a size.
func (s *byteSize) Set(word string) error {
	for _, u := range units {
		digits, ok := strings.CutSuffix(word, u.name)
		if !ok {
			continue
		}
		n, err := strconv.ParseUint(strings.TrimSpace(digits), 10, 63)
		if err != nil || n == 0 || int64(n) > (1<<62)/u.bytes {
			break
		}
		*s = byteSize(int64(n) * u.bytes)
		return nil
	}
	return errors.New("not a size such as 5GB, 500MB or 2GiB")
}

// Type names the flag's type in the help.
func (s *byteSize) Type() string { return "size" }
