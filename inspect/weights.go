package inspect

import (
	"context"
	"fmt"

	"dsmoe/config"
	"dsmoe/model/tensor"
	"dsmoe/model/weights"
)

// Weights is a checkpoint whose weights are read.
type Weights struct {
	Path     string                  // of the checkpoint, as the user gave it
	Config   *config.Config          // its config.json
	List     []*weights.Weight       // all of them, as weights.Set.Ordered has them
	Reader   weights.ReaderAt        // of the stored tensors
	Threads  int                     // workers that read at once; 0 is one per processor
	Progress func(done, total int64) // called, one call at a time, with bytes read and bytes expected; may be nil
}

// Reading returns a reading of the weights, which reports its progress.
func (w *Weights) Reading(ctx context.Context) *weights.Reading {
	return weights.NewReading(ctx, w.Threads, w.Progress)
}

// Pick returns the selected weights.
func (w *Weights) Pick(s Selection) ([]*weights.Weight, error) {
	return Pick(s, w.List, func(x *weights.Weight) string { return x.Name })
}

// Grouping names what a row of a report stands for.
type Grouping string

// The groupings. Statistics by all but ByTensor leave out the scales of FP8 weights, which the weights are multiplied with.
const (
	ByTensor Grouping = "tensor" // one tensor
	ByExpert Grouping = "expert" // the matrices of a routed expert, or of a layer's shared experts
	ByLayer  Grouping = "layer"  // the weights of a layer, or of a module outside the layers
	ByModule Grouping = "module" // a table.Module over all layers; of hashes a module of a layer
	ByModel  Grouping = "model"  // all weights
	ByPair   Grouping = "pair"   // two routed experts of a layer
)

// NotCounted is a selected tensor that has no numbers.
type NotCounted struct {
	Name  string       `json:"name"`  // the table's
	DType tensor.DType `json:"dtype"` // as it is stored
	Cause string       `json:"cause"` // why
}

// Skip returns w as not counted because of err.
func Skip(w *weights.Weight, err error) NotCounted { return NotCounted{w.Name, w.DType, err.Error()} }

// Countable returns why the numbers of a tensor cannot be counted; nil if they can.
func Countable(w *weights.Weight) error {
	if _, ok := w.DType.Format(); !ok {
		return fmt.Errorf("dtype %s has no numbers that the model computes with", w.DType)
	}
	return w.CheckScales()
}

// Measurable returns why a weight cannot be measured as a matrix; nil if it can.
func Measurable(w *weights.Weight) error {
	if len(w.Shape) != 2 || w.Len() == 0 {
		return fmt.Errorf("shape %v is not that of a matrix", w.Shape)
	}
	return Countable(w)
}
