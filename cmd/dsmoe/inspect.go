package main

import (
	"runtime/debug"

	"github.com/spf13/cobra"

	"dsmoe/cmd/dsmoe/internal/cli"
	"dsmoe/convert/checkpoint"
	"dsmoe/inspect/header"
	"dsmoe/inspect/stats"
	"dsmoe/model/weights"
	"dsmoe/text"
)

// The JSON documents of dsmoe inspect, and of those commands below it that are in this file.
var (
	summaryDocuments = cli.Documents{cli.DocumentOf[*header.Summary]("dsmoe.inspect/1")}
	auditDocuments   = cli.Documents{cli.DocumentOf[*header.AuditReport]("dsmoe.inspect.audit/1")}
	lsDocuments      = cli.Documents{
		cli.DocumentOf[*header.Listing]("dsmoe.inspect.ls/1"),
		cli.DocumentOf[*header.Patterns]("dsmoe.inspect.ls.fold/1"),
	}
)

func newInspect() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "inspect CHECKPOINT",
		Short: "Say what is in a checkpoint",
		Long: `Sums up a checkpoint: its family, layers and experts, parameters in total and used by
one token, tensors, dtypes, sizes, and the first findings of inspect audit. Only headers
are read, never a weight.

dsmoe help checkpoints  what CHECKPOINT may be
dsmoe help findings     what the commands below call a finding`,
		Example: `  dsmoe inspect fixtures/v1-base/checkpoint
  dsmoe inspect --json fixtures/v1-base/checkpoint`,
		Args:        cli.Expect("CHECKPOINT"),
		Annotations: cli.Exits("the checkpoint can be used", "it was read, and there are problems"),
	}
	cli.JSONFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		debug.SetGCPercent(400) // a list of tensors is all that is kept
		c, err := scan(args[0])
		if err != nil {
			return err
		}
		s := header.Summarize(c)
		return cli.Answer(summaryDocuments.Print(cmd, s), s.Problems == 0)
	}
	cmd.AddCommand(newInspectLs(), newInspectTree(), newInspectAudit(), newInspectArch(), newInspectMem(),
		newInspectStats(), newInspectHash(), newInspectExperts(), newInspectRouter(), newInspectRouting(), newInspectReport())
	return cmd
}

func newInspectLs() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "ls CHECKPOINT",
		Short: "List the tensors of a checkpoint",
		Long: `Lists every tensor with its dtype, shape, size and file, in the order of names, numbers
by value, so that the lists of two checkpoints can be compared with diff. With --fold,
tensors of one dtype and shape whose names differ only in numbers share a row. The
config is not needed.`,
		Example: `  dsmoe inspect ls --fold fixtures/v1-base/checkpoint
  dsmoe inspect ls --layers 1 --experts 0-3 -o csv fixtures/v1-base/checkpoint`,
		Args:        cli.Expect("CHECKPOINT"),
		Annotations: cli.Exits("all tensors are listed", "some files cannot be read, or disagree with the index"),
	}
	out, selection := cli.AddOutput(cmd, lsDocuments, text.AsTable), addSelection(cmd)
	fold := cmd.Flags().Bool("fold", false, "one row for names that differ only in numbers")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		l, err := listing(args[0], *selection)
		if err != nil {
			return err
		}
		var r cli.Sheeted = l
		if *fold {
			r = l.Fold()
		}
		return judgeFiles(cmd, out, r, l.Broken)
	}
	return cmd
}

func newInspectAudit() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "audit CHECKPOINT",
		Short: "Hold the config, the index and the tensors against each other",
		Long: `Checks everything that headers can tell: each file is well-formed and of its full
length; the index and the shards name the same tensors; the tensors have exactly the
names, shapes and dtypes that config.json implies. Findings that differ only in numbers
share a line; --json has an entry for each. A broken checkpoint is audited as far as it
can be read, and the report says what was not checked. --values also reads every weight.
Whether the model computes what the reference computes, only dsmoe verify can tell.

dsmoe help findings  the kinds of findings`,
		Example: `  dsmoe inspect audit fixtures/v1-base/checkpoint
  dsmoe inspect audit --values fixtures/v1-base/checkpoint`,
		Args:        cli.Expect("CHECKPOINT"),
		Annotations: cli.Exits("no problems; there may be notes", "there are problems"),
	}
	cli.JSONFlag(cmd)
	values := cmd.Flags().Bool("values", false, "read every weight, and look into its values")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		audit := auditHeaders
		if *values {
			audit = auditValues
		}
		a, err := audit(cmd, args[0])
		if err != nil {
			return err
		}
		return cli.Answer(auditDocuments.Print(cmd, a), a.Problems == 0)
	}
	return cmd
}

// auditHeaders audits what headers tell, and each weight_shape that can be viewed.
func auditHeaders(_ *cobra.Command, path string) (*header.AuditReport, error) {
	src, err := checkpoint.Examine(path)
	if err != nil {
		return nil, err
	}
	defer src.Close()
	c, err := inspected(src.Inventory)
	if err != nil {
		return nil, err
	}
	a := header.Audit(c)
	a.Add(c.WrongShapes(weights.Mapped(src))...)
	return a, nil
}

// auditValues reads every weight.
func auditValues(cmd *cobra.Command, path string) (*header.AuditReport, error) {
	src, err := checkpoint.Examine(path)
	if err != nil {
		return nil, err
	}
	defer src.Close()
	c, v, err := valuesOf(src)
	if err != nil {
		return nil, err
	}
	b := cli.Bar{To: cmd.ErrOrStderr()}
	defer b.Remove()
	v.Progress = func(done, total int64) { b.Set("reading", done, total) }
	return stats.AuditValues(cmd.Context(), c, v)
}
