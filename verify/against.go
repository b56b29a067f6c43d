package verify

import (
	"slices"

	"dsmoe/verify/pack"
	"dsmoe/verify/report"
)

// Against compares the choices of experts of two traces of the same tokens, each of which was verified against one
// checkpoint. The error says why they cannot be compared. Of the report of the other trace it takes what was found.
func Against(here, there *pack.Pack, r, other *report.Report) (*report.Against, error) {
	in, err := here.Input()
	if err != nil {
		return nil, err
	}
	its, err := there.Input()
	if err != nil {
		return nil, err
	}
	if in.Batch != its.Batch || !slices.Equal(in.InputIDs, its.InputIDs) || !slices.Equal(in.AttentionMask, its.AttentionMask) {
		return nil, there.Fault("", "its tokens are not those of the trace that it is to be held against")
	}
	a := &report.Against{Golden: there.Dir, Verdict: other.Verdict, FirstDivergence: other.FirstDivergence, Cause: other.Cause,
		Reasons: other.Reasons, Layers: []report.AgainstChoices{}}
	for _, layer := range r.Routing.Layers {
		i := slices.IndexFunc(other.Routing.Layers, func(l report.LayerRouting) bool { return l.Layer == layer.Layer })
		if i < 0 {
			continue
		}
		name := layer.Layer + "." + pack.TopKIdx
		ours, err := here.Ints(name)
		if err != nil {
			return nil, err
		}
		theirs, err := there.Ints(name)
		if err != nil {
			return nil, err
		}
		l := report.AgainstChoices{Layer: layer.Layer, Choices: layer.Choices}
		shape := here.Manifest.Tensors[name].Shape // both were verified, and so have the model's number of choices
		k := shape[len(shape)-1]
		rows := len(ours) / k // prediction layers have fewer than tokens
		padded := pack.PaddedTokens(in, rows)
		for t := range rows {
			row, its := ours[t*k:(t+1)*k], theirs[t*k:(t+1)*k]
			if padded.Has(t) {
				continue
			}
			n := len(without(row, its, make([]float32, len(layer.Load))))
			switch l.Differ += n; {
			case layer.Wrong[t]:
				l.WrongHere += n
			case other.Routing.Layers[i].Wrong[t]:
				l.WrongThere += n
			}
		}
		a.Add(l)
	}
	return a, nil
}
