package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"dsmoe/config"
	"dsmoe/convert/checkpoint"
	"dsmoe/convert/remote"
	"dsmoe/inspect"
	"dsmoe/inspect/stats"
	"dsmoe/model/table"
	"dsmoe/model/tensor"
	"dsmoe/model/weights"
	"dsmoe/text"
	"dsmoe/text/problem"
	"dsmoe/verify/pack"
)

// What commands open: configs, the headers of checkpoints, weights.

// clientKey is the key of the client of all requests in the context of a command.
type clientKey struct{}

// clientOf returns the client of a command: run puts it into the context.
func clientOf(ctx context.Context) *remote.Client { return ctx.Value(clientKey{}).(*remote.Client) }

func openerOf(ctx context.Context) checkpoint.Opener { return checkpoint.Opener{Client: clientOf(ctx)} }

// configOf reads the config of a checkpoint, or a config, and returns its text too.
func configOf(ctx context.Context, path string) (*config.Config, []byte, error) {
	o := openerOf(ctx)
	if checkpoint.IsRemote(path) {
		return o.RemoteConfig(path)
	}
	if !o.HasConfigInside(path) {
		if _, err := checkpoint.Snapshot(path); err != nil {
			return nil, nil, err
		}
		return checkpoint.ReadConfig(configPath(path))
	}
	c, err := o.Open(path)
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

// checkpointOrConfig opens the checkpoint at path, or imagines the one of a config: a file, or
// that of a directory whose weights are missing or incomplete.
func checkpointOrConfig(ctx context.Context, path string) (src *checkpoint.Checkpoint, imagined bool, err error) {
	o := openerOf(ctx)
	if path != configPath(path) || o.HasConfigInside(path) {
		if src, err = o.Open(path); err == nil {
			return src, false, nil
		}
	}
	c, document, err := configOf(ctx, path)
	if err != nil {
		return nil, false, err
	}
	var tensors []tensor.Info
	for _, info := range table.FamilyOf(c).Implied(c) {
		tensors = append(tensors, info)
	}
	return checkpoint.Imagine(path, document, c, tensors), true, nil
}

// scan reads everything but the weights of the part of the checkpoint at path that a command needs; nil is all of it.
func scan(ctx context.Context, path string, need checkpoint.Need) (*inspect.Checkpoint, error) {
	inv, err := openerOf(ctx).ScanPart(path, need)
	if err != nil {
		return nil, err
	}
	return inspected(inv)
}

// inspected is what an inventory tells.
func inspected(inv *checkpoint.Inventory) (*inspect.Checkpoint, error) {
	ofWeights := func(p problem.Problem) bool { return p.File != "" && p.File != checkpoint.ConfigName }
	if errors.Is(inv.ConfigErr, fs.ErrNotExist) && len(inv.Files) == 0 && !slices.ContainsFunc(inv.Problems, ofWeights) {
		return nil, problem.In(inv.Path, inv.Problems...)
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

func findings(kind inspect.Kind, problems []problem.Problem) (found []inspect.Finding) {
	for _, p := range problems {
		found = append(found, kind.Of(p))
	}
	return found
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
			c.Findings = append(c.Findings, inspect.Broken.Of(problem.Problem{File: f.Name,
				Cause: "its checksums cannot be read: " + err.Error()}))
		}
		for _, s := range sums {
			v.Parts = append(v.Parts, stats.Part{File: i, Name: s.Name, Tensor: s.Tensor, Offset: s.Offset, Size: s.Size,
				CRC32: s.CRC32})
		}
	}
	return c, v, nil
}

// openWeights opens what is needed of the checkpoint at path, which is to be closed, and lists its weights.
func openWeights(ctx context.Context, path string, need checkpoint.Need) (w inspect.Weights, c *checkpoint.Checkpoint,
	err error) {
	if c, err = openerOf(ctx).OpenPart(path, need); err != nil {
		return w, nil, err
	}
	list, err := orderedWeights(c)
	if err != nil {
		c.Close()
		return w, nil, err
	}
	return inspect.Weights{Path: c.Path, Config: c.Config, List: list, Reader: c}, c, nil
}

// orderedWeights returns the weights of a checkpoint per expert, in the order of the model.
func orderedWeights(c *checkpoint.Checkpoint) ([]*weights.Weight, error) {
	set := weights.New(c.Config, c)
	var problems []problem.Problem
	for _, m := range set.Misfits {
		problems = append(problems, problem.Problem{Tensor: m.Name, Cause: m.Cause})
	}
	for _, w := range set.WrongShapes(weights.Mapped(c)) {
		problems = append(problems, problem.Problem{Tensor: w.Got.Name, Cause: w.Cause})
	}
	if problems != nil {
		return nil, problem.In(c.Path, problems...)
	}
	return set.Ordered(c.Config), nil
}

// hashFile hashes a file of a checkpoint.
func hashFile(c *checkpoint.Checkpoint, name string) (string, error) {
	f, err := c.OpenOther(name)
	if err != nil {
		return "", err
	}
	defer f.Close()
	hash, err := pack.Hash(f)
	if err != nil {
		return "", problem.System(c.Source.Path(name), "", err)
	}
	return hash, nil
}

// noteAdapter writes the note of an adapter beside a checkpoint, for reports without notes of its files.
func noteAdapter(stderr io.Writer, c *checkpoint.Checkpoint) {
	for _, n := range c.Inventory.Notes {
		if checkpoint.IsAdapter(n.File) {
			fmt.Fprintf(stderr, "note: %s: %s\n", text.Quote(c.Path), text.Line(n.String()))
		}
	}
}
