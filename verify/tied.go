package verify

import (
	"bytes"
	"errors"
	"iter"

	"dsmoe/config"
	"dsmoe/model/table"
	"dsmoe/model/weights"
)

// errTiedApart refuses what the published code gives no single meaning.
var errTiedApart = errors.New("tie_word_embeddings is true, but lm_head.weight is stored, with other numbers than model.embed_tokens.weight: " +
	"the published code keeps one of the two for both, the one that it reads last; take lm_head.weight out, or set tie_word_embeddings to false")

// checkTied refuses a stored head that differs from the embedding it is tied to under the rules of
// the published code. transformers' own classes compute with the stored one: model.Load binds it.
func (t *run) checkTied() error {
	head, embedding := t.set.Find(table.HeadName), t.set.Find("model.embed_tokens.weight")
	if !t.m.Config.TieWordEmbeddings || t.m.Config.Reference != config.Remote || head == nil || embedding == nil {
		return nil
	}
	same, err := t.sameBytes(head, embedding)
	if err == nil && !same {
		err = errTiedApart
	}
	return err
}

// sameBytes reports whether two weights have the same shape, dtype and bytes.
func (t *run) sameBytes(a, b *weights.Weight) (bool, error) {
	if a.DType != b.DType || a.Bytes() != b.Bytes() {
		return false, nil
	}
	next, stop := iter.Pull2(t.pieces(b))
	defer stop()
	for x, err := range t.pieces(a) {
		y, errB, _ := next()
		if err := errors.Join(err, errB); err != nil || !bytes.Equal(x, y) {
			return false, err
		}
	}
	return true, nil
}
