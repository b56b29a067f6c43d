// Package diagnose finds the cause of a failed stage. It undoes known mistakes one by one, and reads what is wrong with
// a weight off the numbers: the inputs of a product, its output and the golden are known. With a cause undone every
// failed stage of the layer passes.
//
// A Failure holds the failed stage and the functions that run its layer, or one row of it, again with a Trial: a copy
// of the model, its config and its input with one mistake undone.
package diagnose

import (
	"context"
	"fmt"

	"dsmoe/config"
)

// mistake is one known way to get a conversion or a config wrong. undo undoes it in a trial and returns what to tell
// the user, "" if the mistake cannot be there.
type mistake struct {
	id    string
	kinds []string // stages at which it can be the first divergence
	undo  func(x *Trial) string

	experts bool   // it gives routed experts other weights and changes nothing else
	unless  string // id of a mistake that is more than this one: not tried if that was found
	guess   bool   // one of many values: not tried if any cause was found

	more func(ctx context.Context) (string, error) // what a run of the layer tells beside; may be nil
}

// ran sets a value of the config to the reference's and describes the difference; "" if the values are equal.
func ran[T comparable](key string, value *T, theirs T) string {
	ours := *value
	if *value = theirs; ours == theirs {
		return ""
	}
	return fmt.Sprintf("the reference ran with %s %v, here it is %v", key, theirs, ours)
}

// nextTo tries a number of the config that is one less, and one more.
func nextTo(id, key string, kinds []string, number func(c *config.Config) *int) (list []mistake) {
	for _, by := range []int{-1, 1} {
		list = append(list, mistake{id: id, kinds: kinds, undo: func(x *Trial) string {
			n := number(&x.Config)
			if *n+by < 1 {
				return ""
			}
			return ran(key, n, *n+by)
		}})
	}
	return list
}

// windowMistakes are windows that are one token smaller or larger.
func windowMistakes(kinds []string) []mistake {
	return nextTo("sliding-window", "sliding_window", kinds,
		func(c *config.Config) *int { return &c.Windows.SlidingWindow })
}
