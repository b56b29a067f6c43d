package main

import (
	"github.com/spf13/cobra"

	"dsmoe/cmd/dsmoe/internal/cli"
	"dsmoe/convert/checkpoint"
	"dsmoe/inspect/header"
	"dsmoe/inspect/stats"
	"dsmoe/model/weights"
	"dsmoe/text"
)

// inspections are the commands below dsmoe inspect.
func inspections() []*inspection {
	return []*inspection{lsInspection(), treeInspection(), auditInspection(), archInspection(), memInspection(),
		statsInspection(), hashInspection(), expertsInspection(), routerInspection(), routingInspection(),
		reportInspection()}
}

func newInspect() *cobra.Command {
	cmd := summaryInspection().command()
	for _, i := range inspections() {
		cmd.AddCommand(i.command())
	}
	return cmd
}

func summaryInspection() *inspection {
	return &inspection{
		use:   "inspect CHECKPOINT",
		short: "Say what is in a checkpoint",
		long: `Sums up a checkpoint: its family, layers and experts, parameters in total and
used by one token, tensors, dtypes, sizes, and the first findings of inspect
audit. Only headers are read, never a weight. Of a LoRA, a directory of peft, it
says what that changes, and reads all of it.

dsmoe help checkpoints  what CHECKPOINT may be
dsmoe help findings     what the commands below call a finding`,
		example: `  dsmoe demo
  dsmoe inspect dsmoe-demo/checkpoint
  dsmoe inspect --json dsmoe-demo/checkpoint`,
		yes: "the checkpoint can be used",
		no:  "it was read, and there are problems",
		documents: cli.Documents{cli.DocumentOf[*header.Summary]("dsmoe.inspect/1"),
			cli.DocumentOf[*checkpoint.AdapterSummary]("dsmoe.inspect.adapter/1")},
		run: func(q *query) (cli.Result, error) {
			defer collectAt(400)() // a list of tensors is all that is kept
			c, err := scan(q.Context(), q.path, nil)
			switch {
			case err == nil:
				return header.Summarize(c), nil
			case !checkpoint.IsAdapterAlone(q.path):
				return nil, err
			}
			a, err := checkpoint.OpenAdapter(q.path)
			if err != nil {
				return nil, err
			}
			defer a.Close()
			return a.Summary(), nil
		},
	}
}

func lsInspection() *inspection {
	var fold *bool
	return &inspection{
		use:   "ls CHECKPOINT",
		short: "List the tensors of a checkpoint",
		long: `Lists every tensor with its dtype, shape, size and file, in the order of names,
numbers by value, so that the lists of two checkpoints can be compared with
diff. With --fold, tensors of one dtype and shape whose names differ only in
numbers share a row. The config is not needed.`,
		example: `  dsmoe demo
  dsmoe inspect ls --fold dsmoe-demo/checkpoint
  dsmoe inspect ls --layers 1 --experts 0-3 -o csv dsmoe-demo/checkpoint`,
		yes: "all tensors are listed",
		no:  "some files cannot be read, or disagree with the index",
		documents: cli.Documents{
			cli.DocumentOf[*header.Listing]("dsmoe.inspect.ls/1"),
			cli.DocumentOf[*header.Patterns]("dsmoe.inspect.ls.fold/1"),
		},
		pipe:    text.AsTable,
		selects: true,
		flags: func(q *query) {
			fold = q.Flags().Bool("fold", false, "one row for names that differ only in numbers")
		},
		run: func(q *query) (cli.Result, error) {
			l, err := listing(q)
			if err == nil && *fold {
				return l.Fold(), nil
			}
			return l, err
		},
	}
}

func auditInspection() *inspection {
	var values *bool
	return &inspection{
		use:   "audit CHECKPOINT",
		short: "Hold the config, the index and the tensors against each other",
		long: `Checks everything that headers can tell: each file is well-formed and of its
full length; the index and the shards name the same tensors; the tensors have
exactly the names, shapes and dtypes that config.json implies. Findings that
differ only in numbers share a line; --json has an entry for each. A broken
checkpoint is audited as far as it can be read, and the report says what was not
checked. --values also reads every weight. Whether the model computes what the
reference computes, only dsmoe verify can tell.

dsmoe help findings  the kinds of findings`,
		example: `  dsmoe demo
  dsmoe inspect audit dsmoe-demo/checkpoint
  dsmoe inspect audit --values dsmoe-demo/checkpoint`,
		yes:       "no problems; there may be notes",
		no:        "there are problems",
		documents: cli.Documents{cli.DocumentOf[*header.AuditReport]("dsmoe.inspect.audit/1")},
		flags: func(q *query) {
			values = q.Flags().Bool("values", false, "read every weight, and look into its values")
		},
		run: func(q *query) (cli.Result, error) {
			src, err := openerOf(q.Context()).Examine(q.path)
			if err != nil {
				return nil, err
			}
			defer src.Close()
			if *values {
				c, v, err := valuesOf(src)
				if err != nil {
					return nil, err
				}
				b := cli.Bar{To: q.ErrOrStderr()}
				defer b.Remove()
				v.Progress = func(done, total int64) { b.Set("reading", done, total) }
				return stats.AuditValues(q.Context(), c, v)
			}
			c, err := inspected(src.Inventory)
			if err != nil {
				return nil, err
			}
			a := header.Audit(c)
			a.Add(c.WrongSides(weights.Mapped(src))...)
			return a, nil
		},
	}
}
