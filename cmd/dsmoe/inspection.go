package main

import (
	"cmp"
	"io"
	"os"
	"runtime/debug"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"dsmoe/cmd/dsmoe/internal/cli"
	"dsmoe/config"
	"dsmoe/convert/checkpoint"
	"dsmoe/inspect"
	"dsmoe/model/weights"
	"dsmoe/text"
)

// inspection is dsmoe inspect, or a command below it: its help, its flags, and the function that finds out.
type inspection struct {
	use, short, long, example string
	yes, no                   string // what the exit statuses 0 and 1 say: "done" and nothing if ""; not of failOn
	documents                 cli.Documents

	args    cobra.PositionalArgs // nil is one CHECKPOINT
	expects string               // the argument, as an error about its absence names it; "" is CHECKPOINT
	pipe    text.Form            // -o and --wide: the form in which a report goes into a pipe; "" without -o
	selects bool                 // --layers, --experts and --match
	by      []inspect.Grouping   // --by: what a row of the report can be, the first by default; nil without --by
	byUsage string
	plot    string       // --plot: what is drawn; "" without --plot
	failOn  bool         // --fail-on
	flags   func(*query) // adds the flags of this command alone; may be nil
	run     func(*query) (cli.Result, error)
}

// query is what the flags and the argument of an inspection ask for.
type query struct {
	*cobra.Command
	path      string // the argument, "" without one
	selection inspect.Selection
	failOn    inspect.Level
	files     cli.Files // beside stdout
	by        inspect.Grouping
}

// judged is a report that says whether a checkpoint is good.
type judged interface {
	// Passes reports whether nothing in the report fails; findings about weights fail from a level on.
	Passes(least inspect.Level) bool
}

// noted is a report that WriteText ends with notes, which go to stderr if only its sheet is printed.
type noted interface{ WriteNotes(w io.Writer) error }

// command returns the command.
func (i *inspection) command() *cobra.Command {
	q := &query{Command: &cobra.Command{Use: i.use, Short: i.short, Long: i.long, Example: i.example, Args: i.args,
		Annotations: cli.Exits(cmp.Or(i.yes, "done"), i.no)}}
	if i.args == nil {
		q.Args = cli.Expect(cmp.Or(i.expects, "CHECKPOINT"))
	}
	out := cli.AddOutput(q.Command, i.documents, i.pipe)
	if i.selects {
		addSelection(q.Flags(), &q.selection)
		q.Flags().StringArrayVar(&q.selection.Match, "match", nil,
			"only tensors that a `glob` of per-expert names matches; may be repeated")
		cli.InGroup(q.Flags(), cli.Selection, "match")
	}
	if i.by != nil {
		q.by = i.by[0]
		q.Flags().Var(cli.WordFlag(&q.by, i.by...), "by", i.byUsage)
	}
	if i.plot != "" {
		out.AddPlot(q.Command, &q.files, i.plot)
	}
	if i.failOn {
		q.Annotations = cli.Exits("no finding is an error (see --fail-on)", "there are errors")
		q.failOn = inspect.Error
		q.Flags().Var(cli.WordFlag(&q.failOn, inspect.Notice, inspect.Error, "none"), "fail-on",
			"exit with 1 from this `level` of findings on: notice, error or none")
	}
	if i.flags != nil {
		i.flags(q)
	}
	q.RunE = q.files.Around(func(cmd *cobra.Command, args []string) error {
		q.path = strings.Join(args[:min(1, len(args))], "")
		r, err := i.run(q)
		if err != nil {
			return err
		}
		if err := out.Print(cmd, r); err != nil {
			return err
		}
		if x, ok := r.(noted); ok && out.IsSheet(cmd) {
			if err := x.WriteNotes(cmd.ErrOrStderr()); err != nil {
				return err
			}
		}
		if x, ok := r.(judged); ok && !x.Passes(q.failOn) {
			return cli.ErrNo
		}
		return nil
	})
	return q.Command
}

// addSelection adds the flags that say which layers and experts are meant.
func addSelection(flags *pflag.FlagSet, s *inspect.Selection) {
	flags.Var(cli.SpansFlag(&s.Layers, "layers"), "layers", "only these `layers`: 1-3,7")
	flags.Var(cli.SpansFlag(&s.Experts, "experts"), "experts", "only these routed `experts`: 0,5-9")
	cli.InGroup(flags, cli.Selection, "layers", "experts")
}

// reading is what an inspection reads of the weights of a config.
type reading func(c *config.Config, w *weights.Weight) bool

// need is what a checkpoint must hold for that.
func (reads reading) need(s inspect.Selection) checkpoint.Need {
	return func(c *config.Config, all weights.Headers) (map[string]bool, error) {
		if s.All() || c == nil {
			return nil, nil
		}
		return weights.Holders(c, all, func(w *weights.Weight) bool { return reads(c, w) }), nil
	}
}

// selected reads every selected weight.
func (q *query) selected(_ *config.Config, w *weights.Weight) bool { return q.selection.Has(w.Name) }

// collectAt sets the percentage that GOGC sets, until restore is called. If the environment has GOGC, that stays.
func collectAt(percent int) (restore func()) {
	if os.Getenv("GOGC") != "" {
		return func() {}
	}
	before := debug.SetGCPercent(percent)
	return func() { debug.SetGCPercent(before) }
}

// collectSoon is collectAt with a low percentage. A command that reads experts side by side holds little but weights, in
// which the collector looks for nothing.
func collectSoon() (restore func()) { return collectAt(10) }

// examine is read with errors of f that name the checkpoint.
func (q *query) examine(reads reading, f func(w inspect.Weights) (cli.Result, error)) (cli.Result, error) {
	return q.read(reads, func(w inspect.Weights) (cli.Result, error) {
		r, err := f(w)
		return r, cli.Named(q.path, err)
	})
}

// read opens the checkpoint and calls f with its weights; reads selects those that f needs. It shows the progress.
func (q *query) read(reads reading, f func(w inspect.Weights) (cli.Result, error)) (cli.Result, error) {
	w, c, err := openWeights(q.Context(), q.path, reads.need(q.selection))
	if err != nil {
		return nil, err
	}
	defer c.Close()
	b := cli.Bar{To: q.ErrOrStderr()}
	defer b.Remove()
	w.Progress = func(done, total int64) { b.Set("reading", done, total) }
	return f(w)
}
