package table

import (
	"slices"
	"strconv"
)

// Kept lists the routed experts that a smaller model keeps of a larger one, by layer, ascending: expert i of layer l of
// the smaller model is expert Kept[l][i] of the larger. A layer that is not listed keeps all its experts.
type Kept map[int][]int

// Renumber returns the smaller model's number of an expert of the larger model; false if the expert is dropped.
func (k Kept) Renumber(layer, expert int) (number int, kept bool) {
	experts, listed := k[layer]
	if !listed {
		return expert, true
	}
	return slices.BinarySearch(experts, expert)
}

// Smaller returns the smaller model's name of a weight or a stage of the larger model that is kept.
func (k Kept) Smaller(name string) string {
	return k.renamed(name, func(experts []int, expert int) int { return slices.Index(experts, expert) })
}

// Larger returns the larger model's name of a weight or a stage of the smaller model.
func (k Kept) Larger(name string) string {
	return k.renamed(name, func(experts []int, expert int) int {
		if expert < len(experts) {
			return experts[expert]
		}
		return expert
	})
}

// renamed gives the routed expert in a name the number that f returns, in a layer that is listed.
func (k Kept) renamed(name string, f func(experts []int, expert int) int) string {
	if len(k) == 0 {
		return name
	}
	p := PlaceOf(nil, name)
	experts, listed := k[p.Layer]
	if !listed || p.Expert < 0 {
		return name
	}
	begin, end, _ := expertAt(name)
	return name[:begin] + strconv.Itoa(f(experts, p.Expert)) + name[end:]
}

// Shape returns the smaller model's shape of a weight at a place of the larger model.
func (k Kept) Shape(p Place, shape []int) []int {
	experts, listed := k[p.Layer]
	if !listed || !p.Role().CountsExperts() {
		return shape
	}
	if smaller := slices.Clone(shape); shape[0] == 1 { // a row with an element for each expert
		smaller[1] = len(experts)
		return smaller
	}
	return append([]int{len(experts)}, shape[1:]...)
}
