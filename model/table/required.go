package table

// Which weights a checkpoint must hold, its multi-token prediction layers included.

import (
	"fmt"
	"iter"
	"slices"

	"dsmoe/config"
	"dsmoe/text"
)

// Required yields the weights that a checkpoint of c must hold, given which it has: the
// decoder's, a head that is stored though it is tied (see UsesStoredHead), and of each
// prediction layer of which it has any weight all that MTPSlots yields, but copies of the main
// model's that it leaves out.
func (f *Family) Required(c *config.Config, has func(name string) bool) iter.Seq[Slot] {
	return func(yield func(Slot) bool) {
		for s := range f.Slots(c) {
			if !yield(s) {
				return
			}
		}
		if UsesStoredHead(c, has) {
			head := *f.Row(Head, LMHead)
			head.When = nil
			for s := range slots([]*Row{&head}, c, 0, 0) {
				if !yield(s) {
					return
				}
			}
		}
		absent := f.AbsentMTP(c, has)
		for s := range f.MTPSlots(c) {
			needed := !slices.Contains(absent, s.Layer) && (!s.Row.Copied() || has(s.Name))
			if needed && !yield(s) {
				return
			}
		}
	}
}

// HeadName is the name of the head's weight.
const HeadName = "lm_head.weight"

// UsesStoredHead reports whether the reference computes with a stored head though
// tie_word_embeddings is true. from_pretrained of transformers 5 does: it ties the two only if
// their values are the same.
func UsesStoredHead(c *config.Config, has func(name string) bool) bool {
	return c.TieWordEmbeddings && c.Reference == config.Native && has(HeadName)
}

// AbsentMTP returns the prediction layers of c, by their numbers behind the decoder's, of
// which a checkpoint has no weight.
func (f *Family) AbsentMTP(c *config.Config, has func(name string) bool) (layers []int) {
	for s := range f.MTPSlots(c) {
		if n := len(layers); n == 0 || layers[n-1] != s.Layer {
			layers = append(layers, s.Layer)
		}
	}
	for s := range f.MTPSlots(c) {
		if i, waiting := slices.BinarySearch(layers, s.Layer); waiting && has(s.Name) {
			layers = slices.Delete(layers, i, i+1)
		}
	}
	return layers
}

// Notes names the prediction layers that c announces and a checkpoint lacks. That is no mistake:
// without them a model computes the same.
func (f *Family) Notes(c *config.Config, has func(name string) bool) []string {
	absent, n := f.AbsentMTP(c, has), c.NumNextNPredictLayers
	if len(absent) == 0 {
		return nil
	}
	which := ""
	if len(absent) < n {
		prefix, first := "", 0
		if f.CarriesMTP { // files count them from 0
			prefix, first = predictions, c.NumHiddenLayers
		}
		for i := range absent {
			absent[i] -= first
		}
		which = " " + prefix + text.Ranges(absent)
	}
	return []string{fmt.Sprintf("num_nextn_predict_layers is %d, "+
		"but there are no tensors of multi-token prediction layers%s", n, which)}
}

// Copied reports whether the weight is a prediction layer's own copy of one of the main
// model's, which takes its place. A checkpoint may leave it out.
func (r *Row) Copied() bool { return r.When == copied }
