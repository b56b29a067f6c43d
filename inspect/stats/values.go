package stats

// The values of the weights: every byte is read once. All counts are whole numbers, so that the report
// depends neither on the number of workers nor on their order.

import (
	"context"
	"hash/crc32"
	"slices"
	"sync"

	"dsmoe/inspect"
	"dsmoe/inspect/header"
	"dsmoe/model/table"
	"dsmoe/model/tensor"
	"dsmoe/model/weights"
)

// Values is what AuditValues reads weights with.
type Values struct {
	Reader weights.ReaderAt // of the stored tensors
	// ReadFile fills dst with bytes of a weight file, an index in Checkpoint.Files, for Parts.
	ReadFile  func(file int, dst []byte, offset int64) error
	Parts     []Part                  // what the files say of their own bytes
	Selection inspect.Selection       // weights that are read; Parts only with all of them
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

// AuditValues is Audit, and reads every weight. What cannot be read is a finding; an error
// says that ctx ended.
func AuditValues(ctx context.Context, c *inspect.Checkpoint, v Values) (*header.AuditReport, error) {
	r := newValueAudit(ctx, c, v)
	r.readAll()
	if err := r.Wait(); err != nil {
		return nil, err
	}
	again := weights.NewReading(ctx, v.Threads, nil)
	r.multiply(again)
	if err := again.Wait(); err != nil {
		return nil, err
	}
	a := header.Audit(c)
	a.Add(r.findings()...)
	checked, not := r.scope()
	a.Checked, a.NotChecked = append(a.Checked, checked...), append(a.NotChecked[:len(a.NotChecked)-1], not...)
	return a, nil
}

// valueAudit is the state of one AuditValues run.
type valueAudit struct {
	*weights.Reading
	c       *inspect.Checkpoint
	v       Values
	files   map[string]string // of tensors: see holders
	weights []*read           // in the order of the files
	byName  map[string]*read
	twice   int     // tensors that a second file holds too
	skipped []*read // of dtypes that are not looked into
	left    int     // weights that are not selected
	parts   []checkedPart
	tied    *comparison // lm_head against embed_tokens; nil if there is nothing to compare

	mu sync.Mutex // guards what is found in the weights
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

func newValueAudit(ctx context.Context, c *inspect.Checkpoint, v Values) *valueAudit {
	r := &valueAudit{Reading: weights.NewReading(ctx, v.Threads, v.Progress), c: c, v: v, files: c.Holders(),
		byName: map[string]*read{}}
	covered := map[string]bool{}
	if c.Config != nil {
		for _, w := range weights.New(c.Config, c).All() {
			r.take(w)
			covered[w.Stored] = true
		}
	}
	seen := map[string]bool{}
	for _, t := range c.List() {
		switch {
		case seen[t.Name]:
			r.twice++
		case !covered[t.Name]: // without a config, or fused experts that cannot be taken apart
			r.take(&weights.Weight{Info: tensor.Info{Name: t.Name, DType: t.DType, Shape: t.Shape},
				Place: table.PlaceOf(c.Config, t.Name), Stored: t.Name})
		}
		seen[t.Name] = true
	}
	if v.Selection.All() {
		for _, p := range v.Parts {
			r.parts = append(r.parts, checkedPart{Part: p})
			r.Expect(p.Size)
		}
	}
	r.tie()
	return r
}

// take adds a weight to what is read.
func (r *valueAudit) take(w *weights.Weight) {
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
	r.Expect(w.Bytes())
}

// The tensors that tie_word_embeddings makes one.
const (
	embedding = "model.embed_tokens.weight"
	head      = "lm_head.weight"
)

// tie prepares the comparison of a stored head that is said to be the embedding.
func (r *valueAudit) tie() {
	a, b := r.byName[embedding], r.byName[head]
	if r.isTied() && a != nil && b != nil && slices.Equal(a.Shape, b.Shape) && a.DType.Casts() && b.DType.Casts() {
		r.tied = &comparison{a: a, b: b}
		r.Expect(b.Bytes())
	}
}

// isTied says whether the config makes head and embedding one.
func (r *valueAudit) isTied() bool { return r.c.Config != nil && r.c.Config.TieWordEmbeddings }

// readAll reads everything once. What cannot be read is kept where it belongs.
func (r *valueAudit) readAll() {
	for _, w := range r.weights {
		for at, n := range w.Jobs() {
			r.Go(func() error { r.count(w, at, n); return nil })
		}
	}
	for i := range r.parts {
		r.Go(func() error { r.sum(&r.parts[i]); return nil })
	}
	if r.tied != nil {
		r.Go(func() error { r.tied.err = r.compare(r.tied); return nil })
	}
}

// count counts what is odd in n elements of a weight from at on.
func (r *valueAudit) count(w *read, at, n int64) {
	var found tensor.Anomalies
	var notPositive int64
	var failed error
	for tile, err := range r.Bytes(r.v.Reader, w.Weight, at, n) {
		if failed = err; err != nil {
			break
		}
		found.Add(tile, w.DType)
		if w.IsScales() {
			notPositive += countNotPositive(tile, w.DType)
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	w.found.Merge(found)
	w.notPositive += notPositive
	if w.err == nil {
		w.err = failed
	}
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
func (r *valueAudit) sum(p *checkedPart) {
	buffer := make([]byte, weights.TileBytes)
	for at := int64(0); at < p.Size && !r.Ended(); {
		tile := buffer[:min(weights.TileBytes, p.Size-at)]
		if p.err = r.v.ReadFile(p.File, tile, p.Offset+at); p.err != nil {
			return
		}
		p.got = crc32.Update(p.got, crc32.IEEETable, tile)
		at += int64(len(tile))
		r.Done(int64(len(tile)))
	}
}

// compare counts the different elements of two weights of one shape.
func (r *valueAudit) compare(c *comparison) error {
	a, b := weights.NewStream(r.v.Reader, c.a.Weight), weights.NewStream(r.v.Reader, c.b.Weight)
	for _, err := range r.Tiles(0, int64(c.a.Len()), weights.TileElements, b, a) {
		if err != nil {
			return err
		}
		x, err := a.Values()
		if err != nil {
			return err
		}
		y, err := b.Values()
		if err != nil {
			return err
		}
		for i := range y {
			if x[i] != y[i] && (x[i] == x[i] || y[i] == y[i]) {
				c.different++
			}
		}
	}
	return nil
}

// multiply counts the numbers of weights with scales that are infinite, or beyond F16. Only
// weights with a large scale are read again.
func (r *valueAudit) multiply(again *weights.Reading) {
	for _, w := range r.weights {
		if w.DType.Scaled() && w.err == nil && r.scaled(w) {
			again.Go(func() error { w.err = r.product(again, w); return nil })
		}
	}
}

// scaled reports whether the numbers of a weight with scales are known.
func (r *valueAudit) scaled(w *read) bool {
	if w.Scales == nil || w.CheckScales() != nil {
		return false
	}
	s := r.byName[w.Scales.Name]
	return s != nil && s.err == nil
}

// beyondF16 is the first number that is infinite in F16.
const beyondF16 = 65520

// product counts the products in F32 of codes and their scales, if some may be beyond F16.
func (r *valueAudit) product(again *weights.Reading, w *read) error {
	large, largest := false, w.DType.Form().Largest
	for scales, err := range again.Numbers(r.v.Reader, w.Scales, 0, int64(w.Scales.Len())) {
		if err != nil {
			return err
		}
		large = large || slices.ContainsFunc(scales, func(s float32) bool { return max(s, -s)*largest >= beyondF16 })
	}
	if !large {
		return nil
	}
	for values, err := range again.Numbers(r.v.Reader, w.Weight, 0, int64(w.Len())) {
		if err != nil {
			return err
		}
		for _, v := range values {
			if v-v != 0 && v == v {
				w.found.Infinite++
			} else if max(v, -v) >= beyondF16 {
				w.found.BeyondF16++
			}
		}
	}
	return nil
}
