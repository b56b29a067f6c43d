package table

// Names with holes for their numbers.

import (
	"strconv"
	"strings"
)

// What stands for numbers in the names of the table.
const (
	layerHole  = "{l}"
	expertHole = "{e}"

	layerPrefix = "model.layers." + layerHole + "."
	predictions = "mtp." // before the number of a prediction layer, counted from 0, in the names of files
)

func fillHoles(name string, layer, expert int) string {
	name = strings.Replace(name, layerHole, strconv.Itoa(layer), 1)
	return strings.Replace(name, expertHole, strconv.Itoa(expert), 1)
}

// room is what the patterns of most names fit into.
type room [96]byte

// cut returns name with holes for its numbers: for the layer behind "model.layers." or "layers.",
// for the routed expert behind the last ".experts."; the numbers are -1 without one. Thousands of names
// are cut at once, so patterns are made in r.
func (r *room) cut(name string) (pattern []byte, layer, expert int) {
	const layers = "model.layers."
	pattern, layer = r[:0], -1
	if strings.HasPrefix(name, layers[len("model."):]) {
		pattern = append(pattern, "model."...)
	}
	if at := len(layers) - len(pattern); strings.HasPrefix(name, layers[len(pattern):]) {
		if n, digits := number(name[at:]); n >= 0 {
			layer = n
			pattern = append(append(pattern, name[:at]...), layerHole...)
			name = name[at+digits:]
		}
	}
	pattern, expert = appendCut(pattern, name)
	return pattern, layer, expert
}

// cutStored returns a stored name with holes for the numbers of its layer, of the decoder or a prediction layer, and of
// its expert; they are -1 without one.
func (r *room) cutStored(name string) (pattern []byte, layer, expert int) {
	pattern, layer = r[:0], -1
	for _, before := range [...]string{"layers.", "model.layers.", predictions, "model." + predictions, predictions + "layers.",
		"model.language_model.layers.", "language_model.model.layers.", "backbone.layers."} {
		if !strings.HasPrefix(name, before) {
			continue
		}
		if n, digits := number(name[len(before):]); n >= 0 {
			layer = n
			pattern = append(append(pattern, before...), layerHole...)
			name = name[len(before)+digits:]
		}
	}
	pattern, expert = appendCut(pattern, name)
	return pattern, layer, expert
}

// appendCut appends name with a hole for the number of its routed expert, and returns that number; -1 without one.
func appendCut(pattern []byte, name string) (appended []byte, expert int) {
	begin, end, expert := expertAt(name)
	if expert >= 0 {
		pattern = append(append(pattern, name[:begin]...), expertHole...)
		name = name[end:]
	}
	return append(pattern, name...), expert
}

// expertAt returns where in a name the number of a routed expert is, and that; -1 without one.
func expertAt(name string) (begin, end, expert int) {
	const experts = ".experts."
	begin = strings.LastIndex(name, experts) + len(experts)
	if begin < len(experts) {
		return 0, 0, -1
	}
	expert, digits := number(name[begin:])
	return begin, begin + digits, expert
}

// Cut returns the name of a weight with "{l}" for the number of its layer and "{e}" for that of its routed
// expert, and the numbers; -1 without one.
func Cut(name string) (pattern string, layer, expert int) {
	cut, layer, expert := new(room).cut(name)
	return string(cut), layer, expert
}

// CutExpert returns the name of a weight or a stage with "{e}" for the number of its routed expert,
// and that number; -1 without one. The name of a stage may be that within its layer.
func CutExpert(name string) (pattern string, expert int) {
	begin, end, expert := expertAt("." + name)
	if expert < 0 {
		return name, -1
	}
	return name[:begin-1] + expertHole + name[end-1:], expert
}

// number reads the number before the first dot, and how many digits it has; -1 if there is none,
// or one with a sign or with zeros before it.
func number(s string) (n, digits int) {
	const most = 9 // digits, which every int holds
	for digits < len(s) && s[digits] != '.' {
		c := s[digits]
		if c < '0' || c > '9' || digits == most || digits == 1 && s[0] == '0' {
			return -1, 0
		}
		n = 10*n + int(c-'0')
		digits++
	}
	if digits == 0 {
		return -1, 0
	}
	return n, digits
}
