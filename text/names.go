package text

import (
	"cmp"
	"strings"
)

// CompareNames orders dotted names component by component, as a model's layers are
// numbered: model.layers.9 stands before model.layers.10. Numbers are compared by value and
// stand before other components; 010 and -1 are text. The result is negative, 0 or positive,
// as cmp.Compare's, and 0 only for equal names.
func CompareNames(a, b string) int {
	for {
		x, restA, moreA := strings.Cut(a, ".")
		y, restB, moreB := strings.Cut(b, ".")
		if c := compareComponents(x, y); c != 0 {
			return c
		}
		switch {
		case moreA && moreB:
			a, b = restA, restB
		case moreA:
			return 1
		case moreB:
			return -1
		default:
			return 0
		}
	}
}

// compareComponents compares one component of two names.
func compareComponents(a, b string) int {
	switch x, y := isNumber(a), isNumber(b); {
	case x && y:
		return cmp.Or(cmp.Compare(len(a), len(b)), strings.Compare(a, b))
	case x:
		return -1
	case y:
		return 1
	}
	return strings.Compare(a, b)
}

// isNumber reports whether s is a non-negative integer in its usual form: ASCII digits without a
// leading zero. The longer of two such numbers is the larger.
func isNumber(s string) bool {
	if s == "" || s[0] == '0' && s != "0" {
		return false
	}
	for i := range len(s) {
		if s[i] < '0' || s[i] > '9' {
			return false
		}
	}
	return true
}
