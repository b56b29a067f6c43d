package model_test

import (
	"context"
	"fmt"
	"log"
	"strings"

	"dsmoe/convert/checkpoint"
	"dsmoe/model"
)

// A forward pass: the likeliest token behind each of three.
func Example() {
	c, err := checkpoint.Open("../fixtures/v1-base/checkpoint")
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close()
	m, err := model.Load(c.Config, c)
	if err != nil {
		log.Fatal(err)
	}
	plain := model.NewPlain(model.Options{})
	in := &model.Input{Batch: 1, Seq: 3, InputIDs: []int{1, 2, 3}}
	net := model.Network[*model.Activation]{Model: m, Input: in, Arithmetic: plain}
	logits, err := net.Forward(context.Background())
	if err != nil {
		log.Fatal(err)
	}
	for i := range in.Seq {
		row := logits.Values[i*c.Config.VocabSize:][:c.Config.VocabSize]
		fmt.Println(in.InputIDs[i], model.TopK(row, 1))
	}
	// Output:
	// 1 [245]
	// 2 [75]
	// 3 [22]
}

// gates is a model.Trace that prints the experts of the last token in each layer.
type gates struct{}

// Stage sees the output of every module; it may change the values, with which the pass goes on.
func (gates) Stage(name string, x *model.Activation) error {
	if strings.HasSuffix(name, "mlp.experts.output") {
		fmt.Println(name, x.Shape)
	}
	return nil
}

// TopK sees what a gate chose, before it is used.
func (gates) TopK(name string, c *model.Choice[*model.Activation]) error {
	fmt.Println(name, c.Idx[len(c.Idx)-4:])
	return nil
}

// A Trace sees every stage of a forward pass, under the name that it has in the reference.
func ExampleTrace() {
	c, err := checkpoint.Open("../fixtures/v1-base/checkpoint")
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close()
	m, err := model.Load(c.Config, c)
	if err != nil {
		log.Fatal(err)
	}
	net := model.Network[*model.Activation]{Model: m, Trace: gates{},
		Input:      &model.Input{Batch: 1, Seq: 3, InputIDs: []int{1, 2, 3}},
		Arithmetic: model.NewPlain(model.Options{})}
	if _, err := net.Forward(context.Background()); err != nil {
		log.Fatal(err)
	}
	// Output:
	// model.layers.1.mlp.gate.topk_idx [5 4 11 10]
	// model.layers.1.mlp.experts.output [3 64]
	// model.layers.2.mlp.gate.topk_idx [11 8 14 5]
	// model.layers.2.mlp.experts.output [3 64]
	// model.layers.3.mlp.gate.topk_idx [11 8 3 15]
	// model.layers.3.mlp.experts.output [3 64]
}
