package verify

import (
	"cmp"
	"context"
	"errors"
	"fmt"
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
	var all []*weights.Weight // and their scales
	for s := range e.job.weights.required() {
		w := e.job.weights.Find(s.Name)
		if _, used := e.exercised[s.Name]; w == nil || !e.job.scope.reads(s) || used && !s.Row.LookedUp() {
			continue
		}
		all = append(append(all, w), w.Sides()...)
	}
	found := make([]string, len(all))
	g, ctx := errgroup.WithContext(ctx)
	if g.SetLimit(e.job.options.Parallelism); e.job.options.Parallelism == 0 {
		g.SetLimit(runtime.GOMAXPROCS(0))
	}
	for i, w := range all {
		g.Go(func() (err error) {
			found[i], err = e.job.weights.notFiniteIn(ctx, w)
			return err
		})
	}
	err := g.Wait()
	e.notFinite = slices.DeleteFunc(found, func(where string) bool { return where == "" })
	return err
}

// notFiniteIn locates a NaN or an infinity in a weight; empty if there is none.
func (s *storedWeights) notFiniteIn(ctx context.Context, w *weights.Weight) (where string, err error) {
	at := int64(0)
	for data, err := range s.pieces(w) {
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

// checkTied refuses a stored head that differs from the embedding it is tied to under the rules of
// the published code. transformers' own classes compute with the stored one: model.Load binds it.
func (s *storedWeights) checkTied() error {
	head, embedding := s.Find(table.HeadName), s.Find(embeddingName)
	if !s.config.TieWordEmbeddings || s.config.Reference != config.Remote || !isRead(head) || !isRead(embedding) {
		return nil
	}
	same, err := s.sameBytes(head, embedding)
	if err == nil && !same {
		err = errTiedApart
	}
	return err
}

// embeddingName is the name of the embedding's weight.
const embeddingName = "model.embed_tokens.weight"

// errTiedApart refuses a stored head that the published code gives no single meaning.
var errTiedApart = errors.New("tie_word_embeddings is true, but lm_head.weight is stored, with other numbers than " +
	"model.embed_tokens.weight: the published code keeps one of the two for both, the one that it reads last; " +
	"take lm_head.weight out, or set tie_word_embeddings to false")
