package model_test

import (
	"context"
	"fmt"
	"log"

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
