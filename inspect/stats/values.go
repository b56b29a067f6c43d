package stats

// The values of the weights: every byte is read once. All counts are whole numbers, so that the report
// depends neither on the number of workers nor on their order.

import (
	"context"
	"encoding/binary"
	"hash/crc32"
	"math"
	"slices"
	"sync"

	"dsmoe/inspect"
	"dsmoe/model/table"
	"dsmoe/model/tensor"
	"dsmoe/model/weights"
)

// Values says how AuditValues reads weights.
type Values struct {
	Reader weights.ReaderAt // of the stored tensors
	// ReadFile fills dst with bytes of a weight file, an index in Checkpoint.Files, for Parts.
	ReadFile  func(file int, dst []byte, offset int64) error
	Parts     []Part                  // runs of bytes with checksums
	Selection inspect.Selection       // weights to read; Parts are read only if all weights are
	Threads   int                     // workers that read at once; 0 is one per processor
	Progress  func(done, total int64) // called, one call at a time, with bytes read and bytes expected; may be nil
}

// Part is a run of bytes of a weight file, with the checksum that the file has for it.
type Part struct {
	File   int    // index in Checkpoint.Files
	Name   string // of the part: an entry of an archive
	Tensor string // the first tensor in it; "" without one
	Offset int64  // of the first byte in the file
	Size   int64  // in bytes
	CRC32  uint32 // of the bytes
}

// valueAudit is the state of one AuditValues run.
type valueAudit struct {
	*weights.Reading
	*inspect.Checkpoint
	Values
	holders    map[string]string // see Checkpoint.Holders
	weights    []*audited        // in the order of the files
	byName     map[string]*audited
	duplicates int // tensors that a second file holds too
	skipped    int // weights of dtypes that the model does not compute with
	unselected int // weights
	sums       []checksum
	tied       *comparison // of lm_head with embed_tokens; nil if they are not tied, or cannot be compared

	mu sync.Mutex // guards the counts of weights
}

// audited is one weight and what is odd in it.
type audited struct {
	*weights.Weight
	tensor.Anomalies
	notPositive int64 // scales that are 0 or below
	wasteful    int64 // blocks that use less than half of their range: see tensor.Wasteful
	blocks      int64 // of a block type
	outside     int64 // numbers of a table that are no expert's
	err         error // of reading it
}

// checksum is a Part and the checksum of its bytes.
type checksum struct {
	Part
	actual uint32
	err    error
}

// comparison is the values of two weights.
type comparison struct {
	a, b      *audited
	different int64
	err       error
}

func newValueAudit(ctx context.Context, c *inspect.Checkpoint, v Values) *valueAudit {
	x := &valueAudit{Reading: weights.NewReading(ctx, v.Threads, v.Progress), Checkpoint: c, Values: v,
		byName: map[string]*audited{}}
	set, covered := c.Weights(), map[string]bool{}
	if x.holders = c.Holders(set); set != nil {
		for _, w := range set.All() {
			x.take(w)
			covered[w.Stored] = true
		}
	}
	seen := map[string]bool{}
	for t := range c.Tensors() {
		switch {
		case seen[t.Name]:
			x.duplicates++
		case !covered[t.Name]: // without a config, or fused experts that cannot be taken apart
			x.take(&weights.Weight{Info: t, Place: table.PlaceOf(c.Config, t.Name), Stored: t.Name})
		}
		seen[t.Name] = true
	}
	if v.Selection.All() {
		for _, p := range v.Parts {
			x.sums = append(x.sums, checksum{Part: p})
			x.Expect(p.Size)
		}
	}
	// a stored head is compared with the embedding that the config ties it to
	a, b := x.byName[embedding], x.byName[head]
	if x.isTied() && a != nil && b != nil && slices.Equal(a.Shape, b.Shape) && a.DType.Casts() && b.DType.Casts() {
		x.tied = &comparison{a: a, b: b}
		x.Expect(b.Bytes())
	}
	return x
}

// take adds a weight to those that are read.
func (x *valueAudit) take(w *weights.Weight) {
	if !x.Selection.Has(w.Name) {
		x.unselected++
		return
	}
	isTable := w.Row != nil && w.Row.Integer() && w.DType == tensor.I64 && x.Config != nil
	if _, ok := w.DType.Format(); !ok && !isTable {
		x.skipped++
		return
	}
	a := &audited{Weight: w}
	x.weights, x.byName[w.Name] = append(x.weights, a), a
	x.Expect(w.Bytes())
}

// The tensors that tie_word_embeddings makes one.
const (
	embedding = "model.embed_tokens.weight"
	head      = "lm_head.weight"
)

// isTied reports whether the config makes head and embedding one.
func (x *valueAudit) isTied() bool { return x.Config != nil && x.Config.TieWordEmbeddings }

// count counts what is odd in n elements of a weight from at on.
func (x *valueAudit) count(w *audited, at, n int64) {
	var found tensor.Anomalies
	var notPositive, outside, wasteful, blocks int64
	var failed error
	for tile, err := range x.Bytes(x.Reader, w.Weight, at, n) {
		if failed = err; err != nil {
			break
		}
		if w.DType.Integer() {
			for ; len(tile) >= 8; tile = tile[8:] {
				if binary.LittleEndian.Uint64(tile) >= uint64(x.Config.MoE.NRoutedExperts) {
					outside++
				}
			}
			continue
		}
		found.Add(tile, w.DType)
		switch {
		case w.IsScales():
			n := int(w.DType.Elements(int64(len(tile))))
			scales, _ := tensor.Tensor{DType: w.DType, Shape: []int{n}, Data: tile}.Float32s(nil)
			for _, v := range scales {
				if v <= 0 {
					notPositive++
				}
			}
		case w.DType.Blocked():
			some, all := tensor.Wasteful(tile, w.DType)
			wasteful, blocks = wasteful+some, blocks+all
		}
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	w.Merge(found)
	w.notPositive += notPositive
	w.outside += outside
	w.wasteful, w.blocks = w.wasteful+wasteful, w.blocks+blocks
	if w.err == nil {
		w.err = failed
	}
}

// sum computes the checksum of a part.
func (x *valueAudit) sum(p *checksum) error {
	buffer := make([]byte, weights.TileBytes)
	for at := int64(0); at < p.Size && !x.Ended(); {
		tile := buffer[:min(weights.TileBytes, p.Size-at)]
		if err := x.ReadFile(p.File, tile, p.Offset+at); err != nil {
			return err
		}
		p.actual = crc32.Update(p.actual, crc32.IEEETable, tile)
		at += int64(len(tile))
		x.Done(int64(len(tile)))
	}
	return nil
}

// beyondF16 is the first number that is infinite in F16.
const beyondF16 = 65520

// hasNumbers reports whether the scales of a weight were read and can be used.
func (x *valueAudit) hasNumbers(w *audited) bool {
	if w.Scales == nil || w.CheckScales() != nil {
		return false
	}
	s := x.byName[w.Scales.Name]
	return s != nil && s.err == nil
}

// multiply counts the products in F32 of a weight and its scales. It reads the weight only if some product may be
// beyond F16, or if its zeros or the order of its columns may be wrong.
func (x *valueAudit) multiply(again *weights.Reading, w *audited) error {
	large, most := w.Form().Second != "" || w.Places != nil, w.Form().Largest
	for scales, err := range again.Numbers(x.Reader, w.Scales, 0, int64(w.Scales.Len())) {
		if err != nil {
			return err
		}
		large = large || slices.ContainsFunc(scales, func(s float32) bool { return max(s, -s)*most >= beyondF16 })
	}
	if !large {
		return nil
	}
	for values, err := range again.Numbers(x.Reader, w.Weight, 0, int64(w.Len())) {
		if err != nil {
			return err
		}
		for _, v := range values {
			if math.IsInf(float64(v), 0) {
				w.Infinite++
			} else if max(v, -v) >= beyondF16 {
				w.BeyondF16++
			}
		}
	}
	return nil
}
