package gguf

// A model's name in the hub, taken apart, and the label of its size.

import (
	"fmt"
	"math"
	"regexp"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"dsmoe/model/tensor"
)

// modelID is what get_model_id_components of gguf-py finds in a name, and a base model's keys
// have.
type modelID struct{ name, organization, version string }

// label is a set of what a part of a name may be.
type label uint8

const (
	isVersion label = 1 << iota
	isType          // of the weights
	isSize
	isTune
	isBase // part of the name proper
)

// The forms of the parts of a name.
var (
	versionForm = regexp.MustCompile(`(?i)^(v|iter)?\d+([.]\d+)*$`)
	typeForm    = regexp.MustCompile(`(?i)^(i?q\d(_\w)*|b?fp?(16|32))$`)
	sizeForm    = regexp.MustCompile(`(?i)^((a|\d+x)?\d+([._]\d+)?[kmbt]\d?|small|mini|medium|large|x?xl)$`)
	tuneForm    = regexp.MustCompile(`(?i)^(chat|instruct|vision|lora)$`)
	plainForm   = regexp.MustCompile(`^(v\d+(\.\d+)*|\d.*)$`)
)

// parseModelID takes apart ORG/NAME or NAME. total is the number of the model's parameters,
// by which a size is told from the length of a context.
func parseModelID(id string, total int64) modelID {
	if strings.Contains(id, " ") {
		return modelID{name: id}
	}
	organization, name, ok := strings.Cut(id, "/")
	if !ok {
		organization, name = "", id
	}
	if strings.HasPrefix(organization, ".") {
		organization = ""
	}
	parts := strings.FieldsFunc(name, func(r rune) bool { return r == '-' })
	labels := make([]label, len(parts))
	for i, part := range parts {
		switch {
		case versionForm.MatchString(part):
			labels[i] = isVersion
		case typeForm.MatchString(part):
			labels[i] = isType
		case i > 0 && sizeForm.MatchString(part):
			labels[i] = sizeOrContext(part, total)
		case i > 0 && tuneForm.MatchString(part):
			labels[i] = isTune
		}
	}
	dropWords(parts, labels)
	labelBase(parts, labels)
	var version []string
	for i, part := range parts {
		if labels[i]&isVersion != 0 && labels[i]&isBase == 0 {
			version = append(version, part)
		}
	}
	return modelID{name, organization, strings.Join(version, "-")}
}

// sizeOrContext labels a number with a unit: 16B, 128k. One that is far from the model's size
// is a context's length.
func sizeOrContext(part string, total int64) label {
	part = strings.ToUpper(strings.ReplaceAll(part, "_", "."))
	if n := len(part); unicode.IsDigit(rune(part[n-1])) { // 7B1
		part = part[:n-2] + "." + part[n-1:] + part[n-2:n-1]
	}
	last := len(part) - 1
	x, err := strconv.ParseFloat(part[:last], 64)
	x *= math.Pow(1000, float64(strings.IndexByte(" KMBT", part[last])))
	if total != 0 && err == nil && math.Abs(x-float64(total)) > float64(7*total/8) {
		return isTune
	}
	return isSize
}

// dropWords takes the label from sizes in words, "mini", beside a size in numbers.
func dropWords(parts []string, labels []label) {
	numbered := false
	isNumber := func(part string) bool { return strings.ContainsAny(part, "0123456789") }
	for i, part := range parts {
		numbered = numbered || labels[i] == isSize && isNumber(part)
	}
	for i, part := range parts {
		if numbered && labels[i] == isSize && !isNumber(part) {
			labels[i] = 0
		}
	}
}

// labelBase labels the parts of the name proper: those that a name begins with, without the
// version at their end.
func labelBase(parts []string, labels []label) {
	n := 0
	for ; n < len(parts); n++ {
		first, _ := utf8.DecodeRuneInString(parts[n])
		if labels[n] != isVersion && (labels[n] != 0 || !unicode.IsLetter(first)) {
			break
		}
		labels[n] |= isBase
	}
	if n < len(parts) {
		return
	}
	for i := n - 1; i >= 0 && labels[i] != isBase; i-- {
		labels[i] &^= isBase
	}
}

// title is id_to_title of gguf-py: words in place of hyphens, in capitals unless they have
// some, or are versions.
func title(id string) string {
	words := strings.Fields(strings.ReplaceAll(id, "-", " "))
	for i, word := range words {
		upper := func(r rune) bool { return unicode.IsUpper(r) || unicode.IsTitle(r) }
		if !strings.ContainsFunc(word, upper) && strings.ContainsFunc(word, unicode.IsLower) && !plainForm.MatchString(word) {
			words[i] = capitals(word)
		}
	}
	return strings.Join(words, " ")
}

// capitals makes each letter behind none a capital.
func capitals(word string) string {
	letter := false
	return strings.Map(func(r rune) rune {
		before := letter
		if letter = unicode.IsLower(r); letter && !before {
			return unicode.ToTitle(r)
		}
		return r
	}, word)
}

// sizeLabel is general.size_label: gguf.size_label of gguf-py, "64x1.2B".
func sizeLabel(tensors []tensor.Info) string {
	shared, expert, experts, stacks := int64(0), int64(0), 0, 0
	for _, info := range tensors {
		n := int64(info.Len())
		if strings.Contains(info.Name, "_exps.") {
			expert += n / int64(max(info.Shape[0], 1))
			experts += info.Shape[0]
			stacks++
		} else {
			shared += n
		}
	}
	if stacks == 0 {
		return rounded(shared)
	}
	return fmt.Sprintf("%dx%s", experts/stacks, rounded(shared+expert))
}

// rounded is gguf-py's model_weight_count_rounded_notation: two digits at least.
func rounded(n int64) string {
	scaled, suffix := float64(n)*1e-3, "K"
	for _, unit := range []struct {
		least  float64
		suffix string
	}{{1e6, "M"}, {1e9, "B"}, {1e12, "T"}} {
		if float64(n) > unit.least {
			scaled, suffix = float64(n)/unit.least, unit.suffix
		}
	}
	digits := len(strings.TrimLeft(strconv.FormatFloat(math.RoundToEven(scaled), 'f', 0, 64), "0"))
	return strconv.FormatFloat(scaled, 'f', max(2-digits, 0), 64) + suffix
}
