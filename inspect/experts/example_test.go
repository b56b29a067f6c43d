package experts_test

import (
	"context"
	"fmt"
	"log"

	"dsmoe/convert/checkpoint"
	"dsmoe/inspect"
	"dsmoe/inspect/experts"
	"dsmoe/model/weights"
)

// The experts of a checkpoint, layer by layer.
func Example() {
	c, err := checkpoint.Open("../../fixtures/v1-base/checkpoint")
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close()
	w := inspect.Weights{Config: c.Config, List: weights.New(c.Config, c).Ordered(c.Config), Reader: c}
	r, err := experts.Examine(context.Background(), w, experts.Options{})
	if err != nil {
		log.Fatal(err)
	}
	for _, l := range r.Layers {
		fmt.Printf("layer %d: %d experts, the first with a norm of gate_proj of %.3f\n", l.Layer, len(l.Experts),
			*l.Experts[0].Gate.Norm)
	}
	fmt.Println("findings:", len(r.Findings))
	// Output:
	// layer 1: 16 experts, the first with a norm of gate_proj of 7.329
	// layer 2: 16 experts, the first with a norm of gate_proj of 7.565
	// layer 3: 16 experts, the first with a norm of gate_proj of 7.417
	// findings: 0
}
