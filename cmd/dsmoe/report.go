package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"dsmoe/convert/checkpoint"
	"dsmoe/inspect"
	"dsmoe/inspect/header"
	"dsmoe/inspect/report"
	"dsmoe/inspect/routing"
	"dsmoe/text"
	"dsmoe/verify/pack"
)

func newInspectReport() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "report {CHECKPOINT|CONFIG}",
		Short: "Look into everything at once, and draw it on a page",
		Long: `Does what inspect audit --values, experts, router --coupling and, of all weights but
those of experts, stats do, and prints what they found: each finding with its tensor,
and what was looked at. --html writes a page with the findings, then the numbers as
drawings: parameters by module; likeness, norms and ranks of the experts by layer; pairs
of experts; the routers' rows, spectra and biases; magnitudes; dtypes and files. It is
one file, asks for nothing from anywhere, runs no script, and is light or dark as the
reader's system is.

With a golden pack or tokens, as inspect routing takes them, the page has their routing:
load of the experts and margins. What those tokens do not reach is no finding.

Of CONFIG, a config.json alone, there are the parameters, and no findings.

  findings  what audit --values calls a problem, but for what experts says of the same
            tensor; what experts and router find. --json lists them with the id of their
            kind, layer, experts, tensor, text, value and what it was expected to be;
            audit's kinds have no numbers. Beside them are the documents of the parts
  reads     every selected weight once, for audit --values (a tied head, and FP8 with
            large scales, again); those of no expert once more; those of experts twice
            more, and again where two are compared; gate_proj once more, for the routers.
            A forward pass for --tokens or --random maps what it needs
  pairs     drawn of the 12 layers in which two experts are most alike, of more than 64
            experts several in a cell; drawings of more than 4000 cells have no tips

Memory is that of inspect experts, 32 N^2 bytes for each layer of N experts, and for
--tokens and --random that of inspect routing. No byte depends on the number of threads.
With --layers or --experts only those weights are read; routers have all their rows, and
checksums of archive entries are not compared.`,
		Example: `  dsmoe inspect report fixtures/v1-base/checkpoint --html report.html
  dsmoe inspect report fixtures/v3/checkpoint --golden fixtures/v3/golden-f32 --json
  dsmoe inspect report fixtures/v3-fp8/checkpoint --random 2x16 --layers 1-2
  dsmoe inspect report fixtures/states/deepseek-v3/config.json --html config.html`,
		Args:        expect("CHECKPOINT or CONFIG"),
		Annotations: exits("nothing was found in what was looked at", "there are findings"),
	}
	cmd.ValidArgsFunction = completeArguments("report CHECKPOINT")
	f := &reportFlags{}
	flags := cmd.Flags()
	asJSON := jsonFlag(cmd)
	flags.StringVar(&f.html, htmlFlag, "", "write a page, too, into a `file`")
	cmd.MarkFlagFilename(htmlFlag, "html")
	flags.Var(spansFlag{&f.selection.Layers, "layers"}, "layers", "only these `layers`: 1-3,7")
	flags.Var(spansFlag{&f.selection.Experts, "experts"}, "experts", "only these routed `experts`: 0,5-9")
	flags.StringVar(&f.golden, "golden", "", "a golden `pack` whose routing is shown")
	flags.StringVar(&f.tokens, "tokens", "", "`file` of token ids for a forward pass whose routing is shown")
	flags.Var(&f.random, "random", "random tokens for such a pass: `BxT`, such as 2x17")
	numberFlag(flags, &f.seed, "seed", "", "seed of --random")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if err := f.check(cmd, args[0]); err != nil {
			return err
		}
		var page *outFile
		if flags.Changed(htmlFlag) {
			var err error
			if page, err = createFile(f.html); err != nil {
				return err
			}
			defer page.discard()
		}
		r, err := f.report(cmd, args[0])
		if err != nil {
			return err
		}
		if page != nil {
			if err := page.commit(r.Page().WriteHTML); err != nil {
				return err
			}
		}
		return answer(printReport(cmd, r, *asJSON), r.Clean())
	}
	return cmd
}

const htmlFlag = "html"

// reportFlags are the flags of the command.
type reportFlags struct {
	routingFlags
	html, golden string
	selection    inspect.Selection
}

// check refuses what can be refused before anything is read.
func (f *reportFlags) check(cmd *cobra.Command, path string) error {
	given := 0
	for _, name := range []string{"golden", "tokens", "random"} {
		if cmd.Flags().Changed(name) {
			given++
		}
	}
	switch {
	case given > 1:
		return misuse(cmd, "--golden, --tokens and --random: one of them")
	case cmd.Flags().Changed("seed") && f.random == batchFlag{}:
		return misuse(cmd, "--seed is that of --random")
	case configPath(path) == path && (given > 0 || !f.selection.All()):
		return misuse(cmd, "a config alone has no weights to select or to route tokens with")
	case f.golden != "":
		if _, err := os.Stat(filepath.Join(f.golden, "manifest.json")); err != nil {
			return fileError(f.golden, fmt.Errorf("not a golden pack: %w", errors.Unwrap(err)))
		}
	case f.tokens != "":
		_, err := pack.ReadTokens(f.tokens)
		return err
	}
	return nil
}

// report makes the report on a checkpoint, or on a config alone.
func (f *reportFlags) report(cmd *cobra.Command, path string) (*report.Report, error) {
	if configPath(path) == path {
		c, _, err := readConfig(path)
		if err != nil {
			return nil, err
		}
		return report.OfConfig(header.Describe(path, c, 0)), nil
	}
	src, err := checkpoint.Examine(path)
	if err != nil {
		return nil, err
	}
	defer src.Close()
	b := phaseBar{w: cmd.ErrOrStderr()}
	defer b.remove()
	in := report.Input{Selection: f.selection, Progress: b.set}
	if in.Checkpoint, in.Values, err = valuesOf(src); err != nil {
		return nil, err
	}
	if in.Weights, err = usableWeights(src); err != nil {
		in.Unusable = err
	}
	if f.golden != "" || f.tokens != "" || f.random != (batchFlag{}) {
		in.Route = func(o routing.Options) (*routing.Report, error) {
			b.remove()
			f.layers, f.experts = o.Layers, o.Experts
			if f.golden != "" {
				f.config = path
				return f.routingFlags.golden(f.golden)
			}
			return f.forward(cmd, path)
		}
	}
	r, err := report.Make(cmd.Context(), in)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", text.Quote(path), err)
	}
	return r, nil
}

// usableWeights returns the weights of a checkpoint in which headers, index and config agree.
func usableWeights(src *checkpoint.Checkpoint) (*inspect.Weights, error) {
	if n := len(src.Inventory.Problems); n > 0 {
		return nil, fmt.Errorf("%s with the files or the config", text.Plural(n, "problem"))
	}
	list, err := orderedWeights(src)
	if err != nil {
		return nil, err
	}
	return &inspect.Weights{Path: src.Inventory.Path, Config: src.Config, List: list, Reader: src}, nil
}
