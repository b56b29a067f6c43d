package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"dsmoe/cmd/dsmoe/internal/cli"
	"dsmoe/config"
	"dsmoe/convert"
	"dsmoe/convert/plan"
	"dsmoe/model/count"
	"dsmoe/model/synth"
	"dsmoe/model/table"
	"dsmoe/model/tensor"
	"dsmoe/text"
)

// synthDocuments is the JSON document of dsmoe synth.
var synthDocuments = cli.Documents{cli.DocumentOf[*synthesised]("dsmoe.synth/1")}

func newSynth() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "synth CONFIG DST",
		Short: "Write a synthetic checkpoint of any size",
		Long: `Writes a checkpoint with every weight that CONFIG implies, in HuggingFace's
layout. The values are pseudo-random and depend only on the seed, the name of
the tensor and the index of the value. The weights are BF16, or FP8 where
quantization_config asks for it. Multi-token prediction layers are not written.
DST is complete or absent, as with convert.

dsmoe help conversions  what is guaranteed, the values, and --init torch`,
		Example: `  dsmoe demo
  dsmoe synth dsmoe-demo/checkpoint/config.json other --seed 7
  dsmoe synth dsmoe-demo/checkpoint fresh --init torch --seed 1234`,
		Args:        cli.Expect("CONFIG", "DST"),
		Annotations: cli.Exits("the checkpoint is written", ""),
	}
	cli.JSONFlag(cmd)
	o := synthOptions{gates: syntheticGates}
	cli.NumberFlag(cmd.Flags(), &o.seed, "seed", "", "seed of the values, decimal or 0x…")
	cmd.Flags().Var(cli.WordFlag(&o.gates, syntheticGates, torchGates), "init",
		"draw the gates by this `rule`: synthetic as all other tensors, or torch")
	cmd.Flags().Var(cli.ShardFlag(&o.maxShard), "max-shard-size",
		"largest `size` of the tensors in one file: 5GB, 500MB, 2GiB, a number of bytes, or none for one file (default 5GB)")
	cli.OverwriteFlag(cmd, &o.replace)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		r, err := synthesise(cmd.Context(), args[0], args[1], o, cmd.ErrOrStderr())
		if err != nil {
			return err
		}
		return synthDocuments.Print(cmd, r)
	}
	return cmd
}

// The rules by which synth draws the gates' weights.
const (
	syntheticGates = "synthetic"
	torchGates     = "torch"
)

// synthOptions are the flags of synth.
type synthOptions struct {
	seed     uint64
	gates    string
	maxShard int64
	replace  cli.Overwriting
}

// synthesise writes the synthetic checkpoint.
func synthesise(ctx context.Context, configFile, dst string, o synthOptions, stderr io.Writer) (*synthesised, error) {
	c, document, err := configOf(ctx, configFile)
	if err != nil {
		return nil, err
	}
	if f := tensor.FormOf(c.Quantization.Method); f.Parts != nil && f.Nearest == nil {
		return nil, fmt.Errorf("%s: quantization_config: synth does not write %s; leave quantization_config out",
			text.Quote(configFile), f.Name)
	}
	if f := table.FamilyOf(c); f.Joined && f.Namings[0].Fuses {
		return nil, fmt.Errorf("%s: files of model_type %s hold experts fused, and synth writes them apart",
			text.Quote(configFile), c.ModelType)
	}
	if c.Windowed() && o.gates == torchGates {
		return nil, fmt.Errorf("--init torch: the gates of model_type %s are not drawn so", c.ModelType)
	}
	source := synth.New(c, o.seed)
	if o.gates == torchGates {
		source = synth.Torch(c, o.seed)
	}
	made := slices.Collect(source.Tensors())
	s := plan.Synthetic{Tensors: slices.Clone(made), Config: document, // the values follow from the rule
		Rule: fmt.Sprintf("seed %d, gates %s", o.seed, o.gates)}
	own := map[string]string{} // the source's names
	for i := range s.Tensors {
		if s.Tensors[i].Name = c.Prefix() + made[i].Name; table.FamilyOf(c).Namings != nil {
			s.Tensors[i].Name = table.FamilyOf(c).Namings[0].Of(c, made[i].Name)
		}
		own[s.Tensors[i].Name] = made[i].Name
	}
	drawn := []tensor.DType{tensor.BF16, tensor.F32, tensor.FP8.Codes, tensor.I64}
	if i := slices.IndexFunc(made, func(t tensor.Info) bool { return !slices.Contains(drawn, t.DType) }); i >= 0 {
		return nil, fmt.Errorf("%s: quantization_config: synth does not write %s as %s; leave quantization_config out",
			text.Quote(configFile), text.Quote(s.Tensors[i].Name), made[i].DType)
	}
	s.Fill = func(t tensor.Info, dst []byte, offset int64) error {
		t.Name = own[t.Name]
		return source.Fill(t, dst, offset)
	}
	p, err := plan.Synthesis(s, o.maxShard)
	if err != nil {
		return nil, cli.Named(configFile, err)
	}
	b := cli.Bar{To: stderr}
	defer b.Remove()
	var settings convert.Settings
	useEngine(ctx, &settings, o.replace, b.Set)
	done, err := convert.Synthesise(ctx, dst, p, settings)
	if err != nil {
		return nil, err
	}
	r := describeSynthetic(dst, o, c, made)
	r.Already = done.Already
	return r, nil
}

// synthesised says what was written.
type synthesised struct {
	Path       string         `json:"path"`             // the target, as it was given
	Already    bool           `json:"already_complete"` // the target was already this checkpoint
	Seed       uint64         `json:"seed"`             // of the values
	Init       string         `json:"init"`             // how the gates were drawn
	Tensors    int            `json:"tensors"`          // that the checkpoint holds, scales among them
	Parameters int64          `json:"parameters"`       // elements of all weights, scales left out
	DTypes     []tensor.DType `json:"dtypes"`           // of the tensors, that of most bytes first
	Bytes      int64          `json:"bytes"`            // of their data
	TorchDType tensor.DType   `json:"torch_dtype"`      // that the config promises
	Notes      []string       `json:"notes"`            // what the config announces and synth does not write
}

func describeSynthetic(dst string, o synthOptions, c *config.Config, tensors []tensor.Info) *synthesised {
	r := &synthesised{Path: dst, Seed: o.seed, Init: o.gates, Tensors: len(tensors),
		Parameters: count.Modules(c).Sum().Parameters, TorchDType: table.TorchDType(c), Notes: []string{}}
	if n := c.NumNextNPredictLayers; n > 0 && len(table.FamilyOf(c).AbsentMTP(c, func(string) bool { return false })) > 0 {
		r.Notes = append(r.Notes, fmt.Sprintf("num_nextn_predict_layers is %d: prediction layers were not written", n))
	}
	if c.BlockOnly() {
		r.Notes = append(r.Notes, fmt.Sprintf("attention is not computed for %s: its tensors were not written, so that no engine "+
			"loads this checkpoint", c.ModelType))
	}
	bytes := map[tensor.DType]int64{}
	for _, t := range tensors {
		bytes[t.DType] += t.Bytes()
		r.Bytes += t.Bytes()
	}
	r.DTypes = slices.SortedFunc(maps.Keys(bytes), func(a, b tensor.DType) int {
		return cmp.Or(cmp.Compare(bytes[b], bytes[a]), cmp.Compare(a, b))
	})
	return r
}

// WriteText writes one line, another if the config promises another dtype, and the notes.
func (r *synthesised) WriteText(w io.Writer) error {
	dtypes := make([]string, len(r.DTypes))
	for i, d := range r.DTypes {
		dtypes[i] = d.String()
	}
	line := fmt.Sprintf("%s: %s, %s, %s of %s, seed %d", text.Quote(r.Path), text.Plural(r.Tensors, "tensor"),
		text.Plural(r.Parameters, "parameter"), text.Bytes(r.Bytes), strings.Join(dtypes, ", "), r.Seed)
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
	for _, note := range r.Notes {
		line += "note: " + note + "\n"
	}
	_, err := io.WriteString(w, line)
	return err
}
