package inspect

import (
	"errors"
	"fmt"
	"path"
	"slices"

	"dsmoe/model/table"
	"dsmoe/model/weights"
	"dsmoe/text"
)

// Selection says which tensors an inspection is about. A tensor is selected if all three fields allow it; an empty
// field allows every tensor.
type Selection struct {
	Layers  text.Spans // of the model, prediction layers included
	Experts text.Spans // routed experts
	Match   []string   // globs of package path, for names; scales go with their weight
}

// All reports whether every tensor is selected.
func (s Selection) All() bool { return len(s.Layers)+len(s.Experts)+len(s.Match) == 0 }

// Has reports whether the tensor of that name, with or without the leading "model.", is selected. Fused experts
// have every number.
func (s Selection) Has(name string) bool {
	at := table.PlaceOf(nil, name)
	switch {
	case len(s.Layers) > 0 && (at.Layer < 0 || !s.Layers.Has(at.Layer)):
		return false
	case len(s.Experts) > 0 && !isFused(name) && (at.Expert < 0 || !s.Experts.Has(at.Expert)):
		return false
	}
	return len(s.Match) == 0 || slices.ContainsFunc(s.Match, func(glob string) bool { return matches(glob, name) })
}

// matches reports whether a glob matches a tensor, or the weight whose scales it holds.
func matches(glob, name string) bool {
	itself, _ := path.Match(glob, name)
	weight, _ := path.Match(glob, weights.OwnerOf(name))
	return itself || weight
}

// isFused reports whether a tensor holds the weights, or their scales, of all experts of its layer.
func isFused(name string) bool {
	f, _ := table.FusedAt(weights.OwnerOf(name))
	return f != nil
}

// Pick returns the selected ones of all, in their order. Layers and experts that are absent, and globs that match
// nothing, are an error. Something is always selected unless all is empty.
func Pick[T any](s Selection, all []T, name func(T) string) ([]T, error) {
	layers, experts, fused := map[int]bool{}, map[int]bool{}, false
	for _, x := range all {
		at := table.PlaceOf(nil, name(x))
		layers[at.Layer], experts[at.Expert], fused = true, true, fused || isFused(name(x))
	}
	delete(layers, -1)
	delete(experts, -1)
	errs := []error{s.Layers.Check("the checkpoint", "layers", layers)}
	if !fused {
		errs = append(errs, s.Experts.Check("the checkpoint", "experts", experts))
	}
	for _, glob := range s.Match {
		if err := text.CheckGlob(glob); err != nil {
			errs = append(errs, err)
		} else if !slices.ContainsFunc(all, func(x T) bool { return matches(glob, name(x)) }) {
			errs = append(errs, fmt.Errorf("the glob \"%s\" matches no tensor", text.Line(glob)))
		}
	}
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	picked := slices.DeleteFunc(slices.Clone(all), func(x T) bool { return !s.Has(name(x)) })
	if len(picked) == 0 && len(all) > 0 {
		return nil, errors.New("nothing is selected: no tensor is in all of the given layers, experts and globs")
	}
	return picked, nil
}
