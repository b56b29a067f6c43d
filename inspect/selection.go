package inspect

import (
	"errors"
	"fmt"
	"maps"
	"path"
	"slices"
	"strconv"
	"strings"

	"dsmoe/model/table"
	"dsmoe/model/weights"
	"dsmoe/text"
)

// Selection says which tensors an inspection is about; the zero value is all of them. A
// tensor is in it if all that is given holds.
type Selection struct {
	Layers  text.Spans // those of these layers, prediction layers among them
	Experts text.Spans // those of these routed experts
	Match   []string   // those whose name one of these globs of package path matches; scales go with their weight
}

// All says whether nothing is left out.
func (s Selection) All() bool { return len(s.Layers)+len(s.Experts)+len(s.Match) == 0 }

// Has says whether the tensor of that name, with or without the leading "model.", is
// selected. Fused experts are those of every number.
func (s Selection) Has(name string) bool {
	at := placeOf(name)
	switch {
	case len(s.Layers) > 0 && (at.layer < 0 || !s.Layers.Has(at.layer)):
		return false
	case len(s.Experts) > 0 && !at.fused && (at.expert < 0 || !s.Experts.Has(at.expert)):
		return false
	}
	return len(s.Match) == 0 || slices.ContainsFunc(s.Match, func(glob string) bool { return matches(glob, name) })
}

// matches says whether a glob matches a tensor, or the weight whose scales it holds.
func matches(glob, name string) bool {
	itself, _ := path.Match(glob, name)
	weight, _ := path.Match(glob, weights.OwnerOf(name))
	return itself || weight
}

// place is where in the model a tensor is.
type place struct {
	layer  int  // -1 outside the layers
	expert int  // of the routed ones; -1 outside them
	fused  bool // it holds the weights of all experts of its layer
}

// placeOf reads the numbers in a tensor's name.
func placeOf(name string) place {
	at := place{layer: -1, expert: -1}
	if rest, ok := strings.CutPrefix(strings.TrimPrefix(name, "model."), "layers."); ok {
		digits, _, _ := strings.Cut(rest, ".")
		if n, ok := number(digits); ok {
			at.layer = n
		}
	}
	if _, n, _, ok := weights.CutExpert(name); ok {
		at.expert = n
	}
	f, _ := table.FusedAt(weights.OwnerOf(name))
	at.fused = f != nil
	return at
}

// pick returns those of all that are selected, in their order, or says what of the
// selection is not there: layers, experts, globs that match nothing. Something is always
// selected unless all is empty.
func pick[T any](s Selection, all []T, name func(T) string) ([]T, error) {
	if err := check(s, all, name); err != nil {
		return nil, err
	}
	picked := slices.DeleteFunc(slices.Clone(all), func(x T) bool { return !s.Has(name(x)) })
	if len(picked) == 0 && len(all) > 0 {
		return nil, errors.New("nothing is selected: no tensor is in all of the given layers, experts and globs")
	}
	return picked, nil
}

// check compares a selection with what there is.
func check[T any](s Selection, all []T, name func(T) string) error {
	layers, experts, fused := map[int]bool{}, map[int]bool{}, false
	for _, x := range all {
		at := placeOf(name(x))
		layers[at.layer], experts[at.expert], fused = true, true, fused || at.fused
	}
	delete(layers, -1)
	delete(experts, -1)
	errs := []error{absent("the checkpoint", "layers", s.Layers, layers)}
	if !fused {
		errs = append(errs, absent("the checkpoint", "experts", s.Experts, experts))
	}
	for _, glob := range s.Match {
		if _, err := path.Match(glob, ""); err != nil {
			errs = append(errs, fmt.Errorf("%s is not a glob: * stands for anything, ? for a character, [a-z] for one of a set", strconv.Quote(glob)))
		} else if !slices.ContainsFunc(all, func(x T) bool { return matches(glob, name(x)) }) {
			errs = append(errs, fmt.Errorf("the glob %s matches no tensor", strconv.Quote(glob)))
		}
	}
	return errors.Join(errs...)
}

// absent says which of the numbers somebody has not.
func absent(who, what string, numbers text.Spans, there map[int]bool) error {
	missing := numbers.Absent(func(n int) bool { return there[n] })
	if missing == nil {
		return nil
	}
	have := "has none"
	if len(there) > 0 {
		have = "has " + text.Ranges(slices.Sorted(maps.Keys(there)))
	}
	return fmt.Errorf("%s %s: %s not there: %s %s", what, numbers, text.Ranges(missing), who, have)
}
