package report

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"dsmoe/text"
)

// Describe names the parts that were checked.
func (s *Scope) Describe() string {
	if s.Whole {
		return "the whole model"
	}
	var parts []string
	add := func(is bool, part string) {
		if is {
			parts = append(parts, part)
		}
	}
	layers := slices.DeleteFunc(slices.Clone(s.Layers), func(l int) bool {
		return slices.Contains(s.Routers, l) || slices.Contains(s.Blocks, l)
	})
	if s.Chosen > 0 {
		return fmt.Sprintf("the routing alone: choices of %s in %s", text.Plural(s.Chosen, "token"), LayersText(s.Layers))
	}
	n, _ := slices.BinarySearch(layers, s.Of)
	add(s.Embedding, "the embedding")
	add(n > 0, fmt.Sprintf("%s of %d", LayersText(layers[:n]), s.Of))
	add(len(s.Routers) > 0, fmt.Sprintf("the routing alone of %s of %d", LayersText(s.Routers), s.Of))
	add(len(s.Blocks) > 0, fmt.Sprintf("the MLPs of %s of %d, attention is not computed", LayersText(s.Blocks), s.Of))
	add(n < len(layers), "prediction "+LayersText(layers[n:]))
	add(s.Head, "the head")
	if parts == nil {
		return "nothing"
	}
	what := strings.Join(parts, ", ")
	if len(s.Stages) > 0 {
		what += ", stages " + strings.Join(s.Stages, ", ")
	}
	switch {
	case s.Part != nil:
		return fmt.Sprintf("%s, as part %d of %d", what, s.Part.Index, s.Part.Of)
	case s.Selected:
		return what + ", as selected"
	}
	if s.LeftOut > 0 {
		what += ", but for " + text.Plural(s.LeftOut, "weight") + " whose stages are absent on purpose"
	}
	return what
}

// LayersText is "layer 3" or "layers 3-5".
func LayersText(layers []int) string {
	if len(layers) == 1 {
		return "layer " + strconv.Itoa(layers[0])
	}
	return "layers " + text.Ranges(layers)
}

// CountWere is a number of things with its verb: "1 weight was", "2 weights were".
func CountWere(n int, noun string) string {
	if n == 1 {
		return "1 " + noun + " was"
	}
	return text.Plural(n, noun) + " were"
}

// Sigmas is the unit of patterns of stages that are held to the error analysis.
const Sigmas = "σ"
