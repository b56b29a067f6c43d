package inspect

// The values of the weights: every byte is read once, in tiles, by as many goroutines as
// there are processors. What is counted are whole numbers, so that neither their number
// nor their order shows in the report.

import (
	"context"
	"hash/crc32"
	"slices"
	"sync"

	"dsmoe/model/tensor"
	"dsmoe/model/weights"
)

// Values is what AuditValues reads weights with.
type Values struct {
	Reader weights.ReaderAt // of the stored tensors
	// ReadFile fills dst with bytes of a weight file, an index in Checkpoint.Files, for Parts.
	ReadFile  func(file int, dst []byte, offset int64) error
	Parts     []Part                  // what the files say of their own bytes
	Selection Selection               // weights that are read; Parts only with all of them
	Threads   int                     // that read at once; 0 is one per processor
	Progress  func(done, total int64) // told of bytes that were read, one call at a time; nil is nobody
}

// Part is a run of bytes of a weight file, and their checksum as the file has it.
type Part struct {
	File   int    // index in Checkpoint.Files
	Name   string // of the part: an entry of an archive
	Tensor string // the first tensor in it; "" if none is
	Offset int64  // of the first byte in the file
	Size   int64  // in bytes
	CRC32  uint32 // of the bytes
}

// The sizes of what a goroutine takes on at a time, and of what it reads at a time, which
// stays in the cache until it has been looked at.
const (
	jobBytes     = 8 << 20
	tileBytes    = 256 << 10
	tileElements = tileBytes / 4 // of what is decoded
)

// AuditValues is Audit, and reads every weight. What cannot be read is a finding; an error
// says that ctx ended.
func AuditValues(ctx context.Context, c *Checkpoint, v Values) (*AuditReport, error) {
	r := newReading(c, v)
	for _, pass := range []func(context.Context) error{r.run, r.products} {
		if err := pass(ctx); err != nil {
			return nil, err
		}
	}
	a := Audit(c)
	a.Findings = append(a.Findings, r.findings()...)
	a.Problems = problems(a.Findings)
	a.Clean = a.Problems == 0
	checked, not := r.scope()
	a.Checked, a.NotChecked = append(a.Checked, checked...), append(a.NotChecked[:len(a.NotChecked)-1], not...)
	return a, nil
}

// reading is the weights of a checkpoint and what was found in them.
type reading struct {
	c       *Checkpoint
	v       Values
	files   map[string]string // of tensors: see holders
	weights []*read           // in the order of the files
	byName  map[string]*read
	twice   int     // tensors that a second file holds too
	skipped []*read // of dtypes that are not looked into
	left    int     // weights that are not selected
	parts   []checkedPart
	tied    *comparison // lm_head against embed_tokens; nil if there is nothing to compare

	mu          sync.Mutex // guards what follows, and what is found
	done, total int64
}

// read is one weight: what was found in it.
type read struct {
	*weights.Weight
	found       tensor.Anomalies
	notPositive int64 // scales that are 0 or below
	err         error // of reading it
}

// checkedPart is a Part and what was found.
type checkedPart struct {
	Part
	got uint32
	err error
}

// comparison is the values of two weights.
type comparison struct {
	a, b      *read
	different int64
	err       error
}

func newReading(c *Checkpoint, v Values) *reading {
	r := &reading{c: c, v: v, files: c.holders(), byName: map[string]*read{}}
	covered := map[string]bool{}
	if c.Config != nil {
		for _, w := range weights.New(c.Config, headers{c}).All() {
			r.take(w)
			covered[w.Stored] = true
		}
	}
	seen := map[string]bool{}
	for _, t := range c.tensors() {
		switch {
		case seen[t.Name]:
			r.twice++
		case !covered[t.Name]: // without a config, or fused experts that cannot be taken apart
			r.take(&weights.Weight{Info: tensor.Info{Name: t.Name, DType: t.DType, Shape: t.Shape}, Stored: t.Name})
		}
		seen[t.Name] = true
	}
	if v.Selection.All() {
		for _, p := range v.Parts {
			r.parts = append(r.parts, checkedPart{Part: p})
			r.total += p.Size
		}
	}
	r.tie()
	return r
}

// take adds a weight to what is read.
func (r *reading) take(w *weights.Weight) {
	x := &read{Weight: w}
	if !r.v.Selection.Has(w.Name) {
		r.left++
		return
	}
	if _, ok := w.DType.Format(); !ok {
		r.skipped = append(r.skipped, x)
		return
	}
	r.weights = append(r.weights, x)
	r.byName[w.Name] = x
	r.total += w.Bytes()
}

// The tensors that tie_word_embeddings makes one.
const (
	embedding = "model.embed_tokens.weight"
	head      = "lm_head.weight"
)

// tie prepares the comparison of a stored head that is said to be the embedding.
func (r *reading) tie() {
	a, b := r.byName[embedding], r.byName[head]
	if r.isTied() && a != nil && b != nil && slices.Equal(a.Shape, b.Shape) && a.DType.Casts() && b.DType.Casts() {
		r.tied = &comparison{a: a, b: b}
		r.total += b.Bytes()
	}
}

// isTied says whether the config makes head and embedding one.
func (r *reading) isTied() bool { return r.c.Config != nil && r.c.Config.TieWordEmbeddings }

// run reads everything once.
func (r *reading) run(ctx context.Context) error {
	t := newTeam(ctx, r.v.Threads)
	for _, w := range r.weights {
		most := wholeBlocks(w.DType, jobBytes)
		for at := int64(0); at < w.Bytes(); at += most {
			t.do(func(buffer []byte) { r.look(t.ctx, w, at, min(most, w.Bytes()-at), buffer) })
		}
	}
	for i := range r.parts {
		t.do(func(buffer []byte) { r.sum(t.ctx, &r.parts[i], buffer) })
	}
	if r.tied != nil {
		t.do(func([]byte) { r.compare(t.ctx, r.tied) })
	}
	return t.wait()
}

// wholeBlocks returns how many of n bytes elements of d fill that can be had without others.
func wholeBlocks(d tensor.DType, n int64) int64 { return d.Bytes(d.Elements(n)) }

// progress tells of n bytes more.
func (r *reading) progress(n int64) {
	r.done += n
	if r.v.Progress != nil {
		r.v.Progress(r.done, r.total)
	}
}

// look counts in n bytes of a weight from at on.
func (r *reading) look(ctx context.Context, w *read, at, n int64, buffer []byte) {
	var found tensor.Anomalies
	var notPositive int64
	var err error
	for end := at + n; at < end && err == nil && ctx.Err() == nil; {
		tile := buffer[:min(wholeBlocks(w.DType, tileBytes), end-at)]
		if err = w.ReadAt(r.v.Reader, tile, at); err == nil {
			found.Add(tile, w.DType)
			if w.IsScales() {
				notPositive += countNotPositive(tile, w.DType)
			}
		}
		at += int64(len(tile))
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	w.found.Merge(found)
	w.notPositive += notPositive
	if w.err == nil {
		w.err = err
	}
	r.progress(n)
}

// countNotPositive counts the numbers that are 0 or below.
func countNotPositive(data []byte, d tensor.DType) (n int64) {
	values, err := tensor.Tensor{DType: d, Shape: []int{int(d.Elements(int64(len(data))))}, Data: data}.Float32s(nil)
	if err != nil {
		return 0 // take asked for a format
	}
	for _, v := range values {
		if v <= 0 {
			n++
		}
	}
	return n
}

// sum computes the checksum of a part.
func (r *reading) sum(ctx context.Context, p *checkedPart, buffer []byte) {
	for at := int64(0); at < p.Size && p.err == nil && ctx.Err() == nil; {
		tile := buffer[:min(tileBytes, p.Size-at)]
		if p.err = r.v.ReadFile(p.File, tile, p.Offset+at); p.err == nil {
			p.got = crc32.Update(p.got, crc32.IEEETable, tile)
		}
		at += int64(len(tile))
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.progress(p.Size)
}

// compare counts the different elements of two weights of one shape.
func (r *reading) compare(ctx context.Context, c *comparison) {
	a, b := weights.NewStream(r.v.Reader, c.a.Weight), weights.NewStream(r.v.Reader, c.b.Weight)
	n := int64(c.a.Len())
	for at := int64(0); at < n && c.err == nil && ctx.Err() == nil; at += tileElements {
		var x, y []float32
		if x, c.err = loaded(a, at, min(tileElements, n-at)); c.err == nil {
			y, c.err = loaded(b, at, min(tileElements, n-at))
		}
		for i := range y {
			if x[i] != y[i] && (x[i] == x[i] || y[i] == y[i]) {
				c.different++
			}
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.progress(c.b.Bytes())
}

// loaded returns n values of a stream from at on.
func loaded(s *weights.Stream, at, n int64) ([]float32, error) {
	if err := s.Load(at, int(n)); err != nil {
		return nil, err
	}
	return s.Values()
}

// products counts what of FP8 weights is infinite, or beyond F16, with its scales. Only weights with a
// scale that is large enough are read again.
func (r *reading) products(ctx context.Context) error {
	t := newTeam(ctx, r.v.Threads)
	for _, w := range r.weights {
		if w.DType == tensor.F8E4M3 && w.err == nil && r.scaled(w) {
			t.do(func([]byte) { w.err = r.product(t.ctx, w) })
		}
	}
	return t.wait()
}

// scaled says whether the numbers of an FP8 weight are known.
func (r *reading) scaled(w *read) bool {
	if w.Scales == nil || w.CheckScales() != nil {
		return false
	}
	s := r.byName[w.Scales.Name]
	return s != nil && s.err == nil
}

// largestE4M3 is the largest number of F8_E4M3, beyondF16 the first that is infinite in F16.
const (
	largestE4M3 = 448
	beyondF16   = 65520
)

// largeScales says whether a number of the FP8 weight may be beyond F16.
func (r *reading) largeScales(ctx context.Context, w *read) (large bool, err error) {
	err = r.each(ctx, w.Scales, func(s float32) { large = large || max(s, -s)*largestE4M3 >= beyondF16 })
	return large, err
}

// product counts the products in F32 of an FP8 weight and its scales, if some may be beyond
// F16.
func (r *reading) product(ctx context.Context, w *read) error {
	if large, err := r.largeScales(ctx, w); err != nil || !large {
		return err
	}
	return r.each(ctx, w.Weight, func(v float32) {
		if v-v != 0 && v == v {
			w.found.Infinite++
		} else if max(v, -v) >= beyondF16 {
			w.found.BeyondF16++
		}
	})
}

// each calls f for every number of a weight, until ctx ends.
func (r *reading) each(ctx context.Context, w *weights.Weight, f func(v float32)) error {
	s, n := weights.NewStream(r.v.Reader, w), int64(w.Len())
	for at := int64(0); at < n && ctx.Err() == nil; at += tileElements {
		values, err := loaded(s, at, min(tileElements, n-at))
		if err != nil {
			return err
		}
		for _, v := range values {
			f(v)
		}
	}
	return nil
}
