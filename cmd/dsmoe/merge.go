package main

// --merge: reports of parts, which earlier runs printed as JSON, read and joined into one.

import (
	"errors"
	"fmt"
	"slices"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"dsmoe/cmd/dsmoe/internal/cli"
	"dsmoe/inspect"
	"dsmoe/text"
)

// addMerge adds --merge to a command. Then its arguments are REPORTs, and all other flags that are not among these,
// which say how to print, are refused.
func addMerge(cmd *cobra.Command, printing ...string) *bool {
	merge := cmd.Flags().Bool("merge", false, "join the JSON of earlier runs: dsmoe ... --merge REPORT...")
	cli.InGroup(cmd.Flags(), cli.Parts, "merge")
	expected := cmd.Args
	cmd.Args = func(cmd *cobra.Command, args []string) error {
		if !*merge {
			return expected(cmd, args)
		}
		var err error
		cmd.Flags().Visit(func(f *pflag.Flag) {
			if !slices.Contains(append(printing, "merge", "json", cli.ColourFlag, cli.OutputFlag, cli.WideFlag), f.Name) {
				err = cli.Misuse(cmd, fmt.Sprintf("--%s does not go with --merge, which joins reports as they are", f.Name))
			}
		})
		if err == nil && len(args) == 0 {
			err = cli.Misuse(cmd, "want at least one REPORT, but 0 given")
		}
		return err
	}
	return merge
}

// merger joins the reports of all parts of a checkpoint.
type merger struct {
	printing []string // flags that say how to print, and go with --merge
	join     func(d cli.Documents, paths []string, by inspect.Grouping) (cli.Result, error)
}

// partial is a report that may be about a part of a checkpoint.
type partial[T any] interface {
	*T
	cli.Result
	// OfPart returns the part, nil if the report is about all weights, and what a row is, "" if reports do not differ.
	OfPart() (*inspect.Part, inspect.Grouping)
}

// mergerOf returns a merger: merge joins the reports of all parts, which are in their order.
func mergerOf[T any, R partial[T]](merge func(parts []*T, by inspect.Grouping) *T, printing ...string) *merger {
	return &merger{printing, func(d cli.Documents, paths []string, by inspect.Grouping) (cli.Result, error) {
		parts, err := readParts[T, R](d, paths)
		if err != nil {
			return nil, err
		}
		return R(merge(parts, by)), nil
	}}
}

// readParts reads the reports of all parts of a checkpoint, and returns them in the order of the parts. The error names
// parts that are missing or given twice, and reports of other checkpoints.
func readParts[T any, R partial[T]](d cli.Documents, paths []string) ([]*T, error) {
	all, err := cli.ReadReports(d, paths, func(r *T) error {
		switch p, _ := R(r).OfPart(); {
		case p == nil:
			return errors.New("not of a part: --part was not given")
		case p.Index < 1 || p.Index > p.Of || p.Identity == nil || p.Samples == nil:
			return errors.New("its part is incomplete or impossible: the report was changed")
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	var errs []error
	first, rows := R(all[0]).OfPart()
	parts, missing := map[int]*T{}, []int{}
	files := checkpointFiles{Identity: first.Identity, Samples: first.Samples}
	for i, r := range all {
		p, by := R(r).OfPart()
		different := files.join(&checkpointFiles{Identity: p.Identity, Samples: p.Samples})
		if p.Of != first.Of {
			different = append(different, fmt.Sprintf("it is one of %d parts, not of %d", p.Of, first.Of))
		} else if parts[p.Index] != nil {
			different = append(different, fmt.Sprintf("part %d is there twice", p.Index))
		}
		if by != rows {
			different = append(different, fmt.Sprintf("its rows are by %s, not by %s", by, rows))
		}
		for _, d := range different {
			errs = append(errs, fmt.Errorf("%s: does not go with %s: %s", text.Quote(paths[i]), text.Quote(paths[0]), d))
		}
		parts[p.Index] = r
	}
	var inOrder []*T
	const named = 1000 // missing parts
	for i := 1; i <= first.Of && len(missing) < named; i++ {
		if parts[i] == nil {
			missing = append(missing, i)
		}
		inOrder = append(inOrder, parts[i])
	}
	if n := first.Of - len(parts); n > 0 {
		errs = append(errs, fmt.Errorf("%s of %d missing: run %s too", text.Plural(n, "part"), first.Of,
			text.Ranges(missing)))
	}
	return inOrder, errors.Join(errs...)
}
