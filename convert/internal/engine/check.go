package engine

// Checking: every byte of an output against its manifest.

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"sync"

	"github.com/go-json-experiment/json"
	"golang.org/x/sync/errgroup"

	"dsmoe/convert/checkpoint"
	"dsmoe/convert/format"
	"dsmoe/convert/internal/digest"
	"dsmoe/convert/plan"
	"dsmoe/model/tensor"
	"dsmoe/text"
)

// maxManifest bounds a manifest; DeepSeek-V3's has some tens of megabytes.
const maxManifest = 1 << 30

// Check hashes every byte of the output in dir and compares it with its manifest, which
// it returns with all that differs. An error means that it could not be told.
func Check(ctx context.Context, dir string, s Settings) (*Manifest, []checkpoint.Problem, error) {
	m, err := readManifest(filepath.Join(dir, plan.ManifestName))
	if err != nil {
		return nil, nil, err
	}
	problems, err := checkManifest(ctx, dir, m, s.withDefaults())
	return m, problems, err
}

// Info returns the tensor's header entry.
func (t *ManifestTensor) Info() tensor.Info {
	return tensor.Info{Name: t.Name, DType: t.DType, Shape: t.Shape}
}

// readManifest reads and checks a manifest.
func readManifest(path string) (*Manifest, error) {
	f, size, err := format.OpenRegular(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if size > maxManifest {
		return nil, fmt.Errorf("%s: %s, more than the limit of %s", text.Quote(path), text.ExactBytes(size), text.Bytes(maxManifest))
	}
	var m Manifest
	if err := json.UnmarshalRead(f, &m); err != nil {
		return nil, fmt.Errorf("%s: not a manifest: %s", text.Quote(path), text.Quote(err.Error()))
	}
	if m.Format != manifestFormat {
		return nil, fmt.Errorf("%s: format %s is not %s", text.Quote(path), text.Quote(m.Format), manifestFormat)
	}
	for _, name := range m.fileNames() {
		if filepath.Base(name) != name || !filepath.IsLocal(name) {
			return nil, fmt.Errorf("%s: file name %s leads out of the directory", text.Quote(path), text.Quote(name))
		}
	}
	return &m, nil
}

func (m *Manifest) fileNames() (names []string) {
	for _, f := range m.Files {
		names = append(names, f.Name)
	}
	for _, f := range m.Others {
		names = append(names, f.Name)
	}
	return names
}

// checkManifest compares the files in dir with m.
func checkManifest(ctx context.Context, dir string, m *Manifest, s Settings) ([]checkpoint.Problem, error) {
	c := checker{Settings: s, dir: dir, byFile: map[string][]*ManifestTensor{}, problems: []checkpoint.Problem{}}
	for i := range m.Tensors {
		t := &m.Tensors[i]
		c.byFile[t.File] = append(c.byFile[t.File], t)
	}
	defer c.close()
	for _, f := range m.Files {
		c.total += f.Size
		if err := c.weights(f); err != nil {
			return nil, err
		}
		delete(c.byFile, f.Name)
	}
	for _, name := range slices.Sorted(maps.Keys(c.byFile)) {
		for _, t := range c.byFile[name] {
			c.problem(name, t.Name, "the manifest lists the tensor, but not the file")
		}
	}
	if err := c.data(ctx); err != nil {
		return nil, err
	}
	for _, f := range m.Others {
		if err := c.other(f); err != nil {
			return nil, err
		}
	}
	return c.problems, c.strays(m)
}

// checker collects what differs from a manifest.
type checker struct {
	Settings
	dir         string
	byFile      map[string][]*ManifestTensor
	files       []*os.File // of weights
	extents     []extent
	problems    []checkpoint.Problem
	mu          sync.Mutex // of done and Progress
	done, total int64
}

// extent is where the data of a tensor is.
type extent struct {
	file   *os.File
	offset int64
	tensor *ManifestTensor
}

func (c *checker) close() {
	for _, f := range c.files {
		f.Close()
	}
}

func (c *checker) problem(file, name, cause string, args ...any) {
	c.problems = append(c.problems, checkpoint.Problem{File: file, Tensor: name, Cause: fmt.Sprintf(cause, args...)})
}

// open opens a file that must be there.
func (c *checker) open(name string) (f *os.File, size int64, err error) {
	f, size, err = format.OpenRegular(filepath.Join(c.dir, name))
	if err != nil {
		return nil, 0, c.found(name, err)
	}
	return f, size, nil
}

// found takes note of what is wrong with a file. That the system could not read it is not
// known to be wrong with the file: that is an error.
func (c *checker) found(name string, err error) error {
	var bad *format.Error
	if !errors.As(err, &bad) || bad.Unwrap() != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	c.problems = append(c.problems, checkpoint.ProblemsOf(name, err)...)
	return nil
}

// weights checks the header of a weight file and finds its tensors.
func (c *checker) weights(want plan.File) error {
	f, size, err := c.open(want.Name)
	if f == nil {
		return err
	}
	c.files = append(c.files, f)
	if size != want.Size {
		c.problem(want.Name, "", "has %s, not %s", text.ExactBytes(size), text.ExactBytes(want.Size))
	}
	of := checkpoint.FormatOf(want.Name)
	if of == nil {
		c.problem(want.Name, "", "is no weight file that can be read")
		return nil
	}
	held, err := of.Open(filepath.Join(c.dir, want.Name))
	if err != nil {
		return c.found(want.Name, err)
	}
	defer held.Close()
	identity := digest.New()
	if err := held.Identify(identity); err != nil {
		return err
	}
	if identity.Name() != want.Header {
		c.problem(want.Name, "", "the header changed")
	}
	for _, t := range c.byFile[want.Name] {
		c.tensor(f, held, t)
	}
	return nil
}

// tensor looks a tensor up in its file.
func (c *checker) tensor(f *os.File, held format.File, want *ManifestTensor) {
	info, offset, ok := held.Lookup(want.Name)
	switch {
	case !ok:
		c.problem(want.File, want.Name, "missing")
	case info.DType != want.DType || !slices.Equal(info.Shape, want.Shape):
		c.problem(want.File, want.Name, "is %s %v, not %s %v", info.DType, info.Shape, want.DType, want.Shape)
	default:
		c.extents = append(c.extents, extent{f, offset, want})
	}
}

// data hashes the data of all tensors.
func (c *checker) data(ctx context.Context) error {
	hashes := make([]string, len(c.extents))
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(c.Compute)
	for i, x := range c.extents {
		g.Go(func() (err error) {
			if hashes[i], err = c.hash(ctx, x); err != nil {
				err = fmt.Errorf("tensor %s: %w", text.Quote(x.tensor.Name), err)
			}
			return err
		})
	}
	if err := g.Wait(); err != nil {
		return err
	}
	for i, x := range c.extents {
		if t := x.tensor; hashes[i] != t.Hash {
			c.problem(t.File, t.Name, "the data changed: %s, not %s", hashes[i], text.Quote(t.Hash))
		}
	}
	return nil
}

// hash names the bytes of a tensor.
func (c *checker) hash(ctx context.Context, x extent) (string, error) {
	h, buf := digest.New(), make([]byte, 1<<20)
	for at, end := x.offset, x.offset+x.tensor.Info().Bytes(); at < end; {
		if err := ctx.Err(); err != nil {
			return "", err
		}
		b := buf[:min(int64(len(buf)), end-at)]
		if _, err := x.file.ReadAt(b, at); err != nil {
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

func (c *checker) other(want plan.Other) error {
	f, _, err := c.open(want.Name)
	if f == nil {
		return err
	}
	defer f.Close()
	got, _, err := digest.Reader(f)
	if err == nil && got != want.Hash {
		c.problem(want.Name, "", "changed: %s, not %s", got, text.Quote(want.Hash))
	}
	return err
}

// strays looks for weight files that the manifest does not know.
func (c *checker) strays(m *Manifest) error {
	entries, err := os.ReadDir(c.dir)
	if err != nil {
		return err
	}
	known := m.fileNames()
	for _, e := range entries {
		if name := e.Name(); (checkpoint.IsWeights(name) || checkpoint.IsIndex(name)) && !slices.Contains(known, name) {
			c.problem(name, "", "is not in the manifest")
		}
	}
	return nil
}

// Rounded returns the tensors of the output in dir which its manifest says were rounded to
// their dtype, by the operation that did it. Those whose bytes are not the manifest's are
// left out; without a manifest there are none.
func Rounded(ctx context.Context, dir string, s Settings) (map[string]string, error) {
	m, err := readManifest(filepath.Join(dir, plan.ManifestName))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	rounded := map[string]string{}
	c := checker{Settings: s.withDefaults(), dir: dir, byFile: map[string][]*ManifestTensor{}}
	defer c.close()
	for i := range m.Tensors {
		if t := &m.Tensors[i]; t.rounds() != "" {
			rounded[t.Name] = t.rounds()
			c.byFile[t.File] = append(c.byFile[t.File], t)
		}
	}
	for _, f := range m.Files {
		if err := c.weights(f); err != nil {
			return nil, err
		}
	}
	if err := c.data(ctx); err != nil {
		return nil, err
	}
	for _, p := range c.problems {
		delete(rounded, p.Tensor)
	}
	return rounded, nil
}

// rounds is the operation that rounded the tensor, "" if none did. What is cast from BF16 to
// F16 keeps its values, but for those that are counted as lost.
func (t *ManifestTensor) rounds() string {
	if t.DType != tensor.BF16 && t.DType != tensor.F16 {
		return ""
	}
	for _, s := range t.Sources {
		kept := s.DType == t.DType || s.DType == tensor.BF16 && t.Lost == nil
		if !kept && s.Tensor != "" && len(t.Operations) > 0 {
			return t.Operations[len(t.Operations)-1]
		}
	}
	return ""
}
