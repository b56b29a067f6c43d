package convert

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"sync"

	"github.com/go-json-experiment/json"

	"dsmoe/convert/internal/lanes"
	"dsmoe/convert/safetensors"
	"dsmoe/model/tensor"
)

// maxManifest bounds a manifest; DeepSeek-V3's has some tens of megabytes.
const maxManifest = 1 << 30

// CheckReport is what Check found. It is JSON as it stands.
type CheckReport struct {
	Path     string    `json:"path"`
	Plan     string    `json:"plan"`
	Verified bool      `json:"verified"` // when it was converted
	Tensors  int       `json:"tensors"`
	Bytes    int64     `json:"bytes"`
	Problems []Problem `json:"problems"`
}

// Check hashes every byte of the converted checkpoint in dir and compares it with
// its manifest. Whatever changed is named in the report; an error means that it
// could not be told.
func Check(ctx context.Context, dir string, progress func(phase string, n, of int64)) (*CheckReport, error) {
	m, err := readManifest(filepath.Join(dir, manifestName))
	if err != nil {
		return nil, err
	}
	if progress == nil {
		progress = func(string, int64, int64) {}
	}
	problems, err := checkManifest(ctx, dir, m, progress)
	if err != nil {
		return nil, err
	}
	r := &CheckReport{Path: dir, Plan: m.Plan, Verified: m.Verified, Tensors: len(m.Tensors), Problems: problems}
	for _, t := range m.Tensors {
		r.Bytes += t.info().Bytes()
	}
	return r, nil
}

func (t *ManifestTensor) info() tensor.Info {
	return tensor.Info{Name: t.Name, DType: t.DType, Shape: t.Shape}
}

// readManifest reads and checks a manifest.
func readManifest(path string) (*Manifest, error) {
	f, size, err := safetensors.OpenRegular(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if size > maxManifest {
		return nil, fmt.Errorf("%s: %d bytes, more than the limit of %d", safetensors.Quote(path), size, maxManifest)
	}
	var m Manifest
	if err := json.UnmarshalRead(f, &m); err != nil {
		return nil, fmt.Errorf("%s: not a manifest: %s", safetensors.Quote(path), safetensors.Quote(err.Error()))
	}
	if m.Format != manifestFormat {
		return nil, fmt.Errorf("%s: format %s is not %s", safetensors.Quote(path), safetensors.Quote(m.Format), manifestFormat)
	}
	for _, name := range m.fileNames() {
		if filepath.Base(name) != name || !filepath.IsLocal(name) {
			return nil, fmt.Errorf("%s: file name %s leads out of the directory", safetensors.Quote(path), safetensors.Quote(name))
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
func checkManifest(ctx context.Context, dir string, m *Manifest, progress func(string, int64, int64)) ([]Problem, error) {
	c := checker{dir: dir, progress: progress, byFile: map[string][]*ManifestTensor{}, problems: []Problem{}}
	for i := range m.Tensors {
		t := &m.Tensors[i]
		c.byFile[t.File] = append(c.byFile[t.File], t)
	}
	for _, f := range m.Files {
		c.total += f.Size
	}
	defer c.close()
	for _, f := range m.Files {
		if err := c.weights(f); err != nil {
			return nil, err
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
	dir         string
	byFile      map[string][]*ManifestTensor
	files       []*os.File // of weights
	extents     []extent
	problems    []Problem
	progress    func(string, int64, int64)
	mu          sync.Mutex // of done and progress
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

func (c *checker) problem(file, tensor, format string, args ...any) {
	c.problems = append(c.problems, Problem{File: file, Tensor: tensor, Cause: fmt.Sprintf(format, args...)})
}

// open opens a file that must be there.
func (c *checker) open(name string) (f *os.File, size int64, err error) {
	f, size, err = safetensors.OpenRegular(filepath.Join(c.dir, name))
	var format *safetensors.FormatError
	if errors.As(err, &format) {
		c.problems = append(c.problems, Problem{File: name, Cause: format.Cause})
		return nil, 0, nil
	}
	return f, size, err
}

// weights checks the header of a weight file and finds its tensors.
func (c *checker) weights(want PlannedFile) error {
	f, size, err := c.open(want.Name)
	if f == nil {
		return err
	}
	c.files = append(c.files, f)
	if size != want.Size {
		c.problem(want.Name, "", "has %d bytes, not %d", size, want.Size)
	}
	h, err := safetensors.ReadHeader(f, size, want.Name)
	if err != nil {
		c.problems = append(c.problems, problemsOf(want.Name, err)...)
		return nil
	}
	if got, err := sumOfReader(io.NewSectionReader(f, 0, h.DataStart)); err != nil {
		return err
	} else if got != want.Header {
		c.problem(want.Name, "", "the header changed")
	}
	for _, t := range c.byFile[want.Name] {
		c.tensor(f, h, t)
	}
	return nil
}

// tensor looks a tensor up in the header of its file.
func (c *checker) tensor(f *os.File, h *safetensors.Header, want *ManifestTensor) {
	info, offset, ok := h.Lookup(want.Name)
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
	sizes, sums := make([]int64, len(c.extents)), make([]string, len(c.extents))
	for i, x := range c.extents {
		sizes[i] = x.tensor.info().Bytes()
	}
	pool := lanes.NewPool(processors)
	err := inParallel(ctx, pool, maxWorkers(), sizes, func() func(ctx context.Context, i int) error {
		buf := make([]byte, 1<<20)
		return func(ctx context.Context, i int) (err error) {
			x := c.extents[i]
			if sums[i], err = c.hash(ctx, pool, buf, x.file, x.offset, sizes[i]); err != nil {
				err = fmt.Errorf("tensor %s: %w", safetensors.Quote(x.tensor.Name), err)
			}
			return err
		}
	})
	if err != nil {
		return err
	}
	for i, x := range c.extents {
		if t := x.tensor; sums[i] != t.SHA256 {
			c.problem(t.File, t.Name, "the data changed: sha256 %s, not %s", sums[i], t.SHA256)
		}
	}
	return nil
}

// hash hashes n bytes from offset on.
func (c *checker) hash(ctx context.Context, pool *lanes.Pool, buf []byte, r io.ReaderAt, offset, n int64) (string, error) {
	var d lanes.Digest
	for end := offset + n; offset < end; {
		if err := ctx.Err(); err != nil {
			return "", err
		}
		b := buf[:min(int64(len(buf)), end-offset)]
		if _, err := r.ReadAt(b, offset); err != nil {
			return "", err
		}
		pool.Write(&d, b)
		offset += int64(len(b))
		c.advance(int64(len(b)))
	}
	return sumOf(&d), nil
}

func (c *checker) advance(n int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.done += n
	c.progress("checking", c.done, c.total)
}

func (c *checker) other(want OtherFile) error {
	f, _, err := c.open(want.Name)
	if f == nil {
		return err
	}
	defer f.Close()
	got, err := sumOfReader(f)
	if err == nil && got != want.SHA256 {
		c.problem(want.Name, "", "changed: sha256 %s, not %s", got, want.SHA256)
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
		if (isWeights(e.Name()) || isIndexName(e.Name())) && !slices.Contains(known, e.Name()) {
			c.problem(e.Name(), "", "is not in the manifest")
		}
	}
	return nil
}

// sumOfReader returns the sum of all that r reads, in hexadecimal digits.
func sumOfReader(r io.Reader) (string, error) {
	h := sha256.New()
	_, err := io.Copy(h, r)
	return hex.EncodeToString(h.Sum(nil)), err
}
