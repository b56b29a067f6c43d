package inspect_test

import (
	"context"
	"fmt"
	"log"
	"math"

	"dsmoe/convert/checkpoint"
	"dsmoe/inspect"
	"dsmoe/model/weights"
)

// A finding of one's own: matrices with an element of more than 8 times their root mean square.
func ExampleObservation() {
	c, err := checkpoint.Open("../fixtures/v1-massive/checkpoint")
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close()
	w := inspect.Weights{Config: c.Config, List: weights.New(c.Config, c).Ordered(c.Config), Reader: c}
	reading := w.Reading(context.Background())
	for _, x := range w.List {
		values, err := reading.All(c, x, nil)
		if err != nil {
			log.Fatal(err)
		}
		squares, largest := 0.0, 0.0
		for _, v := range values {
			squares += float64(v) * float64(v)
			largest = max(largest, math.Abs(float64(v)))
		}
		peak := largest / math.Sqrt(squares/float64(len(values)))
		if len(x.Shape) == 2 && peak > 8 {
			o := inspect.Observation{Level: inspect.Notice, ID: "peak", Layer: x.Layer, Tensor: x.Name,
				Text: fmt.Sprintf("its largest element is %.1f times its root mean square", peak)}
			fmt.Printf("%s: %s: %s: %s\n", o.Level, o.ID, o.Tensor, o.Text)
		}
	}
	// Output:
	// notice: peak: model.layers.0.mlp.down_proj.weight: its largest element is 11.3 times its root mean square
}
