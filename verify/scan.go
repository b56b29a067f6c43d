package verify

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"iter"
	"runtime"
	"slices"

	"golang.org/x/sync/errgroup"

	"dsmoe/config"
	"dsmoe/model/table"
	"dsmoe/model/tensor"
	"dsmoe/model/weights"
	"dsmoe/text"
	"dsmoe/verify/diagnose"
	"dsmoe/verify/report"
)

// scan looks for NaNs and infinities in weights that no product used whole: experts that no token reached, rows
// of the embedding, prediction layers that were not run. A NaN in another weight would show in a stage. Weights
// of parts that are not run are not read.
func (e *evidence) scan(ctx context.Context) error {
	all := e.unscanned()
	found := make([]string, len(all))
	g, ctx := errgroup.WithContext(ctx)
	if g.SetLimit(e.job.options.Parallelism); e.job.options.Parallelism == 0 {
		g.SetLimit(runtime.GOMAXPROCS(0))
	}
	for i, w := range all {
		g.Go(func() (err error) {
			found[i], err = e.job.notFiniteIn(ctx, w)
			return err
		})
	}
	err := g.Wait()
	e.notFinite = slices.DeleteFunc(found, func(where string) bool { return where == "" })
	return err
}

// unscanned lists the weights of the table that no product has shown whole, and their scales.
func (e *evidence) unscanned() (all []*weights.Weight) {
	for s := range table.FamilyOf(e.job.model.Config).Required(e.job.model.Config, e.job.weights.Has) {
		w := e.job.weights.Find(s.Name)
		if _, used := e.exercised[s.Name]; w == nil || !e.job.scope.reads(s) || used && !s.Row.LookedUp() {
			continue
		}
		all = append(append(all, w), w.Sides()...)
	}
	return all
}

// notFiniteIn locates a NaN or an infinity in a weight; empty if there is none.
func (j *job) notFiniteIn(ctx context.Context, w *weights.Weight) (where string, err error) {
	at := int64(0)
	for data, err := range j.pieces(w) {
		if err := cmp.Or(err, ctx.Err()); err != nil {
			return "", err
		}
		piece := tensor.Tensor{DType: w.DType, Shape: []int{1, int(w.DType.Elements(int64(len(data))))}, Data: data}
		if !piece.Finite() {
			i, v := diagnose.FirstNotFinite(piece)
			return fmt.Sprintf("%s holds %s at %v", text.Quote(w.Name), report.Number(v), report.Unflatten(int(at)+i, w.Shape)),
				nil
		}
		at += int64(piece.Shape[1])
	}
	return "", nil
}

// pieceSize is the bytes that are read at once of a weight that cannot be viewed.
const pieceSize = 1 << 20

// pieces yields the bytes of a weight: all at once, or where it has no view in parts.
func (j *job) pieces(w *weights.Weight) iter.Seq2[[]byte, error] {
	return func(yield func([]byte, error) bool) {
		u, unviewed := w.AsUnviewed(j.source)
		if !unviewed {
			x, err := w.View(j.source)
			if yield(x.Data, err); j.options.Pages != nil && len(x.Data) > 0 {
				j.options.Pages.DontNeed(x.Data)
			}
			return
		}
		size := w.DType.Bytes(w.DType.Elements(pieceSize))
		if w.Places != nil { // which each reading reads whole
			size = w.Bytes()
		}
		buffer := make([]byte, min(w.Bytes(), size))
		for at := int64(0); at < w.Bytes(); at += int64(len(buffer)) {
			part := buffer[:min(int64(len(buffer)), w.Bytes()-at)]
			if err := w.ReadAt(u, part, at); !yield(part, err) {
				return
			}
		}
	}
}

// checkTied refuses a stored head that differs from the embedding it is tied to under the rules of
// the published code. transformers' own classes compute with the stored one: model.Load binds it.
func (j *job) checkTied() error {
	head, embedding := j.weights.Find(table.HeadName), j.weights.Find(embeddingName)
	if !j.model.Config.TieWordEmbeddings || j.model.Config.Reference != config.Remote || !isRead(head) || !isRead(embedding) {
		return nil
	}
	same, err := j.sameBytes(head, embedding)
	if err == nil && !same {
		err = errTiedApart
	}
	return err
}

// embeddingName is the name of the embedding's weight.
const embeddingName = "model.embed_tokens.weight"

// sameBytes reports whether two weights have the same shape, dtype and bytes.
func (j *job) sameBytes(a, b *weights.Weight) (bool, error) {
	if a.DType != b.DType || a.Bytes() != b.Bytes() {
		return false, nil
	}
	next, stop := iter.Pull2(j.pieces(b))
	defer stop()
	for x, err := range j.pieces(a) {
		y, errB, _ := next()
		if err := errors.Join(err, errB); err != nil || !bytes.Equal(x, y) {
			return false, err
		}
	}
	return true, nil
}

// errTiedApart refuses a stored head that the published code gives no single meaning.
var errTiedApart = errors.New("tie_word_embeddings is true, but lm_head.weight is stored, with other numbers than " +
	"model.embed_tokens.weight: the published code keeps one of the two for both, the one that it reads last; " +
	"take lm_head.weight out, or set tie_word_embeddings to false")
