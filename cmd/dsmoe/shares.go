package main

import (
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"dsmoe/cmd/dsmoe/internal/cli"
	"dsmoe/config"
	"dsmoe/convert/checkpoint"
	"dsmoe/inspect"
	"dsmoe/model/weights"
	"dsmoe/text"
)

// addSelection adds the flags that say which tensors are meant.
func addSelection(cmd *cobra.Command) *inspect.Selection {
	s := &inspect.Selection{}
	flags := cmd.Flags()
	flags.Var(cli.SpansFlag(&s.Layers, "layers"), "layers", "only these `layers`: 1-3,7")
	flags.Var(cli.SpansFlag(&s.Experts, "experts"), "experts", "only these routed `experts`: 0,5-9")
	flags.StringArrayVar(&s.Match, "match", nil, "only tensors that a `glob` of per-expert names matches; may be repeated")
	return s
}

// shares are the flags of an inspection that works in parts: --part, --parts and --merge.
type shares struct {
	*cli.PartFlags
	selection *inspect.Selection
	merge     *bool
}

// addShares adds the flags to a command with a selection. --merge goes with the flags that say how to print.
func addShares(cmd *cobra.Command, selection *inspect.Selection, printing ...string) *shares {
	return &shares{cli.AddPart(cmd, "one of N parts of the weights"), selection, addMerge(cmd, printing...)}
}

// inspect calls f with the weights of the checkpoint at path that the flags leave of those that are read.
func (s *shares) inspect(cmd *cobra.Command, path string, reads func(*config.Config, *weights.Weight) bool,
	f func(w inspect.Weights) error) error {
	p, err := s.Read(cmd)
	if err == nil && p.Of > 0 && !s.selection.All() {
		err = cli.Misuse(cmd, "--part selects weights by itself: not with --layers, --experts or --match")
	}
	if err != nil {
		return err
	}
	return readPart(cmd, path, needOf(*s.selection, reads), p, func(w inspect.Weights, x *weights.Weight) bool {
		return reads(w.Config, x)
	}, f)
}

// readPart is readWeights of a part, unless that is all: counts tells the weights that are to be shared out.
func readPart(cmd *cobra.Command, path string, need checkpoint.Need, p cli.Part,
	counts func(inspect.Weights, *weights.Weight) bool, f func(w inspect.Weights) error) error {
	w, c, err := openWeights(path, need)
	if err != nil {
		return err
	}
	defer c.Close()
	if p.Of > 0 {
		files := checkpointFiles{}
		if err := files.identify(c); err != nil {
			return err
		}
		if !c.ConfigInside() {
			if files.Identity[checkpoint.ConfigName], err = hashFile(c, checkpoint.ConfigName); err != nil {
				return err
			}
		}
		mine := &inspect.Part{Index: p.Index, Of: p.Of, Identity: files.Identity, Samples: files.Samples}
		if !w.TakePart(mine, func(x *weights.Weight) bool { return counts(w, x) }) {
			fmt.Fprintf(cmd.ErrOrStderr(), "note: part %d of %d has nothing to read\n", p.Index, p.Of)
		}
	}
	b := cli.Bar{To: cmd.ErrOrStderr()}
	defer b.Remove()
	w.Progress = func(done, total int64) { b.Set("reading", done, total) }
	return f(w)
}

// readWeights calls f with the weights of the checkpoint at path, and shows its progress.
func readWeights(cmd *cobra.Command, path string, need checkpoint.Need, f func(w inspect.Weights) error) error {
	return readPart(cmd, path, need, cli.Part{}, nil, f)
}

// mergeParts reads the reports of all parts of a checkpoint, and returns them in the order of the parts. by is what
// their rows are, the same in all. The error names parts that are missing or given twice, and reports of other
// checkpoints.
func mergeParts[T any](d cli.Documents, paths []string, partOf func(*T) *inspect.Part, by func(*T) string) ([]*T, error) {
	all, err := cli.ReadReports(d, paths, func(r *T) error {
		switch p := partOf(r); {
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
	first, parts, missing := partOf(all[0]), map[int]*T{}, []int{}
	files := checkpointFiles{Identity: first.Identity, Samples: first.Samples}
	for i, r := range all {
		p := partOf(r)
		different := files.join(&checkpointFiles{Identity: p.Identity, Samples: p.Samples})
		if p.Of != first.Of {
			different = append(different, fmt.Sprintf("it is one of %d parts, not of %d", p.Of, first.Of))
		} else if parts[p.Index] != nil {
			different = append(different, fmt.Sprintf("part %d is there twice", p.Index))
		}
		if a, b := by(all[0]), by(r); a != b {
			different = append(different, fmt.Sprintf("its rows are by %s, not by %s", b, a))
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
