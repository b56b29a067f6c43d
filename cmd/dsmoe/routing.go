package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"

	"github.com/spf13/cobra"

	"dsmoe/config"
	"dsmoe/convert/checkpoint"
	"dsmoe/inspect/routing"
	"dsmoe/model"
	"dsmoe/model/synth"
	"dsmoe/text"
	"dsmoe/verify/pack"
)

func newInspectRouting() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "routing {GOLDEN|LOGS|CHECKPOINT}",
		Short: "Count which experts tokens are routed to",
		Long: `Counts which routed experts the gates chose, and prints a row for each layer, or with
--by for each expert or each pair of experts that share a token. The choices come from a
golden pack, from ESFT's logs, or from our own forward pass on --tokens or --random ids;
of several sets of tokens the loads are compared.
The numbers hold for these tokens only.

dsmoe help routing  the measures, where choices come from, memory`,
		Example: `  dsmoe inspect routing fixtures/v3/golden-f32 --config fixtures/v3/checkpoint
  dsmoe inspect routing fixtures/v1-base/checkpoint --random 4x128 --seed 7 --by expert`,
		Args:        expect("GOLDEN, LOGS or CHECKPOINT"),
		Annotations: exits("done", ""),
	}
	cmd.ValidArgsFunction = completeArguments("routing CHECKPOINT")
	var sets []string
	o := routingFlags{reference: choice{words: []string{string(config.Remote), string(config.Native)}},
		by: choice{value: string(routing.ByLayer),
			words: []string{string(routing.ByLayer), string(routing.ByExpert), string(routing.ByPair)}}}
	out := addOutput(cmd, text.TSV)
	out.form.words = append(out.form.words, esftForm)
	flags := cmd.Flags()
	flags.Lookup(outputFlag).Usage = strings.Replace(flags.Lookup(outputFlag).Usage, "json or md", "json, md or esft", 1)
	flags.Var(&o.by, "by", "a row for each layer, expert or pair")
	flags.Var(spansFlag(&o.layers, "layers"), "layers", "only these `layers`: 1-3,7")
	flags.Var(spansFlag(&o.experts, "experts"), "experts", "only rows of these routed `experts`: 0,5-9")
	flags.StringArrayVar(&sets, "tokens", nil,
		"`file` of token ids for a forward pass; NAME=FILE several times: sets side by side")
	flags.Var(batchFlag(&o.random), "random", "random tokens for a forward pass: `BxT`, such as 2x17")
	numberFlag(flags, &o.seed, "seed", "", "seed of --random")
	flags.Var(&o.reference, "reference", "`whose` rules a forward pass follows: remote or native code's (default remote "+
		"for the first DeepSeekMoE and where auto_map names code, else native)")
	flags.StringVar(&o.config, "config", "", "`path` of the config.json or checkpoint of what was recorded")
	out.plot = addPlot(cmd, "the load of each expert by layer and expert")
	cmd.RunE = out.plot.around(func(cmd *cobra.Command, args []string) error {
		if len(sets) > 1 {
			if out.form.value == esftForm {
				return misuse(cmd, "-o esft is of one set of tokens")
			}
			c, err := o.compare(cmd, args[0], sets)
			if err != nil {
				return err
			}
			return out.print(cmd, c)
		}
		o.tokens = strings.Join(sets, "")
		r, err := o.route(cmd, args[0])
		if err != nil {
			return err
		}
		if out.form.value == esftForm {
			if err := out.plot.draw(r); err != nil {
				return err
			}
			return r.WriteESFT(cmd.OutOrStdout())
		}
		return out.print(cmd, r)
	})
	return cmd
}

// esftForm is the value of -o for ESFT's summary.
const esftForm = "esft"

// routingFlags are the flags of the command.
type routingFlags struct {
	by, reference   choice
	layers, experts text.Spans
	tokens, config  string
	random          tokenBatch
	seed            uint64
}

func (o *routingFlags) options() routing.Options {
	return routing.Options{Layers: o.layers, Experts: o.experts, By: routing.Level(o.by.value)}
}

// route finds out what path is, and counts.
func (o *routingFlags) route(cmd *cobra.Command, path string) (*routing.Report, error) {
	forward := o.tokens != "" || o.random != tokenBatch{}
	switch {
	case o.tokens != "" && o.random != tokenBatch{}:
		return nil, misuse(cmd, "--tokens and --random: one of them")
	case o.config != "" && forward:
		return nil, misuse(cmd, "--config is for golden packs and logs: a checkpoint has its own")
	case o.reference.value != "" && !forward:
		return nil, misuse(cmd, "--reference is for forward passes: --tokens or --random")
	case cmd.Flags().Changed("seed") && o.random == tokenBatch{}:
		return nil, misuse(cmd, "--seed is that of --random")
	case forward:
		return o.forward(cmd, path, o.options())
	}
	if _, err := os.Stat(filepath.Join(path, "manifest.json")); err == nil {
		return o.golden(path)
	}
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	var logs []string
	if info.IsDir() {
		if logs, err = esftLogs(path); err != nil {
			return nil, err
		}
	}
	switch {
	case logs == nil:
		return nil, &hinted{fmt.Errorf("%s: %w", text.Quote(path),
			errors.New("neither a golden pack (manifest.json) nor logs (expert_weights_LAYER.txt)")),
			"a checkpoint routes tokens: --tokens FILE or --random BxT"}
	case o.config == "":
		return nil, misuse(cmd, "logs do not say how many experts there are, and how many each token chooses: --config")
	}
	return o.logged(cmd, path, logs)
}

// compare routes several sets of tokens, each NAME=FILE, by the checkpoint at path.
func (o *routingFlags) compare(cmd *cobra.Command, path string, sets []string) (*routing.Comparison, error) {
	var names []string
	var reports []*routing.Report
	switch {
	case o.config != "" || o.random != tokenBatch{}:
		return nil, misuse(cmd, "several --tokens go with neither --config nor --random")
	case o.by.value == string(routing.ByPair):
		return nil, misuse(cmd, "several --tokens are compared --by layer or expert")
	}
	for i, set := range sets {
		name, file, ok := strings.Cut(set, "=")
		if !ok || name == "" || file == "" || slices.Contains(names, name) {
			return nil, misuse(cmd, fmt.Sprintf("--tokens %s: several sets are NAME=FILE each, with names that differ",
				text.Quote(set)))
		}
		names, sets[i] = append(names, text.Word(name)), file
	}
	options := o.options()
	options.Blocks = true
	for _, file := range sets {
		o.tokens = file
		r, err := o.forward(cmd, path, options)
		if err != nil {
			return nil, err
		}
		reports = append(reports, r)
	}
	return routing.Compare(names, reports, options), nil
}

// forward routes the tokens of the flags by the checkpoint at path.
func (o *routingFlags) forward(cmd *cobra.Command, path string, options routing.Options) (*routing.Report, error) {
	c, err := checkpoint.Open(path)
	if err != nil {
		return nil, err
	}
	defer c.Close()
	in, err := o.input(c.Config.VocabSize)
	if err != nil {
		return nil, err
	}
	rules := c.Config
	if o.reference.value != "" {
		if rules, err = c.Config.As(config.Reference(o.reference.value)); err != nil {
			return nil, fmt.Errorf("%s: %w", text.Quote(path), err)
		}
	}
	m, err := model.Load(rules, c)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", text.Quote(path), err)
	}
	b := bar{w: cmd.ErrOrStderr(), things: true}
	defer b.remove()
	progress := func(done, total int) { b.set("routing", int64(done), int64(total)) }
	return routing.OfForward(cmd.Context(),
		routing.Forward{Path: c.Path, Model: m, Input: in, Pages: c, Progress: progress}, options)
}

// input returns the tokens of the flags.
func (o *routingFlags) input(vocab int) (*model.Input, error) {
	if o.tokens == "" {
		return &model.Input{Batch: o.random.batch, Seq: o.random.seq,
			InputIDs: synth.Tokens(o.seed, o.random.batch*o.random.seq, vocab)}, nil
	}
	in, err := pack.ReadTokens(o.tokens)
	if err != nil {
		return nil, err
	}
	if err := in.Check(vocab); err != nil {
		return nil, fmt.Errorf("%s: %w", text.Quote(o.tokens), err)
	}
	return in, nil
}

// golden reads the pack at path.
func (o *routingFlags) golden(path string) (*routing.Report, error) {
	pack, err := pack.Open(path)
	if err != nil {
		return nil, err
	}
	g := routing.Golden{Path: path, Recording: pack}
	if g.Input, err = pack.Input(); err != nil {
		return nil, err
	}
	if o.config != "" {
		c, err := o.recorded(&g, pack)
		if c != nil {
			defer c.Close()
		}
		if err != nil {
			return nil, err
		}
	}
	return routing.OfGolden(g, o.options())
}

// recorded sets what --config knows of the model of a pack. The checkpoint that it returns is
// opened for the gates' biases alone; it is nil where there are none.
func (o *routingFlags) recorded(g *routing.Golden, pack *pack.Pack) (*checkpoint.Checkpoint, error) {
	g.Model = o.config
	stored, _, err := configOf(o.config)
	if err != nil {
		return nil, err
	}
	if g.Config, err = pack.Config(stored, ""); err != nil || !g.Config.ChoosesByBias() ||
		configPath(o.config) == o.config {
		return nil, err
	}
	c, err := checkpoint.Open(o.config)
	if err != nil {
		return nil, err
	}
	g.Weights = c
	return c, nil
}

// logged reads ESFT's logs.
func (o *routingFlags) logged(cmd *cobra.Command, path string, files []string) (*routing.Report, error) {
	c, _, err := configOf(o.config)
	if err != nil {
		return nil, err
	}
	b := bar{w: cmd.ErrOrStderr()}
	defer b.remove()
	logs, err := openLogs(files, func(done, total int64) { b.set("reading", done, total) })
	if err != nil {
		return nil, err
	}
	return routing.OfLogs(cmd.Context(), routing.ESFTLogs{Path: path, Logs: logs, Config: c}, o.options())
}

// esftLogs returns the paths of the logs in a directory, or of those in folders of it that are
// named rank…, one for each process that ran.
func esftLogs(dir string) (files []string, err error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, fileError(dir, err)
	}
	var below []string
	for _, e := range entries {
		path := filepath.Join(dir, e.Name())
		if _, ok := routing.ParseESFTName(e.Name()); ok {
			files = append(files, path)
		} else if e.IsDir() && strings.HasPrefix(e.Name(), "rank") {
			logs, err := esftLogs(path)
			if err != nil {
				return nil, err
			}
			below = append(below, logs...)
		}
	}
	if len(files) > 0 && len(below) > 0 {
		return nil, fmt.Errorf("%s: %w", text.Quote(dir),
			errors.New("logs in it and in rank… below it: tokens could be counted twice"))
	}
	return append(files, below...), nil
}

// openLogs returns the logs in files, and shows how much of them was read.
func openLogs(files []string, progress func(done, total int64)) (logs []routing.ESFTLog, err error) {
	var total int64
	var done atomic.Int64
	for _, path := range files {
		layer, _ := routing.ParseESFTName(filepath.Base(path))
		info, err := os.Stat(path)
		if err != nil {
			return nil, err
		}
		if !info.Mode().IsRegular() {
			return nil, fmt.Errorf("%s: %w", text.Quote(path), errors.New("not a regular file"))
		}
		total += info.Size()
		logs = append(logs, routing.ESFTLog{Name: path, Layer: layer, Open: func() (io.ReadCloser, error) {
			f, err := os.Open(path)
			return &countedFile{f, func(n int) { progress(done.Add(int64(n)), total) }}, err
		}})
	}
	return logs, nil
}

// countedFile is a file that tells what is read of it.
type countedFile struct {
	*os.File
	read func(n int)
}

// Read implements io.Reader.
func (f *countedFile) Read(p []byte) (int, error) {
	n, err := f.File.Read(p)
	f.read(n)
	return n, err
}

// tokenBatch is so many sequences of so many tokens.
type tokenBatch struct{ batch, seq int }

// maxRandom is how many random tokens can be asked for.
const maxRandom = 1 << 24

// parseBatch reads "2x17".
func parseBatch(word string) (tokenBatch, error) {
	batch, seq, ok := strings.Cut(word, "x")
	n, errN := strconv.ParseUint(batch, 10, 24)
	t, errT := strconv.ParseUint(seq, 10, 24)
	if !ok || errN != nil || errT != nil || n*t == 0 || n*t > maxRandom {
		return tokenBatch{}, fmt.Errorf("not sequences x tokens such as 2x17, at most %s in all",
			text.Plural(maxRandom, "token"))
	}
	return tokenBatch{int(n), int(t)}, nil
}

// String returns what parseBatch reads.
func (b tokenBatch) String() string {
	if b == (tokenBatch{}) {
		return ""
	}
	return fmt.Sprintf("%dx%d", b.batch, b.seq)
}

// batchFlag is a flag that takes a batch.
func batchFlag(to *tokenBatch) value[tokenBatch] {
	return value[tokenBatch]{to, "BxT", parseBatch, tokenBatch.String, nil}
}
