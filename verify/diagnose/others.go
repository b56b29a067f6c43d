package diagnose

import (
	"fmt"
	"slices"
	"strings"

	"dsmoe/model"
	"dsmoe/verify/bounds"
)

// Weights in another's place, read off a failed product: another weight of the checkpoint, times the golden's input, is
// the golden.

// otherMistakes are weights that the reference has in the place of the failed product's, and the attention or MLP that
// they belong to.
func otherMistakes(f *Failure) (list []mistake) {
	if !f.isProduct() || !bounds.AllFinite(f.Want) {
		return nil
	}
	name := f.module() + ".weight"
	of := f.Set.Find(name)
	if of == nil { // a head that is the embedding
		return nil
	}
	add := func(undo func(x *Trial) string) {
		list = append(list, mistake{id: "other-weight", kinds: []string{f.kind()}, unless: "other-weight", undo: undo})
	}
	for layer, w := range f.loadedWeights() {
		if w.Name == name || !slices.Equal(w.Shape, of.Shape) || !f.gives(w) {
			continue
		}
		add(func(x *Trial) string {
			x.change(func(a bounds.Arithmetic, o *operations) {
				o.linear = func(x *bounds.Value, l *model.Linear) *bounds.Value {
					if l.Weight.Name == name {
						l = &model.Linear{Weight: *w, Bias: l.Bias}
					}
					return a.Linear(x, l)
				}
			})
			return fmt.Sprintf("%s is not the reference's, which is stored as %s", name, w.Name)
		})
		if layer < 0 || layer == f.Layer || max(layer, f.Layer) >= len(f.Model.Model.Layers) ||
			!strings.HasPrefix(f.Kind, "self_attn.") || !sameModules(f.Model.Config, layer, f.Layer) {
			continue
		}
		add(func(x *Trial) string {
			other := ownLayer(&f.Model.Model.Layers[layer])
			x.layer.SelfAttn, x.layer.MLA = other.SelfAttn, other.MLA
			x.layer.Windowed, x.layer.Indexer = other.Windowed, other.Indexer
			return fmt.Sprintf("model.layers.%d.self_attn has the weights of another layer: with those of "+
				"model.layers.%d.self_attn it is right", f.Layer, layer)
		})
	}
	return list
}

const (
	sampledRows  = 2  // rows of a product that are compared with another weight's
	sampledUnits = 16 // columns of these
)

// gives reports whether w times the failed product's input is nearly the golden, and nearer than ours, in a sample of
// elements. The trial holds the stage to its limits.
func (f *Failure) gives(w *model.Weight) bool {
	var y, want, ours []float32
	n := f.Got.Width()
	plain := model.NewPlain(f.Options)
	defer plain.Close(nil)
	for i := range min(n, sampledUnits) {
		c := i * n / min(n, sampledUnits)
		unit := w.Rows(c, c+1)
		row := plain.Values(&unit)
		for r := range min(f.Got.Rows(), sampledRows) {
			y = append(y, float32(dot(row, f.Input.Row(r))))
			want, ours = append(want, f.Want[r*n+c]), append(ours, f.Unrounded[r*n+c])
		}
	}
	return isNear(y, want, ours, mostLeft)
}

// isNear reports whether the distance of y from want, in root mean square, is at most a share of the distance of ours,
// and of want's size.
func isNear[T float32 | float64](y []T, want, ours []float32, most float64) bool {
	left, before, whole := 0.0, 0.0, 0.0
	for i, v := range y {
		left += bounds.Sq(float64(v) - float64(want[i]))
		before += bounds.Sq(float64(ours[i]) - float64(want[i]))
		whole += bounds.Sq(float64(want[i]))
	}
	return left <= most*most*min(whole, before)
}
