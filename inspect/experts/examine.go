package experts

import (
	"context"
	"slices"

	"dsmoe/inspect"
	"dsmoe/inspect/matrix"
)

// Examine looks at the selected experts. The error names every weight that cannot be read.
func Examine(ctx context.Context, w inspect.Weights, o Options) (*Report, error) {
	if err := w.Config.Computable(); err != nil {
		return nil, err
	}
	layers, not, err := selected(&w, o.Selection)
	if err != nil {
		return nil, err
	}
	r := &Report{Path: w.Path, Layers: []Layer{}, Examined: inspect.Examined{NotCounted: not}, by: o.By}
	x := matrix.NewReader(ctx, w)
	for _, l := range layers {
		x.Expect(2 * l.bytes())
	}
	var suspects []*suspect
	for _, l := range layers {
		layer, found, err := examineLayer(x, l, len(layers), w.Config.InitializerRange)
		if err != nil {
			return nil, err
		}
		suspects = append(suspects, l.suspects(layer)...)
		if !o.Similarities {
			layer.Similarity = nil
		}
		r.Layers, r.Observed = append(r.Layers, *layer), append(r.Observed, found...)
	}
	twins, err := duplicates(x, suspects)
	if err != nil {
		return nil, err
	}
	r.Conclude(slices.Concat(r.Observed, twins, untrainedLayers(r.Layers), trends(r.Layers)))
	return r, nil
}

// examineLayer looks at the experts of one of so many layers, and returns what is odd about them. initializer is the
// config's initializer_range.
func examineLayer(x *matrix.Reader, l *layerMLPs, layers int, initializer float64) (*Layer, []inspect.Observation, error) {
	var norm, probes []float32 // probes are the inputs of the experts; nil without a whole one
	if i := slices.IndexFunc(l.all, (*mlp).isWhole); i >= 0 {
		if l.norm != nil && inspect.Countable(l.norm) == nil {
			var err error
			if norm, err = x.Again.All(x.Reader, l.norm, nil); err != nil {
				return nil, nil, err
			}
		}
		probes = probesOf(l.all[i].weights.Gate.Shape[1], norm)
	}
	all := make([]*Expert, len(l.all))
	for i, m := range l.all {
		x.Go(func() (err error) {
			if all[i], err = read(x, m, probes, true); err == nil {
				all[i].facts.responses = Matrices[[]float32]{} // they are many, and only the matching of twins needs them
			}
			return err
		})
	}
	if err := x.Wait(); err != nil {
		return nil, nil, err
	}
	r := &Layer{Layer: l.layer, Experts: []Expert{}, Similarity: &Similarity{}}
	for _, e := range all {
		if e.Expert < 0 {
			r.Shared = e
		} else {
			r.Experts = append(r.Experts, *e)
		}
	}
	r.fillSpreads()
	found := r.observe(layers, initializer)
	if len(r.Experts) > 1 {
		r.functions()
	}
	if err := similarities(x, l, r); err != nil {
		return nil, nil, err
	}
	near, err := nearTwins(x, l, r, probes, layers)
	return r, slices.Concat(found, near, r.sharedCopies(layers)), err
}
