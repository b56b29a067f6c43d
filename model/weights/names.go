package weights

import (
	"strconv"
	"strings"

	"dsmoe/model/tensor"
)

// OwnerOf returns the name of the weight that a stored tensor belongs to: its own, or of
// scales that of what they scale.
func OwnerOf(name string) string {
	_, part := tensor.PartOf(tensor.Info{Name: name})
	return strings.TrimSuffix(name, part)
}

// expertsMark is what stands before the number of a routed expert.
const expertsMark = ".mlp.experts."

// CutExpert takes the number of a routed expert out of a name: "….mlp.experts.", 17 and
// ".up_proj.weight". A number with a sign or with zeros before it is none.
func CutExpert(name string) (before string, expert int, after string, ok bool) {
	at := strings.LastIndex(name, expertsMark)
	if at < 0 {
		return name, 0, "", false
	}
	at += len(expertsMark)
	digits, _, _ := strings.Cut(name[at:], ".")
	expert, err := strconv.Atoi(digits)
	if err != nil || expert < 0 || strconv.Itoa(expert) != digits {
		return name, 0, "", false
	}
	return name[:at], expert, name[at+len(digits):], true
}
