package verify_test

import (
	"context"
	"fmt"
	"log"

	"dsmoe/convert/checkpoint"
	"dsmoe/verify"
	"dsmoe/verify/pack"
)

// A checkpoint is compared with what the reference Python computed.
func Example() {
	c, err := checkpoint.Open("../fixtures/v1-base/checkpoint")
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close()
	golden, err := pack.Open("../fixtures/v1-base/golden-f32")
	if err != nil {
		log.Fatal(err)
	}
	r, err := verify.Run(context.Background(), c.Config, c, golden, verify.Options{})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(r.Verdict, r.FirstDivergence == nil, len(r.Checks) > 0)
	// Output: pass true true
}
