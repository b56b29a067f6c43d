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
		ours, err := here.Ints(layer.Layer + "." + pack.TopKIdx)
		if err != nil {
			return nil, err
		}
		theirs, err := there.Ints(layer.Layer + "." + pack.TopKIdx)
		if err != nil {
			return nil, err
		}
		l := report.AgainstChoices{Layer: layer.Layer, Choices: layer.Choices}
		tokens := len(in.InputIDs)
		padded, k := pack.PaddedTokens(in, tokens), len(ours)/tokens
		for t := range tokens {
			row, its := ours[t*k:(t+1)*k], theirs[t*k:(t+1)*k]
			if padded.Has(t) {
				continue
			}
			n := len(only(row, its, make([]float32, len(layer.Load))))
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
