package experts

import (
	"context"
	"slices"

	"dsmoe/inspect"
	"dsmoe/inspect/matrix"
)

// Examine looks at the selected experts. What cannot be read is an error that names all of it.
func Examine(ctx context.Context, w inspect.Weights, o Options) (*Report, error) {
	if err := w.Config.Computable(); err != nil {
		return nil, err
	}
	layers, not, err := selected(&w, o.Selection)
	if err != nil {
		return nil, err
	}
	r, count := newReport(w.Path, not, o.By), len(layers)
	if w.Part != nil { // an expert is odd among those of all parts' layers
		whole := w
		whole.Part = nil
		all, _, err := selected(&whole, o.Selection)
		if err != nil {
			return nil, err
		}
		count = len(all)
	}
	x := matrix.NewReader(ctx, w)
	for _, l := range layers {
		x.Expect(2 * l.bytes())
	}
	var suspects []*suspect
	for _, l := range layers {
		layer, found, err := examineLayer(x, l, count, w.Config.InitializerRange)
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
	if w.Part != nil {
		r.Part = &partFindings{Part: *w.Part, Single: withMembers(r.Observed), Twins: withMembers(twins)}
		r.notCompared(w.Part.Of)
	}
	r.find(r.Observed, twins)
	return r, nil
}

// newReport returns a report without layers.
func newReport(path string, not []inspect.NotCounted, by inspect.Grouping) *Report {
	return &Report{Path: path, Layers: []Layer{}, Examined: inspect.Examined{NotCounted: not}, by: by}
}

// find makes the findings of those within layers and of twins.
func (r *Report) find(single, twins []inspect.Observation) {
	r.Conclude(slices.Concat(single, twins, untrainedLayers(r.Layers), trends(r.Layers)))
}

// withMembers returns observations that have a list of members, if an empty one.
func withMembers(found []inspect.Observation) []inspect.Observation {
	list := []inspect.Observation{}
	for _, o := range found {
		if o.Members == nil {
			o.Members = []inspect.Member{}
		}
		list = append(list, o)
	}
	return list
}

// notCompared notes what several parts leave open.
func (r *Report) notCompared(parts int) {
	if parts > 1 {
		r.NotCompared = "experts in layers of different parts: whether they are equal is not known"
	}
}

// Merge joins the reports of all parts of a checkpoint, in their order, into the report of all its experts: that of one
// run, but that equal experts of different parts are not found.
func Merge(parts []*Report, by inspect.Grouping) *Report {
	r := newReport(parts[0].Path, []inspect.NotCounted{}, by)
	var single, twins []inspect.Observation
	for _, p := range parts {
		r.Layers, r.NotCounted = append(r.Layers, p.Layers...), append(r.NotCounted, p.NotCounted...)
		single, twins = append(single, p.Part.Single...), append(twins, p.Part.Twins...)
	}
	r.notCompared(len(parts))
	r.find(single, twins)
	return r
}

// examineLayer looks at the experts of one of so many layers, and returns what is odd about them. initializer is the
// config's initializer_range.
func examineLayer(x *matrix.Reader, l *layerMLPs, layers int, initializer float64) (*Layer, []inspect.Observation, error) {
	probes, err := probes(x, l)
	if err != nil {
		return nil, nil, err
	}
	all := make([]*Expert, len(l.all))
	for i, m := range l.all {
		x.Go(func() (err error) {
			all[i], err = examine(x, m, probes)
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
