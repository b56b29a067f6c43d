package manifest

// Every byte of an output against its manifest.

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"slices"
	"sync"

	"golang.org/x/sync/errgroup"

	"dsmoe/convert/checkpoint"
	"dsmoe/convert/format"
	"dsmoe/convert/plan"
	"dsmoe/convert/source"
	"dsmoe/model/digest"
	"dsmoe/model/tensor"
	"dsmoe/text"
	"dsmoe/text/problem"
)

// Output is where a finished output and its manifest lie, and how they are compared.
type Output struct {
	Dir      source.Dir
	Name     string // of the manifest
	Alone    bool   // the output is one file: others in the directory are not its own
	Compute  int    // goroutines that hash at once
	Progress func(phase string, n, of int64)
}

// Compare compares the files with the manifest, whose head is m, and the manifest with its own hash and the headers of
// the files. It hands each tensor of the manifest to each. p is the plan of the output, or nil; with it no header is
// read into memory.
func (o Output) Compare(ctx context.Context, m *Manifest, p *plan.Plan,
	each func(*Tensor)) ([]problem.Problem, error) {
	c := checker{Output: o, plan: p, files: map[string]format.Data{}, unlisted: map[string]int{},
		entered: map[string]bool{}, problems: []problem.Problem{}}
	defer func() {
		for _, f := range c.files {
			if f != nil {
				f.Close()
			}
		}
		if c.weights != nil {
			c.weights.Close()
		}
	}()
	if edited := m.Edited(); edited != "" {
		c.problem(c.Name, "", "%s", edited)
	}
	files := m.Files
	if p != nil {
		files = p.Files
	}
	for _, f := range files {
		c.total += f.Size
		c.files[f.Name] = nil
		if err := c.header(f); err != nil {
			return nil, err
		}
	}
	for _, f := range m.Others {
		c.total += f.Size
	}
	if err := c.tensors(ctx, each); err != nil {
		return nil, err
	}
	for _, f := range files {
		if n := c.unlisted[f.Name]; n > 0 {
			c.problem(f.Name, "", "holds %s that the manifest does not list", text.Plural(n, "tensor"))
		}
	}
	for _, f := range m.Others {
		if err := c.other(ctx, f); err != nil {
			return nil, err
		}
	}
	if o.Alone {
		return c.problems, nil
	}
	names, err := c.Dir.List("")
	listed := m.FileNames()
	for _, name := range names {
		if (checkpoint.IsWeights(name) || checkpoint.IsIndex(name)) && !slices.Contains(listed, name) {
			c.problem(name, "", "is not in the manifest")
		}
	}
	return c.problems, err
}

// checker collects the differences from a manifest.
type checker struct {
	Output
	plan        *plan.Plan             // nil if unknown
	files       map[string]format.Data // weight files in the manifest; nil if the header cannot be read
	unlisted    map[string]int         // tensors in the headers of files, less those of the manifest; unused with a plan
	listed      map[string]bool        // tensors that the manifest lists of one file; unused with a plan
	listedOf    string                 // the file of listed
	entered     map[string]bool        // files with a listed tensor
	weights     format.File            // the file whose header is in memory: one at a time
	weightsName string                 // its name
	problems    []problem.Problem
	buffers     sync.Pool  // of *[]byte, for hash
	mu          sync.Mutex // guards done and Progress
	done, total int64
}

func (c *checker) problem(file, name, cause string, args ...any) {
	c.problems = append(c.problems, problem.Problem{File: file, Tensor: name, Cause: fmt.Sprintf(cause, args...)})
}

// open opens a file; nil after it recorded that it cannot be opened.
func (c *checker) open(name string) (format.Data, error) {
	f, err := c.Dir.Data(name)
	if err != nil {
		return nil, c.recordProblems(name, err)
	}
	return f, nil
}

// recordProblems records the problems of a file. A failure of the system proves nothing about
// the file and remains an error.
func (c *checker) recordProblems(name string, err error) error {
	var bad *problem.Error
	if !errors.As(err, &bad) || bad.Unwrap() != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	c.problems = append(c.problems, problem.Of(name, err)...)
	return nil
}

// header checks the header of a weight file.
func (c *checker) header(want plan.File) error {
	f, err := c.open(want.Name)
	if f == nil {
		return err
	}
	if size := f.Size(); size != want.Size {
		c.problem(want.Name, "", "has %s, not %s", text.ExactBytes(size), text.ExactBytes(want.Size))
		if c.plan != nil {
			return f.Close() // the plan's offsets do not hold
		}
	}
	if checkpoint.FormatOf(want.Name) == nil {
		c.problem(want.Name, "", "is not a weight file that can be read")
		return f.Close()
	}
	h := digest.New()
	if c.plan != nil {
		_, err = io.Copy(h, io.NewSectionReader(f, 0, c.plan.DataStart(want.Name)))
	} else if err = c.readHeader(want.Name); err == nil {
		c.unlisted[want.Name] = c.weights.Stat().Tensors
		err = c.weights.Identify(h)
	}
	if err != nil {
		return errors.Join(c.recordProblems(want.Name, err), f.Close())
	}
	c.files[want.Name] = f
	if h.Name() != want.Header {
		c.problem(want.Name, "", "the header changed")
	}
	return nil
}

// readHeader reads the header of a weight file in place of the previous one.
func (c *checker) readHeader(name string) (err error) {
	if c.weights != nil && c.weightsName == name {
		return nil
	}
	if c.weights != nil {
		c.weights.Close()
	}
	c.weightsName = name
	data, err := c.Dir.Data(name)
	if err == nil {
		c.weights, err = checkpoint.FormatOf(name).Open(data)
	}
	return err
}

// tensors hashes the data of all tensors of the manifest.
func (c *checker) tensors(ctx context.Context, each func(*Tensor)) error {
	changed := map[int]problem.Problem{} // by position in the manifest
	n := 0
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(c.Compute)
	_, err := Read(c.Dir, c.Name, func(t *Tensor) error {
		i := n
		n++
		each(t)
		f, offset, err := c.tensor(i, t)
		if f == nil || err != nil {
			return err
		}
		g.Go(func() error {
			got, err := c.hash(ctx, f, offset, t.Info().Bytes())
			if err != nil {
				return fmt.Errorf("tensor %s: %w", text.Quote(t.Name), err)
			}
			if got != t.Hash {
				c.mu.Lock()
				defer c.mu.Unlock()
				changed[i] = problem.Problem{File: t.File, Tensor: t.Name,
					Cause: fmt.Sprintf("the data changed: %s, not %s", got, text.Quote(t.Hash))}
			}
			return nil
		})
		return ctx.Err()
	})
	if failed := g.Wait(); failed != nil {
		return failed
	}
	for _, i := range slices.Sorted(maps.Keys(changed)) {
		c.problems = append(c.problems, changed[i])
	}
	if n == 0 {
		c.problem(c.Name, "", "lists no tensor")
	}
	return err
}

// tensor finds the data of the i-th tensor of the manifest. It returns no file for a tensor
// with a problem.
func (c *checker) tensor(i int, want *Tensor) (f format.Data, offset int64, err error) {
	f, listed := c.files[want.File]
	if !listed {
		c.problem(want.File, want.Name, "the manifest lists the tensor, but not the file")
	}
	if f == nil {
		return nil, 0, nil
	}
	var info tensor.Info
	ok := false
	if c.plan == nil {
		if err := c.readHeader(want.File); err != nil {
			return nil, 0, err
		}
		if info, offset, ok = c.weights.Lookup(want.Name); ok {
			if c.listedOf != want.File { // the tensors of a file are listed one after the other
				c.listedOf, c.listed = want.File, map[string]bool{}
				if c.entered[want.File] {
					c.problem(c.Name, want.Name, "is listed apart from other tensors of its file")
				}
				c.entered[want.File] = true
			}
			if c.listed[want.Name] {
				c.problem(c.Name, want.Name, "is listed twice")
			} else {
				c.listed[want.Name] = true
				c.unlisted[want.File]--
			}
		}
	} else if ok = i < len(c.plan.Tensors) && c.plan.Tensors[i].Name == want.Name; ok {
		info, offset = c.plan.Tensors[i].Info(), c.plan.Tensors[i].Offset
	}
	switch {
	case !ok:
		c.problem(want.File, want.Name, "missing")
	case info.DType != want.DType || !slices.Equal(info.Shape, want.Shape):
		c.problem(want.File, want.Name, "is %s %v, not %s %v", info.DType, info.Shape, want.DType, want.Shape)
	case want.isCopy() && want.Sources[0].Hash != "" && want.Sources[0].Hash != want.Hash:
		c.problem(c.Name, want.Name, "the manifest gives another hash to its source, which it copies")
	default:
		return f, offset, nil
	}
	return nil, 0, nil
}

// hash hashes the bytes of a tensor.
func (c *checker) hash(ctx context.Context, f format.Data, offset, size int64) (string, error) {
	buf, ok := c.buffers.Get().(*[]byte)
	if !ok {
		b := make([]byte, 1<<20)
		buf = &b
	}
	defer c.buffers.Put(buf)
	h := digest.New()
	for at, end := offset, offset+size; at < end; {
		if err := ctx.Err(); err != nil {
			return "", err
		}
		b := (*buf)[:min(int64(len(*buf)), end-at)]
		if _, err := f.ReadAt(b, at); err != nil {
			return "", err
		}
		h.Write(b)
		at += int64(len(b))
		c.advance(int64(len(b)))
	}
	return h.Name(), nil
}

func (c *checker) advance(n int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.done += n
	c.Progress("checking", c.done, c.total)
}

// other checks the hash of a file without weights.
func (c *checker) other(ctx context.Context, want plan.Other) error {
	f, err := c.open(want.Name)
	if f == nil {
		return err
	}
	defer f.Close()
	got, _, err := digest.Copy(ctx, io.Discard, io.NewSectionReader(f, 0, f.Size()), c.advance)
	if err == nil && got != want.Hash {
		c.problem(want.Name, "", "changed: %s, not %s", got, text.Quote(want.Hash))
	}
	return err
}
