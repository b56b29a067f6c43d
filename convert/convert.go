// Package convert writes checkpoints. Run converts a checkpoint that package checkpoint opened
// to another dtype, shard size or layout of experts; Synthesise writes one from a rule; Check
// compares the output of either with its manifest. Run and Synthesise first make a plan
// (package plan), then carry it out: the output is complete or absent.
package convert

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"dsmoe/convert/checkpoint"
	"dsmoe/convert/internal/engine"
	"dsmoe/convert/plan"
	"dsmoe/convert/source"
	"dsmoe/text"
	"dsmoe/text/problem"
)

// Options are the options of Run; the zero value copies every tensor, in shards of
// 5 GB, under 512 MiB of memory, and proves the result.
type Options struct {
	plan.Options
	Settings
}

// Settings are how the work is done; they decide no byte of the weights that are written.
// They are described in package engine.
type Settings = engine.Settings

// DefaultIO is the default number of goroutines that read and write: Settings.IO. One that
// waits in a system call keeps a processor of Go's scheduler for a while: a program converts
// faster with GOMAXPROCS = Settings.Compute + Settings.IO.
const DefaultIO = engine.DefaultIO

// DefaultMemory is the Memory of Settings that do not say.
const DefaultMemory = engine.DefaultMemory

// HeapLimit returns what Go's heap is to stay below, for debug.SetMemoryLimit, so that the
// program stays below a Memory of Settings.
func HeapLimit(memory int64) int64 { return engine.HeapLimit(memory) }

// Interrupted is the error of a cancelled run that leaves an unfinished output.
type Interrupted = engine.Interrupted

// OverflowError refuses a cast that makes numbers infinite.
type OverflowError = engine.OverflowError

// Plan returns the plan that Run carries out. It refuses a src with a list of tensors that
// does not fit in o.Memory.
func Plan(src *checkpoint.Checkpoint, o Options) (*plan.Plan, error) {
	if err := o.CheckPlanning(src.Path, plan.PlanningMemory(src, o.Options)); err != nil {
		return nil, err
	}
	return plan.Conversion(src, o.Options)
}

// Run converts src into dst: the path of one file if it ends as o.Into says, and else a directory,
// which must not exist or be empty; or s3://BUCKET/PREFIX, below which no object may exist. It assembles the
// output in a hidden directory, beside dst or, if dst exists, inside it. The output appears
// in dst when it is complete and, unless Unverified is set, proven against the source. With
// Overwrite, dst may also hold a finished output and nothing else, which is replaced if it is as
// its manifest records.
//
// An interrupted run leaves that hidden directory and a journal; the same call continues from
// there and gives the same bytes. If dst is the finished output of the same plan, Run checks
// it against its manifest and reports so. It also compares it with the source if the source
// may have changed since, or if the output was not verified.
//
// With Finish, Run publishes the output whose parts RunPart has written. Its files are the same as from one run.
func Run(ctx context.Context, dst string, src *checkpoint.Checkpoint, o Options) (*Report, error) {
	p, done, err := convert(ctx, dst, src, &o)
	if err != nil {
		return nil, err
	}
	r := newReport(dst, p, done)
	r.Next = append(r.Next, "dsmoe verify "+text.Word(dst)+" PACK")
	if file := r.local(0); r.Vocabulary != nil && len(r.Missing) == 0 && file != "" {
		run := "llama-cli -m " + text.Word(file)
		if !r.Vocabulary.Template { // llama-cli chats
			run = "llama-completion -m " + text.Word(file) + " -p TEXT"
		}
		r.Next = append(r.Next, run)
	}
	if o.Origin != "" && r.Verified && !r.Already {
		r.Notes = append(slices.Clone(r.Notes), "SRC is "+o.Origin+": the output was compared with its bytes when it was "+
			"written, and with the hashes of that when it was read again")
	}
	if key, err := src.Key(); err == nil && strings.HasPrefix(key, source.Unknown) {
		r.Notes = append(slices.Clone(r.Notes), "SRC's server sends neither ETag nor Last-Modified: files that change while "+
			"they are read are not noticed")
	}
	return r, nil
}

// RunPart writes o.Part of the output of Run, and proves it unless Unverified is set, in the hidden directory. Parts
// are written in any order, at once, again, by any machines that share the directory; dst appears when Run is
// called with Finish. All calls need the same options and the same src.
func RunPart(ctx context.Context, dst string, src *checkpoint.Checkpoint, o Options) (*PartReport, error) {
	p, done, err := convert(ctx, dst, src, &o)
	if err != nil {
		return nil, err
	}
	share := p.Share(o.Part)
	r := &PartReport{Path: dst, Plan: p.Hash, Part: o.Part, Finished: done.Finished, Already: done.Already,
		Resumed: done.Resumed, Verified: done.Verified, Tensors: len(share), Lost: done.Lost, Notes: p.Notes}
	for i := range share {
		r.Bytes += share[i].Size()
	}
	_, r.Of = p.Bytes()
	if r.Lost == nil {
		r.Lost = []engine.LostTensor{}
	}
	return r, nil
}

// convert checks where src is to be written, plans that, and has the plan carried out. It sets o.Origin.
func convert(ctx context.Context, dst string, src *checkpoint.Checkpoint, o *Options) (p *plan.Plan, r *engine.Result,
	err error) {
	if err := o.Settings.Check(); err != nil {
		return nil, nil, err
	}
	target, err := targetOf(dst)
	if err != nil {
		return nil, nil, err
	}
	o.Options = o.Into(target)
	err = checkOverlap(src, target)
	if err == nil && (o.Overwrite || o.StartOver) {
		err = checkSpared(src, target)
	}
	if err != nil {
		return nil, nil, fmt.Errorf("%s: %w", text.Quote(dst), err)
	}
	if !src.Source.OnDisk() {
		o.Origin = src.Path
	}
	if p, err = Plan(src, *o); err != nil {
		return nil, nil, err
	}
	var files engine.Source = src
	if o.Adapter != nil {
		files = checkpoint.Adapted{Checkpoint: src, Adapter: o.Adapter}
	}
	r, err = execute(ctx, dst, target, p, files, o.Settings)
	return p, r, err
}

// Synthesise writes a checkpoint from a rule into a new directory dst, as Run does. Its
// values are hashed on the way; they have no source to be compared with.
func Synthesise(ctx context.Context, dst string, p *plan.Plan, s Settings) (*Report, error) {
	target, err := targetOf(dst)
	if err != nil {
		return nil, err
	}
	s.Unverified = true
	done, err := execute(ctx, dst, target, p, nothing{}, s)
	if err != nil {
		return nil, err
	}
	return newReport(dst, p, done), nil
}

// targetOf returns the absolute path of dst, which must be said, or its URL.
func targetOf(dst string) (string, error) {
	switch {
	case dst == "":
		return "", errors.New("DST is empty: say where to write, or . for this directory")
	case strings.HasPrefix(dst, "s3://"):
		return "s3://" + strings.TrimRight(dst[len("s3://"):], "/"), nil
	case checkpoint.IsRemote(dst):
		return "", fmt.Errorf("%s: nothing is written to such a URL: DST is a path on the disk, or s3://BUCKET/PREFIX",
			text.Quote(dst))
	}
	return filepath.Abs(dst)
}

// execute has a plan carried out.
func execute(ctx context.Context, dst, target string, p *plan.Plan, src engine.Source, s Settings) (*engine.Result, error) {
	// A directory that exists, or a slash behind the name, says that a directory is meant.
	if p.File == "" && checkpoint.NamesFile(filepath.Base(dst)) && !strings.HasSuffix(dst, "/") {
		if stat, err := os.Stat(dst); err != nil || !stat.IsDir() {
			return nil, problem.New(dst, "is the name of a file, and the output is a directory",
				"give DST another name; NAME.gguf is one file, in GGUF")
		}
	}
	if err := s.CheckPlan(dst, p); err != nil {
		return nil, err
	}
	r, err := engine.Run(ctx, target, p, src, s)
	var known *problem.Error
	if errors.As(err, &known) && known.Path == target {
		known.Path = dst // the user's spelling
		return nil, err
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", text.Quote(dst), err)
	}
	return r, nil
}

// nothing is the empty source of a synthetic checkpoint. Its plan reads no file: no other method is called.
type nothing struct{ engine.Source }

// Key returns "": the plan names the rule.
func (nothing) Key() (string, error) { return "", nil }

// States returns none.
func (nothing) States() (map[string]string, error) { return nil, nil }

// checkOverlap refuses a target that is the source, or inside it: the source's path may be a
// directory, an index or a hub's cache. A target beside a single weight file is allowed.
func checkOverlap(src *checkpoint.Checkpoint, dst string) error {
	switch source, target := strings.TrimRight(src.Path, "/")+"/", dst+"/"; {
	case src.Source.OnDisk() && checkpoint.IsRemote(dst):
		return nil
	case src.Source.OnDisk():
	case source == target:
		return errors.New("is the source itself")
	case strings.HasPrefix(target, source) && !src.Alone:
		return errors.New("is inside the source")
	case strings.HasPrefix(source, target):
		return errors.New("holds the source")
	default:
		return nil
	}
	if target, err := os.Stat(dst); err == nil {
		for _, f := range src.Inventory.Files {
			if stat, err := os.Stat(filepath.Join(src.Dir, f.Name)); err == nil && os.SameFile(stat, target) {
				return errors.New("is the source itself")
			}
		}
	}
	if src.Alone {
		return nil
	}
	for _, path := range []string{src.Path, src.Dir} {
		stat, err := os.Stat(path)
		if errors.Is(err, fs.ErrNotExist) {
			continue // the name of a model in the hub
		}
		if err != nil {
			return err
		}
		if stat.IsDir() {
			if err := checkOutside(stat, dst); err != nil {
				return err
			}
		}
	}
	return nil
}

// checkOutside refuses a target that is the directory source, or inside it.
func checkOutside(source os.FileInfo, dst string) error {
	existing := dst // the target, or the nearest directory above it that exists
	dir, err := filepath.EvalSymlinks(existing)
	for err != nil && existing != filepath.Dir(existing) {
		existing = filepath.Dir(existing)
		dir, err = filepath.EvalSymlinks(existing)
	}
	for inside := existing != dst; err == nil; inside = true {
		if stat, err := os.Stat(dir); err == nil && os.SameFile(stat, source) {
			if !inside {
				return errors.New("is the source itself")
			}
			return errors.New("is inside the source")
		}
		if dir == filepath.Dir(dir) {
			break
		}
		dir = filepath.Dir(dir)
	}
	return nil
}

// checkSpared refuses to overwrite a target that holds a file of the source, even one that the
// source links to.
func checkSpared(src *checkpoint.Checkpoint, dst string) error {
	target, err := os.Stat(dst)
	if err != nil || !src.Source.OnDisk() || checkpoint.IsRemote(dst) {
		return nil // nothing to overwrite
	}
	files, err := os.ReadDir(src.Dir)
	if err != nil {
		return err
	}
	for _, f := range files {
		path, err := filepath.EvalSymlinks(filepath.Join(src.Dir, f.Name()))
		if err != nil {
			continue // a link that leads nowhere holds nothing
		}
		if stat, err := os.Stat(filepath.Dir(path)); err == nil && os.SameFile(stat, target) {
			return fmt.Errorf("cannot be overwritten: it holds the source's %s", text.Quote(f.Name()))
		}
	}
	return nil
}
