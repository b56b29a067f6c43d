package main

// How the inspections print what they have found out: -o, and what they share beside it.

import (
	"fmt"
	"io"
	"slices"

	"github.com/spf13/cobra"

	"dsmoe/config"
	"dsmoe/convert/checkpoint"
	"dsmoe/inspect"
	"dsmoe/model/weights"
	"dsmoe/text"
)

// sheeted is a report whose numbers are a sheet.
type sheeted interface {
	result
	// Sheet returns the rows that WriteText prints.
	Sheet() *text.Sheet
}

// output is the flags that say how a report is printed.
type output struct {
	form choice
	json *bool
	pipe text.Form // the form where stdout is no terminal
	plot *plot     // of the command; nil if it has none
	fail *failOn   // of judge
}

// outputFlag is the name of -o, jsonForm its value that --json stands for.
const (
	outputFlag = "output"
	jsonForm   = "json"
)

// addOutput adds -o and --json to a command, whose reports go into a pipe in a form.
func addOutput(cmd *cobra.Command, pipe text.Form) *output {
	o := &output{json: jsonFlag(cmd), pipe: pipe}
	o.form.words = []string{string(text.AsTable), string(text.TSV), string(text.CSV), jsonForm, string(text.Markdown)}
	usage := "print in a `form`: table, tsv, csv, json or md"
	if pipe == text.TSV {
		usage += " (default table on a terminal, else tsv)"
	} else {
		usage += " (default table)"
	}
	cmd.Flags().VarP(&o.form, outputFlag, "o", usage)
	cmd.Flags().Bool(wideFlag, false, "all columns of a table, wider than the terminal")
	cmd.PreRunE = func(cmd *cobra.Command, _ []string) error {
		if *o.json && !slices.Contains([]string{"", jsonForm}, o.form.value) {
			return misuse(cmd, "--json and -o "+o.form.value+": one of them")
		}
		return nil
	}
	return o
}

// print draws a report, and prints it.
func (o *output) print(cmd *cobra.Command, r sheeted) error {
	if err := o.plot.draw(r); err != nil {
		return err
	}
	form := o.chosen(cmd)
	if form == jsonForm || form == text.AsTable {
		return printReport(cmd, r, form == jsonForm)
	}
	return r.Sheet().WriteAs(cmd.OutOrStdout(), form)
}

// chosen returns the form in which print prints.
func (o *output) chosen(cmd *cobra.Command) text.Form {
	switch {
	case *o.json:
		return jsonForm
	case o.form.value != "":
		return text.Form(o.form.value)
	case isTerminal(cmd.OutOrStdout()):
		return text.AsTable
	}
	return o.pipe
}

// judge prints a report with observations, and answers whether none of them fails.
func (o *output) judge(cmd *cobra.Command, r sheeted, found []inspect.Observation) error {
	err := o.printBeside(cmd, r, len(found), func(w io.Writer) error { return inspect.WriteObservations(w, found) })
	fails := func(f inspect.Observation) bool { return o.fail.counts(f.Level) }
	return answer(err, !slices.ContainsFunc(found, fails))
}

// judgeFiles prints a report on the tensors of files, and answers whether no file is broken.
func (o *output) judgeFiles(cmd *cobra.Command, r sheeted, broken []inspect.Finding) error {
	err := o.printBeside(cmd, r, len(broken), func(w io.Writer) error {
		return inspect.WriteFindings(w, broken, inspect.MaxLines)
	})
	return answer(err, len(broken) == 0)
}

// printBeside prints a report with findings. If only its sheet is printed, write writes them to stderr.
func (o *output) printBeside(cmd *cobra.Command, r sheeted, findings int, write func(io.Writer) error) error {
	err := o.print(cmd, r)
	if form := o.chosen(cmd); err == nil && findings > 0 && form != jsonForm && form != text.AsTable {
		err = write(cmd.ErrOrStderr())
	}
	return err
}

// failOn is a flag: the least grave level of findings with which a command exits with status 1.
type failOn struct{ choice }

// addFailOn adds --fail-on to a command.
func addFailOn(cmd *cobra.Command) *failOn {
	f := &failOn{choice{value: string(inspect.Error),
		words: []string{string(inspect.Notice), string(inspect.Error), "none"}}}
	cmd.Flags().Var(f, "fail-on", "exit with 1 from this `level` of findings on: notice, error or none")
	return f
}

// counts reports whether a finding of a level fails.
func (f *failOn) counts(l inspect.Level) bool { return l.AtLeast(inspect.Level(f.value)) }

// addSelection adds the flags that say which tensors are meant.
func addSelection(cmd *cobra.Command) *inspect.Selection {
	s := &inspect.Selection{}
	flags := cmd.Flags()
	flags.Var(spansFlag(&s.Layers, "layers"), "layers", "only these `layers`: 1-3,7")
	flags.Var(spansFlag(&s.Experts, "experts"), "experts", "only these routed `experts`: 0,5-9")
	flags.StringArrayVar(&s.Match, "match", nil, "only tensors that a `glob` of per-expert names matches; may be repeated")
	return s
}

// needOf is the need of a command that reads some of the selected weights.
func needOf(s inspect.Selection, reads func(*config.Config, *weights.Weight) bool) checkpoint.Need {
	return func(c *config.Config, all weights.Headers) (map[string]bool, error) {
		if s.All() || c == nil {
			return nil, nil
		}
		return weights.Holders(c, all, func(w *weights.Weight) bool { return reads(c, w) }), nil
	}
}

// hasWeight is what a command reads that reads every selected weight.
func hasWeight(s *inspect.Selection) func(*config.Config, *weights.Weight) bool {
	return func(_ *config.Config, w *weights.Weight) bool { return s.Has(w.Name) }
}

// openWeights opens what is needed of the checkpoint at path, which is to be closed, and lists its weights.
func openWeights(path string, need checkpoint.Need) (w inspect.Weights, c *checkpoint.Checkpoint, err error) {
	if c, err = checkpoint.OpenPart(path, need); err != nil {
		return w, nil, err
	}
	list, err := orderedWeights(c)
	if err != nil {
		c.Close()
		return w, nil, err
	}
	return inspect.Weights{Path: c.Path, Config: c.Config, List: list, Reader: c}, c, nil
}

// readPart is readWeights of a part, unless that is all: counts tells the weights that are to be shared out.
func readPart(cmd *cobra.Command, path string, need checkpoint.Need, p part,
	counts func(inspect.Weights, *weights.Weight) bool, f func(w inspect.Weights) error) error {
	w, c, err := openWeights(path, need)
	if err != nil {
		return err
	}
	defer c.Close()
	if p.of > 0 {
		files := checkpointFiles{}
		if err := files.identify(c); err != nil {
			return err
		}
		if !c.ConfigInside() {
			if files.Identity[checkpoint.ConfigName], err = hashFile(c, checkpoint.ConfigName); err != nil {
				return err
			}
		}
		mine := &inspect.Part{Index: p.index, Of: p.of, Identity: files.Identity, Samples: files.Samples}
		if !w.TakePart(mine, func(x *weights.Weight) bool { return counts(w, x) }) {
			fmt.Fprintf(cmd.ErrOrStderr(), "note: part %d of %d has nothing to read\n", p.index, p.of)
		}
	}
	b := bar{w: cmd.ErrOrStderr()}
	defer b.remove()
	w.Progress = func(done, total int64) { b.set("reading", done, total) }
	return f(w)
}

// readWeights calls f with the weights of the checkpoint at path, and shows its progress.
func readWeights(cmd *cobra.Command, path string, need checkpoint.Need, f func(w inspect.Weights) error) error {
	return readPart(cmd, path, need, part{}, nil, f)
}
