package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"dsmoe/config"
	"dsmoe/convert"
	"dsmoe/model"
	"dsmoe/model/tensor"
)

func newSynth() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "synth CONFIG DST",
		Short: "Write a synthetic checkpoint of any size",
		Long: `Writes a checkpoint with every weight that CONFIG implies, in the layout of
Hugging Face. The values are pseudo-random and follow from the seed, the name of the
tensor and the index of the value alone: the same on every machine, whatever the size
of the shards. They are scaled so that activations stay near 1.

The weights are BF16, always. config.json is copied as it is, torch_dtype included.
DST must not exist, or be an empty directory; it is complete or not there.`,
		Example: `  dsmoe synth fixtures/v1-16b-slice/checkpoint/config.json /tmp/slice --seed 7
  dsmoe synth config.json /tmp/sharded --max-shard-size 500MB`,
		Args:        args("CONFIG", "DST"),
		Annotations: exits("the checkpoint is written", ""),
	}
	asJSON := jsonFlag(cmd)
	seed := cmd.Flags().Uint64("seed", 0, "seed of the values")
	size := byteSize(5_000_000_000)
	cmd.Flags().Var(&size, "max-shard-size", "largest `size` of the tensors in one file: 5GB, 500MB, 2GiB, a number of bytes")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		r, err := synthesise(cmd.Context(), args[0], args[1], *seed, int64(size), cmd.ErrOrStderr())
		if err != nil {
			return err
		}
		return printReport(cmd, r, *asJSON)
	}
	return cmd
}

// synthesise writes the synthetic checkpoint.
func synthesise(ctx context.Context, configFile, dst string, seed uint64, maxShard int64, stderr io.Writer) (*synthesised, error) {
	c, document, err := readConfig(configPath(configFile))
	if err != nil {
		return nil, err
	}
	source := model.NewSynthetic(c, seed)
	out := convert.Output{
		Tensors: slices.Collect(source.Tensors()),
		Config:  document,
		Fill: func(_ context.Context, t tensor.Info, dst []byte, offset int64) error {
			return source.Fill(t, dst, offset)
		},
	}
	r := describeSynthetic(dst, seed, c, out.Tensors)
	b := newBar(stderr, "writing", r.Bytes, true)
	defer b.clear()
	return r, convert.Write(ctx, dst, out, convert.WriteOptions{MaxShardBytes: maxShard, Progress: b.add})
}

// synthesised says what was written.
type synthesised struct {
	Path       string       `json:"path"`
	Seed       uint64       `json:"seed"`
	Tensors    int          `json:"tensors"`
	Parameters int64        `json:"parameters"`
	DType      tensor.DType `json:"dtype"`
	Bytes      int64        `json:"bytes"`
	TorchDType tensor.DType `json:"torch_dtype"` // that the config promises
}

func describeSynthetic(dst string, seed uint64, c *config.Config, tensors []tensor.Info) *synthesised {
	r := &synthesised{Path: dst, Seed: seed, Tensors: len(tensors), DType: tensor.BF16, TorchDType: model.TorchDType(c)}
	for _, t := range tensors {
		r.Parameters += int64(t.Len())
		r.Bytes += t.Bytes()
	}
	return r
}

// WriteText writes one line, and another if the config promises another dtype.
func (r *synthesised) WriteText(w io.Writer) error {
	text := fmt.Sprintf("%s: %d tensors, %d parameters, %d bytes of %s, seed %d\n", r.Path, r.Tensors, r.Parameters, r.Bytes, r.DType, r.Seed)
	if r.TorchDType != r.DType {
		text += fmt.Sprintf("its config.json, copied as it is, promises %s\n", r.TorchDType)
	}
	_, err := io.WriteString(w, text)
	return err
}

// readConfig reads the config at path, and returns its bytes too.
func readConfig(path string) (*config.Config, []byte, error) {
	stat, err := os.Stat(path)
	if err != nil {
		return nil, nil, fileError(path, err)
	}
	if !stat.Mode().IsRegular() {
		return nil, nil, fmt.Errorf("%q: not a file, a config.json is due", path)
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, nil, fileError(path, err)
	}
	defer f.Close()
	var document bytes.Buffer
	c, err := config.Parse(io.TeeReader(f, &document))
	if err != nil {
		return nil, nil, fmt.Errorf("%s: %w", path, err)
	}
	return c, document.Bytes(), nil
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
func (s *byteSize) Set(text string) error {
	for _, u := range units {
		digits, ok := strings.CutSuffix(text, u.name)
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
