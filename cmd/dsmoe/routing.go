package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"dsmoe/cmd/dsmoe/internal/cli"
	"dsmoe/config"
	"dsmoe/convert/remote"
	"dsmoe/inspect"
	"dsmoe/inspect/routing"
	"dsmoe/model"
	"dsmoe/model/synth"
	"dsmoe/text"
	"dsmoe/text/problem"
	"dsmoe/verify/pack"
)

func routingInspection() *inspection {
	var sets []string
	var o routingFlags
	return &inspection{
		use:   "routing {GOLDEN|CHECKPOINT}",
		short: "Count which experts tokens are routed to",
		long: `Counts which routed experts the gates chose, and prints a row for each layer, or
with --by for each expert or each pair of experts that share a token. The
choices come from a golden pack, or from our own forward pass on --tokens or
--random ids; of several sets of tokens the loads are compared. --choices writes
the experts of every token. The numbers hold for these tokens only.

dsmoe help routing  the measures, where choices come from, memory`,
		example: `  dsmoe demo
  dsmoe inspect routing dsmoe-demo/golden --config dsmoe-demo/checkpoint
  dsmoe inspect routing dsmoe-demo/checkpoint --random 4x128 --choices c.jsonl`,
		documents: cli.Documents{
			cli.DocumentOf[*routing.Report]("dsmoe.inspect.routing/1"),
			cli.DocumentOf[*routing.Comparison]("dsmoe.inspect.routing.compare/2"),
		},
		expects: "GOLDEN or CHECKPOINT",
		pipe:    text.TSV,
		by:      []inspect.Grouping{inspect.ByLayer, inspect.ByExpert, inspect.ByPair},
		byUsage: "a row for each layer, expert or pair",
		plot:    "the load of each expert by layer and expert",
		flags: func(q *query) {
			flags := q.Flags()
			flags.Var(cli.SpansFlag(&o.layers, "layers"), "layers", "only these `layers`: 1-3,7")
			flags.Var(cli.SpansFlag(&o.experts, "experts"), "experts", "only rows of these routed `experts`: 0,5-9")
			flags.StringArrayVar(&sets, "tokens", nil,
				"token ids for a forward pass, from a `file`; NAME=FILE several times: sets side by side")
			flags.Var(batchFlag(&o.random), "random", "random tokens for a forward pass: `BxT`, such as 2x17")
			cli.NumberFlag(flags, &o.seed, "seed", "", "seed of --random")
			flags.Var(cli.WordFlag(&o.reference, config.Remote, config.Native), "reference",
				"follow the `rules` of remote or native code (default "+
					"remote for the first DeepSeekMoE and where auto_map names code, else native)")
			q.files.Flag(q.Command, choicesFlag, "jsonl",
				"write the experts that each token got, too, as lines of JSON, into a `file`")
			flags.StringVar(&o.config, "config", "", "of what was recorded: the `path` of its config.json or checkpoint")
			cli.InGroup(flags, cli.Tokens, "tokens", "random", "seed")
			cli.InGroup(flags, cli.Selection, "layers", "experts")
		},
		run: func(q *query) (cli.Result, error) {
			o.by = q.by
			var r cli.Result
			run := func(w io.Writer) (err error) {
				if o.choices = w; len(sets) > 1 {
					r, err = o.compare(q.Command, q.path, sets)
					return err
				}
				o.set, o.tokens = oneSet(sets)
				r, err = o.route(q.Command, q.path)
				return err
			}
			if !q.Flags().Changed(choicesFlag) {
				err := run(nil)
				return r, err
			}
			var failed error
			err := q.files.Write(choicesFlag, func(w io.Writer) error {
				failed = run(w)
				return failed
			})
			return r, cmp.Or(failed, err)
		},
	}
}

// choicesFlag names the file of all choices.
const choicesFlag = "choices"

// oneSet is the name and the file of the only set of tokens, FILE or NAME=FILE; none without a set.
func oneSet(sets []string) (name, file string) {
	if len(sets) == 0 {
		return "", ""
	}
	name, file, named := strings.Cut(sets[0], "=")
	if _, err := os.Stat(sets[0]); err == nil || !named || name == "" || file == "" {
		return "", sets[0]
	}
	return name, file
}

// routingFlags are the flags of the command.
type routingFlags struct {
	reference       config.Reference
	by              inspect.Grouping
	layers, experts text.Spans
	tokens, config  string
	random          tokenBatch
	seed            uint64
	set             string    // name of the tokens, for choices
	choices         io.Writer // of --choices; nil without it
}

func (o *routingFlags) options() routing.Options {
	r := routing.Options{Layers: o.layers, Experts: o.experts, By: o.by}
	if o.choices != nil {
		r.Choices = routing.ChoicesTo(o.choices, o.set)
	}
	return r
}

// route finds out what path is, and counts.
func (o *routingFlags) route(cmd *cobra.Command, path string) (*routing.Report, error) {
	forward := o.tokens != "" || o.random != tokenBatch{}
	switch {
	case o.tokens != "" && o.random != tokenBatch{}:
		return nil, cli.Misuse(cmd, "--tokens and --random: one of them")
	case o.config != "" && forward:
		return nil, cli.Misuse(cmd, "--config is for golden packs: a checkpoint has its own")
	case o.reference != "" && !forward:
		return nil, cli.Misuse(cmd, "--reference is for forward passes: --tokens or --random")
	case cmd.Flags().Changed("seed") && o.random == tokenBatch{}:
		return nil, cli.Misuse(cmd, "--seed is that of --random")
	case forward:
		return o.forward(cmd, path, o.options())
	}
	if err := pack.Look(path); errors.Is(err, fs.ErrNotExist) && !remote.Is(path) {
		return nil, err
	} else if err != nil {
		return nil, cli.WithHint(err, "a checkpoint routes tokens: --tokens FILE or --random BxT")
	}
	return o.golden(cmd.Context(), path)
}

// compare routes several sets of tokens, each NAME=FILE, by the checkpoint at path.
func (o *routingFlags) compare(cmd *cobra.Command, path string, sets []string) (*routing.Comparison, error) {
	var names []string
	var reports []*routing.Report
	switch {
	case o.config != "" || o.random != tokenBatch{}:
		return nil, cli.Misuse(cmd, "several --tokens go with neither --config nor --random")
	case o.by == inspect.ByPair:
		return nil, cli.Misuse(cmd, "several --tokens are compared --by layer or expert")
	}
	for i, set := range sets {
		name, file, ok := strings.Cut(set, "=")
		if !ok || name == "" || file == "" || slices.Contains(names, name) {
			return nil, cli.Misuse(cmd, fmt.Sprintf("--tokens %s: several sets are NAME=FILE each, with names that differ",
				text.Quote(set)))
		}
		names, sets[i] = append(names, text.Word(name)), file
	}
	for i, file := range sets {
		o.set, o.tokens = names[i], file
		options := o.options()
		options.Blocks = true
		r, err := o.forward(cmd, path, options)
		if err != nil {
			return nil, err
		}
		reports = append(reports, r)
	}
	return routing.Compare(names, reports, o.options()), nil
}

// forward routes the tokens of the flags by the checkpoint at path.
func (o *routingFlags) forward(cmd *cobra.Command, path string, options routing.Options) (*routing.Report, error) {
	c, err := openerOf(cmd.Context()).Open(path)
	if err != nil {
		return nil, err
	}
	defer c.Close()
	if err := c.Config.Attends(); err != nil {
		return nil, problem.In(path, problem.Of(c.ConfigFile(), err)...)
	}
	in, err := o.input(c.Config.VocabSize)
	if err != nil {
		return nil, err
	}
	if trained := c.Config.RoPE.MaxPositionEmbeddings; in.Seq > trained {
		fmt.Fprintf(cmd.ErrOrStderr(), "note: %s: sequences of %s, but max_position_embeddings is %s: the model was not trained on "+
			"the later positions\n", text.Quote(path), text.Plural(in.Seq, "token"), text.Grouped(trained))
	}
	rules := c.Config
	if o.reference != "" {
		if rules, err = c.Config.As(o.reference); err != nil {
			return nil, cli.Named(path, err)
		}
	}
	m, err := model.Load(rules, c)
	if err != nil {
		return nil, cli.Named(path, err)
	}
	b := cli.Bar{To: cmd.ErrOrStderr(), Counts: true}
	defer b.Remove()
	progress := func(done, total int) { b.Set("routing", int64(done), int64(total)) }
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
		return nil, cli.Named(o.tokens, err)
	}
	return in, nil
}

// golden reads the pack at path.
func (o *routingFlags) golden(ctx context.Context, path string) (*routing.Report, error) {
	pack, err := pack.Open(path)
	if err != nil {
		return nil, err
	}
	g := routing.Golden{Path: path, Recording: pack}
	if g.Input, err = pack.Input(); err != nil {
		return nil, err
	}
	if o.config != "" {
		g.Model = o.config
		stored, _, err := configOf(ctx, o.config)
		if err != nil {
			return nil, err
		}
		if g.Config, err = pack.Config(stored, ""); err != nil {
			return nil, err
		}
		if g.Config.ChoosesByBias() && configPath(o.config) != o.config { // a checkpoint, for the gates' biases alone
			c, err := openerOf(ctx).OpenPart(o.config, nil)
			if err != nil {
				return nil, err
			}
			defer c.Close()
			g.Weights = c
		}
	}
	return routing.OfGolden(g, o.options())
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
func batchFlag(to *tokenBatch) cli.Value[tokenBatch] {
	return cli.ValueOf(to, "BxT", parseBatch, tokenBatch.String)
}
