// Package diagnose finds the cause of a failed stage: known mistakes are undone one by one, and what is wrong with a
// weight is read off the numbers, as the inputs of a product, what it gave and the golden are all known. What is named
// makes every failed stage of the layer pass.
//
// A Failure holds the failed stage and the functions that run its layer, or one row of it, again with a Trial: a copy
// of the model, its config and its input with one mistake undone.
package diagnose

import (
	"context"
	"fmt"

	"dsmoe/config"
)

// mistake is one known way to get a conversion or a config wrong: its name, the
// stages at which it can be the first divergence, and how to undo it in a trial.
// undo returns what to tell the user, "" if the mistake cannot be there.
type mistake struct {
	id    string
	kinds []string
	undo  func(x *Trial) string

	experts bool   // it gives routed experts other weights and changes nothing else
	unless  string // id of a mistake that is more than this one: not tried if that was found
	guess   bool   // one of many values: not tried if any cause was found

	more func(ctx context.Context) (string, error) // what a run of the layer tells beside; may be nil
}

// ran sets a value of the config to the reference's, and says so; it returns "" if the value was that before.
func ran[T comparable](key string, value *T, theirs T) string {
	ours := *value
	if *value = theirs; ours == theirs {
		return ""
	}
	return fmt.Sprintf("the reference ran with %s %v, here it is %v", key, theirs, ours)
}

// nextTo are a number of the config that is one more or one less.
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

// windowMistakes are windows of one token more or less.
func windowMistakes(kinds []string) []mistake {
	return nextTo("sliding-window", "sliding_window", kinds,
		func(c *config.Config) *int { return &c.Windows.SlidingWindow })
}
