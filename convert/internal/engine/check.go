package engine

// Checking: every byte of an output against its manifest.

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"sync"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
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

// Checked is what Check found.
type Checked struct {
	Plan     string               // hash of the plan that it is the output of
	Verified bool                 // it was compared with its source
	Tensors  int                  // in the manifest
	Bytes    int64                // of their data
	Problems []checkpoint.Problem // what differs from the manifest
}

// Check hashes every byte of the output in dir and compares it with its manifest, which is
// read a tensor at a time. An error means that it could not be told.
func Check(ctx context.Context, dir string, s Settings) (*Checked, error) {
	m, err := readManifest(filepath.Join(dir, plan.ManifestName), nil)
	if err != nil {
		return nil, err
	}
	r := &Checked{Plan: m.Plan, Verified: m.Verified}
	r.Problems, err = checkManifest(ctx, dir, m, nil, s.withDefaults(), func(t *ManifestTensor) {
		r.Tensors++
		r.Bytes += t.Info().Bytes()
	})
	return r, err
}

// Info returns the tensor's header entry.
func (t *ManifestTensor) Info() tensor.Info {
	return tensor.Info{Name: t.Name, DType: t.DType, Shape: t.Shape}
}

// readManifest reads and checks a manifest without its tensors, which are handed to each
// one by one, or with nil passed over.
func readManifest(path string, each func(*ManifestTensor) error) (*Manifest, error) {
	f, size, err := format.OpenRegular(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if size > maxManifest {
		return nil, fmt.Errorf("%s: %s, more than the limit of %s", text.Quote(path), text.ExactBytes(size), text.Bytes(maxManifest))
	}
	var m Manifest
	var own error // of each
	err = json.UnmarshalRead(f, &m, json.WithUnmarshalers(json.UnmarshalFromFunc(func(d *jsontext.Decoder, _ *[]ManifestTensor) error {
		return eachTensor(d, func(t *ManifestTensor) error {
			if each != nil {
				own = each(t)
			}
			return own
		})
	})))
	switch {
	case own != nil:
		return nil, own
	case err != nil:
		return nil, fmt.Errorf("%s: not a manifest: %s", text.Quote(path), text.Quote(err.Error()))
	}
	return &m, m.check(path)
}

// eachTensor reads an array of tensors.
func eachTensor(d *jsontext.Decoder, do func(*ManifestTensor) error) error {
	if d.PeekKind() != '[' {
		return errors.New("tensors is no array")
	}
	if _, err := d.ReadToken(); err != nil {
		return err
	}
	for d.PeekKind() != ']' {
		var t ManifestTensor
		if err := json.UnmarshalDecode(d, &t); err != nil {
			return err
		}
		if err := do(&t); err != nil {
			return err
		}
	}
	_, err := d.ReadToken()
	return err
}

// check says what is wrong with the head of a manifest that was read from path.
func (m *Manifest) check(path string) error {
	if m.Format != manifestFormat && m.Format != uncountedFormat {
		return fmt.Errorf("%s: format %s is not %s", text.Quote(path), text.Quote(m.Format), manifestFormat)
	}
	for _, name := range m.fileNames() {
		if filepath.Base(name) != name || !filepath.IsLocal(name) {
			return fmt.Errorf("%s: file name %s leads out of the directory", text.Quote(path), text.Quote(name))
		}
	}
	return nil
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

// checkManifest compares the files in dir with the manifest there, whose head m is. Each of
// its tensors is told to each. If p, the plan that dir is the output of, is not nil, it says
// where tensors are, and no header needs to be in memory beside it.
func checkManifest(ctx context.Context, dir string, m *Manifest, p *plan.Plan, s Settings, each func(*ManifestTensor)) ([]checkpoint.Problem, error) {
	c := checker{Settings: s, dir: dir, plan: p, files: map[string]*os.File{}, problems: []checkpoint.Problem{}}
	defer c.close()
	files := m.Files
	if p != nil {
		files = p.Files
	}
	for _, f := range files {
		c.total += f.Size
		c.files[f.Name] = nil
		if err := c.weights(f); err != nil {
			return nil, err
		}
	}
	for _, f := range m.Others {
		c.total += f.Size
	}
	if err := c.tensors(ctx, each); err != nil {
		return nil, err
	}
	for _, f := range m.Others {
		if err := c.other(ctx, f); err != nil {
			return nil, err
		}
	}
	return c.problems, c.strays(m)
}

// checker collects what differs from a manifest.
type checker struct {
	Settings
	dir         string
	plan        *plan.Plan          // nil if it is not known
	files       map[string]*os.File // of weights, as the manifest lists them; nil if the header cannot be read
	held        format.File         // the file whose header is in memory: those of all are not, at once
	heldName    string              // of that file
	problems    []checkpoint.Problem
	buffers     sync.Pool  // of *[]byte, for hash
	mu          sync.Mutex // of done and Progress
	done, total int64
}

func (c *checker) close() {
	for _, f := range c.files {
		if f != nil {
			f.Close()
		}
	}
	if c.held != nil {
		c.held.Close()
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

// weights checks the header of a weight file.
func (c *checker) weights(want plan.File) error {
	f, size, err := c.open(want.Name)
	if f == nil {
		return err
	}
	if size != want.Size {
		c.problem(want.Name, "", "has %s, not %s", text.ExactBytes(size), text.ExactBytes(want.Size))
		if c.plan != nil {
			return f.Close() // the plan's places are not in it
		}
	}
	if checkpoint.FormatOf(want.Name) == nil {
		c.problem(want.Name, "", "is no weight file that can be read")
		return f.Close()
	}
	identity, err := c.identity(f, want.Name)
	if err != nil {
		return errors.Join(c.found(want.Name, err), f.Close())
	}
	c.files[want.Name] = f
	if identity != want.Header {
		c.problem(want.Name, "", "the header changed")
	}
	return nil
}

// identity hashes the header of a weight file.
func (c *checker) identity(f *os.File, name string) (string, error) {
	h := digest.New()
	if c.plan != nil {
		_, err := io.Copy(h, io.NewSectionReader(f, 0, c.plan.DataStart(name)))
		return h.Name(), err
	}
	if err := c.hold(name); err != nil {
		return "", err
	}
	err := c.held.Identify(h)
	return h.Name(), err
}

// hold reads the header of a weight file, in place of the one that was read before.
func (c *checker) hold(name string) (err error) {
	if c.held != nil && c.heldName == name {
		return nil
	}
	if c.held != nil {
		c.held.Close()
	}
	c.heldName = name
	c.held, err = checkpoint.FormatOf(name).Open(filepath.Join(c.dir, name))
	return err
}

// tensors hashes the data of all tensors of the manifest.
func (c *checker) tensors(ctx context.Context, each func(*ManifestTensor)) error {
	changed := map[int]checkpoint.Problem{} // by their places in the manifest
	n := 0
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(c.Compute)
	_, err := readManifest(filepath.Join(c.dir, plan.ManifestName), func(t *ManifestTensor) error {
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
				changed[i] = checkpoint.Problem{File: t.File, Tensor: t.Name, Cause: fmt.Sprintf("the data changed: %s, not %s", got, text.Quote(t.Hash))}
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
	return err
}

// tensor looks the i-th tensor of the manifest up; without a file there is nothing to hash.
func (c *checker) tensor(i int, want *ManifestTensor) (f *os.File, offset int64, err error) {
	f, listed := c.files[want.File]
	if !listed {
		c.problem(want.File, want.Name, "the manifest lists the tensor, but not the file")
	}
	if f == nil {
		return nil, 0, nil
	}
	info, offset, ok, err := c.lookup(i, want)
	switch {
	case err != nil:
		return nil, 0, err
	case !ok:
		c.problem(want.File, want.Name, "missing")
	case info.DType != want.DType || !slices.Equal(info.Shape, want.Shape):
		c.problem(want.File, want.Name, "is %s %v, not %s %v", info.DType, info.Shape, want.DType, want.Shape)
	default:
		return f, offset, nil
	}
	return nil, 0, nil
}

// lookup says where the i-th tensor of the manifest is in its file.
func (c *checker) lookup(i int, want *ManifestTensor) (info tensor.Info, offset int64, ok bool, err error) {
	if c.plan != nil {
		if ok = i < len(c.plan.Tensors) && c.plan.Tensors[i].Name == want.Name; ok {
			info, offset = c.plan.Tensors[i].Info(), c.plan.Tensors[i].Offset
		}
		return info, offset, ok, nil
	}
	if err := c.hold(want.File); err != nil {
		return tensor.Info{}, 0, false, err
	}
	info, offset, ok = c.held.Lookup(want.Name)
	return info, offset, ok, nil
}

// hash names the bytes of a tensor.
func (c *checker) hash(ctx context.Context, f *os.File, offset, size int64) (string, error) {
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

func (c *checker) other(ctx context.Context, want plan.Other) error {
	f, _, err := c.open(want.Name)
	if f == nil {
		return err
	}
	defer f.Close()
	got, _, err := digest.Reader(follow{f, ctx, c.advance})
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
// their dtype, and how. Those whose bytes are not the manifest's are left out; without a
// manifest there are none.
func Rounded(ctx context.Context, dir string, s Settings) (map[string]tensor.Rounding, error) {
	m, err := readManifest(filepath.Join(dir, plan.ManifestName), nil)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	rounded := map[string]tensor.Rounding{}
	problems, err := checkManifest(ctx, dir, m, nil, s.withDefaults(), func(t *ManifestTensor) {
		if r := t.rounds(m.Format == manifestFormat); r.By != "" {
			rounded[t.Name] = r
		}
	})
	if err != nil {
		return nil, err
	}
	for _, p := range problems {
		delete(rounded, p.Tensor)
	}
	return rounded, nil
}

// rounds says how the tensor was rounded, if it was. counted says that the manifest counts rounded
// elements. Where it does not, every tensor of a source that may hold other numbers was.
func (t *ManifestTensor) rounds(counted bool) (r tensor.Rounding) {
	if t.DType != tensor.BF16 && t.DType != tensor.F16 && !t.DType.Blocked() || len(t.Operations) == 0 {
		return r
	}
	by := t.Operations[len(t.Operations)-1]
	if counted {
		if t.Lost == nil || t.Lost.Rounded+t.Lost.Denormal+t.Lost.Flushed == 0 {
			return r
		}
		return tensor.Rounding{By: by, Denormals: t.Lost.Rounded == 0 && !t.DType.Blocked()}
	}
	for _, s := range t.Sources {
		if s.DType == t.DType || s.Tensor == "" {
			continue
		}
		denormals := s.DType == tensor.BF16 && t.DType == tensor.F16 // which has all other numbers that BF16 has
		r = r.And(tensor.Rounding{By: by, Denormals: denormals})
	}
	return r
}
