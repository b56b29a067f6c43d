package main

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"runtime/debug"
	"slices"

	"github.com/spf13/cobra"

	"dsmoe/config"
	"dsmoe/convert/checkpoint"
	"dsmoe/inspect"
	"dsmoe/inspect/header"
	"dsmoe/inspect/stats"
	"dsmoe/model/weights"
	"dsmoe/text"
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
		Args:        expect("CHECKPOINT"),
		Annotations: exits("the checkpoint can be used", "it was read, and there are problems"),
	}
	asJSON := jsonFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		debug.SetGCPercent(400) // a list of tensors is all that is kept
		c, err := scan(args[0])
		if err != nil {
			return err
		}
		s := header.Summarize(c)
		return answer(printReport(cmd, s, *asJSON), s.Problems == 0)
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
		Args:        expect("CHECKPOINT"),
		Annotations: exits("all tensors are listed", "some files cannot be read, or disagree with the index"),
	}
	out, selection := addOutput(cmd, text.AsTable), addSelection(cmd)
	fold := cmd.Flags().Bool("fold", false, "one row for names that differ only in numbers")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		l, err := listing(args[0], *selection)
		if err != nil {
			return err
		}
		var r sheeted = l
		if *fold {
			r = l.Fold()
		}
		return out.judgeFiles(cmd, r, l.Broken)
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
		Args:        expect("CHECKPOINT"),
		Annotations: exits("no problems; there may be notes", "there are problems"),
	}
	asJSON := jsonFlag(cmd)
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
		return answer(printReport(cmd, a, *asJSON), a.Problems == 0)
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
	b := bar{w: cmd.ErrOrStderr()}
	defer b.remove()
	v.Progress = func(done, total int64) { b.set("reading", done, total) }
	return stats.AuditValues(cmd.Context(), c, v)
}

// valuesOf returns what the values of a checkpoint are audited with.
func valuesOf(src *checkpoint.Checkpoint) (*inspect.Checkpoint, stats.Values, error) {
	v := stats.Values{Reader: src, ReadFile: src.ReadFile}
	c, err := inspected(src.Inventory)
	if err != nil {
		return nil, v, err
	}
	for i, f := range c.Files {
		sums, err := src.Checksums(i)
		if err != nil {
			c.Findings = append(c.Findings, inspect.Finding{Kind: inspect.Broken, File: f.Name,
				Cause: "its checksums cannot be read: " + err.Error()})
		}
		for _, s := range sums {
			v.Parts = append(v.Parts, stats.Part{File: i, Name: s.Name, Tensor: s.Tensor, Offset: s.Offset, Size: s.Size,
				CRC32: s.CRC32})
		}
	}
	return c, v, nil
}

// answer turns the outcome of a command whose report was printed into its error.
func answer(err error, yes bool) error {
	if err == nil && !yes {
		return errNo
	}
	return err
}

// configOf reads the config of a checkpoint, or a config, and returns its text too.
func configOf(path string) (*config.Config, []byte, error) {
	if checkpoint.IsRemote(path) {
		return checkpoint.RemoteConfig(path)
	}
	if !checkpoint.HasConfigInside(path) {
		if _, err := checkpoint.Snapshot(path); err != nil {
			return nil, nil, err
		}
		return readConfig(configPath(path))
	}
	c, err := checkpoint.Open(path)
	if err != nil {
		return nil, nil, err
	}
	defer c.Close()
	document, err := c.ConfigText()
	return c.Config, document, err
}

// configPath returns the config.json of a checkpoint: in the directory at path, or
// beside the weight file or index at path. Any other path is a config itself.
func configPath(path string) string {
	if checkpoint.IsRemote(path) && filepath.Base(path) != checkpoint.ConfigName {
		return path + "/" + checkpoint.ConfigName
	}
	if snapshot, err := checkpoint.Snapshot(path); err == nil {
		path = snapshot
	}
	if stat, err := os.Stat(path); err == nil && stat.IsDir() {
		return filepath.Join(path, checkpoint.ConfigName)
	}
	if name := filepath.Base(path); checkpoint.IsWeights(name) || checkpoint.IsIndex(name) {
		return filepath.Join(filepath.Dir(path), checkpoint.ConfigName)
	}
	return path
}

// scan reads everything but the weights of the checkpoint at path.
func scan(path string) (*inspect.Checkpoint, error) { return scanPart(path, nil) }

// scanPart is scan for a command that needs a part of the checkpoint.
func scanPart(path string, need checkpoint.Need) (*inspect.Checkpoint, error) {
	inv, err := checkpoint.ScanPart(path, need)
	if err != nil {
		return nil, err
	}
	return inspected(inv)
}

// inspected is what an inventory tells.
func inspected(inv *checkpoint.Inventory) (*inspect.Checkpoint, error) {
	if isNothing(inv) {
		return nil, &checkpoint.Error{Path: inv.Path, Problems: inv.Problems}
	}
	c := &inspect.Checkpoint{Path: inv.Path, Config: inv.Config}
	if x := inv.Index; x != nil {
		c.Index = &inspect.Index{File: x.File, Tensors: x.Tensors, Shards: len(x.Shards)}
	}
	for _, f := range inv.Files {
		c.Files = append(c.Files, inspect.File{Name: f.Name, Size: f.Size, Tensors: f.Infos})
	}
	for _, f := range inv.Unread {
		c.Unread = append(c.Unread, inspect.File{Name: f.Name, Tensors: f.Infos})
	}
	c.Findings = slices.Concat(findings(inspect.Broken, inv.Problems), findings(inspect.Note, inv.Notes))
	return c, nil
}

// isNothing says of a directory that it has no part of a checkpoint.
func isNothing(inv *checkpoint.Inventory) bool {
	return errors.Is(inv.ConfigErr, fs.ErrNotExist) && len(inv.Files) == 0 &&
		!slices.ContainsFunc(inv.Problems, func(p checkpoint.Problem) bool {
			return p.File != "" && p.File != checkpoint.ConfigName
		})
}

func findings(kind inspect.Kind, problems []checkpoint.Problem) (found []inspect.Finding) {
	for _, p := range problems {
		found = append(found, inspect.Finding{Kind: kind, File: p.File, Tensor: p.Tensor, Cause: p.Cause, Hint: p.Hint})
	}
	return found
}
