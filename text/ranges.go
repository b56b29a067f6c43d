package text

import (
	"fmt"
	"iter"
	"strconv"
	"strings"
)

// Ranges writes ascending numbers, such as numbers of layers, for a sentence. Three or more
// consecutive numbers are a range: "0-3, 7", "4, 5".
func Ranges(n []int) string {
	var parts []string
	for first, last := range Runs(n) {
		switch last - first {
		case 0:
			parts = append(parts, strconv.Itoa(first))
		case 1:
			parts = append(parts, strconv.Itoa(first), strconv.Itoa(last))
		default:
			parts = append(parts, fmt.Sprintf("%d-%d", first, last))
		}
	}
	return strings.Join(parts, ", ")
}

// Set writes ascending numbers as a part of a name: "3", "{0..63}" or "{0,2..5}"; of more than most
// runs, "{0,2,4,…,62}".
func Set(set []int, most int) string {
	if len(set) == 1 {
		return strconv.Itoa(set[0])
	}
	var runs []string
	for first, last := range Runs(set) {
		if first == last {
			runs = append(runs, strconv.Itoa(first))
		} else {
			runs = append(runs, fmt.Sprintf("%d..%d", first, last))
		}
	}
	if n := len(runs); n > most {
		runs = append(runs[:most-1], "…", runs[n-1])
	}
	return "{" + strings.Join(runs, ",") + "}"
}

// Runs yields the first and the last number of each run of consecutive numbers in the ascending
// list n: 0, 1, 2, 7 gives (0, 2) and (7, 7).
func Runs(n []int) iter.Seq2[int, int] {
	return func(yield func(first, last int) bool) {
		for len(n) > 0 {
			k := 1
			for k < len(n) && n[k] == n[0]+k {
				k++
			}
			if !yield(n[0], n[k-1]) {
				return
			}
			n = n[k:]
		}
	}
}

// Some joins the first of many words, at most most of them, and says how many more there are:
// "a; b; and 7 more".
func Some[T any](all []T, most int, separator string) string {
	var words []string
	for _, x := range all[:min(len(all), most)] {
		words = append(words, fmt.Sprint(x))
	}
	if more := len(all) - most; more > 0 {
		words = append(words, fmt.Sprintf("and %d more", more))
	}
	return strings.Join(words, separator)
}
