package model

import (
	"fmt"
	"iter"

	"dsmoe/config"
	"dsmoe/model/tensor"
	"dsmoe/model/weights"
)

// Source is weights.Source.
type Source = weights.Source

// Canonical returns src under the names of the table.
func Canonical(c *config.Config, src Source) Source { return canonical{weights.New(c, src), src} }

type canonical struct {
	set *weights.Set
	src Source
}

func (c canonical) Tensors() iter.Seq[tensor.Info] {
	return func(yield func(tensor.Info) bool) {
		for _, w := range c.set.All() {
			if !yield(w.Info) {
				return
			}
		}
	}
}

func (c canonical) Tensor(name string) (tensor.Tensor, error) {
	w := c.set.Find(name)
	if w == nil {
		return tensor.Tensor{}, fmt.Errorf("there is no tensor %q", name)
	}
	return w.View(c.src)
}
