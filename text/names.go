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
		c := strings.Compare(x, y)
		switch numberA, numberB := isNumber(x), isNumber(y); {
		case numberA && numberB:
			c = cmp.Or(cmp.Compare(len(x), len(y)), c)
		case numberA:
			c = -1
		case numberB:
			c = 1
		}
		switch {
		case c != 0:
			return c
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

// isNumber reports whether s is a non-negative integer in its usual form: ASCII digits without a
// leading zero. The longer of two such numbers is the larger.
func isNumber(s string) bool {
	return s != "" && (s[0] != '0' || s == "0") && strings.Trim(s, "0123456789") == ""
}
